"""What two hosts can try together: whether the lock keeps them apart, when it is free, what one
sees of the other.

Both sides run the same steps over one ``Meeting``; each measures on its own clock, and at the end
each has the findings of both. With ``freeze`` one side holds the lock until its host is frozen or
cut off by the operator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import LockBusyError, StoreError
from ftstan.ft.lock import StoreLock
from ftstan.storecheck.bench import BLOCK, MS, Bench, Check, GoneError, Runner, bad, good, limit
from ftstan.storecheck.findings import Expected, Outcome, StorageFinding
from ftstan.storecheck.host import POLL_LOCAL_S, POLL_NETWORK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.storecheck.meeting import Meeting

_ROUNDS = 20
_SKEW_LIMIT_S = 1.0
_BEAT_S = 0.2
_COUNTER = "counter"
_RECORD = "record"
_BEATS = "beats"
_STORAGE = "use storage and mount options that docs/ft.md lists as supported"


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """How long both contend for the lock.

    Whether this side is the one to be frozen, and how long is waited for it.
    """

    contend_s: float = 3.0
    freeze: bool = False
    freeze_wait_s: float = 180.0


class Peer:
    """One side's run. ``told`` hears what is being done, and what the operator is asked to do."""

    def __init__(
        self, bench: Bench, meeting: Meeting, options: PeerOptions, told: Callable[[str], None]
    ) -> None:
        self._bench = bench
        self._meeting = meeting
        self._options = options
        self._told = told
        self._other: dict[str, Any] = {}
        self._behind_s = 0.0

    def run(self) -> list[StorageFinding]:
        """All steps; the findings of both sides.

        Raises ``GoneError`` if the other side is lost on the way.
        """
        self._introduce()
        steps = (
            Check("hosts", "comparing hosts, users and clocks", lambda _: self._hosts()),
            Check("contention", "contending for the lock", lambda _: self._contend()),
            Check("peer release", "killing a holder of the lock", lambda _: self._releases()),
            Check(
                "peer visibility", "reading what the other host writes", lambda _: self._visible()
            ),
            Check("freeze", "holding the lock until a host is frozen", lambda _: self._freeze()),
        )
        mine = Runner(self._bench, self._told).run(steps)
        host = str(self._other["host"])
        try:
            theirs = self._meeting.both("findings", rows=[x.as_dict() for x in mine])
        except GoneError:
            # As after a freeze that ended with the other host: what was measured here holds all the
            # same.
            text = f"{host} did not answer at the end: what it found is missing"
            return [
                *mine,
                StorageFinding(
                    "hosts", Outcome.NOTE, text, "run it again without --freeze to see both sides"
                ),
            ]
        return [*mine, *(_finding(row, host) for row in theirs["rows"])]

    def _introduce(self) -> None:
        """Tell who we are; the file that says so shows to the other whom storage takes us for."""
        host = self._bench.host
        bench = self._bench
        name = f"mine.{self._meeting.first:d}"
        with bench.opened(name) as fd:
            before = bench.clock.wall_ns()
            bench.disk.pwrite(fd, b"x", 0)
            bench.disk.fsync(fd)
            self._behind_s = (bench.disk.fstat(fd).mtime_ns - before) / 1e9
        self._other = self._meeting.both(
            "host",
            host=host.name,
            user=host.user,
            uid=host.uid,
            gid=host.gid,
            boot=host.boot_id,
            behind_s=self._behind_s,
            mine=name,
            freeze=self._options.freeze,
        )

    # ---- hosts

    def _hosts(self) -> list[StorageFinding]:
        mine = self._bench.host
        other = self._other
        # What both would say is said once.
        shared = [*self._same_host(), *self._clocks()] if self._meeting.first else []
        found = [*shared, *self._users()]
        return found or good("hosts", f"{mine.name} and {other['host']}: same user, clocks agree")

    def _same_host(self) -> list[StorageFinding]:
        if self._bench.host.boot_id != self._other["boot"]:
            return []
        text = "both sides run on one host: what is seen holds for processes, not for hosts"
        return limit("hosts", text, "run it on the two hosts of the group")

    def _users(self) -> list[StorageFinding]:
        mine = self._bench.host
        other = self._other
        fd = self._bench.disk.open(self._bench.dirfd, str(other["mine"]), 0)
        try:
            seen = self._bench.disk.fstat(fd).uid
        finally:
            self._bench.disk.close(fd)
        if (mine.uid, mine.gid) != (other["uid"], other["gid"]):
            text = (
                f"{mine.user} is {mine.uid}:{mine.gid} here, {other['user']} is "
                f"{other['uid']}:{other['gid']} there"
            )
            return bad("hosts", text, "give the server's user the same uid and gid on both hosts")
        if seen != other["uid"]:
            text = f"a file of uid {other['uid']} on {other['host']} belongs to uid {seen} here"
            return bad(
                "hosts",
                text,
                "the file server maps users differently: check idmapd and the export's options",
            )
        return []

    def _clocks(self) -> list[StorageFinding]:
        # Each compared its clock with the file server's; a file's time cannot be older than the
        # write.
        skew = self._behind_s - float(self._other["behind_s"])
        if abs(skew) <= _SKEW_LIMIT_S:
            return []
        text = f"the clocks of the two hosts differ by {abs(skew):.1f} s"
        return limit(
            "hosts",
            text,
            "run NTP on both: timestamps of messages would jump at a takeover",
            skew_s=skew,
        )

    # ---- the lock

    def _lock(self) -> StoreLock:
        return StoreLock(self._bench.disk, self._bench.dirfd, self._bench.path, self._bench.locker)

    def _contend(self) -> list[StorageFinding]:
        """Both count in one file, under the lock: a lock that two can hold loses counts, or shows
        two holders.
        """
        bench = self._bench
        if self._meeting.first:
            bench.put(_COUNTER, _count(0))
        self._meeting.both("ready to contend")
        lock = self._lock()
        mine = 0
        torn = 0
        end = bench.clock.mono() + self._options.contend_s
        try:
            while bench.clock.mono() < end:
                if _taken(lock):
                    value = _number(bench.fresh(_COUNTER))
                    bench.put(_COUNTER, _count(value + 1))
                    torn += _number(bench.fresh(_COUNTER)) != value + 1
                    mine += 1
                    lock.release()
                bench.sleep(random.uniform(0.001, 0.005))
        finally:
            lock.release()
        theirs = self._meeting.both("contended", count=mine, torn=torn)
        total = _number(bench.fresh(_COUNTER))
        figures = {"mine": mine, "theirs": theirs["count"], "counted": total}
        if torn or theirs["torn"] or total != mine + theirs["count"]:
            text = (
                f"{mine + theirs['count']} turns were granted and {total} counted: both held the "
                "lock at once"
            )
            return bad("contention", text, _STORAGE, **figures)
        if not mine or not theirs["count"]:
            return limit(
                "contention",
                "one side never got the lock",
                "let both contend longer: --contend",
                **figures,
            )
        return good(
            "contention", f"{total} turns under the lock, {mine} here: none overlapped", **figures
        )

    def _releases(self) -> list[StorageFinding]:
        """Each side in turn kills a holder of its own.

        Measured by the killer, until it sees that the other has it.
        """
        found: list[StorageFinding] = []
        for turn, first_kills in enumerate((True, False)):
            if self._meeting.first == first_kills:
                found += self._kill(turn)
            else:
                self._wait_for_grant(turn)
            self._meeting.both(f"released {turn}")
        return found

    def _kill(self, turn: int) -> list[StorageFinding]:
        bench = self._bench
        with bench.neighbour() as holder:
            if not holder.lock():
                self._meeting.say(f"holding {turn}", held=False)
                return bad("peer release", "a free lock was refused", _STORAGE)
            self._meeting.say(f"holding {turn}", held=True)
            facts = self._meeting.hear(f"polling {turn}")
            if not facts["refused"]:
                return bad("peer release", "two hosts held the lock at the same time", _STORAGE)
            began = bench.clock.mono()
            holder.kill()
            self._meeting.hear(f"granted {turn}")
            seconds = bench.clock.mono() - began
        host = self._other["host"]
        return good(
            "peer release",
            f"{host} had a killed holder's lock after {seconds * MS:.0f} ms",
            seconds_s=seconds,
        )

    def _wait_for_grant(self, turn: int) -> None:
        lock = self._lock()
        try:
            if not self._meeting.hear(f"holding {turn}")["held"]:
                return
            refused = not _taken(lock)
            self._meeting.say(f"polling {turn}", refused=refused)
            if refused:
                end = self._bench.clock.mono() + 45
                while not _taken(lock):
                    if self._bench.clock.mono() > end:
                        raise StoreError(
                            "the lock of a killed process on the other host was still held after "
                            "45 s",
                            hint=_STORAGE,
                        )
                    self._bench.sleep(0.005)
                self._meeting.say(f"granted {turn}")
        finally:
            lock.release()

    # ---- records

    def _visible(self) -> list[StorageFinding]:
        found: list[StorageFinding] = []
        for turn, first_writes in enumerate((True, False)):
            if self._meeting.first == first_writes:
                self._write_records(turn)
            else:
                found += self._read_records(turn)
        return found

    def _write_records(self, turn: int) -> None:
        self._bench.put(f"{_RECORD}{turn}", _block(0))
        self._meeting.both(f"records {turn}")
        for number in range(1, _ROUNDS + 1):
            self._bench.put(f"{_RECORD}{turn}", _block(number))
            self._meeting.say(f"written {turn} {number}")
            self._meeting.hear(f"read {turn} {number}")

    def _read_records(self, turn: int) -> list[StorageFinding]:
        """A record is on storage when its writer says so: the next look must show it, through an
        older handle.
        """
        bench = self._bench
        stale = 0
        slowest = 0.0
        self._meeting.both(f"records {turn}")
        with bench.opened(f"{_RECORD}{turn}", 0, asking=True) as fd:
            for number in range(1, _ROUNDS + 1):
                self._meeting.hear(f"written {turn} {number}")
                began = bench.clock.mono()
                stale += bench.asking.pread(fd, BLOCK, 0) != _block(number)
                slowest = max(slowest, bench.clock.mono() - began)
                self._meeting.say(f"read {turn} {number}")
        if stale:
            text = (
                f"{stale} of {_ROUNDS} looks showed an older record than {self._other['host']} "
                "had synced"
            )
            return bad(
                "peer visibility",
                text,
                f"a former owner might not notice its successor: {_STORAGE}",
            )
        text = (
            f"records of {self._other['host']} are seen at the next look ({slowest * MS:.2f} ms "
            "at most)"
        )
        return good("peer visibility", text, slowest_ms=slowest * MS)

    # ---- a frozen host

    def _freeze(self) -> list[StorageFinding]:
        mine = self._options.freeze
        theirs = bool(self._other["freeze"])
        if not mine and not theirs:
            text = "how soon a frozen host's lock moves was not measured"
            hint = (
                "start one side with --freeze, and freeze or cut off that host when it asks for it"
            )
            return (
                [StorageFinding("freeze", Outcome.NOTE, text, hint)] if self._meeting.first else []
            )
        if mine and theirs:
            raise StoreError(
                "both sides were started with --freeze", hint="give it on one host only"
            )
        return self._be_frozen() if mine else self._watch_frozen()

    def _be_frozen(self) -> list[StorageFinding]:
        """Hold the lock and beat until the other has the lock.

        Errors of storage are what is waited for.
        """
        bench = self._bench
        lock = self._lock()
        lock.acquire()
        beat = 0
        bench.put(_BEATS, _block(beat))
        self._meeting.both("beating")
        self._told("freeze this host now, or cut it off from the storage; then let it go on")
        end = bench.clock.mono() + self._options.freeze_wait_s
        try:
            while self._meeting.heard("moved") is None and bench.clock.mono() < end:
                beat += 1
                self._beat(beat)
                bench.sleep(_BEAT_S)
            self._meeting.hear("moved", self._options.freeze_wait_s)
        finally:
            lock.release()
        return []

    def _beat(self, number: int) -> None:
        try:
            self._bench.put(_BEATS, _block(number))
        except OSError:
            # Cut off: the other side has seen the last beat, and there is nothing to do about it
            # here.
            return

    def _watch_frozen(self) -> list[StorageFinding]:
        bench = self._bench
        lock = self._lock()
        host = self._other["host"]
        wait = self._options.freeze_wait_s
        self._meeting.both("beating")
        self._told(f"waiting until {host} is frozen or cut off")
        last = b""
        since = bench.clock.mono()
        end = since + wait
        poll = POLL_NETWORK_S if bench.host.mount.is_network else POLL_LOCAL_S
        try:
            while not _taken(lock):
                beat = bench.fresh(_BEATS)
                if beat != last:
                    last = beat
                    since = bench.clock.mono()
                if bench.clock.mono() > end:
                    self._meeting.say("moved", seconds=None)
                    text = f"the lock of {host} did not move within {wait:g} s"
                    return limit("freeze", text, "was it frozen? Else wait longer: --freeze-wait")
                bench.sleep(poll)
            seconds = bench.clock.mono() - since
        finally:
            lock.release()
        self._meeting.say("moved", seconds=seconds)
        return good(
            "freeze",
            f"the lock of {host} moved {seconds:.1f} s after its last beat",
            frozen_s=seconds,
        )


