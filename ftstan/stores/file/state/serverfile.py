"""``server.dat``: identity and subjects, replaced as a whole with every change."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ftstan.base.log import stream as log
from ftstan.stores import protos
from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import store_error
from ftstan.stores.file.state import state_recovery
from ftstan.stores.file.state.statefile import replace_file

if TYPE_CHECKING:
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.inode_watch import Unit
    from ftstan.stores.interface import ServerInfo

NAME: Final = "server.dat"
UNIT: Final[Unit] = (b"", NAME)


class ServerFile:
    """The file of one store."""

    def __init__(self, env: FileEnv) -> None:
        self._env = env
        self._info: ServerInfo | None = None

    def read(self) -> ServerInfo | None:
        """Read what the last owner left, ``None`` if there is no file.

        Raises ``RecoveryError`` and ``OSError``.
        """
        env = self._env
        self._info = state_recovery.read_server(env)
        if self._info is not None:
            env.places.put(UNIT, lambda: env.disk.stat(env.root, NAME))
        return self._info

    def write(self, info: ServerInfo) -> None:
        """Replace it, durable on return. Raises ``StoreError``."""
        env = self._env
        data = records.VERSION + records.untyped_record(protos.encode_server(info), env.crc)
        try:
            fd = replace_file(env, env.root, NAME, data)
            env.places.put(UNIT, lambda: env.disk.fstat(fd))
            env.disk.close(fd)
        except OSError as error:
            raise store_error(error, f"{NAME} cannot be written") from error
        self._info = info

    def restore(self) -> None:
        """Write it again if another file is in its place.

        Raises ``StoreError``; ``OSError`` passes through.
        """
        env = self._env
        with contextlib.suppress(FileNotFoundError):
            if env.disk.stat(env.root, NAME).ino == env.places.inode(UNIT):
                return
        assert self._info is not None
        log.warning(f"{NAME} was replaced by somebody: written again from memory")
        self.write(self._info)
