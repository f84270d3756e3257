"""What operators and members say to each other, as bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.admin.protocol import (
    MAX_HISTORY,
    MAX_REQUEST,
    MAX_SIZE,
    Answer,
    EpochEntry,
    Request,
    Verb,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    encode_who,
    is_who,
)
from ftstan.admin.signing import plain
from ftstan.base.errors import WireError
from ftstan.base.states import Clustering, Lag, NodeStatus, Recovery

STATUS = NodeStatus(
    cluster="c",
    group="g",
    server="S1",
    host="h",
    pid=7,
    state="FT_STANDBY",
    phase="listening for the active server",
    serving=False,
    paused=False,
    mixed=False,
    epoch=0,
    holder_epoch=3,
    holder="epoch 3 of somebody",
    store_id="ab" * 16,
    probe_age=0.25,
    warm_lag=None,
    uptime=12.5,
    version="0.1.0",
)
ENTRY = EpochEntry(3, "S", "host", 7, 10, 20, "silence", 2, mixed=True)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(ok=True),
        Answer(ok=False, error="no", hint="do this"),
        Answer(ok=True, status=STATUS),
        Answer(ok=True, status=replace(STATUS, probe_age=None, warm_lag=Lag(3, 1.5), serving=True)),
        Answer(ok=True, status=replace(STATUS, trouble="disk full", recovery=Recovery(3, 7))),
        Answer(
            ok=True,
            status=replace(
                STATUS,
                role="Follower",
                node_id="a",
                clustering=Clustering("following", "b", 7, 6, 7, "", ("a", "b")),
            ),
        ),
        Answer(ok=True, history=(ENTRY, replace(ENTRY, epoch=2))),
    ],
)
def test_an_answer_survives_the_wire(answer: Answer) -> None:
    assert decode_answer(encode_answer(answer)) == answer


@given(
    st.sampled_from(Verb),
    st.text(st.characters(categories=["L", "N"])),
    st.booleans(),
    st.integers(0, MAX_HISTORY),
)
def test_a_request_survives_the_wire(verb: Verb, to: str, on: bool, count: int) -> None:
    request = Request(verb, to=to, on=on, count=count, by="me@here")
    assert decode_request(json.loads(json.dumps(encode_request(request)))) == request


def test_only_looking_needs_no_seal() -> None:
    looks = {
        Verb.STATUS,
        Verb.HISTORY,
        Verb.CHANNELS,
        Verb.CHANNEL,
        Verb.MOVES,
        Verb.CLIENTS,
        Verb.CLIENT,
        Verb.SUBS,
        Verb.SUB,
    }
    assert {verb for verb in Verb if not verb.changes} == looks


def test_fields_that_a_later_release_adds_are_ignored() -> None:
    values = json.loads(encode_answer(Answer(ok=True, status=STATUS)))
    values["another"] = 1
    values["status"]["more"] = {"a": 1}
    assert decode_answer(json.dumps(values).encode()).status == STATUS
    assert decode_request({"verb": "pause", "more": 1}) == Request(Verb.PAUSE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pid", "7"),
        ("pid", True),
        ("serving", 1),
        ("host", None),
        ("probe_age", "x"),
        ("warm_lag", 3),
    ]
    # What a table cannot show, of whoever hears the question and may answer.
    + [(name, 10**400) for name in ("pid", "epoch", "probe_age", "uptime")]
    + [
        ("warm_lag", {"messages": 1, "seconds": 10**400}),
        ("epoch", 1 << 64),
        ("holder_epoch", -(1 << 63) - 1),
    ],
)
def test_a_status_with_a_field_of_another_type_is_none(field: str, value: object) -> None:
    values = json.loads(encode_answer(Answer(ok=True, status=STATUS)))
    values["status"][field] = value
    with pytest.raises(WireError):
        decode_answer(json.dumps(values).encode())


def test_a_status_that_lacks_a_field_is_none() -> None:
    values = json.loads(encode_answer(Answer(ok=True, status=STATUS)))
    del values["status"]["epoch"]
    with pytest.raises(WireError, match="lacks fields"):
        decode_answer(json.dumps(values).encode())


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"null", b'{"ok":1}', b'{"ok":true,"history":3}', b"[" * 5000]
)
def test_what_is_no_answer_is_told(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode_answer(payload)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_being_refused(payload: bytes) -> None:
    is_who(payload)
    with pytest.raises(WireError):
        decode_answer(b"\x00" + payload)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"verb": 3},
        {"verb": "dance"},
        {"verb": "pause", "to": 3},
        {"verb": "mixed", "on": "yes"},
        {"verb": "history", "count": True},
        {"verb": "pause", "by": "a\nSTREAM: all is well"},
    ],
)
def test_what_is_no_request_is_told(values: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_request(values)


@pytest.mark.parametrize(("asked", "taken"), [(-1, 0), (5, 5), (10**9, MAX_HISTORY)])
def test_nobody_gets_more_history_than_one_message_holds(asked: int, taken: int) -> None:
    assert decode_request({"verb": "history", "count": asked}).count == taken


def test_a_history_too_long_for_one_message_loses_its_oldest() -> None:
    long = tuple(
        replace(ENTRY, epoch=n, server="s" * 128, host="h" * 256) for n in range(MAX_HISTORY, 0, -1)
    )
    payload = encode_answer(Answer(ok=True, history=long))
    assert len(payload) <= MAX_SIZE
    kept = decode_answer(payload).history
    assert 20 < len(kept) < MAX_HISTORY
    assert kept == long[: len(kept)]


def test_who_is_a_question_of_its_own_among_the_groups_messages() -> None:
    assert is_who(encode_who())
    assert is_who(b'{"type":"who","more":1}')
    assert not is_who(b'{"type":"released"}')
    assert not is_who(b'{"type":"who","pad":"' + b"x" * MAX_REQUEST + b'"}')


def test_a_member_of_a_release_that_does_not_say_where_its_pages_are_is_understood() -> None:
    values = json.loads(
        encode_answer(Answer(ok=True, status=replace(STATUS, monitor="http://h:1")))
    )
    del values["status"]["monitor"]
    answer = decode_answer(json.dumps(values).encode())
    assert answer.status is not None
    assert answer.status.monitor == ""


def test_rows_that_do_not_fit_are_left_for_the_next_piece() -> None:
    rows = tuple({"name": f"{number}" * 1000} for number in range(100))
    data = encode_answer(Answer(ok=True, rows=rows))
    answer = decode_answer(data)
    assert len(data) <= MAX_SIZE
    assert 0 < len(answer.rows) < 100
    assert (answer.rows, answer.more) == (rows[: len(answer.rows)], True)
    few = decode_answer(encode_answer(Answer(ok=True, rows=rows[:3])))
    assert (few.rows, few.more) == (rows[:3], False)
    assert decode_answer(encode_answer(Answer(ok=True, rows=rows[:3], more=True))).more
    giant = decode_answer(encode_answer(Answer(ok=True, rows=({"name": "x" * MAX_SIZE},))))
    assert not giant.ok
    assert "cannot be sent" in giant.error


def test_names_that_are_no_utf_8_travel_as_they_are() -> None:
    name = b"a\xff".decode("utf-8", "surrogateescape")
    request = Request(Verb.CHANNEL, name=name, after=name, force=True, sub_id=7)
    assert decode_request(json.loads(plain(request))) == request
    assert decode_answer(encode_answer(Answer(ok=True, rows=({"name": name},)))).rows == (
        {"name": name},
    )
