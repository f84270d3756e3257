"""A server whose recovery hangs in storage, at its read of ``server.dat`` or after some channels,
until somebody writes to a pipe.

``python -m tests.ft.hung PIPE CHANNELS python -m ftstan.cli.server ...``: stands before the command
of a server (``wrap``); without channels (0) it is ``server.dat`` that is waited for.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ftstan.cli import server
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.state import state_recovery

if TYPE_CHECKING:
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.recovery.opening import Reading
    from ftstan.stores.interface import ServerInfo


class Hanging:
    """Storage that does not answer for a while.

    ``wrap``: what makes a server's recovery wait for it, when it has recovered ``channels``.
    """

    def __init__(self, directory: Path, channels: int = 0) -> None:
        self._pipe = directory / "hanging"
        self._channels = channels
        os.mkfifo(self._pipe)

    @property
    def wrap(self) -> tuple[str, ...]:
        return sys.executable, "-m", "tests.ft.hung", str(self._pipe), str(self._channels)

    def answer(self) -> None:
        """Let it go on; waits until a recovery has come to it."""
        self._pipe.write_bytes(b"go on")


def main() -> int:
    pipe, channels, *command = sys.argv[1:]
    read = state_recovery.read_server
    recover = FileChannel.recover
    left = count(int(channels), -1)

    def hang_at_once(env: FileEnv) -> ServerInfo | None:
        Path(pipe).read_bytes()
        return read(env)

    def hang_later(self: FileChannel, reading: Reading) -> None:
        if next(left) == 0:
            Path(pipe).read_bytes()
        recover(self, reading)

    if int(channels):
        FileChannel.recover = hang_later  # type: ignore[method-assign]
    else:
        state_recovery.read_server = hang_at_once
    sys.argv = command[command.index("ftstan.cli.server") :]
    return server.main()


if __name__ == "__main__":
    sys.exit(main())
