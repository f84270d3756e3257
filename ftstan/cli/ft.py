"""``ftstanctl ft``: look at a fault-tolerant group over NATS and steer it (``docs/ftstanctl.md``).

Nothing here decides who owns a datastore: members are asked, and each decides for itself. What changes something is
sealed with the datastore's ``admin.key``.

Exit status of every command: 0 done (``status``: healthy), 1 refused (``status``: degraded), 2 nobody serves, 3 it
could not be asked or carried out.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import secrets
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.cli.owning import owning
from ftstan.cli.terminal import complain, print_json, print_table, time_of
from ftstan.clock import SystemClock
from ftstan.disk import LocalDisk
from ftstan.errors import ConfigError, FtstanError, NatsError, RefusedError, StoreError, WireError
from ftstan.ft.adminkey import KEY_NAME, read_key
from ftstan.ft.ctl import (
    MAX_HISTORY,
    Answer,
    EpochEntry,
    NodeStatus,
    Request,
    Verb,
    decode_answer,
    encode_who,
)
from ftstan.ft.health import find_active, find_standby, find_successor, judge, name
from ftstan.ft.history import cause_text, open_history
from ftstan.ft.seal import NONCE_SIZE, Recipient, plain, seal
from ftstan.ft.slots import Cause
from ftstan.ft.subjects import control_subject, group_subject
from ftstan.nats.request import Asker, asking
from ftstan.nats.url import Login

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Sequence

EXIT_DONE = 0
EXIT_REFUSED = 1
EXIT_UNSERVED = 2
EXIT_CANNOT_ASK = 3

_SERVER_VARIABLE = "FTSTAN_SERVER"
_DEFAULT_SERVER = "nats://127.0.0.1:4222"
_DEFAULT_CLUSTER = "test-cluster"
_LOOK_EVERY_S = 0.1
_ANSWER_S = 15.0
"""A member bounds what it waits for itself; this is for one that is gone."""


# ---- words -----------------------------------------------------------------------------------------------------------


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    commands = parser.add_subparsers(title="commands", dest="verb", required=True, metavar="<command>")
    for verb, text, _ in _COMMANDS:
        _common(commands.add_parser(verb, help=text, description=text))
    added = commands.choices
    added["status"].add_argument("--expect", type=_count, default=0, metavar="N", help="how many members there are")
    added["switchover"].add_argument(
        "--to", default="", metavar="NODE", help="the successor: its server id or the beginning of it, or its host"
    )
    added["switchover"].add_argument(
        "--wait", type=_seconds, default=30.0, metavar="SECONDS", help="for the successor to serve (default 30)"
    )
    for verb in ("pause", "resume"):
        added[verb].add_argument("node", nargs="?", default="", metavar="NODE", help="default: the only standby")
    added["mixed"].add_argument("word", choices=("on", "off"), help="whether original servers may be members")
    added["history"].add_argument(
        "--count", type=_count, default=20, metavar="N", help=f"newest epochs (default 20, at most {MAX_HISTORY})"
    )
    added["history"].add_argument("--dir", metavar="DIR", help="read it from the datastore, and ask nobody")
    for verb in ("switchover", "pause", "resume", "mixed"):
        added[verb].add_argument("--dir", metavar="DIR", help=f"the datastore, for its {KEY_NAME}")
        added[verb].add_argument("--admin-key", metavar="FILE", help=f"a copy of the datastore's {KEY_NAME}")


def _common(parser: argparse.ArgumentParser) -> None:
    server = os.environ.get(_SERVER_VARIABLE) or _DEFAULT_SERVER
    # Not as the default that is shown: the variable may hold a password.
    parser.add_argument(
        "--server",
        default=server,
        metavar="URL",
        help=f"NATS server, or several with commas (default: ${_SERVER_VARIABLE}, else {_DEFAULT_SERVER})",
    )
    parser.add_argument("--cluster", default=_DEFAULT_CLUSTER, metavar="ID", help=f"-cid (default {_DEFAULT_CLUSTER})")
    parser.add_argument("--group", default="", metavar="NAME", help="-ft_group of the members")
    parser.add_argument("--user", default="", metavar="USER", help="for the NATS server, with --pass")
    parser.add_argument("--pass", default="", dest="password", metavar="PASSWORD")
    parser.add_argument("--auth", default="", dest="token", metavar="TOKEN", help="instead of --user and --pass")
    parser.add_argument(
        "--timeout", type=_seconds, default=1.0, metavar="SECONDS", help="how long answers are waited for (default 1)"
    )
    parser.add_argument("--output", choices=("table", "json"), default="table", help="default: table")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise ValueError
    return value


_count.__name__, _seconds.__name__ = "number", "duration in seconds"  # what argparse calls a wrong value


def run(arguments: argparse.Namespace) -> int:
    """Carry out one sub-command; returns the exit status. Raises ``FtstanError``."""
    command = next(command for verb, _, command in _COMMANDS if verb == arguments.verb)
    try:
        return command(arguments)
    except RefusedError as error:
        return complain(error, EXIT_REFUSED)
    except _UnservedError as error:
        return complain(error, EXIT_UNSERVED)


class _UnservedError(FtstanError):
    """Nobody serves, so that nobody can be asked."""


# ---- asking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """The group that is asked, through ``asker``."""

    asker: Asker
    cluster: str
    name: str
    timeout: float

    async def members(
        self, seconds: float | None = None, enough: Callable[[list[NodeStatus]], bool] = lambda _: False
    ) -> list[NodeStatus]:
        """Every member that answers, by host and server id; sooner if ``enough``."""
        answers = await self.asker.ask_all(
            group_subject(self.cluster, self.name),
            encode_who(),
            self.timeout if seconds is None else seconds,
            enough=lambda payloads: enough(_members(payloads)),
        )
        return _members(answers)

    async def ask(self, member: NodeStatus, payload: bytes) -> Answer:
        """One member's answer. Raises ``RefusedError`` if it says no, ``NatsError`` if it says nothing."""
        data = await self.asker.ask(control_subject(self.cluster, member.server), payload, _ANSWER_S)
        if data is None:
            raise NatsError(f"{name(member)} did not answer", hint="see ftstanctl ft status; it may have stopped")
        answer = decode_answer(data)
        if not answer.ok:
            raise RefusedError(f"{name(member)}: {answer.error}", hint=answer.hint)
        return answer

    async def change(self, arguments: argparse.Namespace, member: NodeStatus, request: Request) -> Answer:
        """The same for what changes something."""
        key = _key(arguments)
        now = SystemClock().wall_ns()
        nonce = secrets.token_bytes(NONCE_SIZE)
        return await self.ask(
            member, seal(request, Recipient(self.cluster, member.server), key=key, now_ns=now, nonce=nonce)
        )

    async def active(self) -> tuple[NodeStatus, list[NodeStatus]]:
        """The member that serves, and all members. Raises ``_UnservedError``."""
        members = await self.members()
        active = find_active(members)
        if active is None:
            problem = judge(members).problems[0]
            raise _UnservedError(
                f"group {self.name} of cluster {self.cluster}: {problem}",
                hint="see ftstanctl ft status; check --server, --cluster and --group",
            )
        return active, members


