"""What a member's access to its directory hands on: the operator's options, and a watch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.base.log import stream
from ftstan.config.options import FileOptions, ServerOptions
from ftstan.config.units import SECOND
from ftstan.ft.access import FileAccess, _file_store_options
from ftstan.ft.mixed import MIXED_ON
from ftstan.ft.watch import WATCH_NAME, decode_watch
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import StoreContext

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_every_option_of_the_file_store_reaches_it() -> None:
    said = FileOptions(
        compact_enabled=False,
        compact_fragmentation=11,
        compact_interval=12,
        compact_min_size=13,
        crc=False,
        crc_poly=0x82F63B78,
        sync=False,
        slice_max_msgs=14,
        slice_max_bytes=15,
        slice_max_age=16,
        slice_archive_script="script",
        fds_limit=17,
        parallel_recovery=18,
        truncate_bad_eof=True,
        read_buffer_size=19,
        auto_sync=20,
        sync_index=not FileOptions().sync_index,
        sync_subs=not FileOptions().sync_subs,
    )
    assert _file_store_options(said) == FileStoreOptions(
        crc_polynomial=0x82F63B78,
        check_crc=False,
        sync=False,
        slice_max_msgs=14,
        slice_max_bytes=15,
        slice_max_age=16,
        slice_archive_script="script",
        compact_enabled=False,
        compact_fragmentation=11,
        compact_interval=12 * SECOND,
        compact_min_size=13,
        fds_limit=17,
        parallel_recovery=18,
        truncate_bad_eof=True,
        read_buffer_size=19,
        auto_sync=20,
        sync_index=said.sync_index,
        sync_subs=said.sync_subs,
    )
    assert _file_store_options(replace(said, auto_sync=-1)).auto_sync == 0


def access_to(path: Path) -> FileAccess:
    options = ServerOptions(store="FILE", dir=str(path))
    return FileAccess(StoreContext(options, "ME", ManualClock()))


def test_a_watch_of_the_present_activation_writes_that_it_lives(tmp_path: Path) -> None:
    access = access_to(tmp_path)
    access.owner.try_lock()
    access.activate()
    failures: list[BaseException] = []
    watch = access.watch(1.0, failures.append)
    assert watch.turn()
    access.open().recover()
    assert watch.turn()
    found = decode_watch((tmp_path / WATCH_NAME).read_bytes())
    assert found is not None
    assert (found.epoch, found.server_id, found.counter, failures) == (1, "ME", 2, [])
    assert access.holder().startswith("epoch 1 of server ")
    access.close()


def test_a_store_that_was_left_mixed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(stream, "info", lambda text, **_: lines.append(text))
    for is_mixed in (False, True):
        access = access_to(tmp_path)
        access.owner.try_lock()
        access.activate()
        assert (MIXED_ON in lines) is is_mixed
        if not is_mixed:
            access.owner.set_mixed(on=True)
        access.close()
