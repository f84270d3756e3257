"""What a subscription has outstanding, of events that come in bulk: the same as one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftstan.stores.contract.place import events, state
from ftstan.stores.sql.subs import SubBook, SubRecord
from ftstan.wire.block import SubEvents


class Plain:
    """One subscription, an event at a time."""

    def __init__(self) -> None:
        self.last_sent = 0
        self.pending: set[int] = set()
        self.written: set[int] = set()

    def note(self, kind: str, sequence: int) -> None:
        self.last_sent = max(self.last_sent, sequence)
        if kind == "sent":
            self.pending.add(sequence)
        else:
            self.pending.discard(sequence)

    def wrote(self) -> None:
        self.written = set(self.pending)

    def agrees(self, record: SubRecord) -> bool:
        return (record.last_sent, record.pending, record.added, record.acked) == (
            self.last_sent,
            self.pending,
            self.pending - self.written,
            self.written - self.pending,
        )


EVENT = st.tuples(st.sampled_from(["sent", "acked"]), st.integers(1, 3), st.integers(1, 12))


@given(st.lists(st.lists(EVENT, max_size=30), max_size=6))
def test_events_in_bulk_come_to_the_same_as_one_by_one(
    batches: list[list[tuple[str, int, int]]],
) -> None:
    book = SubBook(by_row=False)
    plain = {}
    for number in (1, 2):
        book.open(1, state(number))
        book.wrote(1, state(number), new=True)
        plain[number] = Plain()
    for batch in batches:
        book.add_events(events(*batch))
        for kind, number, sequence in batch:
            # Nobody knows the third one.
            if number in plain:
                plain[number].note(kind, sequence)
        for number, record in plain.items():
            assert record.agrees(book._records[number])
        # Now and then everything is written.
        if len(batch) % 2:
            plan = book.plan(10)
            book.landed(plan)
            for record in plain.values():
                record.wrote()


def test_events_are_given_by_subscription_in_their_order() -> None:
    made = events(("sent", 1, 5), ("sent", 2, 5), ("sent", 1, 6), ("acked", 1, 5), ("sent", 1, 7))
    assert made.by_sub() == {
        1: [(False, [5, 6]), (True, [5]), (False, [7])],
        2: [(False, [5])],
    }
    assert SubEvents().by_sub() == {}
