"""The archive script and its spool: a slice is in the datastore or whole in the spool, whatever
happens between.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.spark.archive import install_script, script, spool
from ftstan.spark.archive.spool import Manifest
from tests.archived_slices import NOON, Message, messages, name_cluster, set_aside, slice_bytes
from tests.kill_injector import Killed, Mortal, mortal
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path


class Place:
    """A datastore and a spool side by side."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.spool = folder / "spool"
        spool.create(str(self.spool))

    def take(self, words: tuple[str, str, str], **more: Any) -> spool.Taken:
        return spool.take(str(self.spool), *words, **more)

    @property
    def slices(self) -> list[spool.Spooled]:
        listing = spool.slices(str(self.spool))
        assert listing.broken == []
        return listing.slices

    def left(self) -> list[str]:
        """Files in the datastore's channels and unfinished ones in the spool."""
        found = [p.name for p in self.store.rglob("msgs.*")]
        return sorted(found + [p.name for p in (self.spool / "incoming").iterdir()])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("copy", [False, True])
def test_a_slice_moves_into_the_spool_with_a_manifest_that_describes_it(
    place: Place, copy: bool
) -> None:
    name_cluster(place.store, "north")
    words = set_aside(place.store, "foo.bar", 7, messages(11, 30))
    dat, idx = slice_bytes("foo.bar", messages(11, 30))
    taken = place.take(words, copy=copy)
    (found,) = place.slices
    assert taken.path == found.path
    assert taken.manifest == found.manifest
    with open(found.dat, "rb") as data, open(found.idx, "rb") as index:
        assert (data.read(), index.read()) == (dat, idx)
    m = found.manifest
    assert (m.channel, m.slice, m.first, m.last, m.count) == ("foo.bar", 7, 11, 30, 20)
    assert (m.first_ns, m.last_ns) == (NOON + 11_000_000_000, NOON + 30_000_000_000)
    assert (m.size, m.end, m.sha256) == (len(dat), len(dat), hashlib.sha256(dat).hexdigest())
    assert (m.index_size, m.index_sha256) == (len(idx), hashlib.sha256(idx).hexdigest())
    assert (m.cluster, m.problem) == ("north", "")
    assert m.store.endswith(f":{place.store}")
    assert place.left() == []


def test_the_same_slice_twice_is_there_once(place: Place) -> None:
    """Two servers of a failover, or a server that was killed before it heard that the first call
    had ended.
    """
    for again in (False, True):
        taken = place.take(set_aside(place.store, "foo", 1, messages(1, 5)))
        assert taken.again is again
    assert len(place.slices) == 1
    assert place.left() == []


