"""Names that NFS clients leave behind: ``.nfs`` and a number.

A file that loses the name by which a process of this host has it open gets such a name until the
last close, and for ever if the host dies before that (a *silly rename*).

Such a name stands for what was removed already: it is never a channel, a slice or a temporary.
While the file is open its host answers EBUSY to an unlink of the name.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.base.disk import Disk

_NAME = re.compile(r"\.nfs[0-9a-f]{8,}\Z")
_NOT_NOW = (errno.EBUSY, errno.ENOENT, errno.ESTALE)


def is_leftover(name: str) -> bool:
    """Whether an NFS client has given this name."""
    return _NAME.match(name) is not None


def remove_leftover(disk: Disk, dirfd: int, name: str) -> None:
    """Remove it, unless it is in use on this host or gone. Call it after a confirm.

    Raises ``OSError``.
    """
    try:
        disk.unlink(dirfd, name)
    except OSError as error:
        if error.errno not in _NOT_NOW:
            raise
