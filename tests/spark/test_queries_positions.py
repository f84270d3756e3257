"""Where subscriptions stand, from the records of a ``subs.dat``, as a server that replays the file
would find them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoreError
from ftstan.spark.log import POLYNOMIAL
from ftstan.spark.queries.positions import Replay, read
from ftstan.stores.file.log import records
from ftstan.stores.file.state import state_records
from ftstan.stores.interface import SubState
from ftstan.wire.pb import stan_internal_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

CRC = records.Crc(POLYNOMIAL)


def _sub(sub_id: int, kind: int = records.SUB_NEW, /, **more: object) -> bytes:
    state = {
        "client_id": b"me",
        "inbox": b"in",
        "durable_name": b"dur%d" % sub_id,
        "is_durable": True,
    } | more
    return state_records.sub_record(kind, SubState(sub_id, **state), CRC)  # type: ignore[arg-type]


def _update(kind: int, sub_id: int, sequence: int) -> bytes:
    return records.typed_record(
        kind, pb.SubStateUpdate(id=sub_id, seqno=sequence).SerializeToString(), CRC
    )


def _sent(sub_id: int, *sequences: int) -> bytes:
    return b"".join(_update(records.SUB_MSG, sub_id, sequence) for sequence in sequences)


def _acked(sub_id: int, *sequences: int) -> bytes:
    return b"".join(_update(records.SUB_ACK, sub_id, sequence) for sequence in sequences)


def _deleted(sub_id: int) -> bytes:
    return state_records.sub_delete_record(sub_id, CRC)


def _write(path: Path, *content: bytes) -> None:
    (path / "orders").mkdir()
    (path / "orders" / "subs.dat").write_bytes(records.VERSION + b"".join(content))


def _replayed(path: Path) -> tuple[Replay, list[tuple[str, str, int, int, int]]]:
    replay = Replay()
    events = list(replay.events(read(str(path), "orders", POLYNOMIAL)))
    return replay, [(e.event, e.subscription, e.last_sent, e.in_flight, e.behind) for e in events]


def test_each_event_says_where_its_subscription_stands_behind_it(tmp_path: Path) -> None:
    _write(
        tmp_path,
        _sub(1),
        _sub(2, last_sent=3),
        _sent(1, 4, 5),
        _acked(1, 4),
        _sent(2, 4),
        _deleted(2),
    )
    replay, events = _replayed(tmp_path)
    assert events == [
        ("new", "me/dur1", 0, 0, 0),
        ("new", "me/dur2", 3, 0, 0),
        ("sent", "me/dur1", 4, 1, 0),
        ("sent", "me/dur1", 5, 2, 0),
        ("acked", "me/dur1", 5, 1, 0),
        ("sent", "me/dur2", 4, 1, 1),
        ("delete", "me/dur2", 4, 1, 1),
    ]
    assert list(replay.positions) == ["me/dur1"]
    assert replay.positions["me/dur1"].pending == {5}


def test_the_members_of_a_queue_group_are_one_subscription(tmp_path: Path) -> None:
    group = {"queue": b"dur:workers", "durable_name": b""}
    _write(
        tmp_path,
        _sub(1, **group),
        _sub(2, **group),
        _sent(1, 1, 3),
        _sent(2, 2),
        _acked(2, 2),
        _deleted(2),
    )
    replay, events = _replayed(tmp_path)
    assert events[-2] == ("acked", "dur:workers", 3, 2, 0)
    (position,) = replay.positions.values()
    assert (position.kind, position.last_sent, position.pending, list(position.members)) == (
        "queue",
        3,
        {1, 3},
        [1],
    )


def test_an_update_keeps_what_is_in_flight_and_says_whether_it_is_open(tmp_path: Path) -> None:
    _write(tmp_path, _sub(1), _sent(1, 1, 2), _sub(1, records.SUB_UPDATE, is_closed=True))
    (position,) = _replayed(tmp_path)[0].positions.values()
    assert (position.pending, position.online) == ({1, 2}, False)


def test_what_is_no_record_is_an_event_of_its_own(tmp_path: Path) -> None:
    torn = _sent(1, 9)[:-2]
    _write(tmp_path, _sub(1), b"\x07garbage\x99", _sent(1, 1), torn)
    replay, events = _replayed(tmp_path)
    assert [event for event, *_ in events] == ["new", "unreadable", "sent", "unreadable"]
    assert replay.positions["me/dur1"].last_sent == 1


@pytest.mark.parametrize("seed", range(5))
def test_in_the_end_everybody_stands_where_a_server_would_find_them(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    content = [_sub(sub_id) for sub_id in range(1, 5)]
    for _ in range(200):
        sub_id = chance.randint(1, 4)
        sequence = chance.randint(1, 60)
        kinds = [_sent(sub_id, sequence)] * 6 + [_acked(sub_id, sequence)] * 5
        kinds.append(_sub(sub_id, records.SUB_UPDATE, last_sent=chance.randint(1, 9)))
        content.append(chance.choice(kinds))
    _write(tmp_path, *content)
    rows = [(kind, payload) for _, kind, payload in read(str(tmp_path), "orders", POLYNOMIAL).rows]
    subs, _ = state_records.replay_subs(rows, "subs.dat")
    mine = {
        sub_id: (position.last_sent, position.pending)
        for position in _replayed(tmp_path)[0].positions.values()
        for sub_id in position.members
    }
    assert mine == {
        sub_id: (stored.state.last_sent, stored.pending) for sub_id, stored in subs.items()
    }


def test_a_channel_without_subscriptions_has_no_events_and_a_missing_one_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "orders").mkdir()
    assert _replayed(tmp_path)[1] == []
    with pytest.raises(StoreError, match="subscriptions of channel invoices: No such file"):
        read(str(tmp_path), "invoices", POLYNOMIAL)
