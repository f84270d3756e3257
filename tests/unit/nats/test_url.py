"""NATS addresses as operators write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError
from ftstan.nats.url import Login, effective_login, parse_cluster_listen, parse_url, parse_urls


def test_a_list_is_split_at_commas_and_blanks_around_urls_are_ignored() -> None:
    first, second = parse_urls("nats://a:4222, nats://u:p@b:4223")
    assert (first.host, first.port, first.login) == ("a", 4222, Login())
    assert (second.host, second.port, second.login) == ("b", 4223, Login("u", "p"))


def test_a_lone_user_is_a_token() -> None:
    assert parse_url("nats://s3cret@h:1").login == Login(token="s3cret")


def test_percent_encoded_credentials_are_decoded() -> None:
    assert parse_url("nats://a%40b:c%2Fd@h:1").login == Login("a@b", "c/d")


def test_an_ipv6_host_is_written_with_brackets_and_kept_without() -> None:
    url = parse_url("nats://[::1]:4222")
    assert (url.host, url.address) == ("::1", "[::1]:4222")


def test_credentials_are_never_shown() -> None:
    url = parse_url("nats://bob:hunter2@h:4222")
    assert url.shown == "nats://[REDACTED]@h:4222"
    assert url.plain == "nats://h:4222"
    assert "hunter2" not in repr(url)


@pytest.mark.parametrize(
    "text",
    ["localhost:4222", "localhost", "", "http://h:1", "nats://:4222", "nats://h:x", "nats://h:0"],
)
def test_a_url_without_scheme_host_or_usable_port_is_malformed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^malformed url: "):
        parse_url(text)


def test_a_url_without_port_says_which_address() -> None:
    with pytest.raises(ConfigError, match=r"^address h: missing port in address$"):
        parse_url("nats://h")


def test_a_malformed_url_keeps_its_password_to_itself() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url("nats://bob:hunter2@h:nope")
    assert "hunter2" not in str(caught.value)


def test_a_tls_url_asks_for_tls_and_is_otherwise_like_every_other() -> None:
    url = parse_url("tls://u:p@h:4222")
    assert (url.host, url.port, url.login.user, url.is_tls) == ("h", 4222, "u", True)
    assert not parse_url("nats://h:4222").is_tls


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused_with_a_config_error(text: str) -> None:
    for parse in (parse_url, parse_cluster_listen):
        try:
            assert parse(text).port != 0
        except ConfigError:
            continue


def test_a_cluster_url_may_have_no_host_and_a_random_port() -> None:
    url = parse_cluster_listen("nats://:-1")
    assert (url.host, url.port) == ("0.0.0.0", -1)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nats://h", r"^missing port in address$"),
        ("nats://u@h:1", "^expected cluster password to be set$"),
        ("h:1", "^malformed url: h:1$"),
    ],
)
def test_a_cluster_url_is_refused_in_the_originals_words(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_cluster_listen(text)


def test_credentials_in_a_url_win_over_the_configured_ones() -> None:
    default = Login(token="t")
    assert effective_login(parse_url("nats://u:p@h:1"), default) == Login("u", "p")
    assert effective_login(parse_url("nats://h:1"), default) == default
