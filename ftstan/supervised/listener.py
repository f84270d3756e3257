"""Supervisord's event listener: one line for each node that ended, which says what its exit status
means.

Run by supervisord as an ``[eventlistener]``; speaks its protocol on standard input and output,
writes its lines to standard error (or ``--log``), and with ``--run COMMAND`` hands name, status and
meaning to a command, for an alert. It must never end because of a node, and never start or stop
one: that is the policy's.

An event does not say the status, and supervisord forgets it as soon as it starts the process again.
Its log keeps it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import subprocess
import sys
from typing import IO, TYPE_CHECKING

from ftstan.base.environment import without_secrets
from ftstan.supervised.policy import FENCED, meaning
from ftstan.supervised.rpc import SupervisorError, call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_RUN_TIMEOUT_S = 30
_TAIL_BYTES = 8192


def parse(line: str) -> dict[str, str]:
    """The ``key:value`` words of a header or a body."""
    return dict(word.split(":", 1) for word in line.split() if ":" in word)


class Listener:
    """Reads events, and reports. ``tail`` gives the end of supervisord's log."""

    def __init__(
        self,
        source: IO[str],
        answers: IO[str],
        report: Callable[[str], None],
        tail: Callable[[], str],
        run: Sequence[str] = (),
    ) -> None:
        self._source = source
        self._answers = answers
        self._report = report
        self._tail = tail
        self._run = list(run)

    def serve(self) -> None:
        """Handle events until supervisord closes the pipe."""
        while True:
            self._answers.write("READY\n")
            self._answers.flush()
            line = self._source.readline()
            if not line:
                return
            header = parse(line)
            body = self._source.read(int(header.get("len", "0")))
            self._handle(header.get("eventname", ""), parse(body.partition("\n")[0]))
            self._answers.write("RESULT 2\nOK")
            self._answers.flush()

    def _handle(self, event: str, facts: dict[str, str]) -> None:
        name = facts.get("processname", "?")
        if event == "PROCESS_STATE_FATAL":
            self._tell(
                name,
                "",
                "supervisord gave up starting it: see its log, correct it, supervisorctl start",
            )
        elif event == "PROCESS_STATE_EXITED":
            self._tell(name, *self._why(name, expected=facts.get("expected") == "1"))

    def _why(self, name: str, *, expected: bool) -> tuple[str, str]:
        """Status, or name of the signal, and what it means.

        From the last line about this process.
        """
        found = re.findall(
            rf"exited: {re.escape(name)} \((?:exit status (\d+)|terminated by (\w+))", self._tail()
        )
        if not found:
            return "", f"status unknown; {'not started again' if expected else 'started again'}"
        status, signal = found[-1]
        return (
            (status, meaning(int(status)))
            if status
            else (signal, "killed by a signal; started again")
        )

    def _tell(self, name: str, status: str, text: str) -> None:
        now = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        word = "FENCED" if status == str(FENCED) else "ENDED"
        self._report(f"{now} {word} {name}{f' ({status})' if status else ''}: {text}")
        if self._run:
            try:
                subprocess.run(
                    [*self._run, name, status, text],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=without_secrets(os.environ),
                    timeout=_RUN_TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                self._report(f"{now} {self._run[0]}: {error}")


def main() -> int:
    """Listen until supervisord goes."""
    parser = argparse.ArgumentParser(
        prog="python -m ftstan.supervised.listener",
        description="Says why nodes under supervisord ended.",
    )
    parser.add_argument(
        "--log", metavar="FILE", help="append lines there (default: standard error)"
    )
    parser.add_argument(
        "--run",
        nargs="+",
        default=[],
        metavar="WORD",
        help="command for each: NAME STATUS TEXT follow",
    )
    options = parser.parse_args()
    url = os.environ.get("SUPERVISOR_SERVER_URL", "")
    if not url.startswith("unix://"):
        print("this is started by supervisord, which has a [unix_http_server]", file=sys.stderr)
        return 1
    path = url.removeprefix("unix://")

    def tail() -> str:
        try:
            return str(call(path, "readLog", -_TAIL_BYTES, 0))
        except SupervisorError:
            return ""

    def report(line: str) -> None:
        if not options.log:
            print(line, file=sys.stderr, flush=True)
            return
        with open(options.log, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    Listener(sys.stdin, sys.stdout, report, tail, options.run).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
