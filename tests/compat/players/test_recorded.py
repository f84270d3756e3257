"""Recorded sessions of a real 0.25.6 server, played against ours: each statement of their index is
a test by name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.compat.players import recordings
from tests.compat.players.invariants import INVARIANTS
from tests.compat.players.sessions import PROGRAM, Sessions, scenario_of
from tests.compat.players.verdicts import DIFFERENT, UNPROMISED, judged, runs_program
from tests.compat.players.verdicts import sessions as played

if TYPE_CHECKING:
    from tests.compat.players.recordings import Item

pytestmark = [pytest.mark.processes, pytest.mark.node, pytest.mark.timeout(900)]

ALL = [item for scenario in recordings.scenarios().values() for item in scenario.items]
BY_KEY = {item.key: item for item in ALL}


def _ident(session: str, name: str) -> str:
    return f"program:{name}" if session.endswith(PROGRAM) else name


STATEMENTS = [pytest.param(s, item, id=_ident(s, item.key)) for s in played() for item in judged(s)]
GENERAL = [
    pytest.param(s, name, id=_ident(s, f"{s.split()[0]}/{name}"))
    for s in played()
    for name in INVARIANTS
]


@pytest.mark.parametrize(("session", "item"), STATEMENTS)
def test_a_statement_of_the_index_holds(sessions: Sessions, session: str, item: Item) -> None:
    problem = sessions.outcome(session).problem(item)
    assert not problem, problem


@pytest.mark.parametrize(("session", "name"), GENERAL)
def test_a_general_invariant_holds(sessions: Sessions, session: str, name: str) -> None:
    outcome = sessions.outcome(session)
    broken = list(INVARIANTS[name](outcome.lines))
    assert not outcome.unplayable
    # Where the scenario makes a channel anew, the same sequence has another content: it must, or
    # nothing was made anew.
    assert bool(broken) == ((name, scenario_of(session).name) in recordings.exempted()), broken


@pytest.mark.parametrize("session", ["ft-failover-kill", "ft-failover-term"])
def test_a_standby_listens_to_its_group_alone(sessions: Sessions, session: str) -> None:
    lines = sessions.outcome(session).lines
    down = next(line.n for line in lines if line.id == "down")
    subjects = {
        line.subject
        for line in lines[:down]
        if line.conn.startswith("serverB") and line.op == "SUB"
    }
    assert {subject for subject in subjects if not subject.startswith("_FTSTAN.")} == {
        "_STAN.ft.test-cluster.g1"
    }


@pytest.mark.parametrize("session", ["ft-failover-term"])
def test_what_is_published_while_a_member_stops_is_stored_or_not_answered(
    sessions: Sessions, session: str
) -> None:
    lines = sessions.outcome(session).lines
    answers = [line for line in lines if line.id == "p3.reply"]
    data = {
        line.value("data"): line.value("sequence")
        for line in lines
        if line.delivered and line.type == "MsgProto" and line.subject.endswith(".S1")
    }
    assert [line.fields for line in answers] in ([], [{"guid": "guid-p3"}])
    expected = {"gap": 4, "m4": 5} if answers else {"m4": 4}
    assert {name: sequence for name, sequence in data.items() if name in {"gap", "m4"}} == expected


@pytest.mark.parametrize("session", ["upgrade"])
def test_subjects_of_a_store_of_an_old_release_stay_in_use(
    sessions: Sessions, session: str
) -> None:
    told = {
        line.id: line for line in sessions.outcome(session).lines if line.type == "ConnectResponse"
    }
    for response in ("c1.reply", "c2.reply"):
        assert re.fullmatch(r"_STAN\.pub\.[0-9A-Za-z]{22}", told[response].value("pub_prefix"))


@pytest.mark.parametrize("session", ["ft-two-actives"])
def test_no_heartbeat_ends_an_active(sessions: Sessions, session: str) -> None:
    outcome = sessions.outcome(session)
    assert not outcome.unplayable
    end = next(line.n for line in outcome.lines if line.text == "end of scenario")
    told_of_an_older_active = next(line.n for line in outcome.lines if line.id == "inj5")
    lines = outcome.lines[:end]
    assert [line.text for line in lines if line.id.startswith("serverA.exit")] == []
    assert any(
        line.conn == "serverA.ft" and line.op == "PUB" for line in lines[told_of_an_older_active:]
    )


@pytest.mark.parametrize("session", ["ft-two-actives"])
def test_a_member_that_has_another_datastore_is_told_so(sessions: Sessions, session: str) -> None:
    lines = sessions.outcome(session).lines
    assert any(line.op == "LOG" and "is active in this group on" in line.text for line in lines)


@pytest.mark.parametrize("session", ["ft-two-actives"])
def test_garbage_among_heartbeats_is_ignored(sessions: Sessions, session: str) -> None:
    lines = sessions.outcome(session).lines
    first, last = (next(line.n for line in lines if line.id == ident) for ident in ("inj2", "inj4"))
    said = [line.text for line in lines[first:last] if line.op == "LOG" and line.conn == "serverA"]
    assert [text for text in said if "another datastore" not in text] == []


@pytest.mark.parametrize("session", ["partitioning"])
def test_a_ping_of_a_connection_that_no_partition_knows_is_not_answered(
    sessions: Sessions, session: str
) -> None:
    lines = sessions.outcome(session).lines
    assert [line.id for line in lines if line.id in {"g1", "g2"}] == ["g1", "g2"]
    answered = {line.subject for line in lines if line.delivered and line.type == "PingResponse"}
    assert answered == {"_INBOX.client1.r.g1"}


def test_every_statement_is_judged_or_left_out_for_a_reason() -> None:
    judged_keys = {item.key for session in played() for item in judged(session)}
    left_out = {item.key for item in ALL} - judged_keys
    inside = {item.key for item in ALL if item.scope == "go-server"}
    programs = {
        item.key
        for scenario in recordings.scenarios().values()
        for item in scenario.items
        if item.scope == "program" and not runs_program(scenario)
    }
    assert left_out == inside | programs | set(DIFFERENT) | UNPROMISED


def test_what_differs_on_purpose_concerns_groups_partitions_and_harmful_publishes_alone() -> None:
    publishes = {f"publish-ok/{n}" for n in range(13, 18)} | {"publish-errors/28"}
    clients = {"ft-failover-term/9", "ft-failover-term/15", "partitioning/22"} | publishes
    assert {key for key in DIFFERENT if BY_KEY[key].scope != "server"} == clients
    assert all(key.startswith(("ft-", "partitioning/")) for key in DIFFERENT.keys() - publishes)
