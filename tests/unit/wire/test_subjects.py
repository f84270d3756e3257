"""Names that clients choose, and the subjects that a server listens on."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.wire.subjects import (
    MAX_SUBJECT,
    Subjects,
    is_inbox,
    publishable,
    valid_channel,
    valid_client_id,
)
from tests.oracle.wiregen import few


def test_the_subjects_of_a_cluster() -> None:
    assert Subjects.for_cluster("test-cluster") == Subjects(
        discovery="_STAN.discover.test-cluster",
        publish="_STAN.pub.test-cluster",
        subscribe="_STAN.sub.test-cluster",
        unsubscribe="_STAN.unsub.test-cluster",
        sub_close="_STAN.subclose.test-cluster",
        close="_STAN.close.test-cluster",
        acks_subs="_STAN.ack.test-cluster",
    )


def test_only_the_discovery_prefix_is_the_operators_and_pings_follow_it() -> None:
    subjects = Subjects.for_cluster("c", discover_prefix="find.me")
    assert (subjects.discovery, subjects.pings) == ("find.me.c", "find.me.c.pings")
    assert (subjects.publish, subjects.publish_all) == ("_STAN.pub.c", "_STAN.pub.c.>")


@pytest.mark.parametrize(
    "name", [b"foo", b"foo.bar", b"a", b"with space", b"\xff\xfe", b"caf\xc3\xa9", b"a\nb", b"\\"]
)
def test_any_byte_may_stand_in_a_channel_name_but_the_reserved_ones(name: bytes) -> None:
    assert valid_channel(name)
    assert valid_channel(name, literal=False)


@pytest.mark.parametrize("name", [b"", b".", b".a", b"a.", b"a..b", b"a/b", b"/", b"a.b/"])
def test_empty_tokens_and_slashes_name_no_channel_and_no_pattern(name: bytes) -> None:
    assert not valid_channel(name)
    assert not valid_channel(name, literal=False)


@pytest.mark.parametrize("name", [b"*", b">", b"a.*", b"a.>", b"*.b", b"*.*.>"])
def test_wildcards_are_for_patterns_only(name: bytes) -> None:
    assert not valid_channel(name)
    assert valid_channel(name, literal=False)


@pytest.mark.parametrize(
    "name", [b"a*", b"*a", b"a>", b">a", b"a.>.b", b">.a", b"a.b*.c", b"a.>b", b"**", b">>"]
)
def test_a_wildcard_inside_a_token_or_before_the_end_is_legal_nowhere(name: bytes) -> None:
    assert not valid_channel(name)
    assert not valid_channel(name, literal=False)


def test_a_channel_name_may_be_of_any_length() -> None:
    assert valid_channel(b"x" * 100_000)


@few
@given(st.binary(max_size=12))
def test_every_literal_channel_is_also_a_pattern(name: bytes) -> None:
    assert not valid_channel(name) or valid_channel(name, literal=False)


@pytest.mark.parametrize("client_id", [b"me", b"A-b_9", b"_", b"-", b"0" * 1000])
def test_client_ids_are_letters_digits_dash_and_underscore(client_id: bytes) -> None:
    assert valid_client_id(client_id)


@pytest.mark.parametrize(
    "client_id", [b"", b"a b", b"a.b", b"me\n", b"\nme", b"caf\xc3\xa9", b"a/b", b"a*"]
)
def test_no_other_client_id_is_legal(client_id: bytes) -> None:
    assert not valid_client_id(client_id)


@pytest.mark.parametrize(
    "subject", [b"_INBOX.abc", b"a", b"a*b.c>", b"\xff\xfe.x", b"x" * MAX_SUBJECT]
)
def test_a_literal_subject_can_be_published_to(subject: bytes) -> None:
    assert publishable(subject)


@pytest.mark.parametrize(
    "subject",
    [
        b"",
        b".",
        b".a",
        b"a.",
        b"a..b",
        b"a b",
        b"a\tb",
        b"a\r",
        b"a\nb",
        b"a 0\r\n\r\nPUB b",
        b"a\0b",
        b"*",
        b">",
        b"a.*",
        b"a.>",
        b"*.a",
        b"x" * (MAX_SUBJECT + 1),
    ],
)
def test_a_subject_that_would_break_the_stream_or_match_others_is_refused(subject: bytes) -> None:
    assert not publishable(subject)


@pytest.mark.parametrize(
    "subject", [b"_STAN.acks.x", b"_STAN", b"_STANx.a", b"x._STAN.pub.c.a", b"_FTSTANx.a"]
)
def test_what_only_looks_like_a_subject_of_servers_may_be_an_inbox(subject: bytes) -> None:
    assert is_inbox(subject)


@pytest.mark.parametrize(
    "subject",
    [
        b"_STAN.ft.c.g",
        b"_STAN.pub.c.orders",
        b"_STAN.close.c",
        b"_STAN.part.c",
        b"_STAN.acks",
        b"_FTSTAN.ft.c.g",
        b"_FTSTAN.ctl.c.s",
    ],
)
def test_nobody_has_an_inbox_where_servers_listen(subject: bytes) -> None:
    assert not is_inbox(subject)


@few
@given(st.binary(max_size=40))
def test_an_inbox_can_be_published_to(subject: bytes) -> None:
    assert not is_inbox(subject) or publishable(subject)


@few
@given(st.binary(max_size=40))
def test_a_publishable_subject_is_one_word_of_a_control_line(subject: bytes) -> None:
    assert not publishable(subject) or re.split(rb"[ \t\r\n]+", b"PUB " + subject + b" 0") == [
        b"PUB",
        subject,
        b"0",
    ]
