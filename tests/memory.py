"""How much memory this process has, for tests that hold a bound."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: Bytes that the address sanitizer keeps of what was freed, to see who still uses it. That is more
#: than most tests offer: the run without it is the one that holds their bounds.
KEPT_BY_SANITIZER: Final = (256 << 20) if os.environ.get("FTSTAN_SANITIZED") else 0


def resident() -> int:
    """Bytes of this process that are in memory."""
    words = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def grown_since(before: int) -> int:
    """Bytes more than ``before``, without what only the address sanitizer can have kept."""
    return max(resident() - before - KEPT_BY_SANITIZER, 0)
