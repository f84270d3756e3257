"""A file with a secret of the operator's: read whole, and refused where others could read it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ftstan.base.log import errno_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.errors import ConfigError


def read_secret_file(
    path: str, most: int, holds: str, refusal: Callable[[str, str], ConfigError]
) -> bytes:
    """The bytes of the file, one more than ``most`` of a file that is too large.

    ``holds``: what it should have, for the hint. Raises what ``refusal`` makes of a reason and a
    hint: unreadable, no file, or open to everybody.
    """
    try:
        # NONBLOCK: a pipe of that name must not hold up the start.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            data = os.read(fd, most + 1) if stat.S_ISREG(status.st_mode) else b""
        finally:
            os.close(fd)
    except OSError as error:
        raise refusal(
            f"cannot be read: {errno_text(error)}", "give the server's user the right to read it"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise refusal("is not a file", f"give the path of a file with {holds}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o007:
        raise refusal(f"is open to everybody (mode {mode:04o})", f"run: chmod 600 {path}")
    return data
