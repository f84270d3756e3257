"""Encryption at rest with real servers: what is stored, what is read, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.cli import ctl
from tests.ft.client import StanClient
from tests.oracle.godecrypt import decrypted
from tests.oracle.gostore import read_store
from tests.processes import PATIENCE_S, READY

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

SECRET = b"the-plaintext-of-a-payload"
PAYLOADS = [SECRET + b"-%d" % n for n in range(50)]


def key_file(stage: Stage, name: str, *keys: str) -> str:
    path = stage.directory / name
    path.touch(0o600)
    path.write_text("\n".join(keys))
    return str(path)


def started(
    stage: Stage, name: str, *words: str, executed: bool = False
) -> tuple[Server, StanClient]:
    server = stage.file_server(name, *words, executed=executed)
    server.wait_for(READY)
    client = StanClient(server.port, client_id=name)
    client.connect()
    return server, client


def stopped(server: Server, client: StanClient) -> None:
    client.close()
    server.stop(PATIENCE_S)


def files_of(stage: Stage) -> list[Path]:
    return [path for path in stage.directory.rglob("*") if path.is_file()]


def test_no_payload_is_stored_plain_and_the_next_start_reads_them_all(stage: Stage) -> None:
    ring = key_file(stage, "keys", "sesame")
    words = ("-encryption_key_file", ring, "-dedup_window", "100", "-SDV")
    server, client = started(stage, "first", *words)
    client.publish(b"foo", *PAYLOADS)
    assert list(client.read_to(b"foo", len(PAYLOADS)).values()) == PAYLOADS
    # Killed: what was acknowledged is read from what lies there.
    server.kill()
    files = files_of(stage)
    assert any(path.name.endswith(".dat") and path.stat().st_size > 1000 for path in files)
    for path in files:
        assert SECRET not in path.read_bytes(), path
        assert path.name == "keys" or b"sesame" not in path.read_bytes(), path

    server, client = started(stage, "second", *words)
    assert list(client.read_to(b"foo", len(PAYLOADS)).values()) == PAYLOADS
    client.publish(b"foo", b"")
    stopped(server, client)
    stored = read_store(stage.directory / "store").channels[b"foo"].messages
    assert [decrypted(b"sesame", b"foo", m.data) for m in stored.values()] == [*PAYLOADS, b""]


def test_a_wrong_key_is_refused_at_start_and_may_be_taken_all_the_same(stage: Stage) -> None:
    server, client = started(stage, "first", "-encryption_key_file", key_file(stage, "a", "right"))
    client.publish(b"foo", *PAYLOADS)
    stopped(server, client)

    wrong = ("-encryption_key_file", key_file(stage, "b", "wrong"))
    refused = stage.file_server("refused", *wrong)
    assert refused.status() == 1
    said = "\n".join(refused.lines())
    assert (
        "Failed to start: the encryption key does not decrypt the newest message of 1 of 1 "
        "channels: foo\n"
    ) in said

    server, client = started(stage, "accepted", *wrong, "-encryption_accept_unreadable")
    subscription = client.subscribe(b"foo")
    server.wait_for("Error looking up message foo:1 (")
    client.publish(b"bar", b"x")
    assert subscription.sequences == []
    (counted,) = server.metrics()["ftstan_undecryptable_messages"].samples
    assert counted.value == 1
    stopped(server, client)

    # Nothing was told to be delivered: with both keys the rest comes.
    both = key_file(stage, "c", "wrong", "right")
    server, client = started(stage, "both", "-encryption_key_file", both)
    assert list(client.read_to(b"foo", len(PAYLOADS)).values()) == PAYLOADS
    assert list(client.read_to(b"bar", 1).values()) == [b"x"]
    stopped(server, client)


def test_a_new_key_takes_the_place_of_the_old_one(stage: Stage) -> None:
    server, client = started(stage, "first", "-encryption_key_file", key_file(stage, "a", "old"))
    client.publish(b"foo", *PAYLOADS)
    stopped(server, client)
    ring = key_file(stage, "b", "new", "old")
    server, client = started(stage, "second", "-encryption_key_file", ring)
    client.publish(b"foo", b"between")
    stopped(server, client)
    assert ctl.main(["store", "rekey", str(stage.store), "--encryption-key-file", ring]) == 0
    server, client = started(stage, "third", "-encryption_key_file", key_file(stage, "c", "new"))
    assert list(client.read_to(b"foo", 51).values()) == [*PAYLOADS, b"between"]
    assert [line for line in server.lines() if "channel" in line and "[INF]" not in line] == []
    stopped(server, client)


def test_a_standby_takes_over_with_its_keys_and_one_with_another_key_stands_by(
    stage: Stage,
) -> None:
    nats = stage.nats()
    words = ("-ns", nats.url, "-encryption_key_file")
    first = stage.member("a", *words, key_file(stage, "keys.a", "sesame"))
    first.wait_until_active()
    client = StanClient(nats.port)
    client.connect()
    client.publish(b"foo", *PAYLOADS)
    wrong = stage.member("b", *words, key_file(stage, "keys.b", "another"))
    wrong.wait_until_standing_by()
    first.kill()
    wrong.wait_for(
        "ft: this server could not become active: the encryption key does not decrypt the newest "
        "message of 1 of 1 channels: foo"
    )
    # Nor does one take over that has none, and would store and deliver what it should not.
    wrong.stop(PATIENCE_S)
    bare = stage.member("d", "-ns", nats.url)
    bare.wait_for(
        "ft: this server could not become active: the store is encrypted, and this server has no "
        "encryption key"
    )
    right = stage.member("c", *words, key_file(stage, "keys.c", "other", "sesame"))
    right.wait_until_active()
    assert list(client.read_to(b"foo", len(PAYLOADS)).values()) == PAYLOADS


def test_a_key_on_the_command_line_is_written_over(stage: Stage) -> None:
    words = ("-encrypt", "-encryption_key", "sesame-of-the-flag")
    server, client = started(stage, "first", *words, executed=True)
    command = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    assert b"-encryption_key" in command
    assert b"sesame" not in command
    assert "sesame" not in "\n".join(server.lines())
    client.publish(b"foo", SECRET)
    stopped(server, client)


def test_without_its_key_an_encrypted_store_is_refused_or_served_knowingly(stage: Stage) -> None:
    server, client = started(stage, "first", "-encryption_key_file", key_file(stage, "a", "key"))
    client.publish(b"foo", *PAYLOADS)
    stopped(server, client)
    refused = stage.file_server("refused")
    assert refused.status() == 1
    said = "\n".join(refused.lines())
    assert (
        "Failed to start: the store is encrypted, and this server has no encryption key\n" in said
    )
    assert "Traceback" not in said
    server, client = started(stage, "accepted", "-encryption_accept_mixed")
    assert {data[0] for data in client.read_to(b"foo", len(PAYLOADS)).values()} <= {1, 2}
    stopped(server, client)
    # The mark stays.
    assert stage.file_server("again").status() == 1
