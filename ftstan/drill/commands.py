"""Commands of a drill: run to their end, what they said kept for the error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING

from ftstan.drill.errors import DrillError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftstan.drill.workload import Access

TIMEOUT_S = 120.0
_TRIES = 5
_AGAIN_S = 1.0
_REFUSED = 1
SWITCHOVER = ("ft", "switchover")
STEP_DOWN = ("cluster", "stepdown", "--yes")


class CommandError(DrillError):
    """A command that ended with a ``status`` other than 0."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text, hint="try it by hand")
        self.status = status


async def run(
    words: Sequence[str],
    what: str,
    environment: Mapping[str, str] | None = None,
    *,
    within_s: float = TIMEOUT_S,
) -> str:
    """Run a command that people call ``what``; returns what it said.

    ``environment``: instead of ours.

    Raises ``DrillError`` with its last line if it fails or does not end. The words themselves are
    not shown: a password may be among them.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    except OSError as error:
        raise DrillError(
            f"{what}: {words[0]}: {error.strerror}", hint="is it installed, and on PATH?"
        ) from error
    try:
        async with asyncio.timeout(within_s):
            output, _ = await process.communicate()
    except TimeoutError:
        raise DrillError(f"{what}: no end after {within_s:g} s", hint="try it by hand") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    text = output.decode(errors="replace").strip()
    if process.returncode:
        last = text.splitlines()[-1] if text else "it said nothing"
        raise CommandError(
            f"{what} ended with status {process.returncode}: {last}", process.returncode
        )
    return text


async def switchover(access: Access, within_s: float, verb: Sequence[str] = SWITCHOVER) -> None:
    """``ftstanctl ft switchover``, with so many seconds for the successor to serve.

    ``verb``: the same of a cluster. What was refused has changed nothing, and is asked again a few
    times.
    """
    for again in (True,) * _TRIES + (False,):
        try:
            await ftstanctl(access, *verb, "--wait", f"{within_s:g}", within_s=within_s)
        except CommandError as error:
            # With any other status it may have been done: asked again, the service would move back.
            if not again or error.status != _REFUSED:
                raise
            await asyncio.sleep(_AGAIN_S)
        else:
            return


async def ftstanctl(access: Access, *words: str, within_s: float = 0.0) -> str:
    """A command of ``ftstanctl`` that changes something, for the group that ``access`` reaches."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FTSTAN_")}
    command = [sys.executable, "-m", "ftstan.cli.ctl", *words, *access.key_words]
    environment |= access.environment
    return await run(
        command, f"ftstanctl {' '.join(words[:2])}", environment, within_s=TIMEOUT_S + within_s
    )
