"""The judge itself: every statement holds in the recording it was made from, and fails when the
recording is spoilt.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from tests.compat.players import recordings
from tests.compat.players.invariants import INVARIANTS
from tests.compat.players.judge import Judge
from tests.compat.players.lines import Directory, Line, Names

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compat.players.recordings import Scenario

SCENARIOS = list(recordings.scenarios().values())

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@each_scenario
def test_every_statement_holds_in_its_own_recording(scenario: Scenario) -> None:
    judge = Judge(scenario.lines())
    assert {
        item.key: wrong for item in scenario.items if (wrong := judge.problem(item.parts))
    } == {}


@each_scenario
def test_every_general_invariant_holds_in_every_recording_but_the_exempted(
    scenario: Scenario,
) -> None:
    lines = scenario.lines()
    broken = {name for name, check in INVARIANTS.items() if list(check(lines))}
    assert broken == {name for name, of in recordings.exempted() if of == scenario.name}


@each_scenario
def test_types_fields_and_ids_are_those_of_the_recording(scenario: Scenario) -> None:
    directory = Directory()
    names = Names()
    for line in scenario.lines():
        if line.payload is None or not line.of_client:
            continue
        blank = dataclasses.replace(line, type="", fields=None, kind="", id="")
        directory.read(blank)
        assert (blank.type, blank.kind) == (line.type, line.kind), line
        assert _comparable(blank) == _comparable(line), line
        if line.delivered:
            assert names.of(line.subject) == line.id, line


def _comparable(line: Line) -> dict[str, Any] | None:
    """Without what recordings show of unknown fields, and take apart in control messages."""
    if line.fields is None:
        return None
    apart = {"data"} if line.type == "CtrlMsg" else set()
    return {
        name: value
        for name, value in line.fields.items()
        if name not in apart and not name.startswith("unknown")
    }


def test_every_general_invariant_of_the_index_is_judged() -> None:
    assert set(INVARIANTS) == {
        general["name"] for general in recordings.index()["general_invariants"]
    }


@each_scenario
def test_no_statement_holds_where_nothing_was_played(scenario: Scenario) -> None:
    """Only statements that lean on no line at all can hold in an empty session."""
    judge = Judge([Line(0, 0.0, "runner", "EVENT")])
    held = [item.key for item in scenario.items if not judge.problem(item.parts)]
    assert held == [item.key for item in scenario.items if _says_nothing_came(item.parts)]


def _says_nothing_came(parts: dict[str, Any]) -> bool:
    return not {"after", "before"} & set(parts) and (
        "absent" in parts or ("list" in parts and parts["equals"] == [])
    )


def line(n: int, t: float, ident: str = "", **more: Any) -> Line:
    return Line(n, t, "client1", "MSG", "s2c", ident, **more)


PLAYED = [
    line(0, 0.0, "p1"),
    line(1, 1.0, "S1.msg1", fields={"sequence": 1}),
    line(2, 2.0, "S1.msg2", fields={"sequence": 2, "redelivered": True}),
    line(3, 3.0, "p2", text="end", fields={"guid": "x"}),
]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"after": "p1", "expect": {"id": "S1.msg1"}, "within": 1.5}, ""),
        ({"after": "p1", "expect": {"id": "S1.msg1"}, "within": 0.5}, "it came after 1.000 s"),
        (
            {"after": "p1", "expect": {"id": "S1.msg1"}, "not_before": 1.5},
            "it came already after 1.000 s",
        ),
        ({"after": "p1", "expect": {"id": "S1.msg3"}}, "no line is like this"),
        ({"after": "p9", "expect": {"id": "S1.msg1"}}, "there is no p9"),
        ({"after": "S1.msg1", "expect": {"id": "S1.msg1"}}, "no line is like this"),
        (
            {"expect": {"id": "S1.msg2", "decoded": {"redelivered": {"$absent": 1}}}},
            "no line is like this",
        ),
        ({"expect": {"id": "S1.msg1", "decoded": {"redelivered": {"$absent": 1}}}}, ""),
        ({"expect": {"text": {"$re": "en"}}}, "no line is like this"),
        ({"absent": {"id_prefix": "S1.msg"}}, "2 are there"),
        ({"absent": {"id_prefix": "S1.msg"}, "before": "S1.msg1"}, ""),
        ({"absent": {"id_prefix": "S1.msg"}, "before": "nothing"}, "there is no nothing"),
        ({"absent": {"id": "S1.msg2"}, "after": "p1", "within": 1.5}, ""),
        ({"count": {"op": "MSG"}, "equals": 4}, ""),
        ({"count": {"op": "MSG"}, "equals": {"$min": 5, "$max": 6}}, "4 are there"),
        ({"list": {"id_prefix": "S1.msg"}, "field": "sequence", "equals": [1, 2]}, ""),
        (
            {"list": {"id_prefix": "S1.msg"}, "field": "sequence", "equals": [2, 1]},
            r"they are \[1, 2\]",
        ),
        (
            {
                "list": {"id_prefix": "S1.msg"},
                "field": "sequence",
                "equals": [2, 1],
                "sorted": True,
            },
            "",
        ),
        ({"order": ["S1.msg1", "S1.msg2"]}, ""),
        ({"order": ["S1.msg2", "S1.msg1"]}, "S1.msg1 does not come, or not in this order"),
        ({"distinct": [["S1.msg1", "sequence"], ["S1.msg2", "sequence"]]}, ""),
        ({"distinct": [["S1.msg1", "sequence"], ["S1.msg1", "sequence"]]}, r"they are \[1, 1\]"),
        ({"equal": [["S1.msg1", "sequence"], ["S1.msg2", "sequence"]]}, r"they are \[1, 2\]"),
        ({"equal": [["S1.msg1", "guid"], ["p2", "guid"]]}, "a value is missing"),
        (
            {"expect": {"id": "p2", "decoded": {"guid": {"$ref": ["S1.msg1", "sequence"]}}}},
            "no line is like this",
        ),
        ({"after": "p1", "sometimes": {"id": "p1"}}, r"the judge does not know \['sometimes'\]"),
        ({"expect": {"colour": "red"}}, "the judge does not know the matcher colour"),
        ({"after": "p1"}, "nothing is said"),
    ],
)
def test_a_statement_is_judged_by_its_words(parts: dict[str, Any], why: str) -> None:
    problem = Judge(PLAYED).problem(parts)
    assert problem.startswith(why.replace("\\", "")) if why else problem == ""


def test_slack_moves_the_end_of_an_expectation_and_nothing_else() -> None:
    late = {"after": "p1", "expect": {"id": "S1.msg1"}, "within": 0.5}
    early = {"after": "p1", "expect": {"id": "S1.msg1"}, "not_before": 1.2}
    counted = {"after": "p1", "count": {"id_prefix": "S1.msg"}, "within": 0.5, "equals": 0}
    assert Judge(PLAYED, slack=0.4).problem(late).startswith("it came after")
    assert Judge(PLAYED, slack=0.6).problem(late) == ""
    assert Judge(PLAYED, slack=0.6).problem(early)
    assert Judge(PLAYED, slack=0.6).problem(counted) == ""


def _message(n: int, sequence: int, **fields: Any) -> Line:
    content = {"subject": "foo", "timestamp": sequence, **fields}
    return _to_client(n, "_INBOX.m", "MsgProto", sequence=sequence, **content)


def _to_client(n: int, inbox: str, kind: str, /, **fields: Any) -> Line:
    return Line(
        n,
        n,
        "client1",
        "MSG",
        "s2c",
        subject=inbox,
        payload=b"x" if fields else b"",
        type=kind,
        fields=fields,
    )


def _from_client(n: int, reply: str, kind: str, /, **fields: Any) -> Line:
    return Line(n, n, "client1", "PUB", "c2s", reply=reply, payload=b"x", type=kind, fields=fields)


SUBSCRIBE = _from_client(0, "_INBOX.s", "SubscriptionRequest", inbox="_INBOX.m", subject="foo")
ACCEPTED = _to_client(1, "_INBOX.s", "SubscriptionResponse", ack_inbox="_INBOX." + "a" * 22)

BREACHES: dict[str, Callable[[], list[Line]]] = {
    "response-before-messages": lambda: [SUBSCRIBE, _message(1, 1), ACCEPTED],
    "one-puback-per-publish": lambda: [
        _from_client(0, "_INBOX.p", "PubMsg", guid="g"),
        _to_client(1, "_INBOX.p", "PubAck", guid="g"),
        _to_client(2, "_INBOX.p", "PubAck", guid="g"),
    ],
    "count-only-with-flag": lambda: [_message(1, 1, redelivery_count=1)],
    "count-with-flag": lambda: [_message(1, 1, redelivered=True)],
    "new-messages-increase": lambda: [_message(1, 2), _message(2, 1)],
    "ack-inbox-unique": lambda: [SUBSCRIBE, ACCEPTED, ACCEPTED],
    "message-constant": lambda: [
        _message(1, 1),
        _message(2, 1, redelivered=True, redelivery_count=1, data="other"),
    ],
    "empty-success": lambda: [_to_client(1, "_INBOX.c", "CloseResponse", unknown=1)],
    "channel-of-request": lambda: [SUBSCRIBE, ACCEPTED, _message(2, 1, subject="bar")],
    "heartbeat-form": lambda: [
        dataclasses.replace(_to_client(1, "_INBOX.hb", ""), kind="heartbeat", payload=b"")
    ],
    "no-reply-subject": lambda: [dataclasses.replace(_message(1, 1), reply="_INBOX.x")],
    "timestamps-ordered": lambda: [_message(1, 1, timestamp=9), _message(2, 2, timestamp=8)],
    "error-alone": lambda: [_to_client(1, "_INBOX.c", "ConnectResponse", error="no", protocol=1)],
}


@pytest.mark.parametrize("name", INVARIANTS)
def test_a_breach_of_a_general_invariant_is_seen(name: str) -> None:
    assert list(INVARIANTS[name](BREACHES[name]()))
