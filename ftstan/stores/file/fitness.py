"""A store that an original server may follow at any moment: what is kept so that it can (``docs/ft.md``, mixed groups).

Does nothing while the group is not mixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.stores.file.tools import exact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.stores.file.channel import FileChannel
    from ftstan.stores.file.env import FileEnv


class Fitness:
    """One open store's. The methods raise ``OSError`` and ``FencedError``."""

    def __init__(self, env: FileEnv) -> None:
        self._env = env
        self._kept = False

    def recovered(self) -> None:
        """The state files and the channels that are open were read."""
        self._kept = self._env.owner.mixed
        if self._kept:
            exact.make_state_exact(self._env, self._env.root, "clients.dat")

    def adopt(self, channel: FileChannel, *, exact_already: bool) -> None:
        """Before anything of a channel is served: whoever follows may read the bytes behind a seal."""
        if self._env.owner.mixed and not exact_already:
            channel.make_fit_for_original(serving=False)

    def before_write(self) -> None:
        """No number of ours seals what an original server writes: it must not be written over after a pause."""
        if self._env.owner.mixed:
            self._env.owner.confirm()

    def keep(self, channels: Iterable[FileChannel]) -> None:
        """Once a second: the group may have become mixed."""
        if self._env.owner.mixed and not self._kept:
            for channel in channels:
                channel.make_fit_for_original(serving=True)
        self._kept = self._env.owner.mixed
