"""``ftstan``: the command.

Scripts ask for its version, and wait for that: those words are answered without even loading the
options. All else is read by ``ftstan.cli.answers``, which ends with the exit status that operators
know.

Source: ``docs/compat/config.md`` (help, version, exit status).
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = ("-v", "--v", "-version", "--version", "version")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the words ``argv`` (default: those of the process) and return its exit
    status.
    """
    words = sys.argv[1:] if argv is None else argv
    if len(words) == 1 and words[0] in _VERSION:
        from ftstan.base.errors import NatsError  # noqa: PLC0415
        from ftstan.cli.versions import say_version  # noqa: PLC0415

        # What goes wrong is told the long way.
        with contextlib.suppress(NatsError, BrokenPipeError):
            say_version()
            sys.stdout.flush()
            return 0
    from ftstan.cli.answers import carry_out  # noqa: PLC0415

    return carry_out(words, is_command=argv is None)


if __name__ == "__main__":
    sys.exit(main())
