"""System calls of a server under a pattern, counted by strace in a run whose times say nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING

from benchmarks.patterns import Pattern, streaming

if TYPE_CHECKING:
    from benchmarks.processes import Server

#: Messages under strace, at most: it slows each call down.
_MOST = 20_000


def count(server: Server, pattern: Pattern, messages: int) -> tuple[float, float, float]:
    """Calls, syncs and messages a batch, which is what one read of the socket brings.

    Raises ``RuntimeError``.
    """
    tracer = shutil.which("strace")
    if tracer is None:
        raise RuntimeError("strace was not found: install it, or leave out --calls")
    messages = min(messages, _MOST)
    with tempfile.NamedTemporaryFile("r", encoding="ascii") as summary:
        argv = [tracer, "-c", "-f", "-U", "name,calls", "-o", summary.name, "-p", str(server.pid)]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            # It says so once it is attached to every thread.
            said = process.stderr.readline()
            if "attached" not in said:
                raise RuntimeError(f"strace cannot look at the server: {said.strip()}")
            streaming(server, pattern, messages)
            process.send_signal(signal.SIGINT)
            process.stderr.read()
        counted = _read(summary.read())
    batches = counted.get("recvfrom", 0) or 1
    syncs = counted.get("fdatasync", 0) + counted.get("fsync", 0)
    return counted["total"] / batches, syncs / batches, messages / batches


def _read(summary: str) -> dict[str, int]:
    """Calls by name."""
    out = {}
    for line in summary.splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            out[words[0]] = int(words[1])
    return out
