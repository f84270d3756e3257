"""How much memory ``nats-server`` may plan with: its share of what the control group of this
process may use.
"""

from __future__ import annotations

import os
from typing import Final

_ROOT: Final = "/sys/fs/cgroup"
#: The rest is this process's, and the kernel's for files and sockets of both.
_SHARE: Final = 0.5


def go_limit(membership: str = "/proc/self/cgroup", root: str = _ROOT) -> int:
    """Bytes for ``GOMEMLIMIT``: half of the smallest ``memory.max`` above this process.

    0 if there is no limit.

    systemd's ``MemoryMax`` and the limit of a container are such limits (cgroup v2).
    """
    try:
        with open(membership, encoding="utf-8") as file:
            groups = [
                line.rstrip("\n").removeprefix("0::") for line in file if line.startswith("0::")
            ]
    except OSError:
        return 0
    limits = []
    path = groups[0] if groups else "/"
    while True:
        found = _limit(os.path.join(root, path.lstrip("/"), "memory.max"))
        if found:
            limits.append(found)
        if path in {"", "/"}:
            return int(min(limits) * _SHARE) if limits else 0
        path = os.path.dirname(path)


def _limit(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdigit() else 0
