"""20,000 hostile messages: answered or ignored, nothing leaked, and the honest client never
notices.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.hostile import REQUESTS, Attack, blocks

EACH = 5000
MET: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_arrives_is_answered_or_ignored_and_leaves_nothing_behind(seed: int) -> None:
    attack = Attack(seed)
    attack.run(EACH)
    MET.update(attack.met)
    assert attack.clean_up() == {
        "clients": 1,
        "connection ids": 1,
        "ack inboxes": 1,
        "live subscriptions": 1,
    }
    for _, name, _, _ in REQUESTS:
        assert attack.met[f"undecodable {name}"]
        assert attack.met[f"{name} granted"]
        assert attack.met[f"{name} refused"]
    assert attack.met["PubMsg granted"]
    assert attack.met["undecodable PubMsg"]


def test_what_is_malformed_is_counted_and_told_in_few_lines_that_nobody_can_forge(
    capfd: pytest.CaptureFixture[str],
) -> None:
    attack = Attack(11)
    attack.run(EACH)
    log = capfd.readouterr().err
    totals = attack.driver.broker.malformed.totals
    undecodable = {
        "connect": ["ConnectRequest"],
        "subscribe": ["SubscriptionRequest"],
        "close": ["CloseRequest"],
        "ping": ["Ping"],
    }
    for kind, names in undecodable.items():
        assert totals[kind] >= sum(attack.met[f"undecodable {name}"] for name in names) > 0
    assert (
        totals["unsubscribe"] + totals["subscription close"]
        == attack.met["undecodable UnsubscribeRequest"]
    )
    assert min(totals["publish"], totals["ack"], totals["heartbeat answer"]) > 0
    told = [line for line in log.splitlines() if "STREAM: malformed " in line]
    for kind in totals:
        assert 0 < sum(f"malformed {kind}: " in line for line in told) <= attack.met["ticks"]
    assert all(line.isprintable() and len(line) < 600 for line in told)
    assert [line for line in log.splitlines() if not line.startswith("[")] == []


def test_memory_does_not_grow_with_what_is_refused() -> None:
    attack = Attack(77)
    attack.run(2000)
    attack.clean_up()
    before = blocks()
    attack.run(2000)
    attack.clean_up()
    assert blocks() - before < 1000
