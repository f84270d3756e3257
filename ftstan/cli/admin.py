"""``ftstanctl channel``, ``client``, ``sub ls``, ``sub info``, ``server``: what is served, and what
to do about it.

Servers are asked over NATS and decide for themselves; what changes something is sealed with their
key, and what destroys something asks first. Exit statuses are those of ``ftstanctl ft``. Described
in ``docs/admin.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from ftstan.admin.protocol import Request, Verb
from ftstan.base.errors import RefusedError
from ftstan.base.sizes import count_of, size_of
from ftstan.cli import contexts
from ftstan.cli.admin_client import (
    UnservedError,
    claimed,
)
from ftstan.cli.admin_servers import Servers
from ftstan.cli.confirming import confirm
from ftstan.cli.connecting import link_options
from ftstan.cli.reports import channel_report, state_of, subscription_report
from ftstan.cli.terminal import (
    ago,
    complain,
    print_json,
    print_table,
    say,
    time_of,
    visible,
)
from ftstan.cli.words.servers import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_UNSERVED,
)
from ftstan.ft.health import name as server_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from ftstan.base.states import NodeStatus

Row = dict[str, Any]


# ---- channels
# --------------------------------------------------------------------------------------------------


def _channel_ls(arguments: argparse.Namespace, servers: Servers) -> int:
    rows = _channels_of(servers)
    rows.sort(key=lambda row: row["name"])
    if arguments.output == "names":
        return _print_names([row["name"] for row in rows])
    if arguments.output == "json":
        print_json({"channels": rows})
        return EXIT_DONE
    heads = ("channel", "messages", "bytes", "first", "last", "subscriptions", "state")
    cells = [
        (
            row["name"],
            row["msgs"],
            size_of(row["bytes"]),
            row["first_seq"],
            row["last_seq"],
            row["subscriptions"],
            _channel_state(row),
        )
        for row in rows
    ]
    print_table(heads, cells, right=heads[1:6])
    return EXIT_DONE


def _channel_report(arguments: argparse.Namespace, servers: Servers) -> int:
    subs = _subs_of(servers, Request(Verb.SUBS, ages=True))
    rows = channel_report(_channels_of(servers), subs)
    if arguments.output == "json":
        print_json({"channels": rows})
        return EXIT_DONE
    heads = (
        *("channel", "lag", "oldest unread", "last ack", "lost to limits", "stalled"),
        *("subscriptions", "messages", "bytes", "state"),
    )
    cells = [
        (
            *(row["name"], row["lag"]),
            *(ago(row["oldest_unread_age_s"]), ago(row["last_ack_age_s"])),
            *(row["lost_to_limits"], row["stalled"]),
            *(row["subscriptions"], row["msgs"], size_of(row["bytes"])),
            _channel_state(row),
        )
        for row in rows
    ]
    print_table(heads, cells, right=heads[1:9])
    return EXIT_DONE


def _channel_state(row: Row) -> str:
    # An older server does not know of moves.
    moved = row.get("moved", False)
    return "quarantined" if row["quarantined"] else "moved" if moved else "-"


def _channels_of(servers: Servers) -> list[Row]:
    return [
        row for server in servers.serving() for row in servers.rows(Request(Verb.CHANNELS), server)
    ]


def _channel_info(arguments: argparse.Namespace, servers: Servers) -> int:
    _, row = servers.one(Request(Verb.CHANNEL, name=arguments.name))
    return _print_one(arguments, "channel", row)


def _channel_create(arguments: argparse.Namespace, servers: Servers) -> int:
    refusal: RefusedError | None = None
    for server in servers.serving():
        request = Request(Verb.CREATE, name=arguments.name, by=claimed())
        answer = servers.hear(server, servers.sealed(arguments, server, request))
        if answer.ok:
            return _say(arguments, "channel", answer.note)
        if refusal is None or not answer.elsewhere:
            refusal = RefusedError(f"{server_name(server)}: {answer.error}", hint=answer.hint)
    assert refusal is not None
    raise refusal


def _channel_delete(arguments: argparse.Namespace, servers: Servers) -> int:
    server, row = servers.one(Request(Verb.CHANNEL, name=arguments.name))
    subscriptions = count_of(row["subscriptions"], "subscription")
    lost = f"{count_of(row['msgs'], 'message')} and {subscriptions}"
    confirm(arguments, f"delete channel {visible(arguments.name)} with {lost}")
    request = Request(Verb.DELETE, name=arguments.name, force=arguments.force, by=claimed())
    answer = servers.change(arguments, server, request)
    return _say(arguments, "channel", answer.note)


def _channel_purge(arguments: argparse.Namespace, servers: Servers) -> int:
    server, row = servers.one(Request(Verb.CHANNEL, name=arguments.name))
    words = f"all {count_of(row['msgs'], 'message')}"
    if arguments.keep:
        words = f"all but the newest {arguments.keep} of {count_of(row['msgs'], 'message')}"
    elif arguments.up_to:
        words = (
            f"the messages up to sequence {arguments.up_to} (there are {row['first_seq']} to "
            f"{row['last_seq']})"
        )
    confirm(arguments, f"purge {words} of channel {visible(arguments.name)}")
    request = Request(
        Verb.PURGE, name=arguments.name, keep=arguments.keep, up_to=arguments.up_to, by=claimed()
    )
    answer = servers.change(arguments, server, request)
    if arguments.output == "json":
        print_json({"channel": arguments.name, "done": answer.note, **answer.rows[0]})
        return EXIT_DONE
    return _say(arguments, "channel", answer.note)


def _channel_moved(arguments: argparse.Namespace, servers: Servers) -> int:
    server, row = servers.one(Request(Verb.CHANNEL, name=arguments.name))
    is_on = arguments.state == "on"
    if is_on:
        confirm(arguments, f"refuse publishes to channel {visible(arguments.name)}")
    request = Request(
        Verb.MOVED, name=arguments.name, on=is_on, client=arguments.mover, by=claimed()
    )
    answer = servers.change(arguments, server, request)
    if arguments.output == "json":
        print_json({"channel": row["name"], "moved": is_on, **answer.rows[0]})
        return EXIT_DONE
    return _say(arguments, "channel", answer.note)


def _channel_move(arguments: argparse.Namespace, servers: Servers) -> int:
    # Late: no other command of these needs it.
    from ftstan.cli import move  # noqa: PLC0415

    return move.run(arguments, servers)


def _channel_redrive(arguments: argparse.Namespace, servers: Servers) -> int:
    # Late: no other command of these needs a client.
    from ftstan.cli import redrive  # noqa: PLC0415

    _, row = servers.one(Request(Verb.CHANNEL, name=arguments.name))
    return redrive.run(arguments, row["last_seq"] if row["msgs"] else 0)


# ---- clients
# --------------------------------------------------------------------------------------------------


def _client_ls(arguments: argparse.Namespace, servers: Servers) -> int:
    found: dict[str, Row] = {}
    for server in servers.serving():
        for row in servers.rows(Request(Verb.CLIENTS), server):
            known = found.setdefault(row["id"], row)
            if known is not row:
                # Every partition knows every client, and the subscriptions to its own channels.
                known["subscriptions"] += row["subscriptions"]
    rows = [found[client_id] for client_id in sorted(found)]
    if arguments.output == "names":
        return _print_names([row["id"] for row in rows])
    if arguments.output == "json":
        print_json({"clients": rows})
        return EXIT_DONE
    cells = [
        (row["id"], row["subscriptions"], row["failed_heartbeats"], row["hb_inbox"]) for row in rows
    ]
    print_table(
        ("client", "subscriptions", "failed heartbeats", "heartbeat inbox"),
        cells,
        right=("subscriptions", "failed heartbeats"),
    )
    return EXIT_DONE


def _client_info(arguments: argparse.Namespace, servers: Servers) -> int:
    _, row = servers.one(Request(Verb.CLIENT, name=arguments.name))
    subs = _subs_of(servers, Request(Verb.SUBS, client=arguments.name))
    if arguments.output == "json":
        print_json({"client": row | {"subscriptions": subs}})
        return EXIT_DONE
    _print_fields(row | {"subscriptions": len(subs)})
    if subs:
        say()
        _print_subs(subs)
    return EXIT_DONE


def _client_kick(arguments: argparse.Namespace, servers: Servers) -> int:
    _, row = servers.one(Request(Verb.CLIENT, name=arguments.name))
    confirm(
        arguments,
        f"close client {visible(arguments.name)} and end its {row['subscriptions']} "
        "subscriptions or more",
    )
    notes = []
    refusal = None
    for server in servers.serving():
        request = Request(Verb.KICK, name=arguments.name, by=claimed())
        answer = servers.hear(server, servers.sealed(arguments, server, request))
        if answer.ok:
            notes.append(answer.note)
        else:
            refusal = RefusedError(f"{server_name(server)}: {answer.error}", hint=answer.hint)
    if refusal is not None:
        raise refusal
    return _say(arguments, "client", notes[0])


# ---- subscriptions
# --------------------------------------------------------------------------------------------------


def _subs_of(servers: Servers, request: Request) -> list[Row]:
    rows = [row for server in servers.serving() for row in servers.rows(request, server)]
    return sorted(rows, key=lambda row: (row["channel"], row["id"]))


def _sub_ls(arguments: argparse.Namespace, servers: Servers) -> int:
    rows = _subs_of(servers, Request(Verb.SUBS, name=arguments.channel, client=arguments.client))
    if arguments.output == "json":
        print_json({"subscriptions": rows})
    else:
        _print_subs(rows)
    return EXIT_DONE


def _sub_report(arguments: argparse.Namespace, servers: Servers) -> int:
    request = Request(Verb.SUBS, name=arguments.channel, client=arguments.client, ages=True)
    subs = _subs_of(servers, request)
    rows = subscription_report(_channels_of(servers), subs)
    if arguments.output == "json":
        print_json({"subscriptions": rows})
        return EXIT_DONE
    heads = (
        *("channel", "queue or durable", "client", "state", "lag", "unacknowledged"),
        *("oldest unread", "published", "last ack", "lost to limits"),
    )
    cells = [
        (
            *(row["channel"], row["queue_name"] or row["durable_name"] or "-"),
            *(row["client_id"] or "-", row["state"], row["lag"], row["pending_count"]),
            *(row["oldest_unread"] or "-", ago(row["oldest_unread_age_s"])),
            *(ago(row["last_ack_age_s"]), row["lost_to_limits"]),
        )
        for row in rows
    ]
    print_table(heads, cells, right=heads[4:])
    return EXIT_DONE


def _sub_info(arguments: argparse.Namespace, servers: Servers) -> int:
    _, row = servers.one(Request(Verb.SUB, name=arguments.channel, sub_id=arguments.id))
    if arguments.output == "json":
        return _print_one(arguments, "subscription", row)
    last_ack_ns = row.pop("last_ack_ns", 0)
    return _print_one(arguments, "subscription", row | {"last_ack": time_of(last_ack_ns)})


def _print_subs(rows: Sequence[Row]) -> None:
    cells = [
        (
            row["channel"],
            row["id"],
            row["client_id"] or "-",
            row["queue_name"] or row["durable_name"] or "-",
            state_of(row),
            row["last_sent"],
            row["pending_count"],
            row["max_inflight"],
        )
        for row in rows
    ]
    heads = (
        "channel",
        "id",
        "client",
        "queue or durable",
        "state",
        "last sent",
        "pending",
        "max in flight",
    )
    print_table(heads, cells, right=("id", "last sent", "pending", "max in flight"))


# ---- servers
# --------------------------------------------------------------------------------------------------


def _told_apart(found: Sequence[NodeStatus]) -> list[str]:
    """What each server can be called: its name, or its id where the name is not its alone."""
    names = Counter(node.name for node in found)
    return [node.name if node.name and names[node.name] == 1 else node.server for node in found]


def _server_ls(arguments: argparse.Namespace, servers: Servers) -> int:
    found = servers.everybody()
    if arguments.output == "names":
        return _print_names(_told_apart(found))
    if arguments.output == "json":
        print_json({"servers": [node.to_json() for node in found]})
        return EXIT_DONE
    cells = [
        (
            node.called,
            node.server,
            node.host or "-",
            node.pid,
            node.group or "-",
            node.state,
            node.phase,
            node.version,
        )
        for node in found
    ]
    print_table(
        ("member", "server", "host", "pid", "group", "state", "phase", "version"),
        cells,
        right=("pid",),
    )
    return EXIT_DONE


def _server_info(arguments: argparse.Namespace, servers: Servers) -> int:
    row = servers.named(arguments.server_word).to_json()
    if arguments.output == "json":
        return _print_one(arguments, "server", row)
    at_ns = row.pop("switchover_at_ns")
    return _print_one(arguments, "server", row | {"switchover_at": time_of(at_ns)})


def _server_reload(arguments: argparse.Namespace, servers: Servers) -> int:
    server = servers.named(arguments.server_word)
    answer = servers.change(arguments, server, Request(Verb.RELOAD, by=claimed()))
    return _say(arguments, "server", answer.note, server_name(server))


def _server_drain(arguments: argparse.Namespace, servers: Servers) -> int:
    server = servers.named(arguments.server_word)
    confirm(arguments, f"drain {server_name(server)}: it leaves for good")
    answer = servers.change(arguments, server, Request(Verb.DRAIN, by=claimed()))
    return _say(arguments, "server", answer.note, server_name(server))


# ---- what operators see
# ----------------------------------------------------------------------------------------------


def _say(arguments: argparse.Namespace, what: str, note: str, named: str = "") -> int:
    """What was done, in a line."""
    named = named or arguments.name
    if arguments.output == "json":
        print_json({what: named, "done": note})
    else:
        say(f"{what} {named}: {note}")
    return EXIT_DONE


def _print_names(names: Sequence[str]) -> int:
    for one in names:
        say(one)
    return EXIT_DONE


def _print_one(arguments: argparse.Namespace, what: str, row: Row) -> int:
    if arguments.output == "json":
        print_json({what: row})
    else:
        _print_fields(row)
    return EXIT_DONE


def _print_fields(row: Row) -> None:
    width = max(map(len, row))
    for field, value in row.items():
        told = size_of(value) if field == "bytes" else _told(value)
        say(f"{field:<{width}}  {told}")


def _told(value: object) -> str:
    """A value for people."""
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}" if math.isfinite(value) else "-"
        case dict():
            return ", ".join(f"{name} {_told(one)}" for name, one in value.items()) or "-"
        case list() | tuple():
            return ", ".join(map(_told, value)) or "-"
    return "-" if value is None or value == "" else str(value)


_RUN: dict[str, dict[str, Callable[[argparse.Namespace, Servers], int]]] = {
    "channel": {
        "ls": _channel_ls,
        "report": _channel_report,
        "info": _channel_info,
        "create": _channel_create,
        "delete": _channel_delete,
        "moved": _channel_moved,
        "move": _channel_move,
        "purge": _channel_purge,
        "redrive": _channel_redrive,
    },
    "client": {
        "ls": _client_ls,
        "info": _client_info,
        "kick": _client_kick,
    },
    "subscription": {
        "ls": _sub_ls,
        "report": _sub_report,
        "info": _sub_info,
    },
    "server": {
        "ls": _server_ls,
        "info": _server_info,
        "reload": _server_reload,
        "drain": _server_drain,
    },
}


def run(arguments: argparse.Namespace) -> int:
    """Carry out one sub-command; returns the exit status. Raises ``FtstanError``."""
    contexts.fill(arguments)
    carry_out = _RUN[arguments.command][arguments.verb]

    # Late: words and help need none of it.
    from ftstan.nats.request import asking  # noqa: PLC0415

    try:
        with asking(arguments.server, link_options(arguments), seconds=arguments.timeout) as asker:
            return carry_out(arguments, Servers(asker, arguments.cluster, arguments.timeout))
    except RefusedError as error:
        return complain(error, EXIT_REFUSED)
    except UnservedError as error:
        return complain(error, EXIT_UNSERVED)
