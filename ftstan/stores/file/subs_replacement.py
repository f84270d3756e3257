"""``subs.dat`` files of many channels replaced at once, in waves, while publishers wait for one of
them. How one file is replaced: ``state/statefile.py``; when, otherwise: ``channel.py``.

After a takeover what was sent and acknowledged is in memory until the channel's file is one of this
activation. With one file after the other that would take as many seconds as there are fifties of
channels on a file server.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ftstan.stores.file.log.view import store_error
from ftstan.stores.file.state.statefile import replace_all
from ftstan.stores.file.syncing import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.file.channel import FileChannel
    from ftstan.stores.file.dirty_channels import Register
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.syncing import Syncer

#: Seconds after which publishers have their turn; the wave that is under way then is the last one.
_WAVES_S = 0.005
#: Descriptors of one channel: its directory, data, index and subscriptions.
_A_CHANNEL = 4
#: Recovered ``subs.dat`` files that are replaced in one second: a start with many channels has
#: other work, too.
_RECOVERED_A_SECOND = 256


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise store_error(error, "subs.dat cannot be written") from error


class Waves:
    """Those of one open store. The methods raise ``OSError`` and ``FencedError``."""

    def __init__(self, env: FileEnv, register: Register[FileChannel], syncer: Syncer) -> None:
        self._env = env
        self._register = register
        self._syncer = syncer
        self.unsure: dict[bytes, FileChannel] = {}
        """Channels whose ``subs.dat`` a killed owner has left."""

    @property
    def _at_once(self) -> int:
        """Channels of one wave: their descriptors stay open meanwhile."""
        return max(min(self._env.files.limit // (2 * _A_CHANNEL), AT_ONCE), 1)

    def begin_second(self) -> None:
        """Note what this second has to do, besides what comes meanwhile."""
        for _ in range(min(len(self.unsure), _RECOVERED_A_SECOND)):
            self.unsure.popitem()[1].replace_recovered(also_empty=self._env.owner.mixed)
        for channel in self._register.touched.values():
            if channel.is_late and channel.name not in self._register.acked:
                self._register.late(channel, acked=False)

    def write_events(self) -> None:
        """Hand events to the file system, but those whose file must be replaced first.

        All, and synced, on request.

        Raises ``StoreError`` instead of ``OSError``.
        """
        register = self._register
        sync = self._env.options.sync_subs
        # Synced on request: what is sent next says that they are durable.
        while sync and (register.acked or register.behind):
            self.catch_up()
        if not register.events:
            return
        channels = list(register.events.values())
        register.events.clear()
        with _named():
            for channel in channels:
                channel.write_events()
                if sync:
                    channel.sync_events()
        self._env.files.trim()

    def catch_up(self) -> None:
        """Replace some of the files that events wait for.

        Raises ``StoreError`` instead of ``OSError``.
        """
        with _named():
            self.replace()

    def replace(self) -> bool:
        """Replace files that events wait for; returns whether more of them wait."""
        env = self._env
        register = self._register
        end = env.clock.mono() + _WAVES_S
        while some := register.take_late(self._at_once):
            self._replace(some)
            if env.clock.mono() >= end:
                break
        return bool(register.acked or register.behind)

    def _replace(self, some: list[FileChannel]) -> None:
        self._env.files.trim(_A_CHANNEL * len(some))
        items = [
            (channel, made) for channel in some if (made := channel.prepare_subs()) is not None
        ]
        replace_all(self._env, [made for _, made in items], self._syncer.each)
        refused = []
        for channel, made in items:
            try:
                channel.adopt_subs(made)
            except OSError as error:
                refused.append(error)
        if refused:
            raise refused[0]
