"""What a drill's judge knows beyond the demo's: channels, order, owners, and how long no ack
came.
"""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ftstan.drill import ledger
from ftstan.drill.judge import judge
from ftstan.drill.ledger import (
    Ack,
    Delivery,
    Fault,
    LedgerError,
    Owner,
    Publish,
    Read,
    Record,
    Takeover,
)
from ftstan.drill.result import ALL, Spread, spreads
from ftstan.drill.rules import PROMISE, Rule
from ftstan.drill.selftest import Trial, clean_ledger, trials

ROOT = Path(__file__).parents[3]


def broken(records: list[Record]) -> set[Rule]:
    return {breach.rule for breach in judge(records).breaches}


def acks_at(*seconds: float) -> list[Record]:
    return [Ack(round(t * 1e6), f"{n}.1", "", 1) for n, t in enumerate(seconds, 1)]


def fault_at(seconds: float) -> Fault:
    return Fault(round(seconds * 1e6), 1, "a", "kill")


def outage(*records: Record) -> list[float | None]:
    return [x.ms for x in judge(records).outages]


@pytest.mark.parametrize("trial", trials(), ids=lambda trial: trial.injected)
def test_the_self_test_sees_each_thing_that_was_put_into_a_ledger(trial: Trial) -> None:
    assert trial.passed


def test_a_trial_that_found_nothing_or_something_else_has_failed() -> None:
    assert not Trial("a gap", Rule.CONTIGUOUS, frozenset()).passed
    assert not Trial("a gap", Rule.CONTIGUOUS, frozenset({Rule.STORED})).passed
    assert not Trial("nothing", None, frozenset({Rule.STORED})).passed


def test_the_order_of_records_means_nothing() -> None:
    records = clean_ledger()
    random.Random(7).shuffle(records)
    assert judge(records) == judge(clean_ledger())


def test_each_channel_is_judged_by_itself() -> None:
    records = clean_ledger()
    other: list[Record] = []
    for record in records:
        if isinstance(record, Publish | Read | Delivery):
            other.append(replace(record, id=f"x{record.id}", channel="other"))
        elif isinstance(record, Ack):
            other.append(replace(record, id=f"x{record.id}"))
    assert judge([*records, *other]).clean
    gone = [x for x in other if not (isinstance(x, Read) and x.sequence == 40)]
    verdict = judge([*records, *gone])
    assert {breach.rule for breach in verdict.breaches} == {Rule.STORED, Rule.KEPT}
    assert all(
        example.startswith("other: ") for breach in verdict.breaches for example in breach.examples
    )


def test_a_durable_that_got_nothing_of_a_channel_has_missed_all_of_it() -> None:
    records = clean_ledger()
    other: list[Record] = []
    for record in records:
        if isinstance(record, Publish | Read | Delivery):
            other.append(replace(record, id=f"x{record.id}", channel="other"))
        elif isinstance(record, Ack):
            other.append(replace(record, id=f"x{record.id}"))
    second = [replace(x, subscription="second") for x in records if isinstance(x, Delivery)]
    (breach,) = judge([*records, *other, *second]).breaches
    assert (breach.rule, breach.count) == (Rule.DELIVERED, len(second))
    assert breach.examples[0] == "other: second: id x1.1"


def test_a_message_acked_before_another_was_published_must_come_first_and_no_other() -> None:
    """Two publishes that overlap may be stored in any order."""
    records = [x for x in clean_ledger() if not isinstance(x, Publish | Ack)]
    publishes = [x for x in clean_ledger() if isinstance(x, Publish)]
    acks = [x for x in clean_ledger() if isinstance(x, Ack)]
    together = [replace(x, t=publishes[0].t) for x in publishes]
    swapped = {5: 9, 9: 5}
    moved = [
        replace(x, sequence=swapped.get(x.sequence, x.sequence))
        if isinstance(x, Read | Delivery)
        else x
        for x in records
    ]
    assert Rule.ORDER not in broken([*moved, *together, *acks])
    assert Rule.ORDER in broken([*moved, *publishes, *acks])


