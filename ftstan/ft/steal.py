"""When an owner that holds the lock counts as gone: pure bookkeeping of its silence, part of the
standby.

A dead host's lock stays with the file server until its lease expires, and longer where nothing
expires. With ``-ft_steal_after`` a standby does not wait for it: an owner that was silent **on NATS
and on storage** for that long is replaced under the next epoch, without the lock. That is safe
because an owner acknowledges nothing that the epoch file does not confirm
(``docs/ft-argument.md``); the silence only decides whether it is worth while. Silent on storage
means that ``ft.watch``, which an owner rewrites every second, and the epoch record have not
changed.

An owner that stops before it has the lock has none to give back: it says in ``ft.watch`` that it is
gone, and nobody waits. Words on NATS could be forged, and would take the store from an owner that
is alive.

Silence counts only while it is watched: a standby that slept itself has seen nothing of the time in
between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.ft.watch import is_farewell

if TYPE_CHECKING:
    from ftstan.ft.epoch_records import EpochRecord


class StealTimer:
    """Adds up the silence of one owner. ``after``: seconds of it that are enough, 0 for never.

    ``longest_gap``: what may lie between two looks; more than that was not watched.
    """

    def __init__(self, after: float, longest_gap: float) -> None:
        self._after = after
        self._longest_gap = longest_gap
        self._sign: tuple[int, bytes, bytes] | None = None
        self._looked = 0.0
        self._silent = 0.0

    def broken(self) -> None:
        """The owner was heard, or this node could not have heard it: start over."""
        self._sign = None
        self._silent = 0.0

    def refused(self, owner: EpochRecord | None, watch: bytes | None, now: float) -> str:
        """The lock was refused; storage showed ``owner`` and its watch file.

        Returns why it counts as gone, if it does.

        Never for a store without an owner of ours or of a mixed group: who holds the lock there may
        obey no epoch. ``watch`` is empty if there is no such file, ``None`` if it could not be
        read: then nothing is known.
        """
        if not self._after or owner is None or owner.ft_mixed or watch is None:
            self.broken()
            return ""
        if is_farewell(watch, owner.epoch):
            return "stopped, and had no lock to give back"
        sign = owner.epoch, owner.nonce, watch
        if sign != self._sign:
            self._sign = sign
            self._silent = 0.0
        else:
            self._silent += min(now - self._looked, self._longest_gap)
        self._looked = now
        if self._silent < self._after:
            return ""
        return (
            f"was silent on NATS and on storage for {self._silent:.0f}s (ft_steal_after "
            f"{self._after:g}s)"
        )


def taking_line(owner: EpochRecord, why: str) -> str:
    """The warning of a takeover from ``owner`` without the lock."""
    return (
        f"ft: TAKING THE DATASTORE WITHOUT ITS LOCK: {owner.describe()} {why}; it can "
        "acknowledge nothing any more"
    )


def refused_lines(owner: EpochRecord | None) -> tuple[str, str]:
    """What is said when the lock is held and nobody is heard.

    ``owner``: who took the store last.
    """
    holder = (
        f"it was taken last by {owner.describe()}" if owner else "no ftstan server ever owned it"
    )
    return (
        "ft: unable to get store lock at this time, going back to standby",
        f"ft: the datastore's lock is held, and no owner is heard: {holder}",
    )
