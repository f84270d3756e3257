"""Seeds of the fuzz targets, made of what real servers said and wrote: ``tests/data``."""

from __future__ import annotations

import gzip
import json
import tarfile
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.fuzz import models
from tests.fuzz.targets import ANY_CHANNEL, CHECK, MARK, MEND, MESSAGES, PREFIX, TARGETS, TYPED
from tests.oracle.wiregen import varint

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parents[1] / "data"
#: Bytes of a seed at the most, and seeds of a target: an input is quick to run, and a corpus quick
#: to read.
LARGEST = 2048
MOST = 200


@cache
def _recorded() -> list[dict[str, Any]]:
    """Lines of sessions with frames that came from a NATS server."""
    lines = []
    for path in sorted((DATA / "wire").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines += [
                line
                for line in map(json.loads, file)
                if line["op"] in {"MSG", "HMSG", "INFO", "-ERR", "PING"}
            ]
    return lines


@cache
def _files() -> dict[str, bytes]:
    """Files of recorded datastores by release, kind and path, without their version."""
    found = {}
    for path in sorted((DATA / "datastores").glob("*/*.tar.gz")):
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None and member.name.endswith((".dat", ".idx")):
                    found[f"{path.parent.name}/{path.stem}/{member.name}"] = file.read()[4:]
    return found


def _frame(line: dict[str, Any], sid: str) -> bytes:
    name: bytes = line["op"].encode()
    if line["op"] in {"MSG", "HMSG"}:
        payload = bytes.fromhex(line["payload_hex"])
        headers = line.get("hdr", "").encode()
        sizes = [b"%d" % len(headers)] * (line["op"] == "HMSG") + [
            b"%d" % (len(headers) + len(payload))
        ]
        words = [
            name,
            line["subject"].encode(),
            sid.encode(),
            line.get("reply", "").encode(),
            *sizes,
        ]
        control = b" ".join(w for w in words if w)
        return b"%b\r\n%b%b\r\n" % (control, headers, payload)
    return (
        b"%b %b\r\n" % (name, json.dumps(line["json"]).encode())
        if "json" in line
        else name + b"\r\n"
    )


def _streams(sid: str = "") -> list[bytes]:
    made = [_frame(line, sid or line.get("sid", "")) for line in _recorded()]
    return [b"".join(made[i : i + 4]) for i in range(0, len(made), 4)]


def _cut(data: bytes, *, typed: bool) -> bytes:
    """Whole records of the beginning, as many as fit in a seed."""
    end = 0
    found = models.record_at(data, 0, typed=typed)
    while isinstance(found, models.Found) and found.end <= LARGEST:
        end = found.end
        found = models.record_at(data, end, typed=typed)
    return data[:end]


def _frames() -> Iterator[bytes]:
    yield from (b"\x02" + stream for stream in _streams())
    yield (
        b"\x02+OK\r\n-ERR 'Authorization Violation'\r\nPONG\r\nping\r\nMSG\ta  7\t \tr "
        b"0\r\n\r\nINFO {}\n"
    )


def _codec() -> Iterator[bytes]:
    for line in _recorded():
        decoded = line.get("decoded")
        if decoded and decoded["type"] in MESSAGES:
            yield bytes([MESSAGES.index(decoded["type"])]) + bytes.fromhex(line["payload_hex"])
    for name, data in _files().items():
        kinds = {
            "clients.dat": ("ClientInfo",),
            "subs.dat": ("SubState", "SubStateUpdate"),
            "server.dat": ("ServerInfo",),
        }
        for kind in kinds.get(name.rpartition("/")[2], ()):
            found = models.record_at(data, 0, typed=kind != "ServerInfo")
            if isinstance(found, models.Found):
                yield bytes([MESSAGES.index(kind)]) + found.payload


def _records() -> Iterator[bytes]:
    for name, data in _files().items():
        typed = name.endswith(("clients.dat", "subs.dat"))
        if name.endswith(".dat"):
            flags = CHECK | ANY_CHANNEL | (TYPED if typed else 0)
            yield bytes([flags, 0, 0]) + _cut(data, typed=typed)
            yield bytes([flags | MEND, 1, 0]) + _cut(data, typed=typed)[:-3] + b"\0" * 9


def _slices() -> Iterator[tuple[bytes, bytes]]:
    """Entries of indexes with the records that they name."""
    for name, index in _files().items():
        if name.endswith(".idx") and index:
            data = _cut(_files()[name.removesuffix("idx") + "dat"], typed=False)
            fit = [e for e in models.entries(index) if e[1] + 8 + e[3] <= len(data) + 4][
                : LARGEST // 64
            ]
            yield index[: 32 * len(fit)], data


def _index() -> Iterator[bytes]:
    for entries, data in _slices():
        yield bytes([CHECK, len(entries) // 32, len(entries) // 64, 1]) + entries + data


def _decode() -> Iterator[bytes]:
    for entries, data in _slices():
        yield bytes([MEND, len(entries) // 32, 4]) + entries + data


def _subreplay() -> Iterator[bytes]:
    for name, data in _files().items():
        if name.endswith("subs.dat"):
            yield bytes([CHECK, 128]) + _cut(data, typed=True)
            yield (
                bytes([CHECK | MEND, 200]) + _cut(data, typed=True) + b"\x02\0\0\5\0\0\0\0\x08\x01"
            )


def _traffic() -> Iterator[bytes]:
    yield from (b"\x05" + stream for sid in "13" for stream in _streams(sid))
    for number in range(4):
        guid = PREFIX + b"%012d" % number
        ack = b"\x0a" + varint(len(guid)) + guid + (b"\x12\x03no!" if number == 3 else b"")
        song = b"\x08" + varint(number + 1) + b"\x12\x03foo\x22\x14" + bytes(8) + MARK + b"more"
        yield b"\x00" + b"".join(
            b"MSG in 3 %d\r\n%b\r\n" % (len(payload), payload) for payload in (ack, song)
        )


def _lines() -> Iterator[bytes]:
    for subject in (b"foo", b"foo.*.x", b"_INBOX.a.>", b"a..b"):
        for more in (b"", b" q", b"\t1 2"):
            for verb in (b"PUB", b"hpub", b"SUB", b"MSG", b"HMSG", b"Unsub"):
                yield b"%b %b%b 12\r\n" % (verb, subject, more)
    yield from (
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'x'\r\n",
        b"INFO {}\r\n",
        b"CONNECT {}\r\n",
        b"MSG \r> q 12\r\n",
        b"HMSG a 7 r\rs 12 17\r\n",
        b"PUB a\r b 12\r\n",
    )


_MAKERS = dict(
    zip(
        TARGETS,
        (_frames, _codec, _records, _index, _subreplay, _decode, _traffic, _lines),
        strict=True,
    )
)


def seeds(target: str) -> list[bytes]:
    """Different inputs for the target, up to ``MOST`` of up to a few ``LARGEST`` bytes.

    Always the same.
    """
    found = sorted(
        {seed for seed in _MAKERS[target]() if len(seed) <= 3 * LARGEST},
        key=lambda seed: (len(seed), seed),
    )
    return found if len(found) <= MOST else Random(1).sample(found, MOST)
