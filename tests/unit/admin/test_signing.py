"""Seals: who has the key may change a group, once, now, and nobody else may."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.admin.protocol import MAX_REQUEST, Request, Verb
from ftstan.admin.signing import LIFETIME_S, Recipient, RequestVerifier, plain, seal
from ftstan.base.errors import FtstanError, RefusedError, WireError

KEY = bytes(range(32))
ME = Recipient("cluster", "SERVER1")
NOW = 1_700_000_000_000_000_000
PAUSE = Request(Verb.PAUSE, by="me@here")
SECOND = 10**9


def sealed(
    request: Request = PAUSE,
    to: Recipient = ME,
    *,
    key: bytes = KEY,
    now: int = NOW,
    nonce: bytes = b"n" * 16,
) -> bytes:
    return seal(request, to, key=key, now_ns=now, nonce=nonce)


def opened(
    payload: bytes, seals: RequestVerifier | None = None, *, key: bytes | None = KEY, now: int = NOW
) -> Request:
    return (seals or RequestVerifier(ME)).open(
        payload, keys=() if key is None else (key,), now_ns=now
    )


def test_a_request_with_the_groups_key_is_taken() -> None:
    assert opened(sealed()) == PAUSE


def test_the_key_itself_is_nowhere_in_the_message() -> None:
    assert KEY.hex().encode() not in sealed()
    assert KEY not in sealed()


@pytest.mark.parametrize("verb", [verb for verb in Verb if verb.changes])
def test_what_changes_something_is_refused_without_a_seal(verb: Verb) -> None:
    with pytest.raises(RefusedError, match=f"the request {verb} is not sealed") as caught:
        opened(plain(Request(verb)))
    assert "admin.key" in caught.value.hint


@pytest.mark.parametrize("verb", [verb for verb in Verb if not verb.changes])
def test_what_only_looks_needs_no_seal_and_no_key(verb: Verb) -> None:
    assert opened(plain(Request(verb)), key=None).verb is verb


def test_another_groups_key_is_refused() -> None:
    with pytest.raises(match="not sealed with this group's key"):
        opened(sealed(key=b"x" * 32))


def test_a_group_without_a_key_obeys_nobody() -> None:
    with pytest.raises(match=r"there is no admin\.key"):
        opened(sealed(), key=None)


def changed(payload: bytes, **fields: Any) -> bytes:
    outer = json.loads(payload)
    body = json.loads(outer["body"]) | fields
    return json.dumps({"body": json.dumps(body), "mac": outer["mac"]}).encode()


@pytest.mark.parametrize(
    "fields", [{"verb": "switchover"}, {"server": "SERVER2"}, {"expires_ns": NOW * 2}, {"by": ""}]
)
def test_a_request_that_was_changed_on_its_way_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        opened(changed(sealed(), **fields))


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_byte_makes_another_request_of_it(at: int, flip: int) -> None:
    data = bytearray(sealed())
    data[at % len(data)] ^= flip
    try:
        assert opened(bytes(data)) == PAUSE
    except FtstanError:
        return


@pytest.mark.parametrize("mac", [None, 3, "", "\u00e9" * 64, "A" * 64])
def test_a_mac_of_any_kind_is_only_refused(mac: object) -> None:
    with pytest.raises(RefusedError):
        opened(json.dumps({"body": json.loads(sealed())["body"], "mac": mac}).encode())


def test_the_same_message_twice_is_refused_the_second_time() -> None:
    seals = RequestVerifier(ME)
    message = sealed()
    opened(message, seals)
    with pytest.raises(RefusedError, match="was sent before"):
        opened(message, seals)
    with pytest.raises(RefusedError, match="was sent before"):
        opened(message, seals, now=NOW + 29 * SECOND)
    assert opened(sealed(nonce=b"m" * 16), seals) == PAUSE


def test_a_message_that_outlived_its_memory_has_expired() -> None:
    seals = RequestVerifier(ME)
    message = sealed()
    opened(message, seals)
    with pytest.raises(RefusedError, match="has expired"):
        opened(message, seals, now=NOW + round(LIFETIME_S) * SECOND)


@pytest.mark.slow
def test_nonces_are_forgotten_when_their_requests_have_expired() -> None:
    seals = RequestVerifier(ME)
    for n in range(9000):
        at = NOW + n * SECOND // 20
        opened(sealed(nonce=n.to_bytes(16, "big"), now=at), seals, now=at)


@pytest.mark.slow
def test_more_requests_than_can_be_remembered_are_refused_and_none_is_forgotten() -> None:
    seals = RequestVerifier(ME)
    for n in range(4096):
        opened(sealed(nonce=n.to_bytes(16, "big")), seals)
    with pytest.raises(RefusedError, match="too many requests"):
        opened(sealed(nonce=b"z" * 16), seals)
    with pytest.raises(RefusedError, match="was sent before"):
        opened(sealed(nonce=(0).to_bytes(16, "big")), seals)


@pytest.mark.parametrize("off_s", [-29, 29])
def test_clocks_may_differ_by_half_a_minute(off_s: int) -> None:
    assert opened(sealed(now=NOW + off_s * SECOND)) == PAUSE


@pytest.mark.parametrize("off_s", [-31, 31, 10**6])
def test_clocks_that_differ_more_are_told_by_how_much(off_s: int) -> None:
    with pytest.raises(RefusedError, match=re.escape(f"({off_s:+} s)")):
        opened(sealed(now=NOW + off_s * SECOND))


@pytest.mark.parametrize(
    "other", [Recipient("cluster", "SERVER2"), Recipient("another", "SERVER1")]
)
def test_a_request_for_somebody_else_is_refused(other: Recipient) -> None:
    with pytest.raises(RefusedError, match=f"for server {other.server} of cluster {other.cluster}"):
        opened(sealed(to=other))


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[]", b"\xff", b"x" * (MAX_REQUEST + 1), b'{"verb":"dance"}']
)
def test_what_is_no_request_is_told(payload: bytes) -> None:
    with pytest.raises(WireError):
        opened(payload)


def test_a_message_above_the_bound_is_not_even_looked_at() -> None:
    with pytest.raises(WireError, match="at most 4096 bytes"):
        opened(sealed(Request(Verb.PAUSE, by="x" * MAX_REQUEST)))
