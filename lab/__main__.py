"""``python -m lab``: play the stages that have not passed yet, print the verdict table.

Exit 0 only if all passed.

Status 1: a stage failed. 2: the lab could not be set up. 130: interrupted. Machines are stopped at
the end, but their disks are kept, for the next run; ``--keep`` leaves them running.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from demo.screen import Screen
from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError
from lab import image, table
from lab.catalogue import PRODUCT, STAGES
from lab.lab import Lab
from lab.machines import STATE, Machines
from lab.stages import Book, chosen, play, sources_of
from tools import packages as building

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from lab.image import Image
    from lab.stages import Stage

EXIT_PASSED = 0
EXIT_FAILED = 1
EXIT_NOT_SET_UP = 2
EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the lab and return its exit status."""
    options = _parser().parse_args()
    if options.list:
        for stage in STAGES:
            print(f"{stage.name:<16}{stage.text}")
        return EXIT_PASSED
    signal.signal(signal.SIGTERM, _interrupt)
    say = Screen(SystemClock()).say
    try:
        return _run(options, say)
    except KeyboardInterrupt:
        say("interrupted")
        return EXIT_INTERRUPTED
    except FtstanError as error:
        print(f"lab: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return EXIT_NOT_SET_UP


def _run(options: argparse.Namespace, say: Callable[[str], None]) -> int:
    asked = chosen(STAGES, options.only, options.first)
    state: Path = options.state.resolve()
    made = image.make(state, say)
    machines = Machines.of(made, state)
    book = Book(state / "book.json")
    lab = Lab(state, machines, say)
    try:
        explicit = bool(options.only or options.first)
        old = any(
            stage.vital and not book.passed(stage, made_from(stage, made)) for stage in STAGES
        )
        if options.fresh or (old and not explicit):
            say("new machines")
            machines.forget()
            book.forget()
        passed = _play(asked, lab, book, made, again=explicit)
    finally:
        if not options.keep:
            signal.signal(
                signal.SIGINT, signal.SIG_IGN
            )  # a second Ctrl-C must not leave a machine behind
            machines.stop()
            signal.signal(signal.SIGINT, signal.default_int_handler)
    print(table.plain(STAGES, book.entries))
    if options.markdown:
        print(table.markdown(STAGES, book.entries))
    return EXIT_PASSED if passed else EXIT_FAILED


def _play(asked: Sequence[Stage], lab: Lab, book: Book, made: Image, *, again: bool) -> bool:
    """Play them in their order, and note each outcome; returns whether all have passed."""
    passed = True
    for stage in asked:
        sources = made_from(stage, made)
        if not again and book.passed(stage, sources):
            lab.say(f"{stage.name}: has passed already")
            continue
        seconds = lab.machines.start()
        lab.say(f"{stage.name}: {stage.text} (all machines answer after {seconds:.0f} s)")
        entry = play(stage, lab, sources)
        book.note(entry)
        passed &= entry.outcome.passed
        lab.say(
            f"{stage.name}: {'passed' if entry.outcome.passed else 'FAILED'} after "
            f"{entry.seconds:.0f} s"
        )
        for failure in entry.outcome.failures:
            lab.say(f"  {failure}")
        if stage.vital and not entry.outcome.passed:
            break
    return passed


def made_from(stage: Stage, made: Image) -> str:
    """A digest of all that a result of this stage depends on: program, playbooks, image, stage."""
    own = sources_of([*stage.sources, *PRODUCT])
    return image.digest(own, building.inputs(), made.made_from)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab", description="A pair on NFS, on virtual machines, drilled."
    )
    parser.add_argument("--list", action="store_true", help="show the stages, run none")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="STAGE",
        help="this stage, also if it has passed",
    )
    parser.add_argument(
        "--from", dest="first", default="", metavar="STAGE", help="this stage and all behind it"
    )
    parser.add_argument("--fresh", action="store_true", help="new machines, and all stages")
    parser.add_argument("--keep", action="store_true", help="leave the machines running at the end")
    parser.add_argument(
        "--markdown", action="store_true", help="the table also as docs/lab.md has it"
    )
    parser.add_argument(
        "--state", type=Path, default=STATE, metavar="DIR", help="default: build/lab"
    )
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