def expected(bench: Bench, findings: Sequence[StorageFinding]) -> list[Expected]:
    """What was measured between the hosts of how long takeovers take.

    Empty where the storage is unsuitable.
    """
    if any(finding.outcome is Outcome.BAD for finding in findings):
        return []
    poll = POLL_NETWORK_S if bench.host.mount.is_network else POLL_LOCAL_S
    rows = []
    releases = [float(str(x.figures["seconds_s"])) for x in findings if "seconds_s" in x.figures]
    if releases:
        why = "the slowest release seen and one poll of the lock; the new owner's syncs come on top"
        rows.append(Expected("kill -9 of the active", max(releases) + poll, why, measured=True))
    frozen = [float(str(x.figures["frozen_s"])) for x in findings if "frozen_s" in x.figures]
    if frozen:
        why = "from the last sign of life to the lock, and one poll"
        rows.append(
            Expected(
                "the active's host is frozen or cut off", max(frozen) + poll, why, measured=True
            )
        )
    return rows


def _taken(lock: StoreLock) -> bool:
    try:
        lock.acquire()
    except LockBusyError:
        return False
    return True


def _block(number: int) -> bytes:
    return number.to_bytes(8, "little") * (BLOCK // 8)


def _count(number: int) -> bytes:
    return b"%020d" % number


def _number(data: bytes) -> int:
    return int(data[:20] or b"0")


def _finding(row: dict[str, Any], host: str) -> StorageFinding:
    outcome = Outcome(row["outcome"])
    return StorageFinding(
        str(row["check"]), outcome, f"{host}: {row['text']}", str(row["hint"]), dict(row["figures"])
    )
