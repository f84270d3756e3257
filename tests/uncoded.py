"""Lines of the log without their codes, for tests of what a line says."""

from __future__ import annotations

import re

_ENDING = re.compile(r" \[FTS-\d{4}\]$", re.MULTILINE)


def uncoded(text: str) -> str:
    """The text; its lines end without codes."""
    return _ENDING.sub("", text)
