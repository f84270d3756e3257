"""What a node says and believes of a mixed group: one in which original servers are, or may be, members.

An original server obeys no epoch and says nothing while it stands by. So that it is gone is never concluded, only said
by the operator; that it is there is concluded from any heartbeat of one. The epoch record keeps the answer
(``docs/ft.md``, mixed groups).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.config.options import FT_MIXED_AUTO
from ftstan.config.units import SECOND, format_duration

if TYPE_CHECKING:
    from ftstan.config.options import FtOptions

MIXED_ON = (
    "ft: mixed group: original servers may be members of it, so takeovers wait for missed heartbeats; "
    "when the last of them is gone, run: ftstanctl ft mixed off"
)
MIXED_OFF = "ft: the group is not mixed any more: all members obey epochs"

ORIGINAL_PATIENCE_S = 1.125
"""The shortest missed-heartbeat interval that an original standby draws (``docs/compat/ft.md``)."""

_PATIENCE_NS = round(ORIGINAL_PATIENCE_S * SECOND)


class Belief:
    """What one node holds true of its group: ``mixed`` or not.

    ``heard``: an original server was heard, and the operator has not said since that they are gone. ``word``: what the
    operator said to this node; then no record counts.
    """

    def __init__(self, word: bool | None = None) -> None:
        self.mixed = word is True
        self.heard = False
        self._word = word
        self._recorded: bool | None = None

    def hear(self) -> str:
        """A heartbeat of an original server has come; gives a line for the log if that changes anything."""
        self.heard = True
        return self._become(True)

    def read(self, recorded: bool | None) -> str:
        """The record says ``recorded``; ``None``: it cannot be read. Gives a line as ``hear``."""
        if recorded is None or recorded == self._recorded or self._word is not None:
            return ""
        if self._recorded:
            # Switched off: the operator's word, younger than what was heard.
            self.heard = False
        self._recorded = recorded
        return self._become(recorded or self.heard)

    def _become(self, mixed: bool) -> str:
        before, self.mixed = self.mixed, mixed
        if before == mixed:
            return ""
        return MIXED_ON if mixed else MIXED_OFF


def word_of(options: FtOptions) -> bool | None:
    """What ``-ft_mixed`` says; ``None``: what the epoch record says counts."""
    return None if options.mixed == FT_MIXED_AUTO else options.mixed == "on"


def too_slow_line(options: FtOptions) -> str:
    """A warning if original standbys would miss our heartbeats, else nothing."""
    if options.hb_interval * 1.1 < _PATIENCE_NS:
        return ""
    return (
        f"ft: mixed group: ft_hb_interval is {format_duration(options.hb_interval)}, and original standbys try the "
        f"lock after {format_duration(_PATIENCE_NS)} of silence: use 1s or less"
    )
