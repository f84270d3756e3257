"""``ftstanctl ft``: look at a fault-tolerant group over NATS and steer it (``docs/ftstanctl.md``).

Nothing here decides who owns a datastore: members are asked, and each decides for itself. What
changes something is sealed with the datastore's ``admin.key``.

Exit status of every command: 0 done (``status``: healthy), 1 refused (``status``: degraded), 2
nobody serves, 3 it could not be asked or carried out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ftstan.admin.protocol import MAX_HISTORY, EpochEntry, Request, Verb
from ftstan.admin.signing import plain
from ftstan.base.errors import NatsError, RefusedError, StoreError
from ftstan.base.states import NodeState
from ftstan.cli import contexts
from ftstan.cli.admin_client import (
    UnservedError,
    claimed,
)
from ftstan.cli.confirming import confirm
from ftstan.cli.ft_group import Group, with_group
from ftstan.cli.ft_status import status
from ftstan.cli.terminal import complain, print_json, print_table, say, time_of
from ftstan.cli.words.servers import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_UNSERVED,
)
from ftstan.ft.health import find_active, find_standby, find_successor, name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ftstan.base.states import NodeStatus

_LOOK_EVERY_S = 0.1


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


# ---- switchover
# --------------------------------------------------------------------------------------------------


def _switchover(arguments: argparse.Namespace) -> int:
    def plan(group: Group, active: NodeStatus, request: Request) -> int:
        group.change(arguments, active, request)
        if arguments.output == "json":
            print_json({"from": active.server, "planned_ns": request.at_ns})
        elif request.at_ns:
            say(
                f"{name(active)} hands over at {time_of(request.at_ns)}, if it is active until then"
            )
        else:
            say(f"{name(active)}: the planned switchover is cancelled")
        return EXIT_DONE

    def work(group: Group) -> int:
        active, members = group.active()
        if arguments.cancel:
            return plan(group, active, Request(Verb.PLAN, by=claimed()))
        target = find_successor(members, active, arguments.to)
        when = f" at {time_of(arguments.at)}" if arguments.at else ""
        confirm(
            arguments,
            f"switch over from {name(active)} to {name(target) if target else 'any standby'}{when}",
            destroys=False,
        )
        if arguments.at:
            to = target.server if target else ""
            return plan(group, active, Request(Verb.PLAN, to=to, at_ns=arguments.at, by=claimed()))
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
            values: dict[str, object] = {
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

    return with_group(arguments, work)


def _wait_for_successor(group: Group, former: NodeStatus, deadline: float) -> NodeStatus | None:
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
    def work(group: Group) -> int:
        members = group.members_with(lambda node: node.state == NodeState.STANDBY)
        try:
            member = find_standby(members, arguments.node)
        except RefusedError:
            if verb is Verb.RESUME and _resumed_on_storage(arguments):
                return EXIT_DONE
            raise
        if verb is Verb.PAUSE:
            confirm(
                arguments,
                f"pause {name(member)}: it does not take over until it is resumed",
                destroys=False,
            )
        answer = group.change(arguments, member, Request(verb, by=claimed()))
        now = answer.status or member
        if arguments.output == "json":
            print_json(now.to_json())
        else:
            say(f"{name(now)}: {now.phase}")
        return EXIT_DONE

    return with_group(arguments, work)


def _resumed_on_storage(arguments: argparse.Namespace) -> bool:
    """End the pause that the datastore keeps of a member that does not run.

    Returns whether there was one. Raises ``StoreError``.
    """
    if not (arguments.dir and arguments.node):
        return False
    from ftstan.base.disk import LocalDisk  # noqa: PLC0415
    from ftstan.ft.pause import end_pause, is_paused  # noqa: PLC0415

    disk = LocalDisk()
    try:
        root = disk.open_dir(arguments.dir)
    except OSError as error:
        raise StoreError(
            f"datastore {arguments.dir}: {error.strerror or error}",
            hint="give the directory that the servers have as -dir",
        ) from error
    try:
        if not is_paused(disk, root, arguments.node):
            return False
        end_pause(disk, root, arguments.node)
    finally:
        disk.close(root)
    if arguments.output == "json":
        print_json({"name": arguments.node, "paused": False})
    else:
        say(f"{arguments.node}: does not run; it is not paused any more when it starts")
    return True


# ---- history
# --------------------------------------------------------------------------------------------------


def _history(arguments: argparse.Namespace) -> int:
    count = min(arguments.count, MAX_HISTORY)
    if arguments.dir:
        from ftstan.base.disk import LocalDisk  # noqa: PLC0415
        from ftstan.ft.history import open_history  # noqa: PLC0415

        return _print_history(arguments, open_history(LocalDisk(), arguments.dir, count))

    def work(group: Group) -> int:
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

    return with_group(arguments, work)


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
            entry.name or entry.server or "-",
            entry.host or "-",
            entry.pid or "-",
            "yes" if entry.mixed else "no",
            cause_text(entry),
        )
        for entry in entries
    ]
    print_table(
        ("epoch", "since", "for", "member", "host", "pid", "mixed", "why"),
        rows,
        right=("epoch", "for", "pid"),
    )
    return EXIT_DONE


def _span(entry: EpochEntry) -> str:
    """How long it served: until its last sign of life, else until the next epoch began."""
    until_ns = entry.ended_ns or entry.until_ns
    if not (entry.since_ns and until_ns):
        return "-"
    seconds = (until_ns - entry.since_ns) / 1e9
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

    def work(group: Group) -> int:
        active, _ = group.active()
        answer = group.change(arguments, active, Request(Verb.MIXED, on=on, by=claimed()))
        return _say_mixed(arguments, on=on, epoch=(answer.status or active).epoch, served=True)

    if not arguments.dir:
        return with_group(arguments, work)
    try:
        return with_group(arguments, work)
    except (UnservedError, NatsError):
        from ftstan.cli.store_owner import owning  # noqa: PLC0415
        from ftstan.ft.epoch_records import Cause  # noqa: PLC0415

        if arguments.word == "on":
            _refuse_moved(arguments.dir)
        # Nobody to be asked: the lock says whether somebody serves all the same.
        with owning(arguments.dir, cause=Cause.MIXED_SWITCHED, ft_mixed=on) as (owner, _):
            return _say_mixed(arguments, on=on, epoch=owner.activation.epoch)


def _refuse_moved(directory: str) -> None:
    """Raise ``RefusedError`` if a channel of the datastore has moved, ``StoreError``."""
    from ftstan.base.disk import LocalDisk  # noqa: PLC0415
    from ftstan.stores.file.log.moved_mark import MIXED, MIXED_HINT, moved_in  # noqa: PLC0415

    disk = LocalDisk()
    try:
        root = disk.open_dir(directory)
        try:
            moved = moved_in(disk, root)
        finally:
            disk.close(root)
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error.strerror or error}") from error
    if moved:
        raise RefusedError(MIXED.format(name=moved[0]), hint=MIXED_HINT)


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
    "status": status,
    "switchover": _switchover,
    "pause": _pause,
    "resume": _resume,
    "history": _history,
    "mixed": _mixed,
}
