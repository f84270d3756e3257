"""Gaps: sequences that a channel does not have any more, or whose messages were lost on their way.

A gap is closed only when everything before it is in the stream. Nothing is skipped on the word of
one subscription alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.bridge.errors import BridgeError
from ftstan.bridge.mirror import Gap, Stage
from ftstan.client import Start

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.bridge.backlog import LogFiles
    from ftstan.bridge.feed import Feed
    from ftstan.bridge.mirror import Mirror
    from ftstan.bridge.target import Target

#: How often the files are looked at for a message that the server has and they do not confirm: they
#: are a second late.
_CONFIRMS: Final = 5


class Gaps:
    """``purges``: where messages have expired before they were mirrored, the stream begins behind
    them. ``follow`` begins a channel's tail, ``begin_anew`` lets earlier answers mean nothing.
    """

    def __init__(
        self,
        target: Target,
        feed: Feed,
        files: LogFiles | None,
        *,
        purges: bool,
        say: Callable[[str], None],
        follow: Callable[[Mirror], None],
        begin_anew: Callable[[Mirror], None],
    ) -> None:
        self._target = target
        self._feed = feed
        self._files = files
        self._purges = purges
        self._say = say
        self._follow = follow
        self._begin_anew = begin_anew

    def look_for(self, mirror: Mirror, now: float) -> None:
        """A message is missing: it was lost on its way, or it has expired.

        Two subscriptions have to say so before the second is believed. Raises ``Gap`` then, and
        ``ClientError``.
        """
        mirror.held_since = now
        found = [self._feed.read_one(mirror.channel, Start.sequence(mirror.next)) for _ in range(2)]
        behind = [item.sequence for item in found if item is not None]
        if len(behind) == len(found) and min(behind) > mirror.next:
            # What the server has now counts: others may be missing among those that came.
            raise Gap(mirror.next, min(*behind, *mirror.held))
        assert mirror.tail is not None
        self._feed.leave(mirror.tail)
        mirror.held.clear()
        self._follow(mirror)

    def bridge(self, mirror: Mirror, gap: Gap) -> None:
        """The channel has nothing from ``gap.first`` to before ``gap.found``.

        Raises ``BridgeError`` if that must not be, ``ClientError``, ``NatsError``.
        """
        if mirror.ahead or mirror.window:
            # First everything before it has to be in the stream.
            mirror.reading = None
            return
        if mirror.stage is Stage.TAIL and self._files is not None and self._go_back(mirror, gap):
            return
        if not mirror.exists:
            mirror.skip_to(gap.found)
            mirror.reading = None
            return
        oldest = self._feed.read_one(mirror.channel, Start.first())
        first = oldest.sequence if oldest is not None else None
        if not mirror.is_empty and (not self._purges or first is None or first < gap.found):
            raise BridgeError(
                f'the channel "{mirror.channel}" has no messages {gap.first} to {gap.found - 1}, '
                f'and its stream "{mirror.stream}" ends at {mirror.acked}',
                hint="they have expired: with --purge-at-gap the stream begins behind them, as "
                "the channel does"
                if first is not None and first >= gap.found
                else "the log has a hole; run: ftstanctl store verify DIR",
            )
        self._target.purge_to(mirror.stream, gap.found)
        self._say(f"{mirror.channel}: {gap.first} to {gap.found - 1} have expired, the stream "
                  f"begins at {gap.found}")  # fmt: skip
        mirror.skip_to(gap.found)
        mirror.is_empty = True
        mirror.reading = None
        self._begin_anew(mirror)

    def _go_back(self, mirror: Mirror, gap: Gap) -> bool:
        """What the limits have removed may be in the files as long as its slice is: read those
        again, or wait until they say how far they count. Tells whether that is to be done.
        """
        assert self._files is not None
        extent = self._files.extent(mirror.channel)
        if extent.first <= gap.first <= extent.last:
            assert mirror.tail is not None
            self._feed.leave(mirror.tail)
            mirror.tail = None
            mirror.held.clear()
            mirror.deliveries.clear()
            mirror.stage = Stage.BACKLOG
            return True
        mirror.waited += 1
        return extent.last < gap.first and mirror.waited <= _CONFIRMS