def _members(payloads: Sequence[bytes]) -> list[NodeStatus]:
    found: dict[str, NodeStatus] = {}
    for payload in payloads:
        try:
            answer = decode_answer(payload)
        except WireError:
            # Anybody can send to an inbox: what is no status is nobody's.
            continue
        if answer.status is not None:
            found[answer.status.server] = answer.status
    return sorted(found.values(), key=lambda node: (node.host, node.server))


def _with_group(arguments: argparse.Namespace, work: Callable[[_Group], Coroutine[None, None, int]]) -> int:
    if not arguments.group:
        raise ConfigError("which group?", hint="give --group the members' -ft_group")

    async def main() -> int:
        login = Login(arguments.user, arguments.password, arguments.token)
        async with asking(arguments.server, login, seconds=arguments.timeout) as asker:
            return await work(_Group(asker, arguments.cluster, arguments.group, arguments.timeout))

    return asyncio.run(main())


def _key(arguments: argparse.Namespace) -> bytes:
    """The group's key from where the operator says that it is. Raises ``ConfigError`` and ``StoreError``."""
    if arguments.admin_key:
        folder, file = os.path.split(os.path.abspath(arguments.admin_key))
    elif arguments.dir:
        folder, file = arguments.dir, KEY_NAME
    else:
        raise ConfigError(
            f"changing a group takes the {KEY_NAME} of its datastore",
            hint=f"give --dir the datastore, or --admin-key a copy of its {KEY_NAME}",
        )
    disk = LocalDisk()
    try:
        directory = disk.open_dir(folder)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror or error}", hint="check --dir or --admin-key") from error
    try:
        key = read_key(disk, directory, file)
    finally:
        disk.close(directory)
    if key is None:
        raise StoreError(f"{os.path.join(folder, file)} does not exist", hint="a datastore's first active makes it")
    return key


