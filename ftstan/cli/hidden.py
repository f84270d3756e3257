"""Secrets on this process's own command line, which every user of the host can read: gone once they
have been read.

It cannot help those who look in the first moment; files and the environment are the places for
secrets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLAG = re.compile(
    rb"--?(?:(?:jetstream-)?(?:auth|pass)|encryption_key|sql_source)(?P<value>=.*)?", re.DOTALL
)


def blank_secrets() -> None:
    """Write over the values of ``-auth``, ``-pass``, ``-encryption_key`` and ``-sql_source``
    where the kernel reads the command line.

    Never raises.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            # Behind the name: state is the third field of the file, the addresses are its 48th and
            # 49th.
            fields = file.read().rpartition(b")")[2].split()
        start = int(fields[45])
        end = int(fields[46])
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except (OSError, ValueError, IndexError):
        return
    if not 0 < start < end or sum(len(word) + 1 for word in words) - 1 != end - start:
        return
    for at, size in spans(words):
        import ctypes  # noqa: PLC0415  # late: few command lines have secrets

        ctypes.memset(start + at, ord("x"), size)


def spans(words: Sequence[bytes]) -> list[tuple[int, int]]:
    """Where in the words, each with a byte behind it, secrets stand, and how long they are."""
    found = []
    at = 0
    is_secret = False
    for word in words:
        flag = _FLAG.fullmatch(word)
        if is_secret:
            found.append((at, len(word)))
        elif flag is not None and flag["value"]:
            found.append((at + flag.start("value") + 1, len(flag["value"]) - 1))
        is_secret = not is_secret and flag is not None and flag["value"] is None
        at += len(word) + 1
    return found
