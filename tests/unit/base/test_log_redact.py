"""Secrets in texts: every form in which a login can come into a line, and what stays readable."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base import log
from ftstan.base.log.redact import redact, redact_pairs
from ftstan.nats.childlog import parse_line

if TYPE_CHECKING:
    from pathlib import Path

SEED = "SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lost nats://u:p@h:1, retry", "lost nats://[REDACTED]@h:1, retry"),
        ("tls://token@h and nats://v:q@w", "tls://[REDACTED]@h and nats://[REDACTED]@w"),
        ("a://h1,b://u@h2", "a://h1,b://[REDACTED]@h2"),
        ("nats://[REDACTED]@h:1", "nats://[REDACTED]@h:1"),
        ("nats://u:p[1]@[::1]:4222", "nats://[REDACTED]@[::1]:4222"),
        (
            "mail me@example.org, see https://example.org",
            "mail me@example.org, see https://example.org",
        ),
        (f"seed {SEED} here", "seed [REDACTED] here"),
        ("subject=a@b, seq=4", "subject=a@b, seq=4"),
    ],
)
def test_user_info_and_seeds_are_hidden_wherever_they_stand(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            '[CONNECT {"user":"me","pass":"s3cret"}]',
            '[CONNECT {"user":"[REDACTED]","pass":"[REDACTED]"}]',
        ),
        ('{"auth_token":"a\\"b","name":"x"}', '{"auth_token":"[REDACTED]","name":"x"}'),
        (
            '{"jwt":"e.y.J","nkey":"UABC","sig":"xyz=="}',
            '{"jwt":"[REDACTED]","nkey":"[REDACTED]","sig":"[REDACTED]"}',
        ),
        ('INFO {"nonce":"abc","port":1}', 'INFO {"nonce":"[REDACTED]","port":1}'),
        ('MSG_PAYLOAD: ["{\\"pass\\":\\"x\\"}"]', 'MSG_PAYLOAD: ["{\\"pass\\":\\"[REDACTED]\\"}"]'),
        (
            "authorization { user: me, password: s3cret }",
            "authorization { user: [REDACTED], password: [REDACTED] }",
        ),
        ("token = 'two words', port: 1", "token = '[REDACTED]', port: 1"),
        ('authentication error - Nkey "UABC"', 'authentication error - Nkey "[REDACTED]"'),
        ("Password must not be empty", "Password must not be empty"),
        ("passed: 4, tokens: 3", "passed: 4, tokens: 3"),
    ],
)
def test_values_of_secret_keys_are_hidden_and_the_rest_stays(text: str, shown: str) -> None:
    assert redact_pairs(text) == shown


@given(
    st.text(min_size=1),
    st.sampled_from(["pass", "auth_token", "jwt", "nkey", "sig"]),
    st.booleans(),
)
def test_no_value_of_a_traced_login_survives(secret: str, key: str, readable: bool) -> None:
    secret = f"<<{secret}>>"
    fields = {"verbose": False, key: secret, "name": "me", "protocol": 1}
    connect = json.dumps(fields, ensure_ascii=not readable, separators=(",", ":"))
    line = f"[1] 2026/11/20 09:14:42.000000 [TRC] 127.0.0.1:1 - cid:4 - <<- [CONNECT {connect}]"
    shown = parse_line(line.encode("utf-8", "surrogatepass")).text
    assert "<<" not in shown.replace("<<-", "")
    assert ">>" not in shown.replace("->>", "")
    assert '"name":"me","protocol":1' in shown


def test_lines_without_prefix_are_redacted_too() -> None:
    assert parse_line(b"panic: password: s3cret").text == "panic: password: [REDACTED]"


def test_every_line_of_the_log_is_redacted(tmp_path: Path) -> None:
    log.configure(file=str(tmp_path / "x.log"), debug=True)
    log.stream.debug("to nats://u:hidden@h")
    log.nats.error(f"bad seed {SEED}")
    assert log.flush(60)
    text = (tmp_path / "x.log").read_text()
    log.configure()
    assert "hidden" not in text
    assert SEED not in text
    assert text.count("[REDACTED]") == 2
