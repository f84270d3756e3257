"""``repaired.json``: sequences of a channel that a repair found lost, so that nobody takes the hole
for a new loss.

One small file in the channel's directory, which the original ignores; always replaced as a whole.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ftstan.base.reserved import REPAIRED
from ftstan.stores.file.regular import open_file
from ftstan.stores.file.state.statefile import replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.base.disk import Disk
    from ftstan.stores.file.env import FileEnv

_MOST = 16 << 20


def read(disk: Disk, dirfd: int) -> list[tuple[int, int]]:
    """First and last of each row of lost sequences; none if there is no such file, or one that
    cannot be understood.

    ``OSError`` passes through.
    """
    try:
        fd = open_file(disk, dirfd, REPAIRED)
    except FileNotFoundError:
        return []
    try:
        data = disk.pread(fd, _MOST, 0)
    finally:
        disk.close(fd)
    try:
        return [(int(a), int(b)) for a, b in json.loads(data)["missing"]]
    except (ValueError, KeyError, TypeError):
        return []


def write(env: FileEnv, dirfd: int, lost: Sequence[tuple[int, int]]) -> None:
    """Put it in the place of a former one, durable on return.

    Raises ``OSError`` and ``FencedError``.
    """
    text = json.dumps({"missing": lost}).encode() + b"\n"
    env.disk.close(replace_file(env, dirfd, REPAIRED, text))
