"""What an owner tells of the members: a hint for dashboards, whatever somebody sends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.ft.digest import (
    MOST_MEMBERS,
    Member,
    Members,
    decode_digest,
    decode_members,
    encode_members,
)
from ftstan.node import peers
from tests.unit.admin.test_protocol import STATUS

STORE_ID = bytes(range(16))
A = Member("S1", "host-a", "http://10.0.0.1:8222", "FT_ACTIVE", "active")
B = Member("S2", "host-b", "", "FT_STANDBY", "listening for the active server")
TOLD = Members("S1", 3, STORE_ID, (A, B))


def test_what_is_told_is_heard_and_is_no_digest() -> None:
    payload = encode_members(TOLD)
    assert decode_members(payload) == TOLD
    assert decode_digest(payload) is None


def test_of_a_crowd_the_first_are_told() -> None:
    crowd = Members("S1", 3, STORE_ID, (A,) * (MOST_MEMBERS + 1))
    heard = decode_members(encode_members(crowd))
    assert heard is not None
    assert len(heard.members) == MOST_MEMBERS


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "http://a:1/path",
        "http://a:1?x",
        "http://user@a:1",
        "http://a",
        "//a:1",
        "http://a:1\n",
        "ftp://a:1",
        "http://a b:1",
    ],
)
def test_an_address_that_is_more_than_a_host_and_a_port_is_left_out_with_its_row(url: str) -> None:
    heard = decode_members(changed(members=[row(monitor=url), row(server="S2")]))
    assert heard is not None
    assert [member.server for member in heard.members] == ["S2"]


@pytest.mark.parametrize(
    "url", ["http://a.example-1:80", "https://10.0.0.1:8222", "http://[::1]:8222"]
)
def test_an_address_of_a_page_is_kept(url: str) -> None:
    heard = decode_members(changed(members=[row(monitor=url)]))
    assert heard is not None
    assert heard.members[0].monitor == url


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "digest"},
        {"members": None},
        {"members": {}},
        {"epoch": 0},
        {"store": "00"},
        {"server": ""},
    ],
)
def test_any_other_message_is_none(changes: dict[str, Any]) -> None:
    assert decode_members(changed(**changes)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"server": None},
        {"phase": 1},
        {"phase": "p" * 301},
        {"server": "\x00"},
        {"version": 1},
        {"silent_s": "long"},
        {"silent_s": True},
        {"silent_s": float("nan")},
        {"lag_messages": -2},
    ],
)
def test_a_row_that_cannot_be_is_left_out(changes: dict[str, Any]) -> None:
    for told in (row(**changes), [], ["S"], "S", {}):
        heard = decode_members(changed(members=[told, row()]))
        assert heard is not None
        assert [member.server for member in heard.members] == ["S3"]


def test_what_a_later_release_says_besides_is_passed_over() -> None:
    heard = decode_members(changed(members=[row(mood="fine")]))
    assert heard is not None
    assert heard.members[0].server == "S3"


@given(st.binary(max_size=200))
def test_any_bytes_are_understood_or_not(payload: bytes) -> None:
    assert decode_members(payload) is None


def row(**changes: Any) -> dict[str, Any]:
    return {"server": "S3", "host": "h", "monitor": "", "state": "s", "phase": "p"} | changes


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(encode_members(TOLD)) | changes).encode()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("javascript:alert(1)//:1", ""),
        ("http://evil@a:1", ""),
        ("http://a:8222", "http://a:8222"),
        ("", ""),
    ],
)
def test_an_owner_makes_no_link_of_what_somebody_says_of_himself(said: str, kept: str) -> None:
    status = replace(STATUS, server="S9", monitor=said)
    assert peers._member(status).monitor == kept


def test_a_member_may_have_a_name_and_one_with_a_bad_one_is_left_out() -> None:
    named = replace(TOLD, members=(replace(A, name="node-a"), B))
    payload = encode_members(named)
    assert decode_members(payload) == named
    rows = json.loads(payload)["members"]
    for name in (None, 1, "x" * 301, "\x1b"):
        told = decode_members(changed(members=[rows[0] | {"name": name}, rows[1]]))
        assert told == replace(TOLD, members=(B,))
