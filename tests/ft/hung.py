"""A server whose recovery hangs in storage: its read of ``server.dat`` waits until somebody writes to a pipe.

``python -m tests.ft.hung PIPE python -m ftstan.cli.server ...``: stands before the command of a server (``wrap``).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ftstan.cli import server
from ftstan.stores.file.state import statescan

if TYPE_CHECKING:
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.interface import ServerInfo


class Hanging:
    """Storage that does not answer for a while; ``wrap``: what makes a server's recovery wait for it."""

    def __init__(self, directory: Path) -> None:
        self._pipe = directory / "hanging"
        os.mkfifo(self._pipe)

    @property
    def wrap(self) -> tuple[str, ...]:
        return sys.executable, "-m", "tests.ft.hung", str(self._pipe)

    def answer(self) -> None:
        """Let it go on; waits until a recovery has come to it."""
        self._pipe.write_bytes(b"go on")


def main() -> int:
    pipe, *command = sys.argv[1:]
    read = statescan.read_server

    def hang(env: FileEnv) -> ServerInfo | None:
        Path(pipe).read_bytes()
        return read(env)

    statescan.read_server = hang
    sys.argv = command[command.index("ftstan.cli.server") :]
    return server.main()


if __name__ == "__main__":
    sys.exit(main())
