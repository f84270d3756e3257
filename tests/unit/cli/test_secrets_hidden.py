"""Tokens do not stand on command lines, which every user of a host can read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.cli.hidden import spans
from ftstan.config.options import LinkOptions
from ftstan.nats.embedded import NatsServerChild, NatsServerOptions
from ftstan.nats.link import Link
from ftstan.nats.tokens import hashed

TOKEN = "s3cret-täken"
USERS = {"authorization": {"users": [{"user": "a", "password": "b"}]}}


def words_of(pid: int | None) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.processes
def test_a_token_beside_users_opens_the_child_and_is_not_on_its_command_line() -> None:
    async def work() -> None:
        options = NatsServerOptions("c", host="127.0.0.1", port=-1, token=TOKEN, settings=USERS)
        child = NatsServerChild(options)
        await child.start()
        try:
            assert TOKEN.encode() not in words_of(child.pid)
            for login in (LinkOptions(token=TOKEN), LinkOptions(user="a", password="b")):
                link = Link([child.client_url], name="test", options=login, clock=SystemClock())
                link.connect(5)
                link.close()
            with pytest.raises(NatsError, match="Authorization"):
                Link(
                    [child.client_url],
                    name="test",
                    options=LinkOptions(token="wrong"),
                    clock=SystemClock(),
                ).connect(5)
        finally:
            await child.stop()

    asyncio.run(work())


def test_a_hash_stays_and_what_bcrypt_would_not_look_at_is_refused() -> None:
    made = hashed(TOKEN)
    assert hashed(made) == made
    assert hashed(TOKEN) != made
    for token in ("x" * 73, "a\0b"):
        with pytest.raises(NatsError, match="72 bytes at most"):
            hashed(token)


def test_where_secrets_stand_in_a_command_line() -> None:
    assert spans([b"ftstan", b"-auth", b"tok", b"--pass=word", b"-p", b"1", b""]) == [
        (13, 3),
        (24, 4),
    ]
    assert spans([b"ftstanctl", b"--jetstream-pass", b"word"]) == [(27, 4)]
    assert spans([b"ftstan", b"-authx", b"tok", b"-auth"]) == []
    words = [b"ftstan", b"-encryption_key_file", b"path", b"-encryption_key", b"k", b"-encrypt"]
    assert spans(words) == [(49, 1)]


def test_a_process_writes_over_its_own_secrets() -> None:
    code = (
        "from ftstan.cli.hidden import blank_secrets; import sys; blank_secrets();"
        "print(open('/proc/self/cmdline').read().split(chr(0)), sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "-auth", "tok", "--pass=word", "-p", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'-auth', 'xxx', '--pass=xxxx', '-p', '1', '']" in done.stdout
    assert "['-auth', 'tok', '--pass=word', '-p', '1']" in done.stdout


def test_the_source_of_a_database_is_written_over_and_the_path_of_its_file_is_not() -> None:
    for words in ([b"f", b"-sql_source", b"u:pw@/d"], [b"f", b"--sql_source=u:pw@/d"]):
        line = bytearray(b"\0".join(words) + b"\0")
        for at, size in spans(words):
            line[at : at + size] = b"x" * size
        assert b"pw" not in line
    assert spans([b"f", b"-sql_source_file", b"/etc/x", b"-sql_source_file=/etc/x"]) == []
