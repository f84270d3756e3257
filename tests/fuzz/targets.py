"""One fuzz target for every parser in C: bytes in, and statements that hold whatever they are.

A target raises ``AssertionError`` when one does not; reads beyond a buffer are for the sanitizers
of the build that runs it. The first bytes of an input choose what the others are taken for; the
seeds of ``corpus`` are made like that. ``engine`` runs them.
"""

from __future__ import annotations

import itertools
from random import Random
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import WireError
from ftstan.front.interest import Book
from ftstan.front.lines import first_line
from ftstan.load.traffic import GUID_PREFIX_SIZE, Publisher, Subscriber, Traffic
from ftstan.stores.file.log import records
from ftstan.stores.file.state.subreplay import SubReplay
from ftstan.wire import codec, messages
from ftstan.wire.block import SubEvents
from ftstan.wire.frames import OutBuf, Parser, pub_frame
from tests.fuzz import columns, models
from tests.oracle.godecode import TABLES, UndecodableError, decode

if TYPE_CHECKING:
    from collections.abc import Callable

CRC = records.Crc()
CHANNEL = b"foo"
#: Bits of the first byte of an input.
MEND = 1
CHECK = 2
ANY_CHANNEL = 4
TYPED = 8
#: The order in which a first byte names messages.
MESSAGES = tuple(TABLES)
MARK = b"the mark"
PREFIX = b"p" * GUID_PREFIX_SIZE

_HOT: dict[str, tuple[Callable[[bytes], tuple[Any, ...]], tuple[str, ...]]] = {
    "PubMsg": (codec.decode_pub_msg, ("client_id", "guid", "subject", "reply", "data", "conn_id")),
    "Ack": (codec.decode_ack, ("subject", "sequence")),
    "MsgProto": (
        codec.decode_msg_proto,
        ("sequence", "subject", "reply", "data", "timestamp", "redelivered", "redelivery_count"),
    ),
}


def _pieces(data: bytes, seed: int) -> list[bytes]:
    """``data`` cut at up to eight places that follow from ``seed``.

    Of every size that matters, byte by byte too.
    """
    if seed == 0:
        return [data[i : i + 1] for i in range(len(data))]
    rng = Random(seed)
    edges = [0, *sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(9))), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


# ---- the NATS protocol
# -----------------------------------------------------------------------------------------------


def _as_sent(event: tuple[Any, ...]) -> bytes:
    match event:
        case ("MSG", subject, sid, reply, payload):
            line = b" ".join(
                w for w in (b"MSG", subject, b"%d" % sid, reply, b"%d" % len(payload)) if w
            )
            return b"%b\r\n%b\r\n" % (line, payload)
        case ("HMSG", subject, sid, reply, headers, payload):
            sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
            line = b" ".join(w for w in (b"HMSG", subject, b"%d" % sid, reply, sizes) if w)
            return b"%b\r\n%b%b\r\n" % (line, headers, payload)
        case (name, text):
            return b"%b %b\r\n" % (name.encode(), text)
        case _:
            return b"%b\r\n" % event[0].encode()


def _events(pieces: list[bytes], max_payload: int) -> tuple[list[tuple[Any, ...]], bool]:
    parser = Parser(max_payload)
    events = []
    try:
        for piece in pieces:
            events += parser.feed(piece)
    except WireError:
        return events, True
    return events, False


def frames(data: bytes) -> None:
    """Any split gives the same frames.

    What was read and is written again reads the same; what is sent is readable.
    """
    if not data:
        return
    stream = data[1:]
    max_payload = 64 if data[0] & 1 else 1 << 20
    events, broken = _events([stream[i : i + 1] for i in range(len(stream))], max_payload)
    for pieces in ([stream], _pieces(stream, data[0])):
        got, also = _events(pieces, max_payload)
        assert also == broken
        assert got == events if not broken else got == events[: len(got)]
    again = b"".join(map(_as_sent, events))
    assert _events([again], max_payload) == (events, False)
    counter = Parser(max_payload)
    count = sum(e[0] in {"MSG", "HMSG"} for e in events)
    assert counter.count_messages(again) == count
    out = OutBuf()
    sent = b""
    for event in events:
        if event[0] == "MSG":
            out.publish(event[1], event[3], event[4])
            words = [b"PUB", event[1], event[3], b"%d" % len(event[4])]
            sent += b" ".join(w for w in words if w) + b"\r\n" + event[4] + b"\r\n"
    assert (
        bytes(memoryview(out))
        == sent
        == b"".join(pub_frame(e[1], e[3], e[4]) for e in events if e[0] == "MSG")
    )


