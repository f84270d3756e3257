"""The judge on made-up ledgers: one clean story, and each way in which it can be spoiled."""

from __future__ import annotations

import random
from dataclasses import replace
from hashlib import sha1

import pytest

from demo.report import table
from ftstan.drill.judge import DrillVerdict
from ftstan.drill.judge import judge as judge_by
from ftstan.drill.ledger import Ack, Delivery, Failure, Fault, Publish, Read, Record, Takeover
from ftstan.drill.rules import PROMISE, Rule, Switch

MESSAGES = 20
IN_FIRST_EPOCH = 12
SECOND_US = 1_000_000
RETRIED = 5  # its first attempt was stored as well, but the ack was lost
FAULT_US = 20 * SECOND_US


def judge(records: list[Record]) -> DrillVerdict:
    return judge_by(records, PROMISE)


def _sha1(message_id: str) -> str:
    return sha1(message_id.encode(), usedforsecurity=False).hexdigest()


def _ids() -> list[str]:
    """Return the log: the id at sequence 1, 2, ..."""
    ids = [f"{number}.1" for number in range(1, MESSAGES + 1)]
    ids.insert(IN_FIRST_EPOCH, f"{RETRIED}.2")
    return ids


def _story() -> list[Record]:
    """Return a clean ledger: two epochs, one payload published again after a lost ack, all of it
    read and delivered.
    """
    records: list[Record] = [
        Takeover(SECOND_US, 1, "A", SECOND_US, 2 * SECOND_US),
        Fault(FAULT_US, 1, "A", "kill"),
        Takeover(FAULT_US + 300_000, 2, "B", 300_000, 400_000),
        Failure(FAULT_US + 2_000_000, "publisher", f"{RETRIED}.1", "g", "publish ack timeout"),
    ]
    for sequence, message_id in enumerate(_ids(), start=1):
        number, attempt = map(int, message_id.split("."))
        t = sequence * SECOND_US if sequence <= IN_FIRST_EPOCH else FAULT_US + sequence * SECOND_US
        digest = _sha1(message_id)
        records.append(Publish(t, message_id, number, attempt, f"g{message_id}", 100, digest))
        if message_id != f"{RETRIED}.1":
            records.append(Ack(t + 1000, message_id, f"g{message_id}", 1000))
        records.append(Delivery(t + 2000, "durable", sequence, message_id, digest, False))
        if sequence <= IN_FIRST_EPOCH:
            records.append(Read(t + 3000, "reader-1", 1, sequence, message_id, digest))
        records.append(Read(50 * SECOND_US, "reader-2", 2, sequence, message_id, digest))
        records.append(Read(60 * SECOND_US, "last-reader", 2, sequence, message_id, digest))
    return records


def _broken(records: list[Record]) -> set[Rule]:
    verdict = judge(records)
    assert verdict.clean == (not verdict.breaches)
    return {breach.rule for breach in verdict.breaches}


def _without(
    records: list[Record],
    *,
    id: str = "",  # noqa: A002
    kind: type[Record],
    reader: str = "",
) -> list[Record]:
    def goes(record: Record) -> bool:
        return (
            isinstance(record, kind)
            and (not id or getattr(record, "id", "") == id)
            and (not reader or getattr(record, "reader", "") == reader)
        )

    left = [record for record in records if not goes(record)]
    assert len(left) < len(records)
    return left


def test_a_ledger_that_keeps_every_promise_is_clean() -> None:
    verdict = judge(_story())
    assert verdict.rate == pytest.approx(19 / (18 + 20.6), rel=1e-3)
    assert replace(verdict, rate=0.0, outages=(), elsewhere_ms=0.0) == DrillVerdict(
        nodes=("A", "B"),
        switches=(
            Switch(1, "start", "", "A", 1000.0, 2000.0),
            Switch(2, "kill", "A", "B", 300.0, 400.0),
        ),
        published=MESSAGES + 1,
        acked=MESSAGES,
        retried=1,
        failed=1,
        rate=0.0,
        stored=MESSAGES + 1,
        stored_without_ack=1,
        delivered=MESSAGES + 1,
        redelivered=0,
        readings=3,
        breaches=(),
    )


def test_the_order_of_records_does_not_matter() -> None:
    shuffled = _story()
    random.Random(4).shuffle(shuffled)
    assert judge(shuffled) == judge(_story())


def test_a_redelivery_is_counted_and_clean() -> None:
    again = Delivery(70 * SECOND_US, "durable", 3, "3.1", _sha1("3.1"), True)
    verdict = judge([*_story(), again])
    assert verdict.clean
    assert verdict.redelivered == 1


def test_an_acked_message_that_was_lost_at_the_end_of_the_log_is_not_clean() -> None:
    last = f"{MESSAGES}.1"
    records = _without(_without(_story(), kind=Read, id=last), kind=Delivery, id=last)
    assert _broken(records) == {Rule.STORED, Rule.DELIVERED}


def test_an_acked_message_that_only_a_former_owner_showed_is_not_clean() -> None:
    records = _without(_story(), kind=Read, id=f"{MESSAGES}.1", reader="last-reader")
    assert _broken(records) == {Rule.STORED, Rule.KEPT}


