"""``ftstanctl store``: look at a datastore, check it, repair it, prepare it for an original server.

``ls``, ``dump``, ``verify`` and ``du`` only read, create no file and take no lock; on the store of
a running server they stop where that server has confirmed. The commands that write are in
``store_change``.

Exit status: 0 clean, 1 damage was found (and is still there), 2 the command cannot be carried out.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from ftstan.base.errors import ConfigError, FtstanError, StoreError
from ftstan.base.sizes import count_of, size_of
from ftstan.cli import store_change, store_purge
from ftstan.cli.origins import RIGHT, with_origins
from ftstan.cli.store_look import Opened, opened
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
from ftstan.stores.file.log.view import show
from ftstan.stores.file.tools.reading import ChannelFiles, SliceFile
from ftstan.stores.file.tools.rekeying import check_payloads
from ftstan.stores.file.tools.statereading import Typed, read_clients, read_server
from ftstan.stores.file.tools.verifying import (
    DefectKind,
    StoreFinding,
    check_channel,
    check_root,
    unreadable,
)
from ftstan.wire import codec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from ftstan.stores.file.tools.source import Source

T = TypeVar("T")


def run(arguments: argparse.Namespace) -> int:
    """Carry out one sub-command; returns the exit status. Raises ``FtstanError``."""
    if arguments.verb == "sql-schema":
        from ftstan.stores.sql.tables import script  # noqa: PLC0415  # few ask for it

        say(*script(arguments.driver).splitlines())
        return EXIT_CLEAN
    if arguments.verb == "copy":
        from ftstan.cli.store_copy import copy  # noqa: PLC0415

        return copy(arguments)
    # Late, as above: the words of servers, and the forms of sources.
    from ftstan.cli import databases  # noqa: PLC0415

    source = databases.find_database(arguments)
    if source is not None and arguments.verb == "purge":
        return store_purge.purge_database(arguments, source)
    if source is not None and arguments.verb == "rekey":
        from ftstan.cli.store_rekey import rekey_database  # noqa: PLC0415

        return rekey_database(arguments, source)
    if source is not None:
        from ftstan.cli import store_sql  # noqa: PLC0415

        return store_sql.run(arguments, source)
    if not arguments.dir:
        raise ConfigError(
            "which datastore?",
            hint="give its directory, set FTSTAN_DIR, or ftstanctl context add NAME --dir DIR",
        )
    command = _COMMANDS[arguments.verb]
    try:
        return command(arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        name = f" {os.fsdecode(error.filename)!r}" if error.filename else ""
        raise StoreError(
            f"datastore {arguments.dir}:{name} {error.strerror or error}",
            hint="check the directory, its permissions and the storage below it",
        ) from error


# ---- ls
# --------------------------------------------------------------------------------------------------


def _ls(arguments: argparse.Namespace) -> int:
    with opened(arguments) as store:
        if arguments.channel is not None:
            return _ls_channel(arguments, store)
        rows = [
            row
            for name in store.channels
            if (row := _named(name, _channel_row, store.source, name)) is not None
        ]
    status = (
        EXIT_DAMAGE
        if len(rows) < len(store.channels) or any(row["state"] for row in rows)
        else EXIT_CLEAN
    )
    if arguments.output == "json":
        print_json({"live": store.source.live, "channels": rows})
        return status
    numbers = ("msgs", "bytes", "first", "last", "slices", "subs")
    print_table(
        ("channel", *numbers, "last written", "state"),
        [
            (
                *(r["name"], r["msgs"], size_of(r["bytes"])),
                *(r[n] for n in numbers[2:]),
                *(time_of(r["last_timestamp"]), r["state"]),
            )
            for r in rows
        ],
        right=numbers,
    )
    if store.source.live:
        say("a server has this datastore open: shown is what it has confirmed", file=sys.stderr)
    return status


def _named(name: bytes, work: Callable[..., T], *words: Any) -> T | None:
    """What ``work`` gives.

    ``None`` for a channel that cannot be read, which is named: the others go on.
    """
    try:
        return work(*words)
    except (OSError, FtstanError) as error:
        say(f"{show(name)}: {unreadable(error)}", file=sys.stderr)
        return None


def _channel_row(source: Source, name: bytes) -> dict[str, Any]:
    with ChannelFiles(source, name) as files:
        file = files.subs_file()
        subs, _ = files.subs(file)
        odd = bool(file.refused or file.bad or files.missing)
        odd = odd or any(
            s.refused or s.differs or any(bad.start < s.end for bad in s.bad) for s in files.all
        )
        return {
            "name": text_of(name),
            "msgs": files.count,
            "bytes": files.size,
            "first": files.first,
            "last": files.last,
            "slices": len(files.slices),
            "subs": len(subs),
            "last_timestamp": files.slices[-1].last_ts if files.slices else 0,
            "state": "damaged" if odd else "",
        }


def _ls_channel(arguments: argparse.Namespace, store: Opened) -> int:
    with ChannelFiles(store.source, store.channels[0]) as files:
        slices = [_slice_row(s) for s in files.all]
        subs = [
            {
                "id": s.state.sub_id,
                "client_id": text_of(s.state.client_id),
                "durable": text_of(s.state.durable_name),
                "queue": text_of(s.state.queue),
                "last_sent": s.state.last_sent,
                "pending": len(s.pending),
                "state": "closed" if s.state.is_closed else "",
            }
            for s in files.subs()[0].values()
        ]
    if arguments.output == "json":
        print_json(
            {
                "live": store.source.live,
                "name": arguments.channel,
                "slices": slices,
                "subscriptions": subs,
            }
        )
        return EXIT_CLEAN
    numbers = ("slice", "first", "last", "msgs", "dat", "idx")
    print_table(
        (*numbers, "state"),
        [
            (*(row[n] for n in numbers[:4]), size_of(row["dat"]), size_of(row["idx"]), row["state"])
            for row in slices
        ],
        right=numbers,
    )
    if subs:
        say()
        heads = tuple(subs[0])
        print_table(
            heads, [list(row.values()) for row in subs], right=("id", "last_sent", "pending")
        )
    return EXIT_CLEAN


def _slice_row(s: SliceFile) -> dict[str, Any]:
    return {
        "slice": s.number,
        "first": s.first,
        "last": s.last,
        "msgs": s.entries,
        "dat": s.dat_size,
        "idx": max(s.idx_size, 0),
        "state": s.refused
        or ("" if s.exact and s.entries else "hidden" if not s.entries else "not exact"),
    }


# ---- du
# --------------------------------------------------------------------------------------------------


def _du(arguments: argparse.Namespace) -> int:
    with opened(arguments) as store:
        rows = [
            row
            for name in store.channels
            if (row := _named(name, _du_row, store.source, name)) is not None
        ]
    status = EXIT_DAMAGE if len(rows) < len(store.channels) else EXIT_CLEAN
    if not rows:
        return status
    heads = ("messages", "index", "subs", "hidden", "other", "total")
    if arguments.channel is None:
        rows.append({"channel": "", **{head: sum(row[head] for row in rows) for head in heads}})
    if arguments.output == "json":
        total = rows.pop() if arguments.channel is None else rows[0]
        print_json({"channels": rows, "total": total["total"]})
        return status
    print_table(
        ("channel", *heads),
        [(r["channel"], *(size_of(r[h]) for h in heads)) for r in rows],
        right=heads,
    )
    return status


def _du_row(source: Source, name: bytes) -> dict[str, Any]:
    """Bytes in the files of a channel.

    ``hidden``: behind seals, or behind the last message that counts.
    """
    with ChannelFiles(source, name) as files:
        sizes = {}
        for file in files.names:
            with contextlib.suppress(FileNotFoundError):
                # A running server removes files while we look.
                sizes[file] = source.disk.stat(files.dirfd, file).size
        data = sum(sizes.pop(s.dat, 0) for s in files.all)
        index = sum(sizes.pop(s.idx, 0) for s in files.all)
        messages = sum(s.end for s in files.slices)
        subs = sizes.pop("subs.dat", 0)
        other = sum(sizes.values())
    return {
        "channel": text_of(name),
        "messages": messages,
        "index": index,
        "subs": subs,
        "hidden": data - messages,
        "other": other,
        "total": data + index + subs + other,
    }


# ---- verify
# --------------------------------------------------------------------------------------------------


def _verify(arguments: argparse.Namespace) -> int:
    ring = store_change.keys_named(arguments)
    with opened(arguments) as store:
        total = 0
        for name in store.channels:
            # What cannot be read is a finding of the check below.
            with contextlib.suppress(OSError), ChannelFiles(store.source, name) as files:
                total += sum(s.end for s in files.slices)
        findings: list[StoreFinding] = []
        with progress("verifying", total, shown=arguments.output == "table") as advance:
            if arguments.channel is None:
                if store.epochs.loss:
                    findings.append(
                        StoreFinding(DefectKind.DAMAGE, b"", "ft.epoch", store.epochs.loss)
                    )
                findings += check_root(store.source)
            for name in store.channels:
                findings += check_channel(store.source, name, advance, arguments.max_payload)
                if ring is not None:
                    # What cannot be read is a finding already.
                    with contextlib.suppress(OSError, FtstanError):
                        findings += check_payloads(store.source, name, ring)
    damaged = any(f.kind is DefectKind.DAMAGE for f in findings)
    if arguments.output == "json":
        rows = [
            {
                "kind": f.kind,
                "channel": text_of(f.channel),
                "file": f.file,
                "offset": f.offset,
                "text": f.text,
            }
            for f in findings
        ]
        print_json({"clean": not damaged, "live": store.source.live, "findings": rows})
    else:
        count = len(store.channels)
        for f in findings:
            where = "" if f.offset is None else f" at offset {f.offset}"
            say(f"{f.kind}: {f.file}{where}: {f.text}")
        say(
            f"{count_of(count, 'channel')}, {size_of(total)} in message files: "
            f"{'DAMAGED' if damaged else 'clean'}"
        )
        if damaged:
            say(
                f"stop every node, then run: ftstanctl store repair --dry-run {arguments.dir}",
                file=sys.stderr,
            )
    return EXIT_DAMAGE if damaged else EXIT_CLEAN


# ---- dump
# --------------------------------------------------------------------------------------------------


def _dump(arguments: argparse.Namespace) -> int:
    if arguments.raw and arguments.encryption_key_file:
        raise ConfigError(
            "--raw shows records as they are stored", hint="leave out --encryption-key-file"
        )
    damaged = False
    rows: list[dict[str, Any]] = []
    with opened(arguments) as store:
        for row in _raw_rows(arguments, store) if arguments.raw else _served_rows(arguments, store):
            damaged |= row["kind"] == "bad"
            if arguments.output == "json":
                print_json(row)
            else:
                rows.append(row)
    if arguments.output == "table":
        messages = [r for r in rows if r["kind"] == "message"]
        heads = ("channel", "sequence", "time", "size", "reply")
        lines = [
            (r["channel"], r["sequence"], time_of(r["timestamp"]), size_of(r["size"]), r["reply"])
            for r in messages
        ]
        columns, cells = with_origins(heads, lines, messages)
        print_table(columns, cells, right=("sequence", "size", *RIGHT))
    return EXIT_DAMAGE if damaged else EXIT_CLEAN


def _served_rows(arguments: argparse.Namespace, store: Opened) -> Iterator[dict[str, Any]]:
    """What a start would serve: identity, clients, subscriptions, messages."""
    if arguments.channel is None:
        info, wrong = read_server(store.source)
        if info is not None:
            yield {"kind": "server", **{name: getattr(info, name) for name in info.__slots__}}
        elif wrong:
            yield {"kind": "bad", "file": "server.dat", "offset": 0, "why": wrong}
        typed, clients = read_clients(store.source)
        yield from _bad_rows("clients.dat", typed)
        for client in clients.values():
            yield {"kind": "client", **plain_fields(client)}
    for name in store.channels:
        yield from _readable(name, _channel_rows(arguments, store.source, name))


def _readable(name: bytes, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a channel.

    One that cannot be read, or not to its end, is named, and the others go on.
    """
    try:
        yield from rows
    except (OSError, FtstanError) as error:
        say(f"{show(name)}: {unreadable(error)}", file=sys.stderr)
        yield {"kind": "bad", "file": text_of(name), "offset": 0, "why": unreadable(error)}


