"""Documented command lines and configurations, run as they stand but for where they are.

What is moved, and nothing else: every host becomes the loopback address, every port of a host a
free one, the same for the same pair throughout a test; absolute paths of the documents lie below
the test's directory, which is also the working directory, so that relative ones do, too. A server
whose text names no ports is given some (``here``): the default ones belong to the machine.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.processes import HOST, PATIENCE_S, ROOT, Server, free_ports
from tests.uncoded import uncoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.processes import Stage

NAMES = ("nats-streaming-server", "./nats-streaming-server", "ftstan")
OWN = ("0.0.0.0", HOST, "localhost", "")
PLACES = ("/nss", "/var/lib", "/var/log", "/run", "/etc", "/home", "/path")

_COMMAND = [sys.executable, "-P", "-m", "ftstan.cli.server"]
_ADDRESS = re.compile(r"\b(host\d|localhost|0\.0\.0\.0|127\.0\.0\.1):(\d{4})\b")
_PORT_KEY = re.compile(r"^(port|http|https|http_port|listen): (\d{4})$", re.MULTILINE)
_PORT_FLAGS = ("-p", "-m", "-ms")
CLIENTS = 4222
MONITOR = 8222
_IN_DIRECTORY = "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended that is not expected to serve, and what it wrote."""

    status: int
    text: str

    @property
    def lines(self) -> list[str]:
        return [
            re.sub(r"^\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} ", "", line)
            for line in self.text.splitlines()
        ]

    def refusal(self) -> str:
        """The one line without its code, with a hint behind it, of a start that was refused before
        anything was done.
        """
        assert self.status == 1, self.text
        line, hint = self.lines
        assert hint.startswith("hint: "), self.text
        return uncoded(line)

    def fatal(self) -> str:
        """The one line that says why.

        Fails when there is a traceback, or another number of such lines.
        """
        assert "Traceback" not in self.text, self.text
        (line,) = [line for line in self.lines if "[FTL]" in line]
        return line.removeprefix("[FTL] ")


class Moved:
    """Where the hosts, ports and paths of the documents are in one test."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._ports: dict[tuple[str, int], int] = {}

    def port(self, port: int, host: str = "") -> int:
        """The port that stands for ``port`` of ``host``.

        ``""`` is the host on which everything of the text runs.
        """
        where = ("" if host in OWN else host, port)
        if where not in self._ports:
            fresh = next(
                one for one in free_ports(len(self._ports) + 1) if one not in self._ports.values()
            )
            self._ports[where] = fresh
        return self._ports[where]

    def path(self, documented: str) -> Path:
        return self.stage.directory / documented.lstrip("/")

    def text(self, text: str, host: str = "") -> str:
        """A configuration, or a word of a command line, as it is used by ``host``."""

        def address(found: re.Match[str]) -> str:
            named = host if found[1] in OWN else found[1]
            return f"{HOST}:{self.port(int(found[2]), named)}"

        text = _ADDRESS.sub(address, text)
        text = _PORT_KEY.sub(lambda found: f"{found[1]}: {self.port(int(found[2]), host)}", text)
        for place in PLACES:
            text = re.sub(rf"""(?<![\w./]){place}(?=/)""", str(self.path(place)), text)
        return text

    def file(self, name: str, text: str, host: str = "") -> Path:
        """Write a documented configuration to the working directory."""
        path = self.stage.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text(text, host))
        return path

    def words(self, command: str, host: str = "") -> list[str]:
        """The words of a documented command line behind the program's name."""
        program, *words = shlex.split(command)
        assert program in NAMES, command
        moved = [self.text(word, host) for word in words]
        for index, word in enumerate(words[:-1]):
            if word in _PORT_FLAGS:
                moved[index + 1] = str(self.port(int(words[index + 1]), host))
        return moved

    def start(
        self,
        command: str,
        *,
        host: str = "",
        name: str = "server",
        ports: tuple[int, int] = (CLIENTS, MONITOR),
        add: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        place: str = "",
    ) -> Server:
        """Run a documented command that serves.

        ``ports``: those for clients and pages in the documents.

        ``add``: words that the place needs, and the document does not have (``-p`` where it relies
        on the default).

        ``place``: the directory that it works in, below that of the test.
        """
        server = Server(
            [
                sys.executable,
                "-P",
                "-c",
                _IN_DIRECTORY,
                str(self.stage.directory / place),
                *_COMMAND,
                *self.words(command, host),
                *add,
            ],
            self.stage.directory / f"{name}.log",
            port=self.port(ports[0], host),
            monitor=self.port(ports[1], host),
            store=self.stage.store,
            environment={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        )
        self.stage.adopt(server)
        return server

    def here(self, host: str = "") -> list[str]:
        """The words for a documented server that listens on the default ports."""
        return [
            "-a",
            HOST,
            "-p",
            str(self.port(CLIENTS, host)),
            "-m",
            str(self.port(MONITOR, host)),
        ]

    def run(self, command: str, *, host: str = "", add: Sequence[str] = ()) -> Ended:
        """Run a documented command that ends by itself."""
        done = subprocess.run(
            [*_COMMAND, *self.words(command, host), *add],
            cwd=self.stage.directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Ended(done.returncode, done.stdout)