def _by() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


# ---- status ----------------------------------------------------------------------------------------------------------


def _status(arguments: argparse.Namespace) -> int:
    async def work(group: _Group) -> int:
        expect = arguments.expect
        members = await group.members(enough=lambda found: 0 < expect <= len(found))
        verdict = judge(members, expect)
        if arguments.output == "json":
            print_json(
                {
                    "cluster": group.cluster,
                    "group": group.name,
                    "health": verdict.health.name.lower(),
                    "problems": list(verdict.problems),
                    "nodes": [member.to_json() for member in members],
                }
            )
        else:
            if members:
                _print_members(members)
            print(": ".join(filter(None, [verdict.health.name.lower(), "; ".join(verdict.problems)])))
        return int(verdict.health)

    return _with_group(arguments, work)


_STATUS_HEADS = (
    "server",
    "host",
    "pid",
    "state",
    "phase",
    "epoch",
    "probe",
    "holder",
    "store",
    "lag",
    "mixed",
    "version",
)


def _print_members(members: Sequence[NodeStatus]) -> None:
    rows = [
        (
            node.server,
            node.host,
            node.pid,
            node.state,
            node.phase,
            node.epoch or "-",
            "-" if node.probe_age is None else f"{node.probe_age:.1f} s",
            f"epoch {node.holder_epoch}" if node.holder_epoch else "-",
            node.store_id[:8] or "-",
            "-" if node.warm_lag is None else f"{node.warm_lag.messages} msgs, {node.warm_lag.channels} channels",
            "yes" if node.mixed else "no",
            node.version,
        )
        for node in members
    ]
    print_table(_STATUS_HEADS, rows, right=("pid", "epoch", "probe"))


# ---- switchover ------------------------------------------------------------------------------------------------------


def _switchover(arguments: argparse.Namespace) -> int:
    async def work(group: _Group) -> int:
        active, members = await group.active()
        target = find_successor(members, active, arguments.to)
        request = Request(Verb.SWITCHOVER, to=target.server if target else "", by=_by())
        began = time.monotonic()
        await group.change(arguments, active, request)
        successor = await _wait_for_successor(group, active, began + arguments.wait)
        took = time.monotonic() - began
        if successor is None:
            raise _UnservedError(
                f"{name(active)} has handed over, and nobody has served within {arguments.wait:g} s",
                hint="see ftstanctl ft status and the members' logs",
            )
        if arguments.output == "json":
            values = {
                "from": active.server,
                "to": successor.server,
                "epoch": successor.epoch,
                "seconds": round(took, 3),
            }
            print_json(values)
        else:
            print(f"{name(successor)} serves since {took:.3f} s after the request (epoch {successor.epoch})")
        if target is not None and successor.server != target.server:
            raise RefusedError(
                f"{name(successor)} serves, not {name(target)}", hint=f"read the log of {name(target)} for why"
            )
        return EXIT_DONE

    return _with_group(arguments, work)


async def _wait_for_successor(group: _Group, former: NodeStatus, deadline: float) -> NodeStatus | None:
    def successor(members: Sequence[NodeStatus]) -> NodeStatus | None:
        active = find_active(members)
        return active if active is not None and active.epoch > former.epoch and active.server != former.server else None

    while time.monotonic() < deadline:
        members = await group.members(_LOOK_EVERY_S, enough=lambda found: successor(found) is not None)
        if (found := successor(members)) is not None:
            return found
        # Nobody at all listens: the question comes back at once.
        await asyncio.sleep(_LOOK_EVERY_S / 4)
    return None


# ---- pause, resume ---------------------------------------------------------------------------------------------------


