"""Where the consumers of durables and of their queue groups begin."""

from __future__ import annotations

import pytest

from ftstan.base.errors import ConfigError
from ftstan.bridge.positions import positions
from ftstan.stores.interface import StoredSub, SubState


def sub(
    *pending: int,
    client: bytes = b"me",
    durable: bytes = b"",
    queue: bytes = b"",
    last: int = 0,
    closed: bool = False,
) -> StoredSub:
    state = SubState(
        1,
        client,
        queue=queue,
        durable_name=durable,
        last_sent=last,
        max_in_flight=10,
        ack_wait_secs=30,
        is_durable=True,
        is_closed=closed,
    )
    return StoredSub(state, set(pending))


def test_a_durable_goes_on_behind_what_it_was_sent() -> None:
    (found,) = positions([sub(durable=b"audit", last=7)])
    assert (found.consumer, found.start, found.pending, found.again) == ("me_audit", 8, 0, 0)
    config = found.config()
    assert config["opt_start_seq"] == 8
    assert config["ack_wait"] == 30_000_000_000
    assert config["max_ack_pending"] == 10


def test_what_was_not_acknowledged_comes_again_and_so_does_what_lies_behind_it() -> None:
    (found,) = positions([sub(3, 6, durable=b"audit", last=9)])
    assert (found.start, found.pending, found.again) == (3, 2, 5)


def test_the_members_of_a_durable_group_have_one_position() -> None:
    group = [
        sub(4, client=b"a", queue=b"dur:workers", last=6),
        sub(5, client=b"b", queue=b"dur:workers", last=8),
        sub(client=b"c", queue=b"dur:workers", last=2, closed=True),
    ]
    (found,) = positions(group)
    assert (found.consumer, found.durable, found.queue) == ("dur_workers", "dur", "workers")
    assert (found.start, found.pending, found.again, found.max_in_flight) == (4, 2, 3, 20)


def test_what_ends_with_its_client_and_the_bridge_itself_are_left_out() -> None:
    assert (
        positions([sub(last=3), sub(queue=b"plain", last=3), sub(durable=b"ftstan-bridge")]) == []
    )


def test_two_durables_never_share_a_consumer() -> None:
    subs = [sub(client=b"a", durable=b"b_c"), sub(client=b"a_b", durable=b"c")]
    with pytest.raises(ConfigError, match='would be one consumer, "a_b_c"'):
        positions(subs)
