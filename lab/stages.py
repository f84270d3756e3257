"""A stage of the lab, what it came to, and the book in which that is kept. Knows no machine.

A stage is run again when it has not passed, when something that it proves has changed
(``sources``), or when it is asked for by name. Its outcome is written down as soon as it ends, so
that an interrupted lab goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import signal
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lab.lab import Lab

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 1800.0
"""No stage takes longer, in seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stage came to.

    ``lost`` and ``twice`` count acknowledged messages, by the ledger; times in seconds.

    ``figures``: what was measured besides, as it is shown. ``failures``: a line for each thing that
    was not as it must be; none: the stage has passed.
    """

    acked: int | None = None
    lost: int | None = None
    twice: int | None = None
    takeover_s: tuple[float, ...] = ()
    figures: dict[str, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all was as it must be."""
        return not self.failures


@dataclass(frozen=True, slots=True)
class Stage:
    """``run`` returns the outcome, or raises ``LabError`` if nothing was proved.

    ``sources``: files and directories below the checkout; a change makes the stage's result old.
    ``vital``: if it fails, none of the others makes sense.
    """

    name: str
    text: str
    run: Callable[[Lab], Outcome]
    sources: tuple[str, ...] = ()
    limit_s: float = LIMIT_S
    vital: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the book. ``began``: seconds since 1970; ``made_from``: a digest of the sources."""

    name: str
    made_from: str
    began: float
    seconds: float
    outcome: Outcome


class Book:
    """Results by the name of their stage, in a file of JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: dict[str, Entry] = {}
        if path.exists():
            rows = json.loads(path.read_text(encoding="utf-8"))
            self.entries = {row["name"]: _entry(row) for row in rows}

    def passed(self, stage: Stage, made_from: str) -> bool:
        """Whether this stage has passed, with just these sources."""
        entry = self.entries.get(stage.name)
        return entry is not None and entry.outcome.passed and entry.made_from == made_from

    def note(self, entry: Entry) -> None:
        """Write an outcome down; one of the same stage goes."""
        self.entries[entry.name] = entry
        self._write()

    def forget(self) -> None:
        """The machines are new ones: nothing is known of them."""
        self.entries = {}
        self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(
            json.dumps([asdict(x) for x in self.entries.values()], indent=1), encoding="utf-8"
        )
        new.replace(self._path)


def _entry(row: dict[str, Any]) -> Entry:
    outcome = row["outcome"]
    kept = {name: tuple(outcome[name]) for name in ("takeover_s", "failures")}
    return Entry(
        row["name"], row["made_from"], row["began"], row["seconds"], Outcome(**{**outcome, **kept})
    )


def play(stage: Stage, lab: Lab, made_from: str) -> Entry:
    """Run a stage within its time; one that proved nothing is an outcome with a failure.

    Passes on Ctrl-C.
    """
    began = time.time()
    start = time.monotonic()
    try:
        with within(stage.limit_s):
            outcome = stage.run(lab)
    except LabError as error:
        outcome = Outcome(
            failures=(error.text if not error.hint else f"{error.text} ({error.hint})",)
        )
    return Entry(stage.name, made_from, began, time.monotonic() - start, outcome)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is not done by then raises ``LabError``.

    In the main thread only, and not within itself.
    """

    def over(_number: int, _frame: object) -> NoReturn:
        raise LabError(f"not done after {seconds:g} s")

    former = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def chosen(stages: Sequence[Stage], only: Sequence[str], first: str) -> list[Stage]:
    """The stages that are asked for: those named, or those from one on, or all.

    Raises ``LabError``.
    """
    names = [stage.name for stage in stages]
    for name in (*only, *([first] if first else [])):
        if name not in names:
            raise LabError(f"there is no stage {name!r}", hint=f"stages: {', '.join(names)}")
    if only:
        return [stage for stage in stages if stage.name in only]
    return list(stages[names.index(first) :] if first else stages)


def sources_of(paths: Sequence[str], root: Path = ROOT) -> str:
    """A digest of files, and of all files below directories, with their names.

    Raises ``LabError``.
    """
    found = hashlib.sha256()
    for name in sorted(paths):
        path = root / name
        if not path.exists():
            raise LabError(f"{name} is named as a source of a stage, and is not there")
        files = [path] if path.is_file() else [x for x in sorted(path.rglob("*")) if x.is_file()]
        for file in files:
            if file.suffix != ".pyc":
                found.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return found.hexdigest()[:16]
