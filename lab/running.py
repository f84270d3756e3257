"""Commands that the lab runs to their end; what they said is kept for the error."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_LINES = 12


def run(
    words: Sequence[str],
    what: str = "",
    *,
    limit_s: float = 300.0,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
) -> str:
    """Run a command that people call ``what`` (its first word by default).

    Returns its standard output.

    ``given`` is its standard input. Raises ``LabError`` with its last lines if it fails, or does
    not end in time.
    """
    name = what or words[0]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=environment,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except OSError as error:
        raise LabError(f"{name}: {error.strerror}", hint="is it installed, and on PATH?") from error
    except subprocess.TimeoutExpired:
        raise LabError(f"{name}: no end after {limit_s:g} s") from None
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_LINES:])
        raise LabError(f"{name} ended with status {done.returncode}: {said or 'it said nothing'}")
    return done.stdout
