"""``ftstanctl store ls``, ``dump``, ``verify`` and ``du`` of a database: they only read.

They own nothing, take no lock and end nobody's session; the session can write nothing. Beside a
running server they see what it has committed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import ConfigError, StoreError, WireError
from ftstan.base.sizes import size_of
from ftstan.cli import store_change
from ftstan.cli.origins import RIGHT, with_origins
from ftstan.cli.terminal import (
    message_row,
    plain_fields,
    print_json,
    print_table,
    progress,
    say,
    text_of,
    time_of,
)
from ftstan.cli.words.store import EXIT_CLEAN, EXIT_DAMAGE
from ftstan.stores.sql.tools.reading import Reading, blocks_of
from ftstan.stores.sql.tools.verifying import DAMAGE, Wanted, check_database
from ftstan.wire import codec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from ftstan.stores.encryption.cipher import KeyRing
    from ftstan.stores.interface import ChannelStore, Recovered
    from ftstan.stores.sql.source import Source

_FILES_ONLY = {
    "repair": "correct or restore it with the database's own tools",
    "compact": "there is nothing to compact",
    "handover": "an original serves it as it is",
}


def run(arguments: argparse.Namespace, source: Source) -> int:
    """Carry out one sub-command; returns the exit status. Raises ``FtstanError``."""
    command = _COMMANDS.get(arguments.verb)
    if command is None:
        raise ConfigError(
            f"ftstanctl store {arguments.verb} works on directories only",
            hint=_FILES_ONLY[arguments.verb],
        )
    reading = Reading(source)
    try:
        return command(arguments, reading)
    finally:
        reading.close()


def _channels(
    arguments: argparse.Namespace, reading: Reading, recovered: Recovered
) -> list[ChannelStore]:
    found = sorted(recovered.channels, key=lambda channel: channel.name)
    if arguments.channel is None:
        return found
    wanted = [channel for channel in found if channel.name == arguments.channel.encode()]
    if not wanted:
        raise ConfigError(
            f'{reading.place} has no channel "{arguments.channel}"',
            hint="ftstanctl store ls lists its channels",
        )
    return wanted


def _ls(arguments: argparse.Namespace, reading: Reading) -> int:
    recovered = reading.recovered()
    owner = reading.owner()
    channels = _channels(arguments, reading, recovered)
    if arguments.channel is not None:
        return _ls_channel(arguments, channels[0], owner)
    rows: list[dict[str, Any]] = [
        {
            "name": text_of(channel.name),
            "msgs": channel.count,
            "bytes": channel.size,
            "first": channel.first,
            "last": channel.last,
            "subs": len(channel.recovered_subs()),
            "last_timestamp": channel.last_timestamp,
            "state": "",
        }
        for channel in channels
    ]
    if arguments.output == "json":
        print_json({"live": bool(owner), "channels": rows})
        return EXIT_CLEAN
    numbers = ("msgs", "bytes", "first", "last", "subs")
    print_table(
        ("channel", *numbers, "last written"),
        [
            (
                *(r["name"], r["msgs"], size_of(r["bytes"])),
                *(r[n] for n in numbers[2:]),
                time_of(r["last_timestamp"]),
            )
            for r in rows
        ],
        right=numbers,
    )
    _say_owner(owner)
    return EXIT_CLEAN


def _ls_channel(arguments: argparse.Namespace, channel: ChannelStore, owner: str) -> int:
    subs = [
        {
            "id": sub.state.sub_id,
            "client_id": text_of(sub.state.client_id),
            "durable": text_of(sub.state.durable_name),
            "queue": text_of(sub.state.queue),
            "last_sent": sub.state.last_sent,
            "pending": len(sub.pending),
            "state": "closed" if sub.state.is_closed else "",
        }
        for sub in channel.recovered_subs()
    ]
    if arguments.output == "json":
        print_json({"live": bool(owner), "name": arguments.channel, "subscriptions": subs})
        return EXIT_CLEAN
    say(
        f"{channel.count} messages, {channel.first} to {channel.last}, {size_of(channel.size)}, "
        f"last written {time_of(channel.last_timestamp)}"
    )
    if subs:
        say()
        print_table(
            tuple(subs[0]),
            [list(row.values()) for row in subs],
            right=("id", "last_sent", "pending"),
        )
    _say_owner(owner)
    return EXIT_CLEAN


def _say_owner(owner: str) -> None:
    if owner:
        say(
            f"server {owner} has the lock of this database: shown is what was committed",
            file=sys.stderr,
        )


def _du(arguments: argparse.Namespace, reading: Reading) -> int:
    channels = _channels(arguments, reading, reading.recovered())
    subs = reading.sub_sizes()
    rows: list[dict[str, Any]] = [
        {
            "channel": text_of(channel.name),
            "messages": channel.size,
            "subs": subs.get(channel.name, 0),
            "total": channel.size + subs.get(channel.name, 0),
        }
        for channel in channels
    ]
    tables = reading.table_sizes()
    total = sum(row["total"] for row in rows)
    if arguments.output == "json":
        print_json({"channels": rows, "tables": tables, "total": total})
        return EXIT_CLEAN
    heads = ("messages", "subs", "total")
    print_table(
        ("channel", *heads),
        [(row["channel"], *(size_of(row[head]) for head in heads)) for row in rows],
        right=heads,
    )
    say()
    print_table(
        ("table", "on disk"),
        [(name, size_of(size)) for name, size in tables.items()],
        right=("on disk",),
    )
    return EXIT_CLEAN


def _verify(arguments: argparse.Namespace, reading: Reading) -> int:
    ring = store_change.keys_named(arguments)
    only = arguments.channel.encode() if arguments.channel is not None else None
    if only is not None:
        names = {str(name).encode() for (name,) in reading.query("SELECT name FROM Channels")}
        if only not in names:
            raise ConfigError(
                f'{reading.place} has no channel "{arguments.channel}"',
                hint="ftstanctl store ls lists its channels",
            )
    sizes = reading.query("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM Messages")
    messages, total = (int(number) for number in sizes[0])
    with progress("verifying", total, shown=arguments.output == "table") as advance:
        wanted = Wanted(only, arguments.max_payload, ring)
        findings = list(check_database(reading, wanted, advance))
    damaged = any(f.kind == DAMAGE for f in findings)
    if arguments.output == "json":
        rows = [
            {
                "kind": f.kind,
                "channel": text_of(f.channel),
                "file": f.table,
                "offset": None,
                "text": f.text,
            }
            for f in findings
        ]
        print_json({"clean": not damaged, "live": bool(reading.owner()), "findings": rows})
    else:
        for f in findings:
            where = f"{f.table}, {text_of(f.channel)}" if f.channel else f.table
            say(f"{f.kind}: {where}: {f.text}")
        say(f"{messages} messages, {size_of(total)}: {'DAMAGED' if damaged else 'clean'}")
    return EXIT_DAMAGE if damaged else EXIT_CLEAN


def _dump(arguments: argparse.Namespace, reading: Reading) -> int:
    if arguments.raw:
        raise ConfigError(
            "--raw shows the records of files", hint="leave it out: a database has none"
        )
    ring = store_change.keys_named(arguments)
    recovered = reading.recovered()
    channels = _channels(arguments, reading, recovered)
    damaged = False
    lines: list[tuple[object, ...]] = []
    messages: list[dict[str, Any]] = []
    for row in _rows(arguments, recovered, channels, ring):
        damaged |= row["kind"] == "bad"
        if arguments.output == "json":
            print_json(row)
        elif row["kind"] == "message":
            messages.append(row)
            lines.append(
                (row["channel"], row["sequence"], time_of(row["timestamp"]),
                 size_of(row["size"]), row["reply"])
            )  # fmt: skip
    if arguments.output == "table":
        heads, lines = with_origins(
            ("channel", "sequence", "time", "size", "reply"), lines, messages
        )
        print_table(heads, lines, right=("sequence", "size", *RIGHT))
    return EXIT_DAMAGE if damaged else EXIT_CLEAN


def _rows(
    arguments: argparse.Namespace,
    recovered: Recovered,
    channels: list[ChannelStore],
    ring: KeyRing | None,
) -> Iterator[dict[str, Any]]:
    if arguments.channel is None:
        if recovered.info is not None:
            yield {"kind": "server", **plain_fields(recovered.info)}
        for client in recovered.clients:
            yield {"kind": "client", **plain_fields(client)}
    for channel in channels:
        for sub in channel.recovered_subs():
            yield {
                "kind": "subscription",
                "channel": text_of(channel.name),
                **plain_fields(sub.state),
                "pending": sorted(sub.pending),
            }
        yield from _messages(arguments, channel, ring)


def _messages(
    arguments: argparse.Namespace, channel: ChannelStore, ring: KeyRing | None
) -> Iterator[dict[str, Any]]:
    name = text_of(channel.name)
    keys = ring.channel(channel.name) if ring is not None else None
    last = arguments.last or channel.last
    for block in blocks_of(channel, arguments.first, last):
        for i in range(len(block)):
            at = block.sequence(i)
            if not arguments.first <= at <= last:
                continue
            try:
                sequence, subject, reply, data, timestamp, _, _ = codec.decode_msg_proto(
                    block.payload(i)
                )
                data = keys.decrypt(data) if keys is not None and data else data
            except (WireError, StoreError) as error:
                why = f"sequence {at}: {error.text}"
                yield {"kind": "bad", "file": f"{name}/Messages", "offset": 0, "why": why}
                continue
            yield message_row(name, sequence, timestamp, subject=subject, reply=reply, data=data)


_COMMANDS: dict[str, Callable[[argparse.Namespace, Reading], int]] = {
    "ls": _ls,
    "dump": _dump,
    "verify": _verify,
    "du": _du,
}