# ---- STAN messages
# --------------------------------------------------------------------------------------------------


def messages_(data: bytes) -> None:
    """Every message is read or refused as the oracle does, the hot readers too, and survives being
    written again.
    """
    if not data:
        return
    name = MESSAGES[data[0] % len(MESSAGES)]
    raw = data[1:]
    cls = getattr(messages, name)
    try:
        expected = decode(name, raw)
    except UndecodableError as refusal:
        _refused(name, raw, refusal)
        return
    read = messages.parse(cls, raw)
    # What the original has no field for is ours, and skipped by it.
    known = [f.name for f in cls.DESCRIPTOR.fields if f.number in TABLES[name]]
    assert {field: getattr(read, field) for field in known} == expected, name
    assert messages.parse(cls, messages.encode(read)) == read
    if name in _HOT:
        hot, names = _HOT[name]
        assert hot(raw) == tuple(expected[field] for field in names)
        assert hot(messages.encode(read)) == hot(raw)
    if name == "MsgProto":
        sequence, subject, reply, payload, timestamp, redelivered, count = codec.decode_msg_proto(
            raw
        )
        stored = codec.encode_msg_proto(sequence, subject, reply, payload, timestamp)
        suffix = codec.redelivery_suffix(count) if redelivered else b""
        again = codec.decode_msg_proto(stored + suffix)
        assert again == (
            sequence,
            subject,
            reply,
            payload,
            timestamp,
            redelivered,
            count if redelivered else 0,
        )
    if name == "CtrlMsg":
        assert codec.is_ctrl_msg(raw) == raw.startswith(b"\x08")


def _error_of(read: Callable[..., object], *words: object) -> WireError:
    try:
        found = read(*words)
    except WireError as error:
        return error
    raise AssertionError(f"{words!r} was read: {found!r}")


def _refused(name: str, raw: bytes, refusal: UndecodableError) -> None:
    error = _error_of(messages.parse, getattr(messages, name), raw)
    assert error.text.isprintable()
    if name in _HOT:
        error = _error_of(_HOT[name][0], raw)
        assert getattr(error, "guid", None) == refusal.partial.get("guid")
    if name == "CtrlMsg":
        assert not codec.is_ctrl_msg(raw)


# ---- records of the file store
# ---------------------------------------------------------------------------------------


