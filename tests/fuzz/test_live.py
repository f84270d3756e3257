"""Hostile messages through a real server: the honest client is served, and what leaks is named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.live import GROWTH, IDLE, Held, attack_server, leaks

if TYPE_CHECKING:
    from pathlib import Path

HELD = Held(
    descriptors=20,
    threads=8,
    connections=3,
    nats_subscriptions=70,
    clients=1,
    live_subscriptions=1,
    memory=1 << 26,
)


@pytest.mark.processes
def test_a_server_holds_what_it_held_before_some_thousand_hostile_messages(tmp_path: Path) -> None:
    _, _, met = attack_server(tmp_path, 5000, 5)
    for name in ("ConnectRequest", "SubscriptionRequest", "CloseRequest", "Ping"):
        assert met[f"undecodable {name}"] > 100
        assert met[f"{name} granted"]


@pytest.mark.parametrize("name", ["threads", "connections", "nats_subscriptions", "clients"])
def test_one_more_than_before_is_a_leak(name: str) -> None:
    now = getattr(HELD, name) + 1
    assert leaks(HELD, replace(HELD, **{name: now})) == [f"{name}: {now - 1} before, {now} after"]


def test_descriptors_of_idle_connections_are_no_leak() -> None:
    assert leaks(HELD, replace(HELD, descriptors=HELD.descriptors + IDLE)) == []
    assert leaks(HELD, replace(HELD, descriptors=HELD.descriptors + IDLE + 1)) == [
        "descriptors: 20 before, 24 after"
    ]
    assert leaks(HELD, replace(HELD, descriptors=HELD.descriptors - 1)) == []


def test_memory_may_grow_a_little() -> None:
    assert leaks(HELD, replace(HELD, memory=HELD.memory + GROWTH)) == []
    assert leaks(HELD, replace(HELD, memory=HELD.memory + GROWTH + 1)) == [
        "memory: 64 MiB before, 96 MiB after"
    ]
