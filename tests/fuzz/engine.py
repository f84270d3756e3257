"""Runs the fuzz targets with libFuzzer, steered by what the C code of the parsers does
(``docs/testing.md``).

``python -m tests.fuzz.engine SECONDS WORKERS TARGET...`` starts a process for each target (none
named: all), ``WORKERS`` at a time, and says what each did; the end status is 1 if one found
something. It needs ``atheris``, extensions built with ``FTSTAN_FUZZ_BUILD=1`` and the sanitizers
loaded before Python, as ``make fuzz`` has them. Corpora grow in ``build/fuzz-corpus``, where an
input that was a finding is left too, named after its target: with ``--one TARGET FILE`` instead of
those words the target runs on it once more.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.corpus import seeds
from tests.fuzz.targets import TARGETS

CORPUS = Path("build/fuzz-corpus")
#: Options of libFuzzer: inputs of up to 4 KiB, ten seconds each, a memory that does not grow
#: without end.
LIMITS = (
    "-max_len=4096",
    "-timeout=10",
    "-rss_limit_mb=2048",
    "-print_final_stats=1",
    "-verbosity=1",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did: ``coverage`` counts branches of C code that were taken."""

    target: str
    status: int
    executions: int
    coverage: int
    corpus: int
    log: Path


def read_log(target: str, status: int, log: Path) -> Outcome:
    """The counts that libFuzzer printed into ``log``; 0 for one that it did not print."""
    text = log.read_text(encoding="utf-8", errors="replace")
    counts = re.findall(r"^#(\d+)\t.* cov: (\d+) .* corp: (\d+)/", text, re.MULTILINE)
    executed, coverage, corpus = map(int, counts[-1]) if counts else (0, 0, 0)
    units = re.findall(r"^stat::number_of_executed_units: *(\d+)", text, re.MULTILINE)
    return Outcome(target, status, int(units[-1]) if units else executed, coverage, corpus, log)


def run(target: str, seconds: int) -> Outcome:
    """Run one target in a process of its own."""
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds(target):
        (corpus / hashlib.sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    words = [
        *LIMITS,
        f"-max_total_time={seconds}",
        f"-artifact_prefix={CORPUS / target}-",
        str(corpus),
    ]
    status, log = start(target, words)
    return read_log(target, status, log)


def start(target: str, words: list[str]) -> tuple[int, Path]:
    """Run a target with words for libFuzzer: its end status, and the file with what it said."""
    log = CORPUS / f"{target}.log"
    command = [sys.executable, "-m", "tests.fuzz.engine", "--inside", target, *words]
    with log.open("wb") as out:
        ended = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    return ended.returncode, log


def inside(target: str, words: list[str]) -> None:
    """In the process that the runtime was loaded into: fuzz until libFuzzer ends it."""
    import atheris  # noqa: PLC0415 - only processes that fuzz have it

    # Branches of the C code steer, not those of the targets.
    atheris.Setup([target, *words], TARGETS[target], enable_python_coverage=False)
    atheris.Fuzz()


def main(words: list[str]) -> int:
    """Run what the words say; the end status."""
    if words[:1] == ["--inside"]:
        inside(words[1], words[2:])
    if words[:1] == ["--one"]:
        CORPUS.mkdir(parents=True, exist_ok=True)
        status, log = start(words[1], words[2:])
        print(log.read_text(encoding="utf-8", errors="replace"))
        return status
    seconds = int(words[0])
    workers = int(words[1])
    targets = words[2:] or list(TARGETS)
    failed = 0
    with ThreadPoolExecutor(workers) as pool:
        for outcome in pool.map(lambda target: run(target, seconds), targets):
            verdict = "held" if outcome.status == 0 else f"FAILED, see {outcome.log}"
            print(
                f"{outcome.target:10} {outcome.executions:10,} inputs, {outcome.coverage:5,} "
                "branches, "
                f"{outcome.corpus:5,} inputs kept: {verdict}",
                flush=True,
            )
            failed |= outcome.status != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
