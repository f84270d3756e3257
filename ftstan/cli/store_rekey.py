"""``ftstanctl store rekey`` of a database, which is owned meanwhile as by a server that starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, FencedError
from ftstan.cli import store_change, store_end
from ftstan.cli.terminal import progress
from ftstan.cli.words.store import EXIT_CLEAN
from ftstan.stores.sql.tools.rekeying import rekey_database as rekey_rows

if TYPE_CHECKING:
    import argparse

    from ftstan.stores.interface import Recovered
    from ftstan.stores.sql.source import Source


def rekey_database(arguments: argparse.Namespace, source: Source) -> int:
    """Encrypt every payload with the first key, or decrypt all; returns the exit status.

    Raises ``FtstanError``.
    """
    # Before the database is owned: a wrong word must not cost an epoch.
    ring, label, counted = store_change.rekey_words(arguments)
    with store_end.owned_database(source) as database:
        store, found = database.open()
        try:
            only = _only(arguments, database.place, found)
            total = sum(c.count for c in found.channels if only in (None, c.name))
            with progress(label, total, shown=arguments.output == "table", counted=True) as advance:
                rows = rekey_rows(
                    database.fence,
                    store,
                    found,
                    ring,
                    to_plain=arguments.to_plain,
                    only=only,
                    progress=advance,
                )
        except FencedError:
            store.abandon()
            raise
        except BaseException:
            store.close()
            raise
        store.close()
    store_change.say_changed(arguments, rows, counted)
    return EXIT_CLEAN


def _only(arguments: argparse.Namespace, place: str, found: Recovered) -> bytes | None:
    """The channel that was asked for, ``None`` for all."""
    if arguments.channel is None:
        return None
    name = os.fsencode(arguments.channel)
    if name not in {channel.name for channel in found.channels}:
        raise ConfigError(
            f'{place} has no channel "{arguments.channel}"',
            hint="ftstanctl store ls lists its channels",
        )
    return name