def test_an_acked_message_that_was_replaced_by_another_is_not_clean() -> None:
    other = "99.1"
    records = [
        replace(record, id=other, sha1=_sha1(other))
        if isinstance(record, Read) and record.reader != "reader-1" and record.id == "7.1"
        else record
        for record in _story()
    ]
    assert _broken(records) == {Rule.ONE_PAYLOAD}


def test_an_acked_message_at_two_sequences_is_not_clean() -> None:
    again: list[Record] = [
        Read(61 * SECOND_US, "last-reader", 2, MESSAGES + 2, "4.1", _sha1("4.1")),
        Delivery(61 * SECOND_US, "durable", MESSAGES + 2, "4.1", _sha1("4.1"), False),
    ]
    assert _broken([*_story(), *again]) == {Rule.ONCE}


def test_a_message_without_ack_at_two_sequences_is_only_counted() -> None:
    lost_ack = f"{RETRIED}.1"
    again = Read(61 * SECOND_US, "last-reader", 2, MESSAGES + 2, lost_ack, _sha1(lost_ack))
    verdict = judge([*_story(), again])
    assert verdict.clean
    assert verdict.stored_without_ack == 2


@pytest.mark.parametrize("reader", ["reader-1", "reader-2"])
def test_a_gap_in_the_log_of_any_epoch_is_not_clean(reader: str) -> None:
    assert _broken(_without(_story(), kind=Read, id="3.1", reader=reader)) == {Rule.CONTIGUOUS}


def test_a_log_that_does_not_begin_with_sequence_one_is_not_clean() -> None:
    assert _broken(_without(_story(), kind=Read, id="1.1", reader="reader-1")) == {Rule.CONTIGUOUS}


def test_a_gap_in_the_log_at_the_end_is_not_clean() -> None:
    records = _without(_story(), kind=Read, id="3.1", reader="last-reader")
    assert _broken(records) == {Rule.CONTIGUOUS, Rule.KEPT, Rule.STORED}


@pytest.mark.parametrize(
    "other",
    [
        Read(50 * SECOND_US, "reader-2", 2, 9, "99.1", _sha1("99.1")),
        Delivery(50 * SECOND_US, "durable", 9, "99.1", _sha1("99.1"), True),
        Read(50 * SECOND_US, "reader-2", 2, 9, "9.1", _sha1("damaged")),
    ],
    ids=["in a later epoch", "in a delivery", "same id, damaged bytes"],
)
def test_a_sequence_with_two_payloads_is_not_clean(other: Record) -> None:
    assert _broken([*_story(), other]) == {Rule.ONE_PAYLOAD}


def test_a_payload_that_is_always_shown_otherwise_than_it_was_published_is_not_clean() -> None:
    records = [
        replace(record, sha1=_sha1("damaged"))
        if isinstance(record, Publish) and record.id == "9.1"
        else record
        for record in _story()
    ]
    assert _broken(records) == {Rule.AS_PUBLISHED}


def test_an_acked_id_that_the_durable_never_saw_is_not_clean() -> None:
    assert _broken(_without(_story(), kind=Delivery, id="8.1")) == {Rule.DELIVERED}


def test_a_stored_message_without_ack_need_not_reach_the_durable() -> None:
    assert _broken(_without(_story(), kind=Delivery, id=f"{RETRIED}.1")) == set()


def test_every_durable_must_see_every_acked_id() -> None:
    other = Delivery(50 * SECOND_US, "other", 1, "1.1", _sha1("1.1"), False)
    verdict = judge([*_story(), other])
    assert [(breach.rule, breach.count) for breach in verdict.breaches] == [
        (Rule.DELIVERED, MESSAGES - 1)
    ]


def test_an_owner_whose_log_nobody_read_is_not_clean() -> None:
    assert _broken(_without(_story(), kind=Read, reader="reader-1")) == {Rule.READ}


def test_a_run_in_which_nothing_was_acked_proves_nothing() -> None:
    assert Rule.ACKED in _broken(_without(_story(), kind=Ack))


def test_an_empty_ledger_proves_nothing() -> None:
    assert _broken([]) == {Rule.ACKED, Rule.READ, Rule.DELIVERED}


def test_breaches_are_counted_in_full_and_shown_in_part() -> None:
    verdict = judge(_without(_story(), kind=Delivery))
    (breach,) = verdict.breaches
    assert breach.examples == ("no durable received anything",)
    verdict = judge(
        [record for record in _story() if not isinstance(record, Delivery) or record.sequence == 1]
    )
    (breach,) = verdict.breaches
    assert (breach.count, len(breach.examples)) == (MESSAGES - 1, 5)


def test_the_table_names_takeovers_counts_and_breaches() -> None:
    text = table(judge(_without(_story(), kind=Delivery, id="8.1")))
    assert "kill -9      A -> B   active after     300 ms   without acks   21000 ms\n" in text
    verdict = judge(_story())
    (outage,) = verdict.outages
    assert outage.acked.before + outage.acked.during + outage.acked.after == verdict.acked
    for what, n in (("acked", outage.acked), ("published", outage.published)):
        line = next(x for x in text.splitlines() if what in x and "during" in x)
        assert line.split() == [
            what,
            *f"{n.before} before {n.during} during {n.after} after".split(),
        ]
    assert "without ack         1   (no loss" in text
    assert "stored without ack  1 " in text
    assert "violations          1\n" in text
    assert "a durable never saw an acked id: 1\n    durable: id 8.1" in text
