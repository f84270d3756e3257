"""A store that an original server may follow at any moment: what is kept so that it can
(``docs/ft.md``, mixed groups).

Does nothing while the group is not mixed. Where it is so when a store is opened, each channel is
made fit before it is served. Where it becomes so while a store is served, the channels are made fit
in rounds, each short enough that publishers do not notice. What is acknowledged meanwhile is in the
data and in a synced index from the first batch on; what an original server would misread are bytes
of former owners that lie behind a seal, until the channel's round has come. So the store is called
fit after the last channel of it, and no sooner.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.stores.file.env import is_full
from ftstan.stores.file.log import exact, purging
from ftstan.stores.file.log.view import show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sized

    from ftstan.stores.file.channel import FileChannel
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.state.clients import Clients

_SECOND_S = 1.0
#: Seconds of a tick that go to this; the step that is under way then is the last one.
_ROUND_S = 0.003
#: Descriptors of one channel: its directory, data, index and subscriptions.
_A_CHANNEL = 4
#: Seconds until a channel that storage refused to make fit is tried again.
_AGAIN_S = 30.0


class OriginalCompat:
    """One open store's. The methods raise ``OSError`` and ``FencedError``."""

    def __init__(
        self, env: FileEnv, clients: Clients, touch: Callable[[FileChannel], None]
    ) -> None:
        """``touch``: called before anything of a channel is written."""
        self._env = env
        self._touch = touch
        self._clients = clients
        self._epoch: int | None = None
        """The epoch of the last look at a mixed group; ``None``: it was not one."""
        self._waiting: deque[bytes] = deque()
        self._refused: dict[bytes, None] = {}
        self._again_at = 0.0
        self._steps: Iterator[bool] = iter(())
        self._current: FileChannel | None = None
        """Whose ``_steps`` they are."""
        self._fit = False
        self._silent = False
        self._more = False
        self._next_second = 0.0

    def fit_for(self, epoch: int) -> bool:
        """Whether an original server could follow the owner of ``epoch`` now. Any thread may ask.

        A quarantined channel is left as it is, and not counted.
        """
        known = self._epoch
        return self._fit and known is not None and not _is_other(known, epoch)

    @property
    def is_done(self) -> bool:
        """Whether every channel that is open has been gone through."""
        return self._fit

    def recovered(self) -> None:
        """The state files and the channels that are open were read."""
        if self._env.owner.mixed:
            exact.make_state_exact(self._env, self._env.root, "clients.dat")
            self._epoch = self._env.owner.identity[0]
            self._fit = self._silent = not self._refused
            self._again_at = self._env.clock.mono() + _AGAIN_S

    def adopt(self, channel: FileChannel, *, exact_already: bool) -> None:
        """Before anything of a channel is served: whoever follows may read the bytes behind a
        seal.
        """
        if self._env.owner.mixed and not exact_already and not _make_fit(self._env, channel):
            self._refused[channel.name] = None
            self._fit = False

    def before_write(self) -> None:
        """No number of ours seals what an original server writes: it must not be written over after
        a pause.
        """
        if self._env.owner.mixed:
            self._env.owner.confirm()

    def leaves_time(self) -> bool:
        """Whether a tick is for the work of a second, too: not while it is called again for the
        rounds alone.
        """
        now = self._env.clock.mono()
        if self._more and now < self._next_second:
            return False
        self._next_second = now + _SECOND_S
        return True

    def keep(self, channels: Mapping[bytes, FileChannel], later: Sized) -> bool:
        """With each tick: the group may have become mixed.

        Returns whether more is to be done at once.

        ``later``: channels that are not open yet; each is made fit when it is opened, and the store
        is not fit before.
        """
        self._more = self._keep(channels, later)
        return self._more

    def _keep(self, channels: Mapping[bytes, FileChannel], later: Sized) -> bool:
        if not self._env.owner.mixed:
            self._forget()
            return False
        epoch = self._env.owner.identity[0]
        if self._epoch is not None and _is_other(self._epoch, epoch):
            self._forget()
        if self._epoch is None:
            if self._env.clock.mono() < self._again_at or not self._make_clients_exact():
                return False
            self._forget()
            self._begin(channels, len(later))
        self._epoch = epoch
        if self._fit:
            return False
        if self._run_round(channels):
            return True
        if self._refused and self._env.clock.mono() >= self._again_at:
            self._waiting.extend(self._refused)
            self._refused.clear()
            return True
        if not self._refused and not later:
            self._fit = True
            if not self._silent:
                log.info(
                    f"ft: mixed group: an original server can follow now: {len(channels)} "
                    "channels are fit for it"
                )
        return False

    def _forget(self) -> None:
        self._epoch = self._current = None
        self._fit = self._silent = False
        self._waiting.clear()
        self._refused.clear()
        self._again_at = 0.0

    def _begin(self, channels: Mapping[bytes, FileChannel], later: int) -> None:
        # Those that are made from now on have no former owner.
        self._waiting.extend(channels)
        log.info(
            f"ft: mixed group: making {len(channels) + later} channels fit for an original server; "
            "start none before it is said that one can follow"
        )

    def _make_clients_exact(self) -> bool:
        """False where there is no space for them: it is tried again later, and the server serves
        on.
        """
        if self._clients.file.replaced:
            return True
        try:
            exact.make_state_exact(self._env, self._env.root, "clients.dat")
        except OSError as error:
            if not is_full(error):
                raise
            exact.report("clients.dat", error.strerror or str(error))
            self._again_at = self._env.clock.mono() + _AGAIN_S
            return False
        return True

    def _run_round(self, channels: Mapping[bytes, FileChannel]) -> bool:
        """Do some of it; returns whether any is left."""
        clock = self._env.clock
        end = clock.mono() + _ROUND_S
        while self._current is not None or self._waiting:
            channel = self._current or channels.get(self._waiting.popleft())
            if channel is None or channels.get(channel.name) is not channel or not channel.intact:
                # It was deleted, or is damaged: nothing of it is written.
                self._current = None
                continue
            if channel is not self._current:
                self._current = channel
                self._steps = _fit_steps(self._env, channel)
            self._step(channel)
            if clock.mono() >= end:
                break
        return self._current is not None or bool(self._waiting)

    def _step(self, channel: FileChannel) -> None:
        self._touch(channel)
        try:
            done = next(self._steps, None)
        except OSError as error:
            if not is_full(error):
                raise
            exact.report(f'channel "{show(channel.name)}"', error.strerror or str(error))
            done = False
        if not done:
            self._current = None
        if done is False:
            self._refused[channel.name] = None
            self._again_at = self._env.clock.mono() + _AGAIN_S


