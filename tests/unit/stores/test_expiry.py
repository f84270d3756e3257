"""When channels are looked at for messages that their limits no longer allow."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ftstan.stores.expiry import Expiry
from ftstan.stores.memory import MemoryStore
from ftstan.wire.block import MsgBlock
from tests.filenode import NO_LIMITS, SECOND, FileNode, simulated
from tests.unit.broker.test_scale import calls

if TYPE_CHECKING:
    from ftstan.stores.interface import Store


def test_what_is_due_comes_once_the_earliest_first_and_no_more_than_asked_for() -> None:
    expiry = Expiry()
    for name, at in ((b"c", 30), (b"a", 10), (b"d", 40), (b"b", 20)):
        expiry.look(name, at)
    assert expiry.take(9, 10) == []
    assert expiry.take(30, 2) == [b"a", b"b"]
    assert expiry.is_due(30)
    assert expiry.take(30, 2) == [b"c"]
    assert not expiry.is_due(39)
    assert len(expiry) == 1


def test_an_earlier_look_replaces_a_later_one_and_never_the_other_way() -> None:
    expiry = Expiry()
    expiry.look(b"a", 100)
    expiry.look(b"a", 200)
    expiry.wake(b"a")
    assert expiry.take(99, 10) == []
    expiry.look(b"a", 50)
    assert expiry.take(60, 10) == [b"a"]
    assert expiry.take(1000, 10) == []
    expiry.wake(b"a")
    assert expiry.take(0, 10) == [b"a"]


def test_a_channel_that_is_gone_is_not_looked_at() -> None:
    expiry = Expiry()
    expiry.look(b"a", 10)
    expiry.forget(b"a")
    assert not expiry.is_due(100)
    expiry.look(b"a", 50)
    assert expiry.take(49, 10) == []
    assert expiry.take(50, 10) == [b"a"]


STEPS = st.tuples(st.sampled_from("lwft"), st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 9))


@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_a_name_comes_at_its_earliest_time(
    steps: list[tuple[str, bytes, int]],
) -> None:
    expiry = Expiry()
    wanted: dict[bytes, int] = {}
    for kind, name, at in steps:
        if kind == "l":
            expiry.look(name, at)
            wanted[name] = min(wanted.get(name, at), at)
        elif kind == "w":
            expiry.wake(name)
            wanted.setdefault(name, 0)
        elif kind == "f":
            expiry.forget(name)
            wanted.pop(name, None)
        else:
            times = [wanted.pop(n) for n in expiry.take(at, 100)]
            assert times == sorted(times)
            assert all(t <= at for t in times)
            assert all(t > at for t in wanted.values())
        assert len(expiry) == len(wanted)


def aged(store: Store, n: int, now: int) -> Store:
    """With ``n`` channels of a message each that has an hour to go, and nothing left to do."""
    for i in range(n):
        block = MsgBlock()
        block.append(1, b"c.%d" % i, b"", b"x", now)
        store.create_channel(b"c.%d" % i, replace(NO_LIMITS, max_age=3600 * SECOND)).append(block)
    assert store.commit() == {}
    return store


def test_a_second_without_expiry_costs_the_memory_store_the_same_for_any_channels() -> None:
    few, many = (aged(MemoryStore(), n, 0) for n in (10, 200))
    for store in (few, many):
        store.tick(0)
    assert many.tick(0) is False
    assert calls(lambda: many.tick(SECOND)) == calls(lambda: few.tick(SECOND))


def test_a_second_without_expiry_costs_the_file_store_the_same_for_any_channels() -> None:
    costs = []
    for n in (10, 200):
        node = FileNode(simulated())
        store = aged(node.store, n, node.clock.wall_ns())
        for _ in range(100):
            node.tick()
        now = node.clock.wall_ns() + SECOND
        costs.append(calls(partial(store.tick, now)))
    assert costs[0] == costs[1]
