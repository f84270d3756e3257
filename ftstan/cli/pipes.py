"""Output whose reader has gone away, as ``head`` does."""

from __future__ import annotations

import os
import sys


def reader_left() -> None:
    """See that nothing more is written to standard output, also at exit, where it would be an error
    again.
    """
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
