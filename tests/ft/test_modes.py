"""Owners and modes of a datastore's files, with real processes under other users."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.ft.client import StanClient
from tests.processes import READY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Stage

pytestmark = pytest.mark.processes

NOBODY = 65534
STRANGER = 54321


def as_user(uid: int, umask: str = "022") -> list[str]:
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    # It may read the interpreter, wherever that is, and write only what is its own.
    caps = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    switch = [setpriv, "--reuid", str(uid), "--regid", str(uid), "--clear-groups", *caps]
    return [*switch, *with_umask(umask)]


def with_umask(umask: str) -> list[str]:
    return ["/bin/sh", "-c", f'umask {umask}; exec "$@"', "sh"]


def modes(store: Path) -> dict[str, int]:
    return {
        str(path.relative_to(store.parent)): path.lstat().st_mode & 0o7777
        for path in [store, *store.rglob("*")]
    }


def fill(stage: Stage, name: str, *words: str, wrap: list[str]) -> None:
    """Run a server on the store, with a channel of its own, to its clean end."""
    server = stage.file_server(name, *words, wrap=wrap)
    server.wait_for(READY)
    client = StanClient(server.port)
    client.connect()
    client.publish(name.encode(), b"hello")
    client.subscribe(name.encode(), durable=b"d")
    client.close()
    server.end()


@pytest.mark.parametrize(
    ("umask", "file", "directory"),
    [("000", 0o640, 0o750), ("022", 0o640, 0o750), ("077", 0o600, 0o700)],
)
def test_what_is_made_anew_is_the_owners_and_the_groups_to_read_whatever_the_umask(
    stage: Stage, umask: str, file: int, directory: int
) -> None:
    fill(stage, "foo", wrap=with_umask(umask))
    found = modes(stage.store)
    assert found.pop("store/admin.key") == 0o600
    expected = {name: directory if (stage.store.parent / name).is_dir() else file for name in found}
    assert found == expected
    assert {"store", "store/foo", "store/server.dat", "store/.rootdir.lck"} <= set(found)


def test_what_is_there_keeps_its_owner_and_its_mode(stage: Stage) -> None:
    fill(stage, "foo", wrap=with_umask("022"))
    for path in stage.store.rglob("*"):
        if path.is_file() and path.name != "admin.key":
            path.chmod(0o660)
    before = modes(stage.store)
    fill(stage, "bar", wrap=with_umask("022"))
    after = modes(stage.store)
    # The watch is a new file in each activation, and only in one that lasts for a second.
    kept = [name for name in before if name in after and not name.endswith("/ft.watch")]
    assert {"store/server.dat", "store/clients.dat", "store/foo/subs.dat"} <= set(kept)
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_a_member_under_another_user_is_told_how_to_cure_it(stage: Stage) -> None:
    stage.store.mkdir()
    os.chown(stage.store, NOBODY, NOBODY)
    nats = stage.nats()
    first = stage.member("first", "-ns", nats.url, wrap=as_user(NOBODY))
    first.wait_until_active()
    # Root could read and write everything; the other members could not follow it.
    root = stage.member("root", "-ns", nats.url)
    assert root.status() == 1
    assert f"belongs to nobody (uid {NOBODY}), and this server runs as root (uid 0)" in root.text()
    assert (
        f"Hint: run every member as nobody (uid {NOBODY}), or give the datastore to one user: "
        "chown -R" in root.text()
    )
    stranger = stage.member("stranger", "-ns", nats.url, wrap=as_user(STRANGER))
    assert stranger.status() == 1
    assert "Traceback" not in stranger.text()
    assert "chown -R" in stranger.text()
    assert first.ft_status == 200
    second = stage.member("second", "-ns", nats.url, wrap=as_user(NOBODY))
    second.wait_for("STREAM: Starting in standby mode")
    # Alone it is told, and served.
    first.end()
    second.end()
    lone = stage.file_server("lone", "-ns", nats.url)
    lone.wait_for(READY)
    assert "[WRN] STREAM: datastore" in lone.text()
    assert f"belongs to nobody (uid {NOBODY})" in lone.text()


def test_a_datastore_that_everybody_may_write_to_is_told_and_refused_where_that_is_asked(
    stage: Stage,
) -> None:
    stage.store.mkdir()
    stage.store.chmod(0o777)
    loose = stage.file_server("loose")
    loose.wait_for(READY)
    assert (
        f"[WRN] STREAM: everybody may write to the datastore {stage.store} (mode 0777); run: chmod"
        in loose.text()
    )
    loose.end()
    strict = stage.file_server("strict", "-strict_permissions")
    assert strict.status() == 1
    assert (
        f"Failed to start: everybody may write to the datastore {stage.store} (mode 0777)"
        in strict.text()
    )
    stage.store.chmod(0o750)
    (stage.store / "server.dat").chmod(0o666)
    file = stage.file_server("file", "-strict_permissions")
    assert file.status() == 1
    assert "everybody may write to server.dat" in file.text()
    (stage.store / "server.dat").chmod(0o640)
    (stage.store / "note").symlink_to("/nowhere")
    tidy = stage.file_server("tidy", "-strict_permissions")
    tidy.wait_for(READY)
    assert "everybody" not in tidy.text()
