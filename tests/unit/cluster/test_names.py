"""Two cluster ids never share a stream or a subject."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftstan.cluster.names import log_subject, stream_name
from ftstan.nats.clustered import encoded


def test_ids_that_differ_in_a_dot_or_a_line_have_streams_of_their_own() -> None:
    assert stream_name("a.b") != stream_name("a_b")
    assert stream_name("test-cluster") == "FTSTAN_test-cluster"
    assert log_subject("a.b", b"\1" * 16).count(".") == 3


@given(st.text(max_size=6), st.text(max_size=6))
def test_names_are_told_apart_and_are_tokens(one: str, other: str) -> None:
    assert (encoded(one) == encoded(other)) == (one == other)
    assert not set(encoded(one)) & set(" .*>/\\\r\n\t")