def _channel_rows(
    arguments: argparse.Namespace, source: Source, name: bytes
) -> Iterator[dict[str, Any]]:
    with ChannelFiles(source, name) as files:
        channel = text_of(name)
        typed = files.subs_file()
        yield from _bad_rows(f"{channel}/subs.dat", typed)
        for sub in files.subs(typed)[0].values():
            yield {
                "kind": "subscription",
                "channel": channel,
                **plain_fields(sub.state),
                "pending": sorted(sub.pending),
            }
        for s in files.slices:
            first = max(arguments.first, files.first)
            if s.last < first or (arguments.last and s.first > arguments.last):
                continue
            yield from _message_rows(arguments, files, s, first)


def _message_rows(
    arguments: argparse.Namespace, files: ChannelFiles, s: SliceFile, first: int
) -> Iterator[dict[str, Any]]:
    channel = text_of(files.name)
    ring = store_change.keys_named(arguments)
    keys = ring.channel(files.name) if ring is not None else None
    for block, bad in files.blocks(s, first):
        for i in range(len(block)):
            sequence, subject, reply, data, timestamp, _, _ = codec.decode_msg_proto(
                block.payload(i)
            )
            if arguments.last and sequence > arguments.last:
                return
            if keys is not None and data:
                try:
                    data = keys.decrypt(data)
                except StoreError as error:
                    why = f"sequence {sequence}: {error.text}"
                    yield {"kind": "bad", "file": f"{channel}/{s.dat}", "offset": 0, "why": why}
                    continue
            yield message_row(channel, sequence, timestamp, subject=subject, reply=reply, data=data)
        for b in bad:
            yield {"kind": "bad", "file": f"{channel}/{s.dat}", "offset": b.start, "why": b.why}


