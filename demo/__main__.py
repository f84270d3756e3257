"""``python -m demo``: run the scenario, judge its ledger, print the table.

Exit 0 only if the verdict is clean.

Status 1: a violation. 2: the demo could not be carried out. 130: interrupted. No child outlives it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from demo.clustered import ClusterScenario
from demo.database import Database, require_library
from demo.report import table
from demo.scenario import LOAD, Places, Scenario
from demo.screen import Screen
from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError
from ftstan.drill import ledger
from ftstan.drill.judge import judge
from ftstan.drill.rules import PROMISE
from ftstan.reports import clock as clock_text
from ftstan.version import __version__

if TYPE_CHECKING:
    from types import FrameType

EXIT_CLEAN = 0
EXIT_VIOLATION = 1
EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
MIN_SECONDS = 5.0

_OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "out")


def main() -> int:
    """Run the demo and return its exit status."""
    parser = _parser()
    options = parser.parse_args()
    if options.clustered and options.store != "file":
        parser.error("--clustered: each node has a directory of its own, so no --store")
    signal.signal(signal.SIGTERM, _interrupt)
    clock = SystemClock()
    screen = Screen(clock)
    run = os.path.join(_OUT, f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    places = Places.make(run)
    screen.say(f"datastore, ledger and logs in {os.path.relpath(run)}")
    database = Database(options.store) if options.store != "file" else None
    scenario: Scenario | None = None
    has_played = False
    try:
        if database is not None:
            require_library(database.driver)
            screen.say(f"starting a private {options.store} server")
            database.start()
        kind = ClusterScenario if options.clustered else Scenario
        scenario = kind(places, screen, clock, max(options.seconds, MIN_SECONDS), database)
        scenario.play()
        has_played = True
    except KeyboardInterrupt:
        screen.say("interrupted")
        return EXIT_INTERRUPTED
    except FtstanError as error:
        screen.say(f"the demo failed: {error}")
        if scenario is not None:
            print(scenario.last_words())
        if error.hint:
            print(f"hint: {error.hint}")
        return EXIT_FAILED
    finally:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # a second Ctrl-C must not leave a child behind
        if scenario is not None:
            scenario.end()
        if database is not None:
            database.stop()
            if not has_played:
                database.remove()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    store = "clustered" if options.clustered else options.store
    status = _judge(places, screen, keep=options.keep, store=store)
    if database is not None:
        if status == EXIT_CLEAN and not options.keep:
            database.remove()
        else:
            screen.say(f"the database's files are kept in {database.place}")
    return status


def _judge(places: Places, screen: Screen, *, keep: bool, store: str = "file") -> int:
    screen.say("judging the ledger")
    try:
        verdict = judge(ledger.read(places.ledger), PROMISE)
    except FtstanError as error:
        screen.say(f"the ledger cannot be judged: {error}")
        return EXIT_FAILED
    screen.clear()
    print(table(verdict, about(places, store)))
    if not verdict.clean:
        print(f"NOT CLEAN. Everything is kept: {os.path.relpath(os.path.dirname(places.ledger))}")
        return EXIT_VIOLATION
    if not keep:
        shutil.rmtree(places.store)
    kept = "datastore and ledger" if keep else "ledger"
    screen.say(
        f"clean; {kept} kept in {os.path.relpath(os.path.dirname(places.ledger))} (make clean "
        "removes it)"
    )
    return EXIT_CLEAN


def about(places: Places, store: str = "file") -> list[tuple[str, str]]:
    """When, where and with what the demo was played."""
    where = "one datastore on local storage" if store == "file" else f"one {store} database"
    servers = f"two of ftstan {__version__}, {where}"
    if store == "clustered":
        servers = f"three of ftstan {__version__}, a datastore and a copy of the log each"
    began = min((record.t for record in ledger.read(places.ledger)), default=0)
    return [
        ("played", f"{clock_text(began)} UTC on {socket.gethostname()}"),
        ("servers", servers),
        ("load", LOAD),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demo", description="An FT pair under load, judged from a ledger."
    )
    parser.add_argument(
        "--seconds", type=float, default=45.0, help="seconds under load, takeovers excluded (45)"
    )
    parser.add_argument(
        "--store",
        choices=("file", "postgres", "mysql"),
        default="file",
        help="what the pair shares: a directory, or a database of a private server (file)",
    )
    parser.add_argument(
        "--clustered", action="store_true", help="three nodes of a replicated cluster, no pair"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the datastore of a clean run, too"
    )
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