def test_a_former_owner_that_confirms_behind_its_successor_is_seen_a_mere_claim_is_not() -> None:
    def owners(*rows: tuple[str, int, int]) -> set[Rule]:
        return {Rule.ONE_OWNER} & broken([Owner(t, *row) for t, row in enumerate(rows)])

    a_goes_on = (("a", 1, 5), ("b", 2, 3), ("a", 1, 5), ("a", 1, 6))
    assert owners(*a_goes_on)
    # It still says that it is active, and confirms nothing.
    assert not owners(*a_goes_on[:3])
    # What it confirmed between two looks may lie before its successor.
    assert not owners(("a", 1, 5), ("b", 2, 3), ("a", 1, 6))
    # An answer that was long under way says nothing about what came before it.
    slow = [
        Owner(0, "a", 1, 5),
        Owner(1, "b", 2, 3, took_us=5),
        Owner(2, "a", 1, 5),
        Owner(3, "a", 1, 6),
    ]
    assert Rule.ONE_OWNER not in broken(list(slow))
    # A successor that has confirmed nothing yet proves nothing.
    assert not owners(("a", 1, 5), ("b", 2, 0), ("a", 1, 5), ("a", 1, 6))
    # The same node in a later epoch of its own is no former owner.
    assert not owners(("a", 1, 5), ("b", 2, 3), ("a", 3, 1), ("a", 3, 2))


def test_an_outage_is_the_longest_time_without_an_ack_around_a_fault() -> None:
    assert outage(fault_at(10), *acks_at(9.9, 10.4, 10.5)) == [500.0]
    # The first silence may be shorter than a later one.
    assert outage(fault_at(10), *acks_at(9.9, 10.1, 13.1, 13.2)) == [3000.0]
    # Of two faults each has its own.
    assert outage(fault_at(10), fault_at(20), *acks_at(9.9, 10.2, 19.9, 20.9)) == pytest.approx(
        [9700.0, 1000.0]
    )
    assert outage(fault_at(10), fault_at(20), *acks_at(9.9, 10.2, 10.3, 20.9)) == pytest.approx(
        [300.0, 10600.0]
    )


def tried_at(*seconds: float) -> list[Record]:
    return [
        Publish(round(at * 1e6), f"p{number}.1", number, 1, "", 9, "00")
        for number, at in enumerate(seconds)
    ]


def test_acks_and_publishes_are_counted_before_during_and_after_each_fault() -> None:
    records = [
        *(fault_at(10), fault_at(20)),
        # One ack was under way when the first fault came, two when the second did.
        *acks_at(8.0, 9.0, 9.9, 10.1, 13.0, 15.0, 19.9, 20.1, 20.2, 25.0),
        *tried_at(7.5, 8.5, 9.5, 9.8, 10.5, 12.9, 14.0, 24.9, 25.5),
    ]
    first, second = judge(records).outages
    assert (first.ms, second.ms) == pytest.approx((4900.0, 4800.0))
    # The longest gap of the first fault ends with the ack at 19.9.
    assert first.acked == (3, 3, 1)
    assert second.acked == (1, 2, 1)
    assert first.published == (4, 3, 0)
    assert second.published == (0, 1, 1)


def test_what_is_counted_around_faults_is_everything_once() -> None:
    random.seed(11)
    for _ in range(200):
        faults = [fault_at(random.uniform(1, 50)) for _ in range(random.randint(1, 5))]
        acks = acks_at(*(random.uniform(0, 60) for _ in range(random.randint(0, 40))))
        verdict = judge([*faults, *acks])
        counts = [x.acked for x in verdict.outages]
        assert min(n for row in counts for n in row) >= 0
        assert counts[0].before + sum(x.during + x.after for x in counts) == verdict.acked
        assert all(a.after == b.before for a, b in itertools.pairwise(counts))


def test_behind_a_fault_that_nobody_recovered_from_nothing_is_after() -> None:
    (found,) = judge([fault_at(10), *acks_at(8.0, 9.9), *tried_at(9.0, 10.5, 11.0)]).outages
    assert found.ms is None
    assert found.acked == (2, 0, 0)
    assert found.published == (1, 2, 0)