def test_one_number_with_other_bytes_is_kept_beside_the_first_and_told(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.take(set_aside(place.store, "foo", 1, messages(1, 5)))
    words = set_aside(place.store, "foo", 1, messages(1, 5, tag="other"))
    assert script.main(["--spool", str(place.spool), *words]) == 0
    assert (
        "1 slice(s) of this number with other bytes are kept beside it" in capsys.readouterr().out
    )
    assert [s.manifest.slice for s in place.slices] == [1, 1]
    assert place.slices[0].manifest.sha256 != place.slices[1].manifest.sha256


def test_a_slice_that_another_call_took_is_no_error(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    words = set_aside(place.store, "foo", 1, messages(1, 5))
    os.unlink(words[1])
    assert script.main(["--spool", str(place.spool), *words]) == 0
    assert "another call has taken it" in capsys.readouterr().out
    # The index that the other call did not come to is of no use to anybody.
    assert place.left() == []


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_a_link_is_refused_the_bytes_are_copied(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    words = set_aside(place.store, "foo", 1, messages(1, 5))
    place.take(words)
    assert len(place.slices) == 1
    assert place.left() == []


@pytest.mark.parametrize("name", ["link", "fsync", "rename", "mkdir"])
def test_a_spool_that_cannot_be_written_leaves_the_slice_to_the_server(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words = set_aside(place.store, "foo", 1, messages(1, 5))
    with monkeypatch.context() as m:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        m.setattr(os, name, refuse)
        assert script.main(["--spool", str(place.spool), *words]) == 1
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "was not taken into" in out
    assert "No space left on device" in out
    assert place.slices == []
    assert place.left() == ["msgs.1.dat.bak", "msgs.1.idx.bak"]
    assert script.main(["--spool", str(place.spool), *words]) == 0
    assert len(place.slices) == 1


@pytest.mark.parametrize("copy", [False, True])
def test_killed_before_any_change_and_called_again_the_slice_is_there_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    rows = messages(1, 5)
    dat, _ = slice_bytes("foo", rows)
    for step in range(1000):
        place = Place(tmp_path / str(step))
        words = set_aside(place.store, "foo", 1, rows)
        life = [step]
        died = False
        with monkeypatch.context() as m:
            m.setattr(spool, "os", Mortal(os, life))
            m.setattr(spool, "shutil", Mortal(shutil, life))
            m.setattr(spool, "open", mortal(open, life), raising=False)
            try:
                place.take(words, copy=copy)
            except Killed:
                died = True
        there = place.slices
        # Somewhere it is whole at every moment: nothing but a visible slice, or both files.
        assert there or all(os.path.exists(word) for word in words[1:])
        # What the killed process left is another host's by now: only its own name tells.
        for path in (place.spool / "incoming").iterdir():
            os.utime(path, (1, 1))
        place.take(words)
        (found,) = place.slices
        with open(found.dat, "rb") as data:
            assert data.read() == dat
        assert os.path.getsize(found.idx) == found.manifest.index_size
        assert place.left() == [], f"after a kill at call {step}"
        if not died:
            assert step > 5
            return
    raise AssertionError("it never ended")


_KILLED_PROCESS = """
import os, signal, sys
from ftstan.spark.archive import script
real = getattr(os, sys.argv[1])
def stop(*words, **more):
    print("here", flush=True)
    signal.pause()
setattr(os, sys.argv[1], stop)
sys.exit(script.main(sys.argv[2:]))
"""


@pytest.mark.parametrize("call", ["link", "rename", "unlink"])
def test_a_process_that_was_killed_leaves_nothing_that_the_next_one_does_not_clear_away(
    place: Place, call: str
) -> None:
    words = set_aside(place.store, "foo", 1, messages(1, 5))
    command = [sys.executable, "-c", _KILLED_PROCESS, call, "--spool", str(place.spool), *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGKILL)
    place.take(words)
    assert len(place.slices) == 1
    assert place.left() == []


def test_two_calls_at_once_for_one_slice_take_it_once(place: Place) -> None:
    words = set_aside(place.store, "foo", 1, messages(1, 2000))
    command = [
        sys.executable,
        "-m",
        "ftstan.spark.archive.script",
        "--spool",
        str(place.spool),
        *words,
    ]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    lines = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, lines
    assert len(place.slices) == 1
    assert place.left() == []


# ---- manifests of slices that are not as they should be
# ----------------------------------------------------------


def test_without_an_index_the_data_is_read(place: Place) -> None:
    words = set_aside(place.store, "foo", 3, messages(5, 9))
    os.unlink(words[2])
    manifest = place.take(words).manifest
    assert manifest is not None
    assert (manifest.first, manifest.last, manifest.count, manifest.problem) == (
        5,
        9,
        5,
        "no index",
    )
    assert not os.path.exists(place.slices[0].idx)


def test_an_index_of_another_slice_is_not_believed(place: Place) -> None:
    words = set_aside(place.store, "foo", 3, messages(5, 9))
    other = slice_bytes("foo", messages(1, 5))[1]
    with open(words[2], "wb") as file:
        file.write(other)
    manifest = place.take(words).manifest
    assert manifest is not None
    assert (manifest.first, manifest.last, manifest.problem) == (5, 9, "the index does not fit")


def test_what_lies_behind_the_last_entry_is_not_counted(place: Place) -> None:
    """A former owner that was paused writes behind the seal, whenever it goes on."""
    words = set_aside(place.store, "foo", 3, messages(5, 9))
    late = slice_bytes("foo", [Message(10, b"never acknowledged")])[0][4:]
    with open(words[1], "ab") as file:
        file.write(late)
    manifest = place.take(words).manifest
    assert manifest is not None
    assert (manifest.last, manifest.count, manifest.size - manifest.end) == (9, 5, len(late))


def test_damage_in_a_slice_without_an_index_is_named_with_its_place(place: Place) -> None:
    words = set_aside(place.store, "foo", 3, messages(5, 9))
    os.unlink(words[2])
    data = bytearray((place.store / "foo/msgs.3.dat.bak").read_bytes())
    data[-3] ^= 1
    (place.store / "foo/msgs.3.dat.bak").write_bytes(data)
    manifest = place.take(words).manifest
    assert manifest is not None
    assert manifest.count == 4
    assert manifest.problem.startswith("no index; bad: corrupted data")
    assert manifest.problem.endswith(f"at offset {manifest.end}")


def test_a_large_record_is_read_without_an_index(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_CHUNK", 64)
    rows = [Message(1, b"a"), Message(2, b"b" * 1000), Message(3, b"c")]
    words = set_aside(place.store, "foo", 1, rows)
    os.unlink(words[2])
    manifest = place.take(words).manifest
    assert manifest is not None
    assert (manifest.count, manifest.problem) == (3, "no index")


def test_the_stores_polynomial_is_kept_in_the_manifest(place: Place) -> None:
    words = set_aside(place.store, "foo", 1, messages(1, 5), polynomial=0x82F63B78)
    manifest = place.take(words, polynomial=0x82F63B78).manifest
    assert manifest is not None
    assert (manifest.crc_polynomial, manifest.problem) == (0x82F63B78, "")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "\x00"])
def test_a_manifest_that_is_none_names_its_slice_and_hides_no_other(
    place: Place, text: str
) -> None:
    place.take(set_aside(place.store, "foo", 1, messages(1, 5)))
    place.take(set_aside(place.store, "foo", 2, messages(6, 9)))
    bad = place.slices[0].path
    (place.spool / bad / "manifest.json").write_text(text)
    listing = spool.slices(str(place.spool))
    assert [s.manifest.slice for s in listing.slices] == [2]
    assert listing.broken == [(bad, f"{bad}: the manifest cannot be read")]


def test_a_manifest_of_a_later_release_is_left_to_it(place: Place) -> None:
    place.take(set_aside(place.store, "foo", 1, messages(1, 5)))
    path = place.spool / place.slices[0].path / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    ((_, why),) = spool.slices(str(place.spool)).broken
    assert "manifest of version 2" in why


def test_a_name_that_is_no_utf8_survives_the_manifest(place: Place) -> None:
    name = os.fsdecode(b"caf\xe9 'x\" $1")
    place.take(set_aside(place.store, name, 1, messages(1, 2)))
    assert [s.manifest.channel for s in place.slices] == [name]
    text = place.slices[0].manifest.to_json()
    assert Manifest.from_json(text, "here") == place.slices[0].manifest
    assert json.loads(text)["channel"] == name


# ---- the script
# --------------------------------------------------------------------------------------------------


def test_the_installed_script_takes_exactly_the_servers_three_arguments(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "archive.sh"
    where = tmp_path / "a spool's"
    text = install_script(str(where), str(path))
    assert path.read_text() == text
    words = set_aside(place.store, "-x", 1, messages(1, 5))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(path), *words],
        check=True,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = spool.slices(str(where)).slices
    assert done.stdout == f"taken: {found.path}, 5 messages 1..5, {found.manifest.size} bytes\n"


def test_the_spool_can_come_from_the_environment(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = set_aside(place.store, "foo", 1, messages(1, 5))
    assert script.main([*words]) == 2
    assert "set FTSTAN_ARCHIVE_SPOOL" in capsys.readouterr().out
    monkeypatch.setenv("FTSTAN_ARCHIVE_SPOOL", str(place.spool))
    assert script.main([*words]) == 0
    assert len(place.slices) == 1


def test_a_directory_that_is_no_spool_is_not_written_to(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mount point of a spool that is not mounted."""
    words = set_aside(place.store, "foo", 1, messages(1, 5))
    (tmp_path / "empty").mkdir()
    assert script.main(["--spool", str(tmp_path / "empty"), *words]) == 1
    assert "is its file system mounted?" in capsys.readouterr().out
    assert os.listdir(tmp_path / "empty") == []
    assert place.left() == ["msgs.1.dat.bak", "msgs.1.idx.bak"]


@pytest.mark.parametrize(
    ("channel", "name", "why"),
    [
        ("foo", "orders.dat", "is no data file of a slice"),
        ("../foo", "msgs.1.dat.bak", "is no name of a channel"),
    ],
)
def test_other_arguments_are_refused(
    place: Place, capsys: pytest.CaptureFixture[str], channel: str, name: str, why: str
) -> None:
    assert script.main(["--spool", str(place.spool), channel, f"/none/{name}", "/none/x"]) == 1
    assert why in capsys.readouterr().out


def test_what_is_in_use_or_foreign_is_not_swept(place: Place) -> None:
    incoming = place.spool / "incoming"
    (incoming / f"{os.uname().nodename}@{os.getpid()}.aa").mkdir()
    (incoming / "another-host@1.bb").mkdir()
    place.take(set_aside(place.store, "foo", 1, messages(1, 5)))
    # The second half of a server's renames: the data still has its first name.
    folder = place.store / "foo"
    (folder / "msgs.2.idx.bak").touch()
    (folder / "msgs.2.dat").touch()
    place.take(set_aside(place.store, "foo", 3, messages(6, 9)))
    assert place.left() == sorted(
        [
            "another-host@1.bb",
            f"{os.uname().nodename}@{os.getpid()}.aa",
            "msgs.2.dat",
            "msgs.2.idx.bak",
        ]
    )


def test_an_archive_without_pyspark_is_importable() -> None:
    code = (
        "import sys, ftstan.spark.archive.script as s; print('pyspark' in sys.modules, 'pyarrow' "
        "in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "False False\n"
