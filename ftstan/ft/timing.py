"""How often a member acts and speaks: the intervals of a group.

Pure: time comes in as seconds, randomness as a ``random.Random``. Nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.units import SECOND

if TYPE_CHECKING:
    import random

    from ftstan.config.options import FtOptions

SPREAD = 0.10
"""Largest share by which the two heartbeat intervals of a process differ from their nominal
value.
"""

POLL_SPREAD = 0.20
"""The same for each single wait between two polls of the lock."""


def spread(rng: random.Random, nominal: float, share: float) -> float:
    """``nominal`` seconds more or less up to ``share``: the size uniform, the sign by coin
    (``docs/compat/ft.md``).
    """
    size = rng.random() * share * nominal
    return nominal + size if rng.random() < 0.5 else nominal - size


#: Seconds between two looks at the lock, unless the operator says: on local file systems, and on
#: those where each look is a request.
_LOCAL_POLL_S = 0.05
_NETWORK_POLL_S = 0.5

_INTERVALS = (
    "hb_interval",
    "hb_missed_interval",
    "poll_interval",
    "first_listen",
    "try_deadline",
    "look_interval",
)


@dataclass(frozen=True, slots=True)
class FtTiming:
    """The intervals of a group, in seconds, before randomisation.

    The defaults are those of the original.

    ``hb_interval``: between two heartbeats of the active. ``hb_missed_interval``: silence after
    which a standby suspects. ``poll_interval``: between two looks at the lock while standing by
    (the original never polls). ``first_listen``: silence after which a starting node tries the lock
    for the first time. ``try_deadline``: age at which an unanswered attempt is reported as storage
    that hangs. ``look_interval``: between two looks at what our directory shows. ``steal_after``:
    silence of an owner on NATS and on storage after which its store is taken without its lock, 0
    for never.

    Raises ``ConfigError`` if the numbers cannot work together.
    """

    hb_interval: float = 1.0
    hb_missed_interval: float = 1.25
    poll_interval: float = 0.05
    first_listen: float = 0.1
    try_deadline: float = 5.0
    look_interval: float = 10.0
    steal_after: float = 0.0

    def __post_init__(self) -> None:
        for name in _INTERVALS:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"ft: {name} must be longer than zero",
                    hint=f"give ft_{name} a duration such as 1s",
                )
        # The slack of a nanosecond forgives binary fractions: 1.1 * 0.2 is a hair above 0.22.
        if self.hb_missed_interval + 1e-9 < 1.1 * self.hb_interval:
            raise ConfigError(
                "ft: the missed heartbeat interval needs to be at least 10% of the heartbeat "
                "interval "
                f"(hb={_duration(self.hb_interval)} missed hb={_duration(self.hb_missed_interval)}",
                hint="make ft_hb_missed_interval at least 1.1 times ft_hb_interval",
                option="ft_hb_missed_interval",
            )


def timing_of(ft: FtOptions, *, is_network: bool) -> FtTiming:
    """The intervals that the operator asked for.

    Raises ``ConfigError`` if the numbers cannot work together.
    """
    poll = ft.poll_interval / SECOND or (_NETWORK_POLL_S if is_network else _LOCAL_POLL_S)
    return FtTiming(
        hb_interval=ft.hb_interval / SECOND,
        hb_missed_interval=ft.hb_missed_interval / SECOND,
        poll_interval=poll,
        steal_after=ft.steal_after / SECOND,
    )


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.6g}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:.9g}s" if minutes else f"{rest:.9g}s"
