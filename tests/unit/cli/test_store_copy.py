"""``ftstanctl store copy`` between directories: no copy is made of what is not whole, and one that
breaks off anywhere is served by nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from ftstan.base.errors import DamageError, RecoveryError, StoreError
from ftstan.cli import ctl, store_end
from ftstan.config.options import ChannelLimits
from ftstan.ft.moves import Move, Step, decode_moves, encode_moves
from ftstan.stores import copying
from ftstan.stores.file.store import FileStore
from ftstan.stores.memory import MemoryStore
from tests.datastores import messages_of, serve, serving

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.file.channel import FileChannel

NAME = b"foo"
PAYLOADS = [b"payload %d" % n for n in range(1, 13)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Twelve messages, and a clean stop: the next start does not read them."""
    path = tmp_path / "source"
    path.mkdir()
    with serving(path) as node:
        node.publish(NAME, *PAYLOADS)
        node.subscribe(NAME, 1)
        node.stop()
    return path


def damage(store: Path, sequence: int) -> None:
    (data,) = (store / "foo").glob("msgs.*.dat")
    text = data.read_bytes()
    payload = PAYLOADS[sequence - 1]
    data.write_bytes(text.replace(payload, payload.swapcase(), 1))


def copy(source: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    status = ctl.main(["store", "copy", str(source), str(target)])
    return status, capsys.readouterr().err


def is_clean(store: Path) -> bool:
    """Whether a server that starts finds the channel as a clean stop has left it."""
    with serving(store) as node:
        return cast("FileChannel", node.channel(NAME)).untouched


def test_a_directory_is_copied_and_a_clean_stop_is_behind_both(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = copy(source, tmp_path / "target", capsys)
    assert status == 0, err
    with serving(source) as node:
        wanted = messages_of(node, NAME)
    with serving(tmp_path / "target") as node:
        assert messages_of(node, NAME) == wanted
        assert len(wanted) == 12
        assert len(node.channel(NAME).recovered_subs()) == 1


@pytest.mark.parametrize("sequence", [1, 5, 11])
@pytest.mark.parametrize("source_gaps", [False, True])
def test_a_message_that_cannot_be_read_ends_a_copy_into_a_store_that_holds_gaps(
    source: Path, sequence: int, source_gaps: bool
) -> None:
    damage(source, sequence)
    told = "of which 11 can be read" if source_gaps else f"sequences {sequence} to {sequence}: "
    with serving(source) as node, pytest.raises(DamageError, match=told) as caught:
        copying.copy_store(
            node.store, node.found, MemoryStore(), source_gaps=source_gaps, target_gaps=True
        )
    assert "purge" not in caught.value.hint


@pytest.mark.parametrize("sequence", [1, 5, 11])
def test_a_damaged_directory_is_not_copied(
    source: Path, sequence: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(source, sequence)
    status, err = copy(source, tmp_path / "target", capsys)
    assert status == 2
    assert f"lacks the sequences {sequence} to {sequence}: a copy would hide" in err
    assert (tmp_path / "target" / "server.dat").read_bytes() == store_end.GUARD


def test_a_directory_whose_newest_message_is_lost_is_refused_before_anything_is_compared(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(source, 12)
    assert ctl.main(["store", "repair", str(source)]) == 0
    status, err = copy(source, tmp_path / "target", capsys)
    assert status == 2
    assert "lacks the sequences 12 to 12: a copy would hide" in err


def test_numbers_go_on_behind_messages_that_were_purged(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(source) as node:
        node.channel(NAME).purge(12)
        node.stop()
    status, err = copy(source, tmp_path / "target", capsys)
    assert status == 0, err
    with serving(tmp_path / "target") as node:
        assert messages_of(node, NAME) == {}
        assert node.publish(NAME, b"next") == [13]


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_no_server_starts_on_a_copy_if_a_store_cannot_be_closed(
    source: Path,
    fails_at: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source, the copy, and the copy that was compared."""
    real = FileStore.close
    closed: list[FileStore] = []

    def fails(store: FileStore) -> None:
        closed.append(store)
        if len(closed) == fails_at:
            store.abandon()
            raise StoreError("the disk is full")
        real(store)

    target = tmp_path / "target"
    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "close", fails)
        status, err = copy(source, target, capsys)
    assert (status, len(closed)) == (2, fails_at)
    assert "the disk is full" in err
    with pytest.raises(RecoveryError):
        serve(target)
    assert copy(source, target, capsys)[0] == 0


def test_a_copy_that_cannot_be_opened_again_is_guarded(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = FileStore.set_server_info

    def fails(store: FileStore, info: object) -> None:
        real(store, info)  # type: ignore[arg-type]
        raise StoreError("the disk has gone")

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "set_server_info", fails)
        assert copy(source, tmp_path / "target", capsys)[0] == 2
    with pytest.raises(RecoveryError):
        serve(tmp_path / "target")


def test_a_copy_that_fails_leaves_its_source_as_a_clean_stop(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies(*_: object) -> None:
        raise StoreError("the target is full")

    with monkeypatch.context() as patch:
        patch.setattr(copying, "_copy_subs", dies)
        assert copy(source, tmp_path / "target", capsys)[0] == 2
    assert is_clean(source)


def test_a_copy_knows_what_has_moved_to_other_servers(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moves = encode_moves(
        {"foo": Move("ab" * 16, Step.GONE, "cd" * 32, "host2:8222", ChannelLimits())}
    )
    (source / "ft.moves").write_bytes(moves)
    assert copy(source, tmp_path / "target", capsys) == (0, "")
    assert decode_moves((tmp_path / "target" / "ft.moves").read_bytes()) == decode_moves(moves)
    (source / "ft.moves").write_bytes(moves[:-1])
    status, said = copy(source, tmp_path / "other", capsys)
    assert status
    assert "ft.moves is damaged" in said
