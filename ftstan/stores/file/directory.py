"""A channel's directory: its first commit makes it, and makes it again if a former owner's
``rmdir`` took it.

``rmdir`` ends a deletion (``deletion.py``) and a clean stop (``tools/exact.py``), after a confirm.
A process that is paused between the two may call it when a successor owns the store, has finished
that deletion and has made the channel again, under the same name. What it takes then is an empty
directory, since nothing else can be taken: nothing that was stored is in it. It is empty from
``mkdir`` to the first file of its first commit, the temporary of a slice or of ``subs.dat``, and
again when what a failed commit left has been removed. So where the log counts no slice and fills
none, and no subscription was found in ``subs.dat`` nor that file written, all that may be believed
of the directory is

- that it is there (``FileChannel.created``) and open (``SliceView.dirfd``): both are given up here;
- slices of failed commits that wait for their removal (``SliceLog.dead``): they are gone with it.
  Their numbers stay taken (``SliceLog.highest``), so a name is never used twice;
- nothing else: indexes to sync, ``confirmed.bin``, the mark of a purge, inodes of state files and
  readers come with a slice or with ``subs.dat``.

Where one of these is there, files were, and whoever took them was no ``rmdir``. Then the channel is
refused as it was: made again it would look like one without messages.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.stores.file.log.view import show

if TYPE_CHECKING:
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.log.slices import SliceLog

#: What a call in a directory without a name says, here and through NFS; a name that leads nowhere
#: says the first, too.
_NO_NAME = (errno.ENOENT, errno.ESTALE)


def make(env: FileEnv, slog: SliceLog) -> None:
    """Make the directory if it is not there, durable on return, and open it. Raises ``OSError``."""
    with contextlib.suppress(FileExistsError):
        env.disk.mkdir(env.root, os.fsdecode(slog.name))
    # Also if it was there: an earlier attempt may have made it and failed to sync it.
    env.disk.fsync(env.root)
    # A link or a file of that name is no directory of ours: this refuses it.
    _ = slog.dirfd


def is_gone(env: FileEnv, slog: SliceLog, error: OSError) -> bool:
    """Whether ``error`` came because the directory, with nothing in it, was removed: then it may be
    made again.

    The log has forgotten it then. Raises ``FencedError``, and ``OSError``.
    """
    if error.errno not in _NO_NAME or not slog.is_blank:
        return False
    slog.park()
    # The listing asks storage, where this host may remember the name; with it the next ``mkdir``
    # asks, too.
    if env.is_there(env.root, os.fsdecode(slog.name)):
        return False
    # A successor may have deleted the channel: then it is not ours to make. Should it do so behind
    # this confirm, an empty directory stays, which holds no channel, as after any first commit of a
    # former owner.
    env.owner.confirm()
    slog.dead.clear()
    log.warning(
        f'channel "{show(slog.name)}": a former owner removed its empty directory: made again '
        "when needed"
    )
    return True
