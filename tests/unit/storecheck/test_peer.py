"""check-store --peer and its phases: two sides on one real directory, each a thread here."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from portalocker.exceptions import AlreadyLocked
from portalocker.portalocker import BaseLocker

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, FtstanError, StoreError
from ftstan.storecheck import integrity
from ftstan.storecheck.bench import Bench, GoneError
from ftstan.storecheck.findings import Outcome, StorageFinding
from ftstan.storecheck.meeting import MEETING_NAME, Meeting
from ftstan.storecheck.neighbour import Deputy
from ftstan.storecheck.peer import Peer, PeerOptions, expected
from ftstan.storecheck.place import this_host
from tests.processes import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from portalocker.constants import LockFlags
    from portalocker.types import FileArgument

OPTIONS = PeerOptions(contend_s=0.3)


class Granting(BaseLocker):
    """A lock of each host's own: everybody gets it."""

    def lock(self, file_obj: FileArgument, flags: LockFlags) -> None:
        pass

    def unlock(self, file_obj: FileArgument) -> None:
        pass


class Server(BaseLocker):
    """A file server: one holder at a time, until it takes the lock away."""

    def __init__(self) -> None:
        self.holder: FileArgument | None = None
        self.frozen = False
        self.moved = threading.Event()

    def lock(self, file_obj: FileArgument, flags: LockFlags) -> None:
        if self.holder not in {None, file_obj}:
            raise AlreadyLocked(OSError(errno.EAGAIN, "held"), "held", fh=file_obj)
        self.holder = file_obj
        if self.frozen:
            self.moved.set()

    def unlock(self, file_obj: FileArgument) -> None:
        if self.holder == file_obj:
            self.holder = None


def meeting(path: Path, wait_s: float = PATIENCE_S, answer_s: float = PATIENCE_S) -> Meeting:
    disk = LocalDisk()
    return Meeting(
        disk,
        disk,
        SystemClock(),
        time.sleep,
        str(path),
        wait_s=wait_s,
        answer_s=answer_s,
        poll_s=0.002,
    )


def bench_of(met: Meeting, path: Path, locker: BaseLocker | None = None) -> Bench:
    disk = LocalDisk()

    @contextlib.contextmanager
    def neighbour() -> Iterator[Deputy]:
        deputy = Deputy(disk, disk, met.dirfd, met.path, locker)
        try:
            yield deputy
        finally:
            deputy.kill()

    return Bench(
        disk,
        disk,
        SystemClock(),
        time.sleep,
        this_host(str(path)),
        met.path,
        met.dirfd,
        neighbour,
        locker,
    )


class Side:
    """One side, in a thread; ``change`` makes its bench another one."""

    def __init__(
        self,
        path: Path,
        options: PeerOptions = OPTIONS,
        locker: BaseLocker | None = None,
        change: Callable[[Bench], Bench] = lambda bench: bench,
        answer_s: float = PATIENCE_S,
    ) -> None:
        self.told: list[str] = []
        self.findings: list[StorageFinding] = []
        self.error: FtstanError | None = None
        self.met = meeting(path, answer_s=answer_s)
        self._work = (path, options, locker, change)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        path, options, locker, change = self._work
        try:
            self.met.find()
            self.bench = change(bench_of(self.met, path, locker))
            self.findings = Peer(self.bench, self.met, options, self.told.append).run()
        except FtstanError as error:
            self.error = error
        finally:
            self.met.end()

    def join(self) -> Side:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self

    def worst(self) -> dict[str, Outcome]:
        rank = list(Outcome)
        found: dict[str, Outcome] = {}
        for finding in self.findings:
            known = found.get(finding.check, Outcome.GOOD)
            found[finding.check] = max(known, finding.outcome, key=rank.index)
        return found


def test_two_sides_on_sound_storage_find_nothing_bad_and_leave_nothing(tmp_path: Path) -> None:
    sides = [Side(tmp_path), Side(tmp_path)]
    for side in sides:
        side.join()
        assert side.error is None
        worst = side.worst()
        assert Outcome.BAD not in worst.values()
        assert {"contention", "peer release", "peer visibility"} <= set(worst)
        # Both run here, and that is said.
        assert worst["hosts"] is Outcome.LIMIT
        (row,) = expected(side.bench, side.findings)
        assert row.measured
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_both_hosts_hold_is_seen_by_both(tmp_path: Path) -> None:
    locker = Granting()
    for side in [Side(tmp_path, locker=locker), Side(tmp_path, locker=locker)]:
        assert side.join().worst()["peer release"] is Outcome.BAD
        assert expected(side.bench, side.findings) == []


def test_records_that_one_host_does_not_see_are_seen_to_be_missing(tmp_path: Path) -> None:
    class Stale(LocalDisk):
        """Reads of a file that stays open show what the first one showed."""

        def __init__(self) -> None:
            self._known: dict[int, bytes] = {}

        def close(self, fd: int) -> None:
            self._known.pop(fd, None)
            super().close(fd)

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            if fd not in self._known:
                self._known[fd] = super().pread(fd, size, offset)
            return self._known[fd]

    sides = [Side(tmp_path, change=lambda bench: replace(bench, asking=Stale())), Side(tmp_path)]
    for side in sides:
        assert side.join().worst()["peer visibility"] is Outcome.BAD


def test_users_with_other_ids_are_unfit(tmp_path: Path) -> None:
    def other(bench: Bench) -> Bench:
        return replace(bench, host=replace(bench.host, uid=bench.host.uid + 1))

    for side in [Side(tmp_path), Side(tmp_path, change=other)]:
        assert side.join().worst()["hosts"] is Outcome.BAD


