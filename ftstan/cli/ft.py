"""``ftstanctl ft``: look at a fault-tolerant group over NATS and steer it (``docs/ftstanctl.md``).

Nothing here decides who owns a datastore: members are asked, and each decides for itself. What
changes something is sealed with the datastore's ``admin.key``.

Exit status of every command: 0 done (``status``: healthy), 1 refused (``status``: degraded), 2
nobody serves, 3 it could not be asked or carried out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.admin.protocol import MAX_HISTORY, EpochEntry, Request, Verb
from ftstan.admin.signing import plain
from ftstan.base.errors import ConfigError, NatsError, RefusedError
from ftstan.base.states import NodeState
from ftstan.cli import contexts
from ftstan.cli.admin_client import (
    BUSY_S,
    Asked,
    UnservedError,
    claimed,
)
from ftstan.cli.connecting import link_options
from ftstan.cli.terminal import complain, print_json, print_table, say, time_of
from ftstan.cli.words.servers import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_UNSERVED,
)
from ftstan.ft.health import Health, find_active, find_standby, find_successor, judge, name
from ftstan.ft.subjects import group_subject

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from ftstan.base.states import NodeStatus

_LOOK_EVERY_S = 0.1
_AGAIN_S = 1.0
_PAUSE_S = 0.1


# ---- words
# --------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> int:
    """Carry out one sub-command; returns the exit status. Raises ``FtstanError``."""
    command = _COMMANDS[arguments.verb]
    contexts.fill(arguments)
    try:
        return command(arguments)
    except RefusedError as error:
        return complain(error, EXIT_REFUSED)
    except UnservedError as error:
        return complain(error, EXIT_UNSERVED)


# ---- asking
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group(Asked):
    """The group that is asked."""

    name: str

    def expected(self, number: int) -> list[NodeStatus]:
        """The same, but asks again until so many have answered: one may only just have started."""
        deadline = time.monotonic() + self.timeout
        while True:
            left = deadline - time.monotonic()
            members = self.members(min(left, _AGAIN_S), lambda found: len(found) >= number)
            if len(members) >= number or left <= _AGAIN_S:
                return members
            time.sleep(_PAUSE_S)

    def members(
        self,
        seconds: float | None = None,
        enough: Callable[[list[NodeStatus]], bool] = lambda _: False,
        complete: Callable[[list[NodeStatus]], bool] = lambda _: False,
    ) -> list[NodeStatus]:
        """Every member that answers, by host and server id; sooner as ``who`` says."""
        return self.who(group_subject(self.cluster, self.name), seconds, enough, complete)

    def members_with(self, wanted: Callable[[NodeStatus], bool]) -> list[NodeStatus]:
        """Every member; if none of them is ``wanted``, whoever answers a second, longer question:
        hosts may be busy.
        """
        members = self.members()
        if not any(map(wanted, members)):
            members = self.members(BUSY_S, lambda found: any(map(wanted, found)))
        return members

    def active(self) -> tuple[NodeStatus, list[NodeStatus]]:
        """The member that serves, and all members. Raises ``UnservedError``."""
        members = self.members_with(lambda node: node.owns_store)
        active = find_active(members)
        if active is None:
            problem = judge(members).problems[0]
            raise UnservedError(
                f"group {self.name} of cluster {self.cluster}: {problem}",
                hint="see ftstanctl ft status; check --server, --cluster and --group",
            )
        return active, members


def _with_group(arguments: argparse.Namespace, work: Callable[[_Group], int]) -> int:
    if not arguments.group:
        raise ConfigError("which group?", hint="give --group the members' -ft_group")

    # Late, here and below: words and help need no client of NATS, and no store.
    from ftstan.nats.request import asking  # noqa: PLC0415

    with asking(arguments.server, link_options(arguments), seconds=arguments.timeout) as asker:
        return work(_Group(asker, arguments.cluster, arguments.timeout, arguments.group))


# ---- status
# --------------------------------------------------------------------------------------------------


def _status(arguments: argparse.Namespace) -> int:
    def work(group: _Group) -> int:
        expect = arguments.expect
        # A healthy group that has told all of it at once need not be waited for any longer. Who
        # counts on a number of members says so.
        members = group.expected(expect) if expect else group.members(complete=_is_healthy)
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
            say(": ".join(filter(None, [verdict.health.name.lower(), "; ".join(verdict.problems)])))
        return int(verdict.health)

    return _with_group(arguments, work)


def _is_healthy(members: Sequence[NodeStatus]) -> bool:
    return judge(members).health is Health.HEALTHY


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
            "-"
            if node.warm_lag is None
            else f"{node.warm_lag.messages} msgs, {node.warm_lag.seconds:.1f} s",
            _mixed_word(node),
            node.version,
        )
        for node in members
    ]
    print_table(_STATUS_HEADS, rows, right=("pid", "epoch", "probe"))


def _mixed_word(node: NodeStatus) -> str:
    """Standbys have no files to make fit."""
    if node.mixed and node.serving and not node.fit:
        return "not yet"
    return "yes" if node.mixed else "no"


# ---- switchover
# --------------------------------------------------------------------------------------------------


def _switchover(arguments: argparse.Namespace) -> int:
    def work(group: _Group) -> int:
        active, members = group.active()
        target = find_successor(members, active, arguments.to)
        request = Request(Verb.SWITCHOVER, to=target.server if target else "", by=claimed())
        began = time.monotonic()
        group.change(arguments, active, request)
        successor = _wait_for_successor(group, active, began + arguments.wait)
        took = time.monotonic() - began
        if successor is None:
            raise UnservedError(
                f"{name(active)} has handed over, and nobody has served within "
                f"{arguments.wait:g} s",
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
            say(
                f"{name(successor)} serves since {took:.3f} s after the request (epoch "
                f"{successor.epoch})"
            )
        if target is not None and successor.server != target.server:
            raise RefusedError(
                f"{name(successor)} serves, not {name(target)}",
                hint=f"read the log of {name(target)} for why",
            )
        return EXIT_DONE

    return _with_group(arguments, work)


def _wait_for_successor(group: _Group, former: NodeStatus, deadline: float) -> NodeStatus | None:
    def successor(members: Sequence[NodeStatus]) -> NodeStatus | None:
        active = find_active(members)
        return (
            active
            if active is not None and active.epoch > former.epoch and active.server != former.server
            else None
        )

    problem: NatsError | None = None
    while time.monotonic() < deadline:
        try:
            members = group.members(
                _LOOK_EVERY_S, enough=lambda found: successor(found) is not None
            )
        except NatsError as error:
            # It was the former active's own and ended with it: it comes back, or another one that
            # was named answers.
            problem = error
            members = []
        else:
            problem = None
        if (found := successor(members)) is not None:
            return found
        # Nobody at all listens: the question comes back at once.
        time.sleep(_LOOK_EVERY_S / 4)
    if problem is not None:
        raise problem
    return None


# ---- pause, resume
# --------------------------------------------------------------------------------------------------


def _pause(arguments: argparse.Namespace) -> int:
    return _hold(arguments, Verb.PAUSE)


def _resume(arguments: argparse.Namespace) -> int:
    return _hold(arguments, Verb.RESUME)


def _hold(arguments: argparse.Namespace, verb: Verb) -> int:
    def work(group: _Group) -> int:
        member = find_standby(
            group.members_with(lambda node: node.state == NodeState.STANDBY), arguments.node
        )
        answer = group.change(arguments, member, Request(verb, by=claimed()))
        status = answer.status or member
        if arguments.output == "json":
            print_json(status.to_json())
        else:
            say(f"{name(status)}: {status.phase}")
        return EXIT_DONE

    return _with_group(arguments, work)


# ---- history
# --------------------------------------------------------------------------------------------------


def _history(arguments: argparse.Namespace) -> int:
    count = min(arguments.count, MAX_HISTORY)
    if arguments.dir:
        from ftstan.base.disk import LocalDisk  # noqa: PLC0415
        from ftstan.ft.history import open_history  # noqa: PLC0415

        return _print_history(arguments, open_history(LocalDisk(), arguments.dir, count))

    def work(group: _Group) -> int:
        members = group.members(enough=lambda found: find_active(found) is not None)
        if not members:
            raise UnservedError(
                f"group {group.name} of cluster {group.cluster}: no member answered",
                hint="check --server, --cluster and --group; --dir reads it from the datastore",
            )
        # Every member can read it; the active is asked first because its storage answers.
        answer = group.ask(
            find_active(members) or members[0], plain(Request(Verb.HISTORY, count=count))
        )
        return _print_history(arguments, answer.history)

    return _with_group(arguments, work)


def _print_history(arguments: argparse.Namespace, entries: Sequence[EpochEntry]) -> int:
    if arguments.output == "json":
        print_json({"epochs": [entry.to_json() for entry in entries]})
        return EXIT_DONE
    from ftstan.ft.history import cause_text  # noqa: PLC0415

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
    print_table(
        ("epoch", "since", "for", "server", "host", "pid", "mixed", "why"),
        rows,
        right=("epoch", "for", "pid"),
    )
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


# ---- mixed
# --------------------------------------------------------------------------------------------------


def _mixed(arguments: argparse.Namespace) -> int:
    on = arguments.word == "on"

    def work(group: _Group) -> int:
        active, _ = group.active()
        answer = group.change(arguments, active, Request(Verb.MIXED, on=on, by=claimed()))
        return _say_mixed(arguments, on=on, epoch=(answer.status or active).epoch, served=True)

    if not arguments.dir:
        return _with_group(arguments, work)
    try:
        return _with_group(arguments, work)
    except (UnservedError, NatsError):
        from ftstan.cli.store_owner import owning  # noqa: PLC0415
        from ftstan.ft.epoch_records import Cause  # noqa: PLC0415

        # Nobody to be asked: the lock says whether somebody serves all the same.
        with owning(arguments.dir, cause=Cause.MIXED_SWITCHED, ft_mixed=on) as (owner, _):
            return _say_mixed(arguments, on=on, epoch=owner.activation.epoch)


def _say_mixed(arguments: argparse.Namespace, *, on: bool, epoch: int, served: bool = False) -> int:
    if arguments.output == "json":
        print_json({"mixed": on, "epoch": epoch})
    else:
        say(f"mixed group: {'on' if on else 'off'}, recorded with epoch {epoch}")
        if on and served:
            say(
                "an original server can follow as soon as ftstanctl ft status shows yes under MIXED"
            )
    return EXIT_DONE


_COMMANDS = {
    "status": _status,
    "switchover": _switchover,
    "pause": _pause,
    "resume": _resume,
    "history": _history,
    "mixed": _mixed,
}
