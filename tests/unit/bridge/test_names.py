"""Which stream a channel is mirrored into."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError
from ftstan.bridge.names import stream_names


def test_what_jetstream_does_not_take_in_a_name_becomes_an_underscore() -> None:
    assert stream_names(["orders.eu", "a-b"], "S_") == {"orders.eu": "S_orders_eu", "a-b": "S_a-b"}
    assert stream_names(["größe"]) == {"größe": "gr__e"}


def test_two_channels_never_share_a_stream() -> None:
    with pytest.raises(ConfigError, match=r'"a\.b" and "a_b" would share the stream "a_b"'):
        stream_names(["a.b", "a_b"])
    assert stream_names(["a.b", "a_b"], given={"a_b": "other"}) == {"a.b": "a_b", "a_b": "other"}


@pytest.mark.parametrize("name", ["a.b", "a b", "a>", "x" * 256])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="JetStream takes no stream"):
        stream_names(["orders"], given={"orders": name})


def test_a_stream_for_a_channel_that_is_not_mirrored_is_refused() -> None:
    with pytest.raises(ConfigError, match="which --channel does not"):
        stream_names(["orders"], given={"bills": "BILLS"})


@given(st.lists(st.text("ab._-é", min_size=1, max_size=4), unique=True))
def test_names_are_told_apart_or_refused(channels: list[str]) -> None:
    try:
        found = stream_names(channels)
    except ConfigError:
        return
    assert len(set(found.values())) == len(channels)