def test_a_fault_before_service_is_back_ends_what_is_counted_for_the_former() -> None:
    first, second = judge([fault_at(10), fault_at(11), *acks_at(9.0, 12.0, 13.0)]).outages
    assert first.acked == (1, 0, 0)
    assert second.acked == (0, 0, 2)


def load_until(seconds: float) -> list[Record]:
    return [Publish(round(seconds * 1e6), "9.1", 9, 1, "", 9, "00")]


def test_the_time_of_a_fault_ends_with_the_first_ack_of_its_successor() -> None:
    # What is slow later is no matter of the fault, and told as such.
    takeover = Takeover(10_300_000, 2, "b", 300_000, 500_000)
    records = [fault_at(10), takeover, *acks_at(9.9, 10.5, 13.5, 13.6), *load_until(14)]
    verdict = judge(records)
    assert [x.ms for x in verdict.outages] == [600.0]
    assert verdict.elsewhere_ms == 3000.0


def test_acks_that_were_under_way_do_not_hide_the_time_without_service() -> None:
    # A switchover serves on for a while; the first ack behind the request is none of a successor.
    takeover = Takeover(10_500_000, 2, "b", 500_000, 700_000)
    switchover = replace(fault_at(10), fault="switchover")
    assert outage(switchover, takeover, *acks_at(9.99, 10.01, 10.02, 10.7)) == pytest.approx([680])


def test_the_end_of_the_load_is_no_fault() -> None:
    # The last publish is repeated long after the others are done.
    late = acks_at(9.9, 10.4, 10.5, 16.0)
    assert outage(fault_at(10), *late, *load_until(10.45)) == [500.0]
    # While there is load, it is.
    assert outage(fault_at(10), *late, *load_until(17)) == [5500.0]


def test_no_percentile_is_made_of_a_few_samples() -> None:
    assert Spread.of("kill", [30.0, 10.0, 20.0]) == Spread("kill", 3, 10.0, None, None, 30.0)
    five = Spread.of("kill", [30.0, 10.0, 20.0, 40.0, 50.0])
    assert (five.median, five.p99) == (30.0, None)
    many = Spread.of("kill", [float(n) for n in range(1, 201)])
    assert (many.median, many.p99, many.most) == (100.5, 198.0, 200.0)


def test_acks_that_do_not_come_back_are_a_breach_and_no_outage_in_figures() -> None:
    records = [*acks_at(9.9), fault_at(10)]
    assert outage(*records) == [None]
    assert Rule.RECOVERED in broken(records)
    assert spreads(judge(records).outages) == []


def test_outages_are_told_by_fault_and_together() -> None:
    stop = Fault(20_000_000, 2, "b", "stop")
    records = [fault_at(10), stop, *acks_at(9.9, 10.4, 19.9, 20.9)]
    rows = {row.fault: (row.count, row.least, row.most) for row in spreads(judge(records).outages)}
    assert rows == {
        "kill": (1, 9500.0, 9500.0),
        "stop": (1, 1000.0, 1000.0),
        ALL: (2, 1000.0, 9500.0),
    }


def test_the_page_of_the_ledger_has_the_rules_as_the_judges_have_them() -> None:
    page = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    verdict = page.partition("## The verdict")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", verdict, re.MULTILINE)
    assert rows == [(rule.name.lower(), rule.meaning) for rule in Rule]


def test_the_demo_s_judge_keeps_to_the_promise() -> None:
    late = [*clean_ledger(), fault_at(2_000_000_000)]
    assert Rule.RECOVERED in broken(late)
    assert judge(late, PROMISE).clean
    assert Rule.ORDER not in PROMISE


def test_missing_fields_have_their_former_values_and_are_written_only_where_they_say_more() -> None:
    publish = Publish(1, "1.1", 1, 1, "", 9, "00")
    assert ledger.parse(ledger.encode(publish)) == publish
    assert "channel" not in ledger.encode(publish)
    named = replace(publish, channel="orders")
    assert ledger.parse(ledger.encode(named)) == named
    fault = replace(fault_at(1), ends_epoch=False)
    assert ledger.parse(ledger.encode(fault)) == fault
    with pytest.raises(LedgerError, match="another type"):
        ledger.parse(ledger.encode(named).replace('"orders"', "7"))