def _pause(arguments: argparse.Namespace) -> int:
    return _hold(arguments, Verb.PAUSE)


def _resume(arguments: argparse.Namespace) -> int:
    return _hold(arguments, Verb.RESUME)


def _hold(arguments: argparse.Namespace, verb: Verb) -> int:
    async def work(group: _Group) -> int:
        member = find_standby(await group.members(), arguments.node)
        answer = await group.change(arguments, member, Request(verb, by=_by()))
        status = answer.status or member
        if arguments.output == "json":
            print_json(status.to_json())
        else:
            print(f"{name(status)}: {status.phase}")
        return EXIT_DONE

    return _with_group(arguments, work)


# ---- history ---------------------------------------------------------------------------------------------------------


def _history(arguments: argparse.Namespace) -> int:
    count = min(arguments.count, MAX_HISTORY)
    if arguments.dir:
        return _print_history(arguments, open_history(LocalDisk(), arguments.dir, count))

    async def work(group: _Group) -> int:
        members = await group.members(enough=lambda found: find_active(found) is not None)
        if not members:
            raise _UnservedError(
                f"group {group.name} of cluster {group.cluster}: no member answered",
                hint="check --server, --cluster and --group; --dir reads it from the datastore",
            )
        # Every member can read it; the active is asked first because its storage answers.
        answer = await group.ask(find_active(members) or members[0], plain(Request(Verb.HISTORY, count=count)))
        return _print_history(arguments, answer.history)

    return _with_group(arguments, work)


def _print_history(arguments: argparse.Namespace, entries: Sequence[EpochEntry]) -> int:
    if arguments.output == "json":
        print_json({"epochs": [entry.to_json() for entry in entries]})
        return EXIT_DONE
    rows = [
        (
            entry.epoch,
            time_of(entry.since_ns),
            _span(entry),
            entry.server or "-",
            entry.host or "-",
            entry.pid or "-",
            "yes" if entry.mixed else "no",
            cause_text(entry),
        )
        for entry in entries
    ]
    print_table(("epoch", "since", "for", "server", "host", "pid", "mixed", "why"), rows, right=("epoch", "for", "pid"))
    return EXIT_DONE


def _span(entry: EpochEntry) -> str:
    """How long until the next epoch began."""
    if not (entry.since_ns and entry.until_ns):
        return "-"
    seconds = (entry.until_ns - entry.since_ns) / 1e9
    if seconds < 0:
        # Two hosts whose clocks differ.
        return "?"
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, whole = divmod(rest, 60)
    if days:
        return f"{days}d{hours}h{minutes}m"
    if hours:
        return f"{hours}h{minutes}m{whole}s"
    return f"{minutes}m{whole}s" if minutes else f"{seconds:.1f}s"


# ---- mixed -----------------------------------------------------------------------------------------------------------


def _mixed(arguments: argparse.Namespace) -> int:
    on = arguments.word == "on"

    async def work(group: _Group) -> int:
        active, _ = await group.active()
        answer = await group.change(arguments, active, Request(Verb.MIXED, on=on, by=_by()))
        return _say_mixed(arguments, on=on, epoch=(answer.status or active).epoch)

    if not arguments.dir:
        return _with_group(arguments, work)
    try:
        return _with_group(arguments, work)
    except (_UnservedError, NatsError):
        # Nobody to be asked: the lock says whether somebody serves all the same.
        with owning(arguments.dir, cause=Cause.MIXED_SWITCHED, ft_mixed=on) as (owner, _):
            return _say_mixed(arguments, on=on, epoch=owner.activation.epoch)


def _say_mixed(arguments: argparse.Namespace, *, on: bool, epoch: int) -> int:
    if arguments.output == "json":
        print_json({"mixed": on, "epoch": epoch})
    else:
        print(f"mixed group: {'on' if on else 'off'}, recorded with epoch {epoch}")
    return EXIT_DONE


_COMMANDS = (
    ("status", "show each member, and whether the group is healthy", _status),
    ("switchover", "hand over to a standby, and wait until it serves", _switchover),
    ("pause", "keep a standby from taking over, until resume or its restart", _pause),
    ("resume", "end a pause", _resume),
    ("history", "show who owned the datastore, since when, and why", _history),
    ("mixed", "say whether original servers may be members", _mixed),
)
