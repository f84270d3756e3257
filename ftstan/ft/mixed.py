"""What a node says and believes of a mixed group: one in which original servers are, or may be,
members.

An original server obeys no epoch and says nothing while it stands by. So that it is gone is never
concluded, only said by the operator. That it is there is said by storage, where a group of ours
takes over a store of one, or by the operator; the epoch record keeps the answer. A heartbeat never
makes a group mixed, whoever hears it and however many come: anybody who may publish on the group's
subject can send them (``docs/ft.md``, mixed groups).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.config.options import FT_MIXED_AUTO
from ftstan.config.units import SECOND, format_duration

if TYPE_CHECKING:
    from ftstan.config.options import FtOptions

MIXED_ON = (
    "ft: mixed group: original servers may be members of it, so takeovers wait for missed "
    "heartbeats; "
    "when the last of them is gone, run: ftstanctl ft mixed off"
)
MIXED_OFF = "ft: the group is not mixed any more: all members obey epochs"

ORIGINAL_PATIENCE_S = 1.125
"""The shortest missed-heartbeat interval that an original standby draws (``docs/compat/ft.md``)."""

_PATIENCE_NS = round(ORIGINAL_PATIENCE_S * SECOND)


class MixedModeEstimate:
    """What one node holds true of its group: ``mixed`` or not.

    ``word``: what the operator said to this node; then no record counts. ``heard``: a heartbeat of
    an original server has come under the epoch that is recorded. That makes nothing mixed, it only
    makes a successor more careful: it steals no store, and reads what it takes over as one that an
    original server may have written to (``heard_under``).
    """

    def __init__(self, word: bool | None = None) -> None:
        self.mixed = word is True
        self.heard = False
        self._word = word
        self._recorded: bool | None = None
        self._heard_by: int | None = None
        self._heard_last = 0

    def hear(self) -> None:
        """An original server sent a heartbeat."""
        # The record that was read last may be an old one: the next look says under which epoch it
        # was, or a later one.
        self.heard = True
        self._heard_by = None

    @property
    def heard_under(self) -> int | None:
        """The epoch under which an original server was heard last, 0 for none.

        ``None``: under the newest one.
        """
        return None if self.heard else self._heard_last

    def read(self, recorded: bool | None, epoch: int = 0) -> str:
        """The record of ``epoch`` says ``recorded``; ``None``: it cannot be read.

        Gives a line for the log, or none.

        ``epoch`` 0: of no owner that is known.
        """
        if recorded is None:
            return ""
        if self._heard_by is None:
            self._heard_by = epoch or None
            if self.heard:
                self._heard_last = epoch
        elif epoch > self._heard_by:
            # One of ours has taken the store since, and may have died before it read what an
            # original server left.
            self.heard = False
        if recorded == self._recorded or self._word is not None:
            return ""
        self._recorded = recorded
        before = self.mixed
        self.mixed = recorded
        if before == recorded:
            return ""
        return MIXED_ON if recorded else MIXED_OFF


def word_of(options: FtOptions) -> bool | None:
    """What ``-ft_mixed`` says; ``None``: what the epoch record says counts."""
    return None if options.mixed == FT_MIXED_AUTO else options.mixed == "on"


def not_mixed_line(server_id: str) -> str:
    """A warning about a heartbeat without an epoch in a group that is not mixed."""
    return (
        f'ft: serverID "{server_id}" says without an epoch that it is active: this group is not '
        "mixed, so nobody makes "
        "room for an original server; if that one really is a member, run: ftstanctl ft mixed on; "
        "if it is not, somebody forges heartbeats: see who may publish there"
    )


def too_slow_line(options: FtOptions) -> str:
    """A warning if original standbys would miss our heartbeats, else nothing."""
    if options.hb_interval * 1.1 < _PATIENCE_NS:
        return ""
    return (
        f"ft: mixed group: ft_hb_interval is {format_duration(options.hb_interval)}, and "
        "original standbys try the "
        f"lock after {format_duration(_PATIENCE_NS)} of silence: use 1s or less"
    )