def records_(data: bytes) -> None:
    """Scans of data and state files find what the model finds, and what they found is written as it
    was read.
    """
    if len(data) < 3:
        return
    flags = data[0]
    start = data[1]
    after = data[2]
    raw = models.mended(data[3:], typed=bool(flags & TYPED)) if flags & MEND else data[3:]
    channel = b"" if flags & ANY_CHANNEL else CHANNEL
    check = bool(flags & CHECK)
    if flags & TYPED:
        _typed(raw, start, check=check)
        return
    expected, end, why = models.scan_data(raw, channel, after, check_crc=check)
    block, got_end, got_why = records.scan_data(raw, channel, after, CRC, check)
    assert got_end == end
    assert got_why.startswith(why) if why else got_why == ""
    assert [block.sequence(i) for i in range(len(block))] == [sequence for sequence, _ in expected]
    assert [block.payload(i) for i in range(len(block))] == [found.payload for _, found in expected]
    assert bytes(memoryview(block)) == raw[:end]
    records.seal(block, CRC)
    sealed = bytes(memoryview(block))
    assert sealed == models.mended(raw[:end], typed=False)
    index = records.index_entries(block, 0, len(block), 4, CRC)
    chain = records.scan_index(index, CRC)
    assert (chain.count, chain.last, chain.end, chain.clean) == (
        len(block),
        block.last,
        end + 4,
        True,
    )
    same, nothing = records.read_block(sealed, index, CRC)
    assert nothing == ""
    assert [same.payload(i) for i in range(len(same))] == [found.payload for _, found in expected]
    half = expected[len(expected) // 2][0] if expected else 0
    assert (
        bytes(memoryview(records.cut(block, half)))
        == sealed[: max([f.end for s, f in expected if s <= half], default=0)]
    )
    assert records.next_record(raw, start, channel, after, CRC) == models.next_record(
        raw, start, channel, after
    )


def _typed(raw: bytes, start: int, *, check: bool) -> None:
    expected, end, why = models.scan_typed(raw, check_crc=check)
    got, got_end, got_why = records.scan_typed(raw, CRC, check)
    assert (got, got_end) == (expected, end)
    assert got_why.startswith(why) if why else got_why == ""
    again = b"".join(records.typed_record(kind, payload, CRC) for kind, payload in got)
    assert again == models.mended(raw[:end], typed=True)
    assert records.next_typed(raw, start, 5, CRC) == models.next_typed(raw, start, 5)


def index(data: bytes) -> None:
    """Entries prove what the model says, in one piece or several, and lead to no byte that is not
    there.
    """
    if len(data) < 4:
        return
    flags = data[0]
    many = data[1] * 32
    cut = data[2] * 32
    pick = data[3]
    raw = data[4 : 4 + many]
    slice_ = data[4 + many :]
    if flags & MEND:
        raw = models.mended_index(raw)
        slice_ = models.mended(slice_, typed=False)
    check = bool(flags & CHECK)
    expected = models.chain(raw, check_crc=check)
    got = records.scan_index(raw, CRC, check)
    ends = expected.taken[:1] + expected.taken[-1:]
    assert (got.count, got.end, got.clean) == (
        len(expected.taken),
        expected.end % 2**64,
        expected.clean,
    )
    assert got.contiguous == expected.contiguous
    found = ((got.first, got.first_ts), (got.last, got.last_ts))
    assert list(found[: len(ends)]) == [(e[0], columns.signed(e[2])) for e in ends]
    if cut <= len(raw):
        front = records.scan_index(raw[:cut], CRC, check)
        if front.clean:
            back = records.scan_index(raw[cut:], CRC, check, front.end, front.last)
            assert (front.count + back.count, back.end, back.clean) == (
                got.count,
                got.end,
                got.clean,
            )
    _entries(raw, pick)
    columns.selected(raw, pick)
    _through(raw, slice_)


def _entries(raw: bytes, pick: int) -> None:
    known = models.entries(raw)
    for k, (sequence, offset, timestamp, size, _) in enumerate(known):
        assert records.entry(raw, k) == (sequence, offset, columns.signed(timestamp), size)
    for k in (-1, len(known), 2**58, 2**63 - 1, -(2**63)):
        try:
            records.entry(raw, k)
        except IndexError:
            continue
        raise AssertionError(k)
    sequences = [e[0] for e in known]
    if sequences == sorted(sequences):
        below = sum(s < pick for s in sequences)
        assert records.find_entry(raw, pick) == below
    stamps = [columns.signed(e[2]) for e in known]
    younger = stamps[pick % len(stamps)] if stamps else 0
    assert records.first_younger(raw, younger) == next(
        (k for k, at in enumerate(stamps) if at >= younger), len(stamps)
    )
    sums = list(itertools.accumulate(8 + e[3] for e in known))
    most = sums[pick % len(sums)] if sums else 0
    fit = sum(total <= most for total in sums)
    assert records.fitting_entries(raw, most) == max(fit, min(1, len(known)))


def _through(raw: bytes, slice_: bytes) -> None:
    """Reading a slice through its index, whatever the two are."""
    known = models.entries(raw)
    base = known[0][1] if known else 0
    good = list(models.read_through(slice_, raw, base, None))
    block, bad = records.read_readable(slice_, raw, CRC)
    assert [block.payload(i) for i in range(len(block))] == [
        payload for payload in good if payload is not None
    ]
    assert [row[0] for row in bad] == [
        e[0] for e, payload in zip(known, good, strict=True) if payload is None
    ]
    first = list(itertools.takewhile(lambda payload: payload is not None, good))
    block, why = records.read_block(slice_, raw, CRC)
    assert [block.payload(i) for i in range(len(block))] == first
    assert (why == "") == (len(first) == len(known))
    records.read_block(slice_, raw, CRC, check_crc=False)
    columns.built(raw, slice_, base)


def subreplay(data: bytes) -> None:
    """The records of a ``subs.dat`` add up to what the model says, in one piece and going on behind
    a cut.
    """
    if len(data) < 2:
        return
    flags = data[0]
    raw = data[2:]
    if flags & MEND:
        raw = models.mended(raw, typed=True)
    check = bool(flags & CHECK)
    model = models.Subs()
    whole = SubReplay(CRC, check)
    halves = SubReplay(CRC, check)
    end, why = model.feed(raw, check_crc=check)
    got_end, got_why = whole.feed(raw)
    assert got_end == end
    assert got_why.startswith(why) if why else got_why == ""
    at, _ = halves.feed(raw[: len(raw) * data[1] // 256])
    assert halves.feed(raw, at) == (got_end, got_why)
    state = [(sub.payload, sub.sent, sub.pending) for sub in model.subs.values()]
    for replay in (whole, halves):
        assert (replay.highest, replay.records) == (model.highest, model.records)
        assert replay.result() == state
    events = SubEvents()
    for sub_id, sub in model.subs.items():
        for sequence in sub.pending:
            events.sent(sub_id, sequence)
    written = records.encode_events(events, CRC)
    assert whole.feed(written) == (len(written), "")
    assert [(payload, pending) for payload, _, pending in whole.result()] == [
        (p, pending) for p, _, pending in state
    ]


# ---- readers beside the server
# ---------------------------------------------------------------------------------------


def spark(data: bytes) -> None:
    """Rows of Spark: one for each entry, with what the model reads, and columns that Arrow finds
    whole.
    """
    if len(data) < 3:
        return
    flags = data[0]
    many = data[1] * 32
    lag = data[2]
    raw = data[3 : 3 + many]
    slice_ = data[3 + many :]
    if flags & MEND:
        raw = models.mended_index(raw)
        slice_ = models.mended(slice_, typed=False)
    columns.built(raw, slice_, lag)


def traffic(data: bytes) -> None:
    """A load's connection ends in the same state however its stream is split, and never writes more
    than it may.
    """
    if not data:
        return
    for make in (_publisher, _subscriber):
        assert _outcome(make(), [data[1:]]) == _outcome(make(), _pieces(data[1:], data[0]))


def _publisher() -> Traffic:
    out = Publisher()
    out.open(1 << 20)
    out.begin(
        b"pub", b"acks", client_id=b"c", conn_id=b"k", channel=CHANNEL, guid_prefix=PREFIX,
        mark=MARK, size=20, count=8,
        window=3,
    )  # fmt: skip
    out.fill(1 << 16)
    out.out.clear()
    return out


def _subscriber() -> Traffic:
    out = Subscriber()
    out.open(1 << 20)
    out.begin(b"acks", CHANNEL, mark=MARK, count=8)
    return out


def _outcome(connection: Traffic, pieces: list[bytes]) -> tuple[object, ...]:
    error = ""
    try:
        for piece in pieces:
            connection.feed(piece)
            answered = -1
            while answered != len(connection.answers):
                answered = len(connection.answers)
                connection.feed(b"")
    except WireError as broken:
        error = type(broken).__name__
    counts = [
        getattr(connection, name, None)
        for name in ("done", "refused", "refusal", "again", "complaint")
    ]
    assert (
        sum(count for _, count in connection.delays.counts())
        == connection.delays.count
        <= connection.done
    )
    return (error, counts, connection.answers, bytes(memoryview(connection.out)))


def lines(data: bytes) -> None:
    """Lines of the listener's connections: a line is what it is whatever comes behind it, and its
    words are those that a split gives. The bytes are also subscriptions, of which those are found
    that suit.
    """
    for of_server in (False, True):
        read = first_line(data, of_server=of_server)
        kind, size, subject, sid, other, number = read
        assert size <= len(data)
        if kind in {"partial", "wrong"}:
            assert kind == "wrong" or size == 0
            continue
        line = data[:size]
        assert line.find(b"\n") == size - 1
        assert first_line(line, of_server=of_server) == read
        # One carriage return belongs to the end; any other is part of a word.
        body = line[:-1].removesuffix(b"\r")
        words = [word for word in body.replace(b"\t", b" ").split(b" ") if word]
        if kind in {"message", "headed"}:
            assert (subject, number) == (words[1], int(words[-1]))
        if kind == "sub":
            assert (subject, sid) == (words[1], words[-1])
        if kind in {"sub", "message"} and not of_server:
            assert other == (words[2] if len(words) == 4 else b"")
    book = Book()
    patterns = data.split(b" ")[:16]
    for owner, pattern in enumerate(patterns):
        if book.subscribe(owner, pattern, b"%d" % owner):
            whole = not any(token in {b"*", b">"} for token in pattern.split(b"."))
            assert ((owner, b"%d" % owner) in book.who(pattern)) == whole
            assert book.unsubscribe(owner, b"%d" % owner)
            assert (owner, b"%d" % owner) not in book.who(pattern)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "codec": messages_,
    "records": records_,
    "index": index,
    "subreplay": subreplay,
    "decode": spark,
    "traffic": traffic,
    "lines": lines,
}
