"""The pipeline on encrypted datastores: with keys, without them, and with the wrong ones."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from ftstan.base.environment import KEY_VARIABLE
from ftstan.cli import ctl
from ftstan.cli.pipeline import running
from ftstan.spark.places import holds_encrypted
from ftstan.spark.serverinfo import is_encrypted
from tests.oracle.godecrypt import decrypted
from tests.oracle.gostore import read_store
from tests.processes import CLUSTER
from tests.spark.test_pipeline import ORDERS, Operator, operator, store
from tests.unit.spark.test_keys import key_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["operator", "store"]

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def encrypted(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same messages, encrypted by ``rekey``."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    path = tmp_path / "encrypted"
    shutil.copytree(store, path)
    keys = key_file(tmp_path, "key")
    assert ctl.main(["store", "rekey", str(path), "--encryption-key-file", keys]) == 0
    assert is_encrypted(str(path))
    return path


def stored(path: Path) -> dict[tuple[bytes, int], bytes]:
    """What an original finds, as it is stored."""
    return {
        (name, s): m.data
        for name, channel in read_store(path).channels.items()
        for s, m in channel.messages.items()
    }


def opened(path: Path, key: bytes) -> dict[tuple[bytes, int], bytes]:
    """What an original with the key reads; everything must be encrypted."""
    found = stored(path)
    assert {data[0] for data in found.values()} == {1}
    return {at: decrypted(key, at[0], data) for at, data in found.items()}


def test_messages_are_read_with_their_keys_and_refused_without(
    encrypted: Path, operator: Operator, tmp_path: Path
) -> None:
    words = ("read", encrypted, "--channel", "orders", "--limit", "1", "--output", "json")
    said = operator(*words, "--encryption-key-file", key_file(tmp_path, "key"))
    assert (said.status, said.rows[0]["size"]) == (0, len(b'{"n": 1}'))
    for more, why in (
        ((), "is encrypted"),
        (
            ("--encryption-key-file", key_file(tmp_path, "other")),
            'channel "orders" sequence 1 cannot be decrypted',
        ),
    ):
        said = operator(*words, *more)
        assert said.status == running.EXIT_FAILED
        assert why in said.err
        assert "Traceback" not in said.err
    said = operator(*words, "--option", "failOnEncrypted=false")
    assert (said.status, said.rows[0]["size"]) == (0, len(b'{"n": 1}') + 29)


def test_a_restore_with_keys_writes_encrypted_payloads_and_the_mark(
    encrypted: Path, store: Path, operator: Operator, tmp_path: Path
) -> None:
    target = tmp_path / "restored"
    # What lies in two places is the same message, however often it was encrypted.
    said = operator(
        "restore",
        encrypted,
        store,
        "--to",
        target,
        "--cluster",
        CLUSTER,
        "--encryption-key-file",
        key_file(tmp_path, "new", "key"),
    )
    assert said.status == 0, said
    assert opened(target, b"new") == stored(store)
    assert is_encrypted(str(target))


def test_a_restore_without_keys_keeps_payloads_and_mark(
    encrypted: Path, operator: Operator, tmp_path: Path
) -> None:
    target = tmp_path / "restored"
    said = operator("restore", encrypted, "--to", target, "--cluster", CLUSTER)
    assert said.status == 0, said
    assert stored(target) == stored(encrypted)
    assert is_encrypted(str(target))


def test_a_plain_store_is_made_only_by_its_name(
    encrypted: Path, store: Path, operator: Operator, tmp_path: Path
) -> None:
    target = tmp_path / "restored"
    words = ("restore", encrypted, "--to", target, "--cluster", CLUSTER, "--to-plain")
    said = operator(*words)
    assert said.status == 64
    assert "--to-plain needs the keys" in said.err
    said = operator(*words, "--encryption-key-file", key_file(tmp_path, "key"))
    assert said.status == 0, said
    assert stored(target) == stored(store)
    assert not is_encrypted(str(target))


def test_an_archive_is_made_with_keys_audited_and_restored(
    encrypted: Path, store: Path, operator: Operator, tmp_path: Path
) -> None:
    keys = ("--encryption-key-file", key_file(tmp_path, "key"))
    (sealed, plain) = (tmp_path / "sealed", tmp_path / "plain")
    said = operator("archive", encrypted, sealed, "--payloads", "stored", "--output", "json")
    assert (said.status, json.loads(said.out)["messages"]) == (0, ORDERS + 30)
    assert operator("archive", encrypted, plain, *keys).status == 0
    assert (holds_encrypted(str(sealed)), holds_encrypted(str(plain))) == (True, False)
    said = operator("audit", encrypted, sealed, plain, *keys)
    assert said.status == 0, said
    target = tmp_path / "restored"
    said = operator("restore", sealed, "--to", target, "--cluster", CLUSTER)
    assert said.status == 0, said
    assert stored(target) == stored(encrypted)
    assert is_encrypted(str(target))
