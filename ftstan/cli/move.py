"""``ftstanctl channel move``: a channel goes to another partition, while its publishers go on.

This command gives both servers the word to begin, and then looks on: the target drives the move, so
that it goes on when this command is killed. Given again it looks on again, or begins anew what has
failed. Described in ``docs/partitioning.md``.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING, Any, Final

from ftstan.admin.protocol import Request, Verb
from ftstan.base.errors import ConfigError, NatsError, RefusedError
from ftstan.base.sizes import count_of, size_of
from ftstan.cli.admin_client import claimed
from ftstan.cli.confirming import confirm
from ftstan.cli.terminal import complain, print_json, print_table, say, visible
from ftstan.cli.words.servers import EXIT_DONE, EXIT_REFUSED
from ftstan.config.units import format_duration
from ftstan.ft.health import name as server_name
from ftstan.ft.moves import Step

if TYPE_CHECKING:
    from ftstan.base.states import NodeStatus
    from ftstan.cli.admin_servers import Servers

Row = dict[str, Any]

_LOOK_EVERY_S: Final = 0.3
_TELL_EVERY_S: Final = 2.0
#: How long an attempt may fail, again and again for one reason, before this command gives up.
_PATIENCE_S: Final = 60.0


def run(arguments: argparse.Namespace, servers: Servers) -> int:
    """Carry it out; returns the exit status. Raises ``FtstanError``."""
    if arguments.status:
        return _status(arguments, servers)
    if not arguments.name:
        raise ConfigError("which channel?", hint="ftstanctl channel move CHANNEL --to SERVER")
    if arguments.undo:
        return _undo(arguments, servers)
    if arguments.remove_copy:
        return _remove_copy(arguments, servers)
    if not arguments.to:
        raise ConfigError("to which server?", hint="--to SERVER: ftstanctl server ls shows them")
    return _move(arguments, servers)


# ---- looking
# --------------------------------------------------------------------------------------------------


def _moves(servers: Servers, name: str = "") -> list[tuple[NodeStatus, Row]]:
    """What every server that serves says of moves, of one channel if one is named."""
    return [
        (server, row)
        for server in servers.serving()
        for row in servers.rows(Request(Verb.MOVES), server)
        if not name or row["name"] == name
    ]


def _status(arguments: argparse.Namespace, servers: Servers) -> int:
    found = _moves(servers, arguments.name)
    if arguments.output == "json":
        print_json({"moves": [{"server": server_name(one), **row} for one, row in found]})
        return EXIT_DONE
    cells = [
        (
            row["name"],
            server_name(one),
            row["side"],
            row["step"] + (" (frozen)" if row["frozen"] else ""),
            row["peer"],
            row["copied"],
            row["of"],
            "yes" if row["listed"] else "no",
            row["error"] or "-",
        )
        for one, row in found
    ]
    heads = ("channel", "server", "side", "step", "other server", "copied", "of", "listed", "error")
    print_table(heads, cells, right=heads[5:7])
    return EXIT_DONE


# ---- moving
# --------------------------------------------------------------------------------------------------


def _move(arguments: argparse.Namespace, servers: Servers) -> int:
    target = servers.named(arguments.to)
    shown = visible(arguments.name)
    known = [row for one, row in _moves(servers, arguments.name) if one.server == target.server]
    if known and known[0]["step"] == Step.TAKEN:
        return _tell_done(arguments, servers, target, known[0])
    source = _owner(arguments, servers, target)
    if source is not None and source.server == target.server:
        return _tell_there(arguments, servers, target)
    if source is not None:
        row = _ask(arguments, servers, source, target, Verb.MOVE_OUT)
        if row["step"] != Step.GONE:
            _ask(arguments, servers, target, source, Verb.MOVE_IN)
            if arguments.dry_run:
                return _tell_plan(arguments, row, source, target)
            words = f"{count_of(row['msgs'], 'message')} and {row['subscriptions']} subscriptions"
            confirm(arguments, f"move channel {shown} with {words} to {server_name(target)}")
            _begin(arguments, servers, source, target)
    elif not known:
        raise RefusedError(
            f"no server serves channel {shown}", hint="see ftstanctl channel ls, and --status"
        )
    if arguments.dry_run:
        say(f"channel {shown}: on its way to {server_name(target)}: see --status")
        return EXIT_DONE
    return _watch(arguments, servers, target)


def _tell_there(arguments: argparse.Namespace, servers: Servers, target: NodeStatus) -> int:
    """The target serves the channel: it may just have come there."""
    for _, row in _moves(servers, arguments.name):
        if row["step"] == Step.TAKEN:
            return _tell_done(arguments, servers, target, row)
    raise RefusedError(
        f"channel {visible(arguments.name)} is served by {server_name(target)}",
        hint="name another server",
    )


def _owner(
    arguments: argparse.Namespace, servers: Servers, target: NodeStatus
) -> NodeStatus | None:
    """The server that has the channel, or let it go for ``target``; ``None``: nobody says so."""
    try:
        return servers.one(Request(Verb.CHANNEL, name=arguments.name))[0]
    except RefusedError:
        for one, row in _moves(servers, arguments.name):
            if row["side"] == "source" and row["peer"] == server_name(target):
                return one
    return None


def _ask(
    arguments: argparse.Namespace,
    servers: Servers,
    server: NodeStatus,
    other: NodeStatus,
    verb: Verb,
    **more: Any,
) -> Row:
    request = Request(verb, name=arguments.name, to=server_name(other), by=claimed(), **more)
    key = _keyed(arguments) if verb is Verb.MOVE_IN else arguments
    answer = servers.change(key, server, request)
    return answer.rows[0]


def _begin(
    arguments: argparse.Namespace, servers: Servers, source: NodeStatus, target: NodeStatus
) -> None:
    words = {"transfer": os.urandom(16).hex(), "secret": os.urandom(32).hex(), "on": True}
    _ask(arguments, servers, source, target, Verb.MOVE_OUT, **words)
    _ask(arguments, servers, target, source, Verb.MOVE_IN, **words)


def _keyed(arguments: argparse.Namespace) -> argparse.Namespace:
    """The same, with the key of the target in the place of that of the source."""
    if not (arguments.to_dir or arguments.to_admin_key):
        return arguments
    words = vars(arguments) | {"dir": arguments.to_dir, "admin_key": arguments.to_admin_key}
    return argparse.Namespace(**words)


def _watch(arguments: argparse.Namespace, servers: Servers, target: NodeStatus) -> int:
    """Look on until the target serves the channel."""
    shown = visible(arguments.name)
    told_at = 0.0
    told = ""
    failing = ""
    failing_at = time.monotonic()
    while True:
        row = _row_at(arguments, servers)
        if row is not None and row["step"] == Step.TAKEN:
            return _tell_done(arguments, servers, target, row)
        now = time.monotonic()
        why = row["error"] if row is not None else f"{server_name(target)} does not answer"
        if why != failing:
            failing = why
            failing_at = now
        if why and now - failing_at > _PATIENCE_S:
            error = RefusedError(
                f"channel {shown} does not get to {server_name(target)}: {why}",
                hint="it goes on trying; ftstanctl channel move --status shows how far it is, and "
                "--undo takes it back",
            )
            return complain(error, EXIT_REFUSED)
        if row is not None and arguments.output != "json":
            text = f"channel {shown}: {row['step']}, {row['copied']} messages copied"
            text += f", up to {row['of']}" if row["of"] else ""
            text += f": {why}" if why else ""
            if text != told and now - told_at >= _TELL_EVERY_S:
                say(text)
                told = text
                told_at = now
        time.sleep(_LOOK_EVERY_S)


def _row_at(arguments: argparse.Namespace, servers: Servers) -> Row | None:
    """What the target says, or who has its datastore by now."""
    try:
        for _one, row in _moves(servers, arguments.name):
            if row["side"] == "target":
                return row
    except (NatsError, RefusedError):
        # It was started anew, or is just about to.
        return None
    return None


# ---- telling
# --------------------------------------------------------------------------------------------------


def _tell_plan(
    arguments: argparse.Namespace, row: Row, source: NodeStatus, target: NodeStatus
) -> int:
    if arguments.output == "json":
        print_json(
            {"channel": row, "from": server_name(source), "to": server_name(target), "done": False}
        )
        return EXIT_DONE
    say(f"channel {visible(arguments.name)} can move from {server_name(source)}")
    say(f"to {server_name(target)}:")
    say(f"  messages       {row['msgs']} ({size_of(row['bytes'])})")
    say(f"  sequences      {row['first_seq']} to {row['last_seq']}")
    say(f"  subscriptions  {row['subscriptions']}")
    _tell_lists(arguments.name, row["limits"], source, target)
    return EXIT_DONE


def _tell_done(
    arguments: argparse.Namespace, servers: Servers, target: NodeStatus, row: Row
) -> int:
    if arguments.output == "json":
        print_json({"channel": arguments.name, "to": server_name(target), "done": True, **row})
        return EXIT_DONE
    say(f"channel {visible(arguments.name)}: served by {server_name(target)}")
    left = [
        one
        for one, told in _moves(servers, arguments.name)
        if told["step"] == Step.GONE and not told["cleaned"]
    ]
    _tell_lists(arguments.name, row["limits"], left[0] if left else None, target)
    if left:
        say(
            f"its files at {server_name(left[0])} stay until: ftstanctl channel move "
            f"{arguments.name} --remove-copy"
        )
    return EXIT_DONE


def _tell_lists(
    name: str, limits: dict[str, int], source: NodeStatus | None, target: NodeStatus
) -> None:
    entry = f'"{visible(name)}": {{{_entry(limits)}}}'
    say("configuration, before the next restart of each (until then they remember it):")
    if source is not None:
        say(f"  {server_name(source)}: take out of channels: {entry.partition(':')[0]}")
    say(f"  {server_name(target)}: add to channels: {entry}")


def _entry(limits: dict[str, int]) -> str:
    """What an entry says, as one writes it."""
    said = []
    for field, value in limits.items():
        if value > 0:
            is_time = field in {"max_age", "max_inactivity"}
            said.append(f"{field}: {f'{format_duration(value)}' if is_time else value}")
    return f" {', '.join(said)} " if said else ""


# ---- back, and the rest
# --------------------------------------------------------------------------------------------------


def _undo(arguments: argparse.Namespace, servers: Servers) -> int:
    found = _moves(servers, arguments.name)
    targets = [(one, row) for one, row in found if row["step"] in {Step.COPYING, Step.READY}]
    under_way = {row["transfer"] for _, row in targets}
    sources = [
        one
        for one, row in found
        if row["step"] == Step.OFFERED
        or (row["step"] == Step.GONE and row["transfer"] in under_way)
    ]
    if not (sources or targets):
        # What an earlier move has left does not count while another one is under way.
        sources = [one for one, row in found if row["step"] == Step.GONE]
    if not (sources or targets):
        raise RefusedError(
            f"no move of channel {visible(arguments.name)} is under way",
            hint="ftstanctl channel move --status shows those that servers know of",
        )
    # The source first: it alone knows whether there is a way back.
    for one in sources:
        request = Request(Verb.MOVE_UNDO, name=arguments.name, by=claimed())
        answer = servers.change(arguments, one, request)
        _tell_undone(arguments, one, answer.note)
    for one, row in targets:
        force = bool(sources) or _is_taken_back(arguments, servers, one, row["transfer"])
        request = Request(Verb.MOVE_UNDO, name=arguments.name, force=force, by=claimed())
        answer = servers.change(_keyed(arguments), one, request)
        _tell_undone(arguments, one, answer.note)
    return EXIT_DONE


def _is_taken_back(
    arguments: argparse.Namespace, servers: Servers, target: NodeStatus, transfer: str
) -> bool:
    """Whether another server serves the channel and knows of no such move: it was taken back there,
    and nobody can let go of the channel for it any more.
    """
    try:
        owner = servers.one(Request(Verb.CHANNEL, name=arguments.name))[0]
    except RefusedError:
        return False
    known = {row["transfer"] for row in servers.rows(Request(Verb.MOVES), owner)}
    return owner.server != target.server and transfer not in known


def _tell_undone(arguments: argparse.Namespace, server: NodeStatus, note: str) -> None:
    if arguments.output == "json":
        print_json({"channel": arguments.name, "server": server_name(server), "done": note})
    else:
        say(f"channel {visible(arguments.name)}: {server_name(server)}: {note}")


def _remove_copy(arguments: argparse.Namespace, servers: Servers) -> int:
    found = _moves(servers, arguments.name)
    left = [(one, row) for one, row in found if row["step"] == Step.GONE and not row["cleaned"]]
    if not left:
        raise RefusedError(
            f"channel {visible(arguments.name)} has left nothing at another server",
            hint="ftstanctl channel move --status shows what servers know of",
        )
    taken = {row["transfer"] for _, row in found if row["step"] == Step.TAKEN}
    for one, row in left:
        is_taken = row["transfer"] in taken or bool(taken)
        confirm(
            arguments,
            f"remove what channel {visible(arguments.name)} has left at {server_name(one)}",
        )
        request = Request(Verb.MOVE_CLEAN, name=arguments.name, force=is_taken, by=claimed())
        answer = servers.change(arguments, one, request)
        _tell_undone(arguments, one, answer.note)
    return EXIT_DONE