def _raw_rows(arguments: argparse.Namespace, store: Opened) -> Iterator[dict[str, Any]]:
    """Every record in the files, in their order."""
    if arguments.channel is None:
        yield from _typed_rows("clients.dat", read_clients(store.source)[0])
    for name in store.channels:
        yield from _readable(name, _raw_channel_rows(arguments, store.source, name))


def _raw_channel_rows(
    arguments: argparse.Namespace, source: Source, name: bytes
) -> Iterator[dict[str, Any]]:
    with ChannelFiles(source, name) as files:
        channel = text_of(name)
        yield from _typed_rows(f"{channel}/subs.dat", files.subs_file())
        for s in files.all:
            if s.refused:
                yield {"kind": "bad", "file": f"{channel}/{s.dat}", "offset": 0, "why": s.refused}
            for sequence, offset, payload in files.raw_records(s):
                if sequence >= arguments.first and (
                    not arguments.last or sequence <= arguments.last
                ):
                    yield {
                        "kind": "record",
                        "file": f"{channel}/{s.dat}",
                        "offset": offset,
                        "sequence": sequence,
                        "counts": max(s.first, files.first) <= sequence <= s.last,
                        "payload": base64.b64encode(payload).decode(),
                    }
            for bad in s.bad:
                yield {
                    "kind": "bad",
                    "file": f"{channel}/{s.dat}",
                    "offset": bad.start,
                    "why": bad.why,
                }


def _typed_rows(file: str, typed: Typed) -> Iterator[dict[str, Any]]:
    for offset, kind, payload in typed.rows:
        yield {
            "kind": "record",
            "file": file,
            "offset": offset,
            "type": kind,
            "payload": base64.b64encode(payload).decode(),
        }
    yield from _bad_rows(file, typed)


def _bad_rows(file: str, typed: Typed) -> Iterator[dict[str, Any]]:
    if typed.refused:
        yield {"kind": "bad", "file": file, "offset": 0, "why": typed.refused}
    for bad in typed.bad:
        yield {"kind": "bad", "file": file, "offset": bad.start, "why": bad.why}


_COMMANDS = {
    "ls": _ls,
    "dump": _dump,
    "verify": _verify,
    "du": _du,
    "repair": store_change.repair,
    "compact": store_change.compact,
    "handover": store_change.handover,
    "purge": store_purge.purge_directory,
    "rekey": store_change.rekey,
}
