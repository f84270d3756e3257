"""Changing a whole store that we own: start and stop as a node does, then work on its channels one
after the other.

What is common to ``compact``, ``handover`` and ``repair``; the work itself is in ``rewriting`` and
``repairing``.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError
from ftstan.config.limits import Limits
from ftstan.stores.file.state import checkpoint
from ftstan.stores.file.store import FileStore
from ftstan.stores.file.tools.reading import ChannelFiles, channel_names
from ftstan.stores.file.tools.source import Source
from ftstan.stores.interface import ChannelLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.stores.file.env import FileEnv

    #: Works on one channel: ``(env, files, max_bytes, progress)`` to a number for the report.
    Work = Callable[[FileEnv, ChannelFiles, int, Callable[[int], None]], int]

#: What expires is for the server to say, who knows its limits.
_UNLIMITED = Limits.same(ChannelLimits(max_msgs=0, max_bytes=0, max_subs=0))


def source_of(env: FileEnv) -> Source:
    """How to read the store that ``env`` owns."""
    return Source(env.fresh, env.root, env.crc, env.owner.ours_from)


def source_to_judge(env: FileEnv) -> Source:
    """The same, to tell damage from what an original server has left. Raises ``OSError``."""
    left = checkpoint.read_left(env.fresh, env.root, env.owner.predecessor)
    return replace(source_of(env), left=left, originals_through=env.owner.originals_through)


def start_and_stop(env: FileEnv, *, inherited: bool = True) -> list[str]:
    """Recover the store and stop cleanly: every file is then exact.

    Returns the channels that are quarantined.

    ``inherited``: as in ``FileEnv``. Raises ``FtstanError``.
    """
    store = FileStore(
        env.disk,
        env.root,
        env.owner,
        env.clock,
        env.options,
        limits=_UNLIMITED,
        parallel_sync=False,
        path=env.path,
        asking=env.asking,
        inherited=inherited,
    )
    store.recover()
    quarantined = store.quarantined
    store.close()
    return quarantined


def leave_as_stopped(env: FileEnv) -> None:
    """Leave a rewritten store as a clean stop does, so that the next start reads only what was
    changed since, and knows that somebody without an epoch, an original server, has changed it.

    Raises ``FtstanError``.
    """
    # Not inherited: ``rewrite`` has ended every slice that a former owner may have open.
    if quarantined := start_and_stop(env, inherited=False):
        raise DamageError(
            f"damaged channels: {', '.join(quarantined)}",
            hint="run: ftstanctl store verify, then ftstanctl store repair",
        )


def rewrite(
    env: FileEnv,
    work: Work,
    *,
    only: bytes | None = None,
    max_bytes: int,
    progress: Callable[[int], None] = lambda _: None,
) -> list[tuple[bytes, int]]:
    """Make every file exact, then let ``work`` rewrite the slices of each channel, or of ``only``
    that one.

    Returns the channels with what ``work`` said. The checkpoint is gone then: unless the store is
    handed over, ``leave_as_stopped`` comes last. Raises ``OSError`` and ``FtstanError``; what was
    finished stays.
    """
    if quarantined := start_and_stop(env):
        raise DamageError(
            f"damaged channels: {', '.join(quarantined)}",
            hint="nothing was merged or renumbered; run: ftstanctl store repair",
        )
    # What it says of slices is about to be wrong. That would be found out, but nobody should have
    # to. Should it be that of a successor, by a removal that comes late, the next start reads every
    # file. No other file goes: what was remembered of publishes, say, is still true, and a
    # successor would not write its own a second time.
    env.owner.confirm()
    with contextlib.suppress(FileNotFoundError):
        env.disk.unlink(env.root, checkpoint.NAME)
    env.disk.fsync(env.root)
    names: Sequence[bytes] = channel_names(source_of(env))[0] if only is None else [only]
    done = []
    for name in names:
        with ChannelFiles(source_of(env), name) as files:
            done.append((name, work(env, files, max_bytes, progress)))
    return done
