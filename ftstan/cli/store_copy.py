"""``ftstanctl store copy FROM TO``: a whole store between directories and databases.

Both ends are owned meanwhile, as by a server that starts: who serves one of them is not disturbed,
and the copy is refused. Until it has been read back and compared, the target has an identity that
every server refuses, ours and the original. One that was not finished is emptied by the next copy,
which starts anew; a target that holds anything else is never touched.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, StoreError
from ftstan.cli import databases, store_end
from ftstan.cli.terminal import print_json, progress, say
from ftstan.cli.words.store import EXIT_CLEAN
from ftstan.stores.copying import contents_of, copy_store, require_same

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ftstan.cli.store_end import End
    from ftstan.stores.sql.source import Source


def copy(arguments: argparse.Namespace) -> int:
    """Copy; returns the exit status. Raises ``FtstanError``."""
    source = databases.named(arguments.source)
    target = databases.named(arguments.target)
    if arguments.source == arguments.target or (source is not None and source == target):
        raise ConfigError("FROM and TO are the same store", hint="name another one")
    with contextlib.ExitStack() as stack:
        # The target first: that it is not empty is found out before the source gets an owner.
        to = stack.enter_context(_target(arguments, target))
        to.clear()
        at = stack.enter_context(
            store_end.owned(arguments.source, source, crc_poly=arguments.crc_poly)
        )
        store, found = at.open()
        shown = arguments.output == "table"
        try:
            if found.info is None:
                raise StoreError(
                    f"{at.place} holds no store", hint="name a store that a server has served"
                )
            total = sum(channel.count for channel in found.channels)
            moves = at.read_moves()
            made, _ = to.open()
            to.guard()
            if moves:
                # A server on the copy must know, too, what is another one's by now.
                to.write_moves(moves)
            with progress("copying", total, shown=shown, counted=True) as advance:
                wanted = copy_store(
                    store,
                    found,
                    made,
                    source_gaps=at.holds_gaps,
                    target_gaps=to.holds_gaps,
                    progress=advance,
                )
        finally:
            # However the copy ends, an original may go on in the source.
            store.close()
        # It writes what is left: the guard stands until that is done.
        made.close()
        try:
            # To be read back it has to be a store, for the moment in which it is opened.
            made.set_server_info(found.info)
            made, again = to.open()
        finally:
            to.guard()
        with progress("comparing", wanted.messages, shown=shown, counted=True) as advance:
            require_same(wanted, contents_of(made, again, advance), to.place)
        made.close()
        made.set_server_info(found.info)
    channels = len(wanted.channels)
    if arguments.output == "json":
        print_json(
            {"channels": channels, "messages": wanted.messages, "clients": len(wanted.clients)}
        )
    else:
        say(
            f"copied and compared: {channels} channels, {wanted.messages} messages, "
            f"{len(wanted.clients)} clients"
        )
    return EXIT_CLEAN


@contextlib.contextmanager
def _target(arguments: argparse.Namespace, source: Source | None) -> Iterator[End]:
    """Own what is copied into, a new directory if there is none."""
    if source is None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(arguments.target, 0o700)
        store_end.require_unserved(arguments.target)
        with store_end.owned_directory(arguments.target, arguments.crc_poly) as directory:
            yield directory
        return
    with store_end.owned(arguments.target, source, crc_poly=arguments.crc_poly) as database:
        yield database
