"""check-store on false storage: every way in which storage can be unfit is seen, and fit storage is
not accused.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from portalocker.exceptions import AlreadyLocked
from portalocker.portalocker import BaseLocker

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk, Space
from ftstan.base.errors import ConfigError
from ftstan.ft.mounts import Mount
from ftstan.storecheck.bench import BLOCK, Bench, Runner
from ftstan.storecheck.findings import Outcome, StorageFinding, StorageReport, StorageVerdict
from ftstan.storecheck.host import CHECKS, expected
from ftstan.storecheck.neighbour import Deputy
from ftstan.storecheck.place import Host, scratch, this_host
from ftstan.wire.subjects import valid_channel
from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from portalocker.constants import LockFlags
    from portalocker.types import FileArgument

EXT4 = Mount(point="/", fstype="ext4", source="/dev/sda1", options=frozenset({"rw"}))
NFS = Mount(
    point="/nss", fstype="nfs4", source="server:/nss", options=frozenset({"rw", "vers=4.2", "hard"})
)
PLENTY = Space(100 << 30, 200 << 30, 1_000_000, 2_000_000)
UID = 1000


class Locks(BaseLocker):
    """Locks of one simulated volume: one holder at a time, unless the test breaks it."""

    def __init__(self) -> None:
        self.holder: FileArgument | None = None
        self.private = False
        self.kept = False

    def lock(self, file_obj: FileArgument, flags: LockFlags) -> None:
        if self.private:
            return
        if self.holder is not None:
            raise AlreadyLocked(OSError(errno.EAGAIN, "held"), "held", fh=file_obj)
        self.holder = file_obj

    def unlock(self, file_obj: FileArgument) -> None:
        if self.holder == file_obj and not self.kept:
            self.holder = None


class Other(Deputy):
    """A neighbour in this process; ``spoiled`` are verbs that do something else."""

    spoiled: dict[str, Callable[..., object]] = {}  # noqa: RUF012  # set by one test, for the length of it

    def __init__(self, disk: SimDisk, dirfd: int, locks: Locks) -> None:
        super().__init__(disk, disk, dirfd, "/scratch", locks)
        self._locks = locks

    def lock_as_original(self) -> bool:
        return self._locks.holder is None or self._locks.private


@dataclass
class Place:
    """A bench over a simulated volume."""

    disk: SimDisk = field(default_factory=SimDisk)
    locks: Locks = field(default_factory=Locks)
    other: type[Other] = Other
    mount: Mount = EXT4
    space: Space = PLENTY
    recover: str = "N"
    asking: SimDisk | None = None

    def bench(self) -> Bench:
        self.disk.make_dirs("/scratch")
        dirfd = self.disk.open_dir("/scratch")
        uid = self.disk.fstat(dirfd).uid
        clock = ManualClock(wall_ns=self.disk.volume.now_ns())
        host = Host("here", "stan", uid, 0, "boot", self.mount, self.recover, lambda _: self.space)

        @contextlib.contextmanager
        def neighbour() -> Iterator[Other]:
            other = self.other(self.disk, dirfd, self.locks)
            try:
                yield other
            finally:
                other.unlock()

        return Bench(
            disk=self.disk,
            asking=self.asking or self.disk,
            clock=clock,
            sleep=clock.advance,
            host=host,
            path="/scratch",
            dirfd=dirfd,
            neighbour=neighbour,
            locker=self.locks,
            direct=self.disk,
            syncs=20,
            # A simulated file holds its holes.
            far=16 * BLOCK,
        )

    def findings(self) -> list[StorageFinding]:
        return Runner(self.bench()).run(CHECKS)

    def bad(self) -> set[str]:
        return {finding.check for finding in self.findings() if finding.outcome is Outcome.BAD}

    def limits(self) -> set[str]:
        return {finding.check for finding in self.findings() if finding.outcome is Outcome.LIMIT}


def report(findings: list[StorageFinding]) -> StorageReport:
    return StorageReport("/d", "host", "here", findings)


def test_fit_storage_has_nothing_bad_and_says_what_a_takeover_costs() -> None:
    place = Place()
    bench = place.bench()
    findings = Runner(bench).run(CHECKS)
    assert [finding for finding in findings if finding.outcome is Outcome.BAD] == []
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}
    events = {row.event: row.seconds for row in expected(bench, findings)}
    assert events["kill -9 of the active"] is not None
    assert events["the active's host dies"] is None


def test_on_network_storage_a_dead_host_costs_the_lease() -> None:
    bench = Place(mount=NFS).bench()
    findings = Runner(bench).run(CHECKS)
    seconds = {row.event: row.seconds for row in expected(bench, findings)}
    assert (seconds["the active's host dies or is cut off"] or 0) > 90


def test_unfit_storage_promises_no_takeover_time() -> None:
    place = Place()
    place.locks.private = True
    bench = place.bench()
    assert expected(bench, Runner(bench).run(CHECKS)) == []


def test_a_lock_that_two_can_hold_is_unfit() -> None:
    place = Place()
    place.locks.private = True
    assert {"lock", "release"} <= place.bad()


def test_a_lock_that_outlives_its_process_is_unfit() -> None:
    place = Place()

    class Dead(Other):
        def kill(self) -> None:
            """Its lock stays, as on NFSv3."""

        def unlock(self) -> None:
            self._locks.kept = self._locks.kept or self._locks.holder is not None
            super().unlock()

    place.other = Dead
    assert "release" in place.bad()


def test_a_lock_that_original_servers_do_not_see_is_unfit() -> None:
    place = Place()

    class Blind(Other):
        def lock_as_original(self) -> bool:
            return True

    place.other = Blind
    assert place.bad() == {"lock"}


def test_an_exclusive_create_that_lets_two_in_is_unfit() -> None:
    class Careless(SimDisk):
        def open(self, dirfd: int, name: str, flags: int, mode: int = 0o640) -> int:
            return super().open(dirfd, name, flags & ~os.O_EXCL, mode)

    assert Place(disk=Careless()).bad() == {"names"}


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_storage_without_links_is_unfit(code: int) -> None:
    place = Place()
    place.disk.fail_next("link", code)
    (finding,) = [x for x in place.findings() if x.outcome is Outcome.BAD]
    assert finding.check == "names"
    assert "link" in finding.text


@pytest.mark.parametrize(
    ("call", "check"),
    [("fsync", "clock"), ("link", "names"), ("rename", "names"), ("open", "owner")],
)
def test_an_error_of_storage_is_that_check_s_finding_and_the_others_run(
    call: str, check: str
) -> None:
    place = Place()
    place.disk.fail_next(call, errno.EIO)
    findings = place.findings()
    (bad,) = [x for x in findings if x.outcome is Outcome.BAD]
    assert bad.check == check
    assert "(EIO)" in bad.text
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}


def test_storage_that_answers_with_what_it_remembers_is_unfit() -> None:
    class Remembering(SimDisk):
        """The first bytes read of a file are what is read for ever, as from a cache that nobody
        asks.
        """

        def __init__(self, real: SimDisk) -> None:
            super().__init__(real.volume)
            self._real = real
            self._known: dict[int, bytes] = {}

        def open(self, dirfd: int, name: str, flags: int, mode: int = 0o640) -> int:
            return self._real.open(dirfd, name, flags, mode)

        def close(self, fd: int) -> None:
            self._real.close(fd)

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            return self._known.setdefault(fd, self._real.pread(fd, size, offset))

    place = Place(mount=NFS)
    place.asking = Remembering(place.disk)
    assert "visibility" in place.bad()


def test_direct_io_is_needed_on_network_storage_only() -> None:
    class Refusing(SimDisk):
        def open(self, dirfd: int, name: str, flags: int, mode: int = 0o640) -> int:
            if name == "direct" and not flags & os.O_CREAT:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return super().open(dirfd, name, flags, mode)

    assert Place(disk=Refusing()).bad() == set()
    assert Place(disk=Refusing(), mount=NFS).bad() == {"direct"}


def test_offsets_that_are_not_kept_are_unfit() -> None:
    class Appending(SimDisk):
        def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
            super().pwrite(fd, data, self.fstat(fd).size if offset else 0)

    assert "offsets" in Place(disk=Appending()).bad()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"nolock"}, "nolock"),
        ({"soft"}, "soft"),
        ({"nocto"}, "nocto"),
        ({"local_lock=all"}, "local_lock"),
    ],
)
def test_mounts_that_refuse_a_group_are_unfit(options: set[str], named: str) -> None:
    mount = replace(NFS, options=NFS.options | options)
    bad = [x for x in Place(mount=mount).findings() if x.outcome is Outcome.BAD]
    assert [x.check for x in bad] == ["mount"]
    assert named in bad[0].text


def test_lost_locks_that_are_taken_again_in_silence_are_unfit() -> None:
    assert Place(mount=NFS, recover="Y").bad() == {"mount"}


def test_file_systems_that_nobody_has_tried_and_memory_are_limits() -> None:
    assert "mount" in Place(mount=replace(NFS, fstype="fuse.sshfs")).limits()
    assert "mount" in Place(mount=replace(EXT4, fstype="tmpfs")).limits()


@pytest.mark.parametrize(
    ("space", "outcome"),
    [
        (Space(1 << 20, 100 << 30, 1000, 2000), Outcome.BAD),
        (Space(50 << 30, 100 << 30, 5, 2000), Outcome.BAD),
        (Space(500 << 20, 100 << 30, 1000, 2000), Outcome.LIMIT),
        (Space(50 << 30, 100 << 30, 0, 0), Outcome.GOOD),
    ],
)
def test_room_is_judged_by_bytes_and_inodes(space: Space, outcome: Outcome) -> None:
    (finding,) = [x for x in Place(space=space).findings() if x.check == "space"]
    assert finding.outcome is outcome


def test_files_that_belong_to_somebody_else_are_a_limit() -> None:
    class Squashing(SimDisk):
        def fstat(self, fd: int):  # type: ignore[no-untyped-def]
            return super().fstat(fd)._replace(uid=65534)

    place = Place(disk=Squashing())
    bench = place.bench()
    bench = replace(bench, host=replace(bench.host, uid=UID))
    (finding,) = [x for x in Runner(bench).run(CHECKS) if x.check == "owner"]
    assert finding.outcome is Outcome.LIMIT
    assert "65534" in finding.text


def test_a_clock_that_is_an_hour_off_is_a_limit() -> None:
    bench = Place().bench()
    hour = ManualClock(wall_ns=bench.clock.wall_ns() + 3600 * 10**9)
    (finding,) = [x for x in Runner(replace(bench, clock=hour)).run(CHECKS) if x.check == "clock"]
    assert finding.outcome is Outcome.LIMIT
    assert "behind" in finding.text


@pytest.mark.parametrize(
    ("seconds", "outcome"), [(0.002, Outcome.GOOD), (0.5, Outcome.LIMIT), (5.0, Outcome.BAD)]
)
def test_syncs_are_judged_by_how_long_they_take(seconds: float, outcome: Outcome) -> None:
    bench = Place().bench()
    sleep = bench.sleep

    class Slow(SimDisk):
        def fdatasync(self, fd: int) -> None:
            sleep(seconds)
            super().fdatasync(fd)

    disk = Slow(bench.disk.volume)  # type: ignore[attr-defined]
    found = Runner(replace(bench, disk=disk, dirfd=disk.open_dir("/scratch"))).run(CHECKS[-1:])
    assert found[0].outcome is outcome
    assert found[0].figures["count"] == 20


def test_syncs_quicker_than_any_disk_are_doubted_and_a_lying_one_is_said_to_be_invisible() -> None:
    found = Runner(Place().bench()).run(CHECKS[-1:])
    assert [x.outcome for x in found] == [Outcome.GOOD, Outcome.LIMIT, Outcome.NOTE]
    assert "cannot be seen" in found[-1].text


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], StorageVerdict.UNSUITABLE),
        ([Outcome.GOOD, Outcome.NOTE], StorageVerdict.SUITABLE),
        ([Outcome.GOOD, Outcome.LIMIT], StorageVerdict.LIMITED),
        ([Outcome.LIMIT, Outcome.BAD], StorageVerdict.UNSUITABLE),
    ],
)
def test_the_worst_finding_decides(outcomes: list[Outcome], verdict: StorageVerdict) -> None:
    made = report([StorageFinding("c", outcome, "text") for outcome in outcomes])
    assert made.verdict is verdict
    assert made.as_dict()["verdict"] == verdict.value


def test_the_scratch_directory_is_no_channel_and_goes_away_with_all_that_is_in_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "server.dat").write_bytes(b"kept")
    with scratch(LocalDisk(), str(tmp_path)) as (path, handle):
        assert not valid_channel(os.path.basename(path).encode())
        os.close(os.open("left", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    assert [entry.name for entry in tmp_path.iterdir()] == ["server.dat"]


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no directory"):
        this_host(str(tmp_path / "missing"))
