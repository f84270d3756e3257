"""What the bridge reads of a datastore's files."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import ConfigError, StoreError
from ftstan.bridge.backlog import Extent, LogFiles
from ftstan.bridge.errors import BridgeError
from tests.datastores import CLUSTER, server_info, serving

if TYPE_CHECKING:
    from pathlib import Path

POLYNOMIAL = 0xEDB88320


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with serving(tmp_path / "store") as node:
        node.publish(b"orders.eu", *(b"%d" % n for n in range(1, 1301)))
        node.stop()
    return tmp_path / "store"


def sequences(path: Path, first: int) -> list[int]:
    with LogFiles(str(path), POLYNOMIAL) as files:
        return [item.sequence for items in files.items("orders.eu", first) for item in items]


def test_messages_are_read_from_any_sequence_on(store: Path) -> None:
    assert sequences(store, 1) == list(range(1, 1301))
    assert sequences(store, 1299) == [1299, 1300]
    assert sequences(store, 1301) == []
    with LogFiles(str(store), POLYNOMIAL) as files:
        assert files.cluster_id == CLUSTER
        assert files.extent("orders.eu") == Extent(1, 1300)
        first = next(files.items("orders.eu", 7))[0]
    assert (first.sequence, first.reply, first.data) == (7, b"reply.to", b"7")


def test_files_that_confirm_nothing_are_left_to_the_server(store: Path) -> None:
    os.unlink(store / "orders.eu" / "confirmed.bin")
    assert sequences(store, 1) == []
    with LogFiles(str(store), POLYNOMIAL) as files:
        assert files.extent("orders.eu") == Extent(1, 0)


def test_a_damaged_record_is_not_passed_over(store: Path) -> None:
    (slice_,) = (store / "orders.eu").glob("msgs.*.dat")
    data = bytearray(slice_.read_bytes())
    data[len(data) // 2] ^= 0xFF
    slice_.write_bytes(data)
    with pytest.raises(BridgeError, match=r'channel "orders\.eu" is damaged in msgs'):
        sequences(store, 1)


def test_encrypted_payloads_are_left_to_the_server(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.store.set_server_info(replace(server_info(), encrypted=True))
        node.stop()
    with pytest.raises(ConfigError, match="are encrypted"):
        LogFiles(str(tmp_path), POLYNOMIAL)


def test_what_is_no_datastore_or_has_no_such_channel_is_refused(
    store: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="No such file"):
        LogFiles(str(tmp_path / "none"), POLYNOMIAL)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no datastore"):
        LogFiles(str(tmp_path / "empty"), POLYNOMIAL)
    with (
        LogFiles(str(store), POLYNOMIAL) as files,
        pytest.raises(ConfigError, match='has no channel "bills"'),
    ):
        files.extent("bills")