def test_clocks_that_differ_are_a_limit(tmp_path: Path) -> None:
    class Ahead(SystemClock):
        def wall_ns(self) -> int:
            return super().wall_ns() + 60 * 10**9

    sides = [Side(tmp_path), Side(tmp_path, change=lambda bench: replace(bench, clock=Ahead()))]
    for side in sides:
        texts = " ".join(finding.text for finding in side.join().findings)
        assert "clocks of the two hosts differ by 60.0 s" in texts


@pytest.mark.slow
def test_the_time_until_a_frozen_host_s_lock_moves_is_measured(tmp_path: Path) -> None:
    server = Server()
    options = replace(OPTIONS, freeze_wait_s=PATIENCE_S)
    thawed = threading.Event()

    def frozen(seconds: float) -> None:
        if server.frozen:
            assert thawed.wait(PATIENCE_S)
        time.sleep(seconds)

    holder = Side(
        tmp_path, replace(options, freeze=True), server, lambda bench: replace(bench, sleep=frozen)
    )
    watcher = Side(tmp_path, options, server)
    until(
        lambda: any("freeze this host now" in line for line in holder.told),
        "the holder to hold the lock",
    )
    # The host stands still, and after its lease the file server gives its lock to whoever asks.
    server.frozen = True
    server.holder = None
    assert server.moved.wait(PATIENCE_S)
    thawed.set()
    (moved,) = [finding for finding in watcher.join().findings if "frozen_s" in finding.figures]
    assert moved.outcome is Outcome.GOOD
    assert "the active's host is frozen or cut off" in {
        row.event for row in expected(watcher.bench, watcher.findings)
    }
    assert holder.join().error is None


def test_who_waits_alone_is_told_what_to_look_at(tmp_path: Path) -> None:
    alone = meeting(tmp_path, wait_s=0.05)
    with pytest.raises(StoreError, match="nobody came") as caught:
        alone.find()
    assert "the same storage" in caught.value.hint
    alone.end()
    assert list(tmp_path.iterdir()) == []


def test_a_side_that_is_lost_ends_the_check_of_the_other(tmp_path: Path) -> None:
    side = Side(tmp_path, answer_s=0.5)
    lost = meeting(tmp_path, answer_s=0.5)
    lost.find()
    assert isinstance(side.join().error, GoneError)
    lost.end()
    assert not (tmp_path / MEETING_NAME).exists()


# ---- phases
# --------------------------------------------------------------------------------------------------


def attacked(tmp_path: Path, records: int = 30, times: int = 1) -> list[str]:
    """An attack on ``tmp_path``/d that made so many records durable, each time.

    Returns the journals.
    """
    place = tmp_path / "d"
    place.mkdir()
    integrity.format_place(LocalDisk(), str(place))
    journals = []
    for number in range(times):
        journal = str(tmp_path / f"journal-{number}")
        left = iter(range(records))
        attack = integrity.Attack(
            LocalDisk(),
            SystemClock(),
            lambda _: None,
            str(place),
            journal,
            lambda _: None,
            lambda left=left: next(left, None) is None,  # type: ignore[misc]
        )
        assert attack.run() > 0
        journals.append(journal)
    return journals


def verified(tmp_path: Path, journals: list[str]) -> list[StorageFinding]:
    return integrity.verify(LocalDisk(), LocalDisk(), str(tmp_path / "d"), journals)


def test_an_attack_that_lost_nothing_is_verified(tmp_path: Path) -> None:
    journals = attacked(tmp_path, times=2)
    (finding,) = verified(tmp_path, journals)
    assert finding.outcome is Outcome.GOOD
    assert finding.figures["logs"] == 2
    integrity.remove_place(LocalDisk(), str(tmp_path / "d"))
    assert list((tmp_path / "d").iterdir()) == []


def test_a_durable_record_that_is_gone_or_changed_is_found(tmp_path: Path) -> None:
    journals = attacked(tmp_path)
    log = tmp_path / "d" / integrity.INTEGRITY_NAME / "log.1"
    whole = log.read_bytes()
    log.write_bytes(whole[: 3 * integrity.RECORD_SIZE])
    assert verified(tmp_path, journals)[0].outcome is Outcome.BAD
    log.write_bytes(b"x" + whole[1:])
    (finding,) = verified(tmp_path, journals)
    assert finding.outcome is Outcome.BAD
    assert "log 1, record 0" in finding.text


def test_a_torn_record_that_nobody_called_durable_is_allowed(tmp_path: Path) -> None:
    journals = attacked(tmp_path)
    with (tmp_path / "d" / integrity.INTEGRITY_NAME / "log.1").open("ab") as log:
        log.write(b"torn")
    assert [x.outcome for x in verified(tmp_path, journals)] == [Outcome.GOOD, Outcome.NOTE]


def test_journals_that_name_nothing_prove_nothing(tmp_path: Path) -> None:
    attacked(tmp_path)
    (tmp_path / "empty").write_text("")
    assert verified(tmp_path, [str(tmp_path / "empty")])[0].outcome is Outcome.BAD
    (tmp_path / "wrong").write_text("1 2\nthree\n")
    with pytest.raises(ConfigError, match="wrong, line 2"):
        verified(tmp_path, [str(tmp_path / "wrong")])


def test_an_attack_needs_a_prepared_place_and_prepares_it_once(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreError, match="no attack is prepared"),
        integrity.opened(LocalDisk(), str(tmp_path)),
    ):
        pass
    integrity.format_place(LocalDisk(), str(tmp_path))
    with pytest.raises(StoreError, match="prepared there already"):
        integrity.format_place(LocalDisk(), str(tmp_path))
