"""The ledger's format: what is written is read back, a cut last line is forgiven, damage is
named.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ftstan.drill import ledger
from ftstan.drill.ledger import (
    Ack,
    Delivery,
    Failure,
    Fault,
    LedgerError,
    Publish,
    Read,
    Record,
    Tail,
    Takeover,
    Writer,
)

if TYPE_CHECKING:
    from pathlib import Path

SHA1 = "a" * 40
ONE_OF_EACH: list[Record] = [
    Publish(1, "7.2", 7, 2, "guid", 200, SHA1),
    Ack(2, "7.2", "guid", 1500),
    Failure(3, "publisher", "7.1", "guid", 'said "no"\nand left'),
    Delivery(4, "durable", 9, "7.2", SHA1, True),
    Read(5, "reader-1", 1, 9, "7.2", SHA1),
    Fault(6, 1, "A", "kill"),
    Takeover(7, 2, "B", 350_000, 360_000),
]


def test_every_kind_survives_being_written_and_read() -> None:
    assert [ledger.parse(ledger.encode(record)) for record in ONE_OF_EACH] == ONE_OF_EACH


def test_a_record_is_one_line_whatever_its_text_holds() -> None:
    assert all("\n" not in ledger.encode(record) for record in ONE_OF_EACH)


def test_fields_of_a_later_version_are_ignored() -> None:
    row = json.loads(ledger.encode(ONE_OF_EACH[1])) | {"colour": "blue"}
    assert ledger.parse(json.dumps(row)) == ONE_OF_EACH[1]


NO_RECORDS = pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[]",
        b"17",
        b'{"t": 1}',
        b'{"kind": "rumour", "t": 1}',
        b'{"kind": "ack", "t": 1, "id": "1.1", "guid": "g"}',
        b'{"kind": ["ack"], "t": 1}',
        b'{"kind": "ack", "t": 1, "id": 11, "guid": "g", "latency_us": 5}',
        b'{"kind": "ack", "t": 1.5, "id": "1.1", "guid": "g", "latency_us": 5}',
        b'{"kind": "ack", "t": true, "id": "1.1", "guid": "g", "latency_us": 5}',
        b'{"kind": "ack", "t": 9007199254740992, "id": "1.1", "guid": "g", "latency_us": 5}',
        b'{"kind": "ack", "t": 1, "id": "\xff", "guid": "g", "latency_us": 5}',
        b'{"kind": "ack", "t": 1, "id": "1.1", "guid": "g", "latency_us": 5} {}',
        b'{"kind": "ack", "t": 1, "id": "1.1", "guid": null, "latency_us": 5}',
        b'{"kind": "rumour", "t": 1, "id": "1.1", "guid": "g", "latency_us": 5}',
        b'{"kind": "ack", "t": 1, "id": "1.1", "guid": "g", "latency_us": 9223372036854775808}',
        b"[" * 100_000,
    ],
)


@NO_RECORDS
def test_a_line_that_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(LedgerError):
        ledger.parse(line)


def test_a_directory_is_read_with_all_its_files(tmp_path: Path) -> None:
    for name, records in {"a": ONE_OF_EACH[:3], "b": ONE_OF_EACH[3:]}.items():
        writer = Writer(str(tmp_path / f"{name}{ledger.SUFFIX}"))
        for record in records:
            writer.write(record)
        writer.close()
    (tmp_path / "notes.txt").write_text("not part of it")
    assert list(ledger.read(str(tmp_path))) == ONE_OF_EACH


def test_an_empty_directory_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="holds no ledger"):
        list(ledger.read(str(tmp_path)))


def test_a_last_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    whole = ledger.encode(ONE_OF_EACH[0])
    path.write_text(whole + "\n" + whole[:-1])
    assert list(ledger.read_file(str(path))) == ONE_OF_EACH[:1]


def test_damage_inside_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    whole = ledger.encode(ONE_OF_EACH[0])
    path.write_text(f"{whole}\n{whole[:-1]}\n{whole}\n")
    with pytest.raises(LedgerError, match="line 2: not a ledger record"):
        list(ledger.read_file(str(path)))


@pytest.mark.parametrize("former_lines", [0, 1, 1000])
def test_a_tail_that_skips_begins_with_the_line_that_is_being_written(
    tmp_path: Path, former_lines: int
) -> None:
    first, second, third = (ledger.encode(record) for record in ONE_OF_EACH[:3])
    path = tmp_path / "x.jsonl"
    path.write_text((first + "\n") * former_lines + second[:10])
    tail = Tail(str(path))
    tail.skip()
    with path.open("a") as file:
        assert list(tail.new()) == []
        file.write(second[10:] + "\n" + third[:20])
        file.flush()
        assert list(tail.new()) == ONE_OF_EACH[1:2]
        file.write(third[20:] + "\n")
        file.flush()
        assert list(tail.new()) == ONE_OF_EACH[2:3]
    tail.close()


def test_a_tail_that_skips_complete_lines_shows_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(ledger.encode(ONE_OF_EACH[0]) + "\n")
    tail = Tail(str(path))
    tail.skip()
    assert list(tail.new()) == []
    tail.close()


def test_a_tail_that_skips_nothing_shows_everything(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(ledger.encode(record) + "\n" for record in ONE_OF_EACH))
    tail = Tail(str(path))
    assert list(tail.new()) == ONE_OF_EACH
    tail.close()
