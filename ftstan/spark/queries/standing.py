"""How far each subscription of a datastore is behind, now.

Reads ``subs.dat`` and single messages, without Spark.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.spark.log import Store
from ftstan.spark.parts import POLYNOMIAL, Bounds
from ftstan.spark.queries.positions import Replay, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA = (
    "place string, channel string, subscription string, kind string, members int, online "
    "boolean, last_sent bigint, "
    "behind bigint, in_flight bigint, oldest_unacked bigint, oldest_unacked_time timestamp, "
    "unreadable int"
)


@dataclass(frozen=True, slots=True)
class Standing:
    """One subscription, or a queue group with its ``members``.

    ``kind``: plain, durable or queue; ``online``: a client has it open; ``behind``: messages of the
    channel past ``last_sent``; ``in_flight``: sent and not acknowledged, the oldest of them with
    its time (``None`` if it is gone); ``unreadable``: places of the channel's ``subs.dat`` that
    hold no record: the row may be wrong.
    """

    place: str
    channel: str
    subscription: str
    kind: str
    members: int
    online: bool
    last_sent: int
    behind: int
    in_flight: int
    oldest_unacked: int | None
    oldest_unacked_time: dt.datetime | None
    unreadable: int


def standings(path: str, reading: Mapping[str, str]) -> Iterator[Standing]:
    """The subscriptions of the store at ``path``. ``reading``: options of ``stan``.

    Raises ``FtstanError``.
    """
    polynomial = int(reading.get("crcPolynomial", POLYNOMIAL))
    unconfirmed = reading.get("allowUnconfirmed", "").lower() == "true"
    store = Store(path, polynomial=polynomial, allow_unconfirmed=unconfirmed)
    names = [name.strip() for name in reading.get("subscribe", "").split(",") if name.strip()]
    for channel, (_, behind_last) in sorted(store.ends(names or None).items()):
        typed = read(path, channel, polynomial)
        replay = Replay()
        unreadable = sum(event.event == "unreadable" for event in replay.events(typed))
        for name, position in sorted(replay.positions.items()):
            pending = position.pending
            oldest = min(pending, default=None)
            yield Standing(
                path,
                channel,
                name,
                position.kind,
                len(position.members),
                position.online,
                position.last_sent,
                max(behind_last - 1 - position.last_sent, 0),
                len(pending),
                oldest,
                None if oldest is None else _time_of(store, channel, oldest),
                unreadable,
            )


def _time_of(store: Store, channel: str, sequence: int) -> dt.datetime | None:
    for part in store.plan({channel: Bounds(first=sequence, last=sequence)}):
        for batch in part.read(("timestamp",)):
            for value in batch.column(0).to_pylist():
                if isinstance(value, dt.datetime):
                    return value
    return None