def _is_other(before: int, now: int) -> bool:
    """Whether the group may have been switched off between two epochs: that, and on again, are two
    of them.
    """
    return not before <= now <= before + 1


def _make_fit(env: FileEnv, channel: FileChannel) -> bool:
    """Before it is served: leave nothing in its files that an original server would not read
    around.

    Returns whether storage refused nothing. Raises ``OSError`` and ``FencedError``.
    """
    if not channel.intact:
        return True
    channel.sync()
    done = purging.tidy(env, channel.log, channel.confirmed)
    return exact.make_channel_exact(env, channel.log) and done


def _fit_steps(env: FileEnv, channel: FileChannel) -> Iterator[bool]:
    """The same while it is served, a piece with each step, between batches.

    False when storage refused one.

    A channel that was deleted or damaged between two steps must not be given another. Raises
    ``OSError`` and ``FencedError``.
    """
    env.files.trim(_A_CHANNEL)
    while channel.log.sync_one():
        yield True
        env.files.trim(_A_CHANNEL)
    channel.replace_recovered(also_empty=True)
    channel.settle(mend=False)
    channel.sync()
    yield purging.tidy(env, channel.log, channel.confirmed)
    for done in exact.slice_steps(env, channel.log):
        yield done
        env.files.trim(_A_CHANNEL)
