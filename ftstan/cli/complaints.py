"""What is wrong with the words of a command or with its files, said before there is a log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ftstan.base.codes import with_code
from ftstan.config.validation import ModeError

if TYPE_CHECKING:
    from ftstan.base.errors import FtstanError

EXIT_OK = 0
EXIT_ERROR = 1


def complain(error: FtstanError, prefix: str = "") -> None:
    """Say what is wrong, with its code as in the log, and what to do."""
    print(f"{prefix}{with_code(str(error))}", file=sys.stderr)
    _hint(error)


def refuse(error: FtstanError) -> int:
    """Say what is wrong with the words or files; returns the exit status."""
    if isinstance(error, ModeError):
        # The original writes this one to standard output.
        print(error)
        _hint(error)
    else:
        complain(error)
    return EXIT_ERROR


def _hint(error: FtstanError) -> None:
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
