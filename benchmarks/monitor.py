"""What monitoring costs the data plane: time that one look holds its thread, for each 1,000
subscriptions.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.groups import SIZES, Group
from ftstan.broker import views

if TYPE_CHECKING:
    from collections.abc import Callable

_SUBS = SIZES[-1]
_REPEAT = 20


def run(rounds: int) -> None:
    """Print one line per view."""
    broker = Group(_SUBS).broker
    channels = broker.channels.values()
    clients = broker.clients.values()
    (row,) = views.channel_rows(channels, subs=True)
    print(f"\n{f'monitoring, {_SUBS} subscriptions':44}{'us per 1000':>14}")
    looks: tuple[tuple[str, Callable[[], object]], ...] = (
        ("census of channels", lambda: views.census(channels)),
        ("list of a channel's subscriptions", lambda: views.channel_rows(channels, subs=True)),
        ("list of a client's subscriptions", lambda: views.client_rows(clients)),
        ("rows of subscriptions", lambda: views.sub_rows(row.subs)),
    )
    for name, look in looks:
        print(f"{'  ' + name:44}{_microseconds(look, rounds) * 1000 / _SUBS:14.0f}", flush=True)


def _microseconds(look: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(max(rounds, 3)):
        started = time.perf_counter()
        for _ in range(_REPEAT):
            look()
        times.append((time.perf_counter() - started) / _REPEAT)
    return statistics.median(times) * 1e6
