"""Who may read and write a datastore, judged: other users' files, and files that everybody may
write. With real users in ``tests/ft/test_modes.py``.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import StoreError
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.modes import check_modes, cure, make_directories
from ftstan.ft.survey import SERVER_NAME

if TYPE_CHECKING:
    from pathlib import Path

#: Nobody's on any host of ours.
STRANGER = 54321


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "store"
    store.mkdir(0o750)
    for name in (SERVER_NAME, LOCK_NAME):
        (store / name).touch(0o640)
    return store


def check(
    store: Path, *, in_group: bool = False, is_network: bool = False, strict: bool = False
) -> list[str]:
    disk = LocalDisk()
    root = disk.open_dir(str(store))
    try:
        return check_modes(
            disk, root, str(store), in_group=in_group, is_network=is_network, strict=strict
        )
    finally:
        disk.close(root)


def running_as(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def test_missing_directories_are_made_with_those_above_them(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    for _ in range(2):
        make_directories(str(path))
    assert path.is_dir()
    assert not path.stat().st_mode & 0o007


def test_a_file_where_a_directory_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(FileExistsError):
            make_directories(str(path))


def test_a_path_below_the_working_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_directories("store")
    assert (tmp_path / "store").is_dir()


def test_the_cure_names_who_this_server_is_and_whose_the_directory_is(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "full")
    assert cure(str(tmp_path), full) == "give -dir a directory that this user may write"
    denied = PermissionError(errno.EACCES, "denied")
    os.chown(tmp_path, STRANGER, -1)
    assert cure(str(tmp_path), denied) == (
        f"this server runs as root (uid 0): run it as uid {STRANGER}, or give it the directory: "
        "chown -R"
    )
    assert "run it as the user that owns it, or" in cure(str(tmp_path / "none"), denied)


def test_a_datastore_of_this_user_is_in_order(store: Path) -> None:
    assert check(store, in_group=True, strict=True) == []


@pytest.mark.parametrize("name", [SERVER_NAME, LOCK_NAME])
def test_the_files_of_another_user_are_told_and_break_a_group(
    store: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(store / name, STRANGER, -1)
    if name == LOCK_NAME:
        (store / SERVER_NAME).unlink()
    (warning,) = check(store)
    assert warning.startswith(
        f"datastore {store} belongs to uid {STRANGER}, and this server runs as root (uid 0): the "
        "other could not read the files that it makes; run every member as"
    )
    with pytest.raises(StoreError) as caught:
        check(store, in_group=True)
    assert caught.value.hint == (
        f"run every member as uid {STRANGER}, or give the datastore to one user: chown -R 0 {store}"
    )
    # Only root may be somebody else to a file server.
    running_as(monkeypatch, STRANGER + 1)
    with pytest.raises(StoreError, match=f"runs as uid {STRANGER + 1}"):
        check(store, in_group=True, is_network=True)


def test_root_on_network_storage_may_be_the_owner_there(store: Path) -> None:
    os.chown(store / SERVER_NAME, STRANGER, -1)
    (warning,) = check(store, in_group=True, is_network=True)
    assert warning.endswith(", unless the file server maps root to that user")


def test_an_empty_directory_is_nobodys(store: Path) -> None:
    for name in (SERVER_NAME, LOCK_NAME):
        (store / name).unlink()
    os.chown(store, STRANGER, -1)
    assert check(store, in_group=True) == []


def test_a_datastore_that_everybody_may_write_to_is_told_and_refused_if_asked(store: Path) -> None:
    store.chmod(0o777)
    said = f"everybody may write to the datastore {store} (mode 0777)"
    assert check(store) == [f"{said}; run: chmod -R o-w {store}"]
    with pytest.raises(StoreError) as caught:
        check(store, strict=True)
    assert caught.value.text == said
    assert caught.value.hint.startswith(f"run: chmod -R o-w {store}; or start without -strict")


def test_five_of_the_files_that_everybody_may_write_are_named_and_links_are_none(
    store: Path,
) -> None:
    (store / "link").symlink_to("nowhere")
    os.mkfifo(store / "pipe")
    (store / "pipe").chmod(0o666)
    assert check(store) == []
    for name in "fedcb":
        (store / name).touch()
        (store / name).chmod(0o602)
    assert check(store)[0].startswith(
        f"everybody may write to b, c, d, e, f in the datastore {store}; run: "
    )
    (store / "a").mkdir()
    (store / "a").chmod(0o702)
    assert check(store)[0].startswith(
        f"everybody may write to a, b, c, d, e and 1 more in the datastore {store}; run: "
    )


def test_a_file_that_goes_while_it_is_looked_at_is_passed_over(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listdir = LocalDisk.listdir
    monkeypatch.setattr(
        LocalDisk, "listdir", lambda disk, root: [("gone", False), *listdir(disk, root)]
    )
    (store / "all").touch()
    (store / "all").chmod(0o666)
    assert "everybody may write to all in" in check(store)[0]


def test_storage_that_cannot_be_judged_says_what_this_server_needs(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(disk: LocalDisk, root: int) -> list[tuple[str, bool]]:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(LocalDisk, "listdir", refuse)
    with pytest.raises(StoreError) as caught:
        check(store)
    assert caught.value.text == f"datastore {store}: permission denied"
    assert caught.value.hint == (
        "give root (uid 0) the right to read and write everything in it: chown -R"
    )
