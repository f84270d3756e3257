"""``ftstanctl store purge DIR CHANNEL``: messages removed from the front of a channel that nobody
serves.

The store is owned meanwhile, as by a server that starts, and the purge is that of a running server
(``stores/file/log/purging.py``): durable, its last sequence and its subscriptions stay. The clean
stop behind it leaves files in which an original server finds what is left. Before anything is owned
or asked, the store is looked at as ``ls`` does: that is all that ``--dry-run`` does.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

from ftstan.base.errors import ConfigError, FencedError, RefusedError, StoreError
from ftstan.base.reserved import CLUSTER_MARK
from ftstan.base.sizes import size_of
from ftstan.cli import store_end
from ftstan.cli.confirming import confirm
from ftstan.cli.store_look import opened
from ftstan.cli.terminal import print_json, say, text_of, time_of
from ftstan.cli.words.store import EXIT_CLEAN
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.log import purging
from ftstan.stores.file.tools.reading import ChannelFiles
from ftstan.stores.purge_bound import bound
from ftstan.stores.sql.tools.reading import Reading

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from typing import Protocol

    from ftstan.cli.words.store import Before
    from ftstan.stores.interface import ChannelStore, Recovered, StoredSub
    from ftstan.stores.purge_bound import Kept
    from ftstan.stores.sql.channel import SqlChannel
    from ftstan.stores.sql.source import Source

    class _Timed(Kept, Protocol):
        """A channel that knows its times."""

        def sequence_at(self, timestamp: int) -> int:
            """As in ``ChannelStore``."""
            ...


@dataclass(frozen=True, slots=True)
class Going:
    """What a purge removes, as a look has found it.

    ``purged`` messages, the sequences ``first`` to ``last``, ``bytes`` as limits count them, with
    the times of the first and last (Unix ns). ``unacknowledged``: how many deliveries of them some
    subscription has not acknowledged. ``left``: messages that stay; ``next``: the next message's
    sequence.
    """

    purged: int
    first: int
    last: int
    bytes: int
    first_timestamp: int
    last_timestamp: int
    unacknowledged: int
    left: int
    next: int


def purge_directory(arguments: argparse.Namespace) -> int:
    """Purge a channel of a directory; returns the exit status. Raises ``FtstanError``."""
    if os.path.lexists(os.path.join(arguments.dir, CLUSTER_MARK)):
        raise StoreError(
            f"datastore {arguments.dir} is one node's copy of a cluster's",
            hint="purge the channel while the cluster serves: ftstanctl channel purge",
        )
    with opened(arguments) as store, ChannelFiles(store.source, store.channels[0]) as files:
        last = _last(arguments, files)
        part = files.part(last)
        going = Going(
            part.count, files.first if part.count else 0, last if part.count else 0, part.size,
            part.first_ts, part.last_ts, _unacknowledged(files.subs()[0].values(), last),
            files.count - part.count, files.last + 1,
        )  # fmt: skip
    return _purge(arguments, None, going)


def purge_database(arguments: argparse.Namespace, source: Source) -> int:
    """The same in a database."""
    reading = Reading(source)
    try:
        channel = cast("SqlChannel", _find(arguments, reading.place, reading.recovered()))
        last = _last(arguments, channel)
        count, size, first_ts, last_ts = reading.part(channel, last)
        going = Going(
            count, channel.first if count else 0, last if count else 0, size, first_ts, last_ts,
            _unacknowledged(channel.recovered_subs(), last), channel.count - count,
            channel.last + 1,
        )  # fmt: skip
    finally:
        reading.close()
    return _purge(arguments, source, going)


def _purge(arguments: argparse.Namespace, source: Source | None, going: Going) -> int:
    if arguments.dry_run:
        return _say(arguments, going, done=False)
    if going.purged:
        confirm(arguments, f"purge {_words(going)} of channel {arguments.channel}")
    # Also if nothing goes: a purge that was cut short may have left its messages in the files.
    with store_end.owned(arguments.dir, source, crc_poly=arguments.crc_poly) as end:
        store, found = end.open()
        try:
            channel = _find(arguments, end.place, found)
            before = channel.count
            last = _last(arguments, channel)
            if last:
                store.confirm()
                channel.purge(last)
                store.confirm()
            left = channel.count
        except FencedError:
            store.abandon()
            raise
        except BaseException:
            store.close()
            raise
        store.close()
        if isinstance(channel, FileChannel) and not purging.is_tidy(channel.log):
            raise StoreError(
                f'channel "{arguments.channel}" was purged, and the messages are still in its '
                "files, where an original server finds them",
                hint="fix the storage, then run this again",
            )
    return _say(
        arguments, Going(**(asdict(going) | {"purged": before - left, "left": left})), done=True
    )


def _find(arguments: argparse.Namespace, place: str, found: Recovered) -> ChannelStore:
    name = os.fsencode(arguments.channel)
    for channel in found.channels:
        if channel.name == name:
            if name in found.refused:
                raise RefusedError(
                    text_of(found.refused[name].encode()),
                    hint="nothing was purged; ftstanctl store repair ends the damage",
                )
            return channel
    raise ConfigError(
        f'{place} has no channel "{arguments.channel}"',
        hint="ftstanctl store ls lists its channels",
    )


def _last(arguments: argparse.Namespace, channel: _Timed) -> int:
    """The last sequence that goes, 0 if none does."""
    before: Before | None = arguments.before
    if before is None:
        return bound(channel, keep=arguments.keep, up_to=arguments.up_to)
    first_kept = before.sequence or channel.sequence_at(before.timestamp)
    # Of the bound 0 ``bound`` would make all.
    return bound(channel, up_to=first_kept - 1) if first_kept > 1 else 0


def _unacknowledged(subs: Iterable[StoredSub], last: int) -> int:
    return sum(sequence <= last for sub in subs for sequence in sub.pending)


def _words(going: Going) -> str:
    return (
        f"{going.purged} messages (sequences {going.first} to {going.last}, "
        f"{size_of(going.bytes)}, stored {time_of(going.first_timestamp)} to "
        f"{time_of(going.last_timestamp)})"
    )


def _say(arguments: argparse.Namespace, going: Going, *, done: bool) -> int:
    if arguments.output == "json":
        print_json({"channel": arguments.channel, "dry_run": not done, **asdict(going)})
        return EXIT_CLEAN
    name = f"channel {arguments.channel}"
    left = f"{going.left} are left, the next one gets sequence {going.next}"
    if done:
        say(f"{name}: purged {going.purged} messages, {left}")
        return EXIT_CLEAN
    if not going.purged:
        say(f"{name}: nothing to purge, {left}")
        return EXIT_CLEAN
    say(f"{name}: {_words(going)} would go, {left}")
    if going.unacknowledged:
        say(f"{name}: {going.unacknowledged} deliveries of them are not acknowledged")
    say("nothing was changed", file=sys.stderr)
    return EXIT_CLEAN
