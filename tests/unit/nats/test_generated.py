"""The configuration generated for the child."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError
from ftstan.config.writer import quoted
from ftstan.nats.clustered import JetStreamOptions
from ftstan.nats.generated import REPORT_EVERY, NatsServerOptions, cluster_name, extra_token, render


def text_of(options: NatsServerOptions, port: int = 0, cluster_port: int = 0) -> str:
    return render(options, server_name="n1", ports_dir="/p", port=port, cluster_port=cluster_port)


def test_members_of_one_stan_cluster_share_a_cluster_name_without_blanks() -> None:
    assert cluster_name("my cluster.1") == "ftstan-my_cluster_1"


def test_nothing_is_asked_of_clients_without_credentials() -> None:
    assert "authorization" not in text_of(NatsServerOptions("c"))


def test_a_token_or_a_user_is_required_of_clients() -> None:
    assert 'authorization: { token: "t" }' in text_of(NatsServerOptions("c", token="t"))
    assert 'authorization: { users: [{ user: "u", password: "p" } ] }' in text_of(
        NatsServerOptions("c", user="u", password="p")
    )
    assert 'authorization: { user: "", password: "p" }' in text_of(
        NatsServerOptions("c", password="p")
    )


def test_a_single_login_stands_as_one_of_several_where_nats_server_takes_the_same_then() -> None:
    # For which nats-server has no use where one login stands by itself.
    limits = {"authorization": {"timeout": 3, "default_permissions": {"publish": "a"}}}
    options = NatsServerOptions("c", user="u", password="p", settings=limits)
    wanted = 'authorization: { timeout: 3, users: [{ user: "u", password: "p" } ] }'
    assert wanted in text_of(options)
    settings: list[dict[str, Any]] = [
        {"accounts": {"A": {}}},
        {"no_auth_user": "u"},
        {"websocket": {"port": 1, "no_auth_user": "u"}},
        {"mqtt": {"port": 1, "no_auth_user": "u"}},
    ]
    for refused in settings:
        options = NatsServerOptions("c", user="u", password="p", settings=refused)
        assert 'authorization: { user: "u", password: "p" }' in text_of(options)


def test_routes_and_their_credentials_are_written_in_the_cluster_block() -> None:
    options = NatsServerOptions(
        "c", cluster_listen="nats://r:s@[::1]:6222", routes=("nats://r:s@b:6222",)
    )
    text = text_of(options)
    assert 'listen: "[::1]:6222"' in text
    assert 'authorization: { user: "r", password: "s" }' in text
    assert 'routes: ["nats://r:s@b:6222" ]' in text


def test_a_restart_keeps_the_ports_that_the_first_start_was_given() -> None:
    text = text_of(NatsServerOptions("c", port=-1, cluster_listen="nats://h:-1"), 4001, 4002)
    assert "port: 4001\n" in text
    assert 'listen: "h:4002"' in text


def test_options_that_contradict_each_other_are_refused_in_the_originals_words() -> None:
    with pytest.raises(
        ConfigError, match=r"^solicited routes require cluster capabilities, e\.g\. --cluster$"
    ):
        text_of(NatsServerOptions("c", routes=("nats://b:1",)))


USERS = {"authorization": {"users": [{"user": "a", "password": "b"}]}}


def test_a_token_wins_over_a_user_and_stands_beside_users_on_the_command_line() -> None:
    options = NatsServerOptions("c", user="u", password="p", token="t")
    assert 'authorization: { token: "t" }' in text_of(options)
    assert extra_token(options) == ""
    options = NatsServerOptions("c", token="t", settings=USERS)
    assert 'authorization: { users: [{ user: "a", password: "b" } ] }' in text_of(options)
    assert extra_token(options) == "t"


def test_secrets_do_not_show_in_a_repr() -> None:
    options = NatsServerOptions("c", password="pp77", token="tt77", routes=("nats://u:rr77@h:1",))
    assert "77" not in repr(options)


@given(st.text(max_size=30))
def test_a_quoted_string_cannot_end_early(text: str) -> None:
    body = quoted(text)[1:-1]
    assert '"' not in body
    assert "\n" not in body
    assert body.replace("\\x", "").count("\\") == 0


def test_an_absent_peer_is_complained_of_now_and_then_unless_the_operator_set_how_often() -> None:
    assert f"reconnect_error_reports: {REPORT_EVERY}\n" in text_of(NatsServerOptions("c"))
    asked = NatsServerOptions("c", settings={"reconnect_error_reports": 7})
    assert "reconnect_error_reports: 7\n" in text_of(asked)


@pytest.mark.parametrize(
    ("login", "wanted"),
    [
        ({}, 'no_auth_user: "ftstan-client"'),
        (
            {"user": "u", "password": "p"},
            'authorization: { users: [{ user: "u", password: "p" } ] }',
        ),
        ({"settings": USERS}, 'authorization: { users: [{ user: "a", password: "b" } ] }'),
    ],
)
def test_the_log_of_a_cluster_is_in_an_account_that_no_client_has(
    login: dict[str, Any], wanted: str
) -> None:
    jetstream = JetStreamOptions("n", "/log", sync=True, password="secret")
    text = text_of(NatsServerOptions("c", jetstream=jetstream, **login))
    users = '[{ user: "ftstan-log", password: "secret" } ]'
    assert f"accounts: {{ FTSTAN_LOG: {{ jetstream: true, users: {users} }} }}" in text
    assert wanted in text
    assert ("no_auth_user" in text) is not bool(login)
    assert "secret" not in repr(jetstream)
