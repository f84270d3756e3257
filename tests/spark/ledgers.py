"""Made-up ledgers of any length, and ways to spoil them."""

from __future__ import annotations

import random
from dataclasses import replace
from hashlib import sha1
from typing import TYPE_CHECKING

from ftstan.drill.ledger import (
    SUFFIX,
    Ack,
    Delivery,
    Failure,
    Fault,
    Publish,
    Read,
    Record,
    Takeover,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECOND_US = 1_000_000
STEP_US = 50_000
DOWN_US = 3 * SECOND_US


def payload(message_id: str) -> bytes:
    """What was published under an id."""
    return f"payload of {message_id}".encode()


def digest(message_id: str) -> str:
    return sha1(payload(message_id), usedforsecurity=False).hexdigest()


def story(messages: int = 40, epochs: int = 3, seed: int = 1) -> list[Record]:
    """A clean ledger: each epoch but the last ends in a kill, after which one payload is published
    again.
    """
    chance = random.Random(seed)
    records: list[Record] = []
    log: list[str] = []
    now = SECOND_US
    for epoch in range(1, epochs + 1):
        records.append(Takeover(now, epoch, "AB"[epoch % 2], 300_000, 320_000 + epoch * 1000))
        for number in range(len(log) + 1, len(log) + 1 + messages // epochs):
            attempts = 2 if epoch < epochs and chance.random() < 0.1 else 1
            for attempt in range(1, attempts + 1):
                name = f"{number}.{attempt}"
                now += STEP_US
                log.append(name)
                records.append(Publish(now, name, number, attempt, f"g{name}", 100, digest(name)))
                if attempt == attempts:
                    records.append(Ack(now + 900, name, f"g{name}", chance.randint(500, 2500)))
                else:
                    records.append(Failure(now + 900, "publisher", name, f"g{name}", "ack timeout"))
                records.append(
                    Delivery(
                        now + 950, "durable", len(log), name, digest(name), chance.random() < 0.1
                    )
                )
        records += _reading(f"reader-{epoch}", epoch, now + 1000, log)
        if epoch < epochs:
            records.append(Fault(now + 1000, epoch, "AB"[epoch % 2], "kill"))
            now += DOWN_US
    records += _reading("last-reader", epochs, now + 2000, log)
    return records


def _reading(reader: str, epoch: int, t: int, log: list[str]) -> list[Record]:
    return [
        Read(t + n, reader, epoch, n, name, digest(name)) for n, name in enumerate(log, start=1)
    ]


def write(directory: Path, records: list[Record], files: int = 3) -> None:
    """Write a ledger in several files, the last of which ends in a line that was cut."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        text = "".join(encode(record) + "\n" for record in records[number::files])
        (directory / f"p{number}{SUFFIX}").write_text(text)
    with (directory / f"p{files - 1}{SUFFIX}").open("a") as file:
        file.write('{"kind":"ack","t":5,"id"')
    (directory / "notes.txt").write_text("not part of it")


def written(records: list[Record], files: int = 3) -> list[Record]:
    """The records in the order in which a reader of one file after the other meets them."""
    return [record for number in range(files) for record in records[number::files]]


def of_two_channels() -> list[Record]:
    """The story twice, and a second durable that got all of the one channel and nothing of the
    other.
    """
    records = story()
    more: list[Record] = [
        replace(record, subscription="second") for record in records if isinstance(record, Delivery)
    ]
    for record in story():
        if isinstance(record, Publish | Read | Delivery):
            more.append(replace(record, id=f"b{record.id}", channel="b"))
        elif isinstance(record, Ack):
            more.append(replace(record, id=f"b{record.id}"))
    return [*records, *more]


def without(records: list[Record], goes: Callable[[Record], bool]) -> list[Record]:
    return [record for record in records if not goes(record)]


def _is_read(record: Record, reader: str, sequence: int) -> bool:
    return isinstance(record, Read) and record.reader == reader and record.sequence == sequence


#: Each way to spoil a ledger; together they break every rule but the one that needs a ledger
#: without acks.
SPOILS: dict[str, Callable[[list[Record]], list[Record]]] = {
    "lost at the end": lambda rs: without(rs, lambda r: _is_read(r, "last-reader", 7)),
    "lost for good": lambda rs: without(rs, lambda r: getattr(r, "sequence", 0) == 9),
    "twice": lambda rs: [*rs, Read(10**9, "last-reader", 3, 99, "4.1", digest("4.1"))],
    "below one": lambda rs: [*rs, Read(10**9, "reader-2", 2, -3, "4.1", digest("4.1"))],
    "another content": lambda rs: [
        *rs,
        Delivery(10**9, "durable", 5, "5.1", digest("damaged"), redelivered=True),
    ],
    "not as published": lambda rs: [
        replace(r, sha1=digest("other")) if isinstance(r, Publish) and r.id == "6.1" else r
        for r in rs
    ],
    "never delivered": lambda rs: [
        *rs,
        Delivery(10**9, "second durable", 1, "1.1", digest("1.1"), redelivered=False),
    ],
    "never read": lambda rs: without(rs, lambda r: isinstance(r, Read) and r.reader == "reader-2"),
    "acked again": lambda rs: [*rs, Ack(10**9, "3.1", "g3.1", 10**6)],
}
