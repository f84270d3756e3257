"""The fuzz targets hold on what real servers wrote and on damage of it, and notice parsers that are
wrong.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.spark import decode
from ftstan.stores.file.log import records
from ftstan.stores.file.state.subreplay import SubReplay
from ftstan.wire import codec
from ftstan.wire.frames import Parser
from tests.fuzz import columns, models, targets
from tests.fuzz.corpus import LARGEST, MOST, seeds
from tests.fuzz.engine import read_log
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAMAGED = 1500


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_on_what_real_servers_said_and_wrote(name: str) -> None:
    found = seeds(name)
    assert 50 < len(found) <= MOST
    assert max(map(len, found)) <= 3 * LARGEST
    for seed in found:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_on_damage_and_on_nothing(name: str) -> None:
    rng = Random(f"damage of {name}")
    found = seeds(name)
    for size in range(5):
        TARGETS[name](bytes(size))
    for _ in range(DAMAGED):
        data = mutated(found, rng)
        try:
            TARGETS[name](data)
        except BaseException:
            print(f"input: {data!r}")
            raise


def _run(name: str) -> None:
    """The target on its seeds and on damage of them."""
    rng = Random(1)
    found = seeds(name)
    for data in (*found, *(mutated(found, rng) for _ in range(DAMAGED))):
        TARGETS[name](data)


def _entries(*fields: tuple[int, int, int]) -> bytes:
    """Entries of an index: sequence, offset and size; the checksums are for the target to mend."""
    return b"".join(
        models.ENTRY.pack(sequence, offset, 0, size, 0) for sequence, offset, size in fields
    )


def _twice(real: Callable[..., Any]) -> Callable[..., Any]:
    """The last of what a scanner found is there twice."""

    def found(*words: Any) -> Any:
        first, *rest = real(*words)
        return (first + first[-1:], *rest)

    return found


class _LosesTheBeginning(Parser):
    """Forgets what is incomplete when a piece has one byte."""

    def feed(self, data: Any) -> list[tuple[Any, ...]]:
        return [] if len(data) == 1 and data == b"M" else super().feed(data)


class _StopsEarly(SubReplay):
    def feed(self, data: bytes, start: int = 0) -> tuple[int, str]:
        return super().feed(data[: max(start, len(data) - 1)], start)


@pytest.mark.parametrize(
    ("name", "place", "attribute", "wrong"),
    [
        ("frames", targets, "Parser", _LosesTheBeginning),
        ("codec", codec, "is_ctrl_msg", lambda raw: not raw),
        ("codec", targets, "_HOT", {"Ack": (lambda raw: (b"", len(raw)), ("subject", "sequence"))}),
        ("records", records, "scan_typed", _twice(records.scan_typed)),
        ("records", records, "next_record", lambda *_: -1),
        ("records", records, "next_typed", lambda *_: 0),
        ("index", records, "find_entry", lambda *_: 0),
        ("index", columns, "ending", decode.beginning),
        (
            "index",
            records,
            "read_readable",
            lambda data, index, crc: (records.read_block(data, b"", crc)[0], []),
        ),
        ("subreplay", targets, "SubReplay", _StopsEarly),
        ("decode", columns, "_CRC", records.Crc(7)),
        ("traffic", targets, "_pieces", lambda data, _seed: [data[:-1], data[-2:]]),
    ],
)
def test_a_parser_that_is_wrong_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, place: Any, attribute: str, wrong: object
) -> None:
    monkeypatch.setattr(place, attribute, wrong)
    with pytest.raises(AssertionError):
        _run(name)


def test_what_a_run_of_the_fuzzer_did_is_read_from_its_log(tmp_path: Path) -> None:
    log = tmp_path / "frames.log"
    log.write_text(
        "#200\tINITED cov: 90 ft: 300 corp: 40/10Kb exec/s: 0 rss: 80Mb\n"
        "#4096\tpulse  cov: 97 ft: 345 corp: 52/13Kb lim: 4096 exec/s: 2048 rss: 81Mb\n"
        "Done 5001 runs in 3 second(s)\nstat::number_of_executed_units: 5001\n"
    )
    outcome = read_log("frames", 0, log)
    assert (outcome.executions, outcome.coverage, outcome.corpus) == (5001, 97, 52)
    log.write_text(
        "#4096\tNEW    cov: 97 ft: 345 corp: 52/13Kb lim: 4096 exec/s: 2048\n==1==ERROR: "
        "AddressSanitizer\n"
    )
    assert read_log("frames", 77, log).executions == 4096


@pytest.mark.parametrize(
    ("name", "data"),
    [
        # Groups a thousand deep, in an unknown field: the oracle called itself for each.
        ("codec", b"\x0d\x08" + b"s" * 1200),
        ("codec", b"\x0d\x08" + b"s" * 1200 + b"t" * 1200),
        # Nothing was found, and nothing was copied to a buffer that was not there.
        ("records", bytes([targets.CHECK, 0, 0])),
        ("records", bytes([targets.CHECK, 0, 0]) + b"\1\0\0"),
        ("index", bytes([targets.CHECK, 0, 0, 0])),
        # The second entry's record begins before the first one's.
        (
            "index",
            bytes([targets.MEND, 2, 1, 0]) + _entries((1, 100, 20), (2, 96, 20)) + bytes(200),
        ),
        # So does this one's, by nearly all that 64 bits can say.
        (
            "index",
            bytes([targets.MEND, 2, 1, 0]) + _entries((1, 2**64 - 1, 0), (0, 0, 0)) + bytes(200),
        ),
        # A size with the eight bytes of a header is more than 32 bits.
        ("index", bytes([targets.MEND, 2, 1, 0]) + _entries((1, 4, 2**32 - 8), (2, 4, 20))),
        ("index", bytes([targets.MEND, 2, 1, 0]) + _entries((1, 4, 2**32 - 8), (2, 4 + 2**32, 20))),
    ],
)
def test_a_target_holds_on_what_was_found(name: str, data: bytes) -> None:
    TARGETS[name](data)
