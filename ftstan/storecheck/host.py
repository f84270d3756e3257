"""What one host can try alone: ``CHECKS`` in the order in which they run, and the takeover time
that follows.

Each check states what a group needs of the storage (``docs/ft.md``, storage) and tries it between
two processes where a second one makes a difference. What cannot be tried is said: nobody can tell a
sync that lies from one that is quick.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ftstan.base.errors import LockBusyError
from ftstan.base.sizes import size_of
from ftstan.ft.lock import LOCK_NAME, StoreLock
from ftstan.ft.mountcheck import examine
from ftstan.storecheck.bench import BLOCK, MS, Bench, Check, bad, good, limit
from ftstan.storecheck.findings import Expected, Outcome, StorageFinding

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds between two polls of the lock, at most (``docs/ft.md``, deadline budget).
POLL_LOCAL_S = 0.06
POLL_NETWORK_S = 0.6
#: Of an NFS server, unless its administrator chose another.
USUAL_LEASE_S = 90.0
#: Syncs that one takeover and its first batch wait for, one after the other.
SYNCS_IN_A_ROW = 5

_SKEW_LIMIT_S = 1.0
_SYNC_LIMIT_S = 0.1
_SYNC_BAD_S = 3.0
_UNBELIEVABLE_S = 50e-6
_FREE_BAD = 64 << 20
_FREE_LIMIT = 1 << 30
_RELEASE_S = 30.0
_ROUNDS = 20
_BOUNDS_MS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 3000)
_STORAGE = "use storage that docs/ft.md lists as supported"


def _mount(bench: Bench) -> list[StorageFinding]:
    mount = bench.host.mount
    kind = "network" if mount.is_network else "local"
    seen = good(
        "mount",
        f"{mount.fstype} {mount.source} mounted at {mount.point}, treated as {kind} storage",
        fstype=mount.fstype,
        source=mount.source,
        point=mount.point,
        options=sorted(mount.options),
        network=mount.is_network,
    )
    for risk in examine(mount, bench.host.recover_lost_locks):
        outcome = Outcome.LIMIT if risk.risk is None else Outcome.BAD
        seen.append(StorageFinding("mount", outcome, risk.text, risk.hint))
    if mount.fstype == "tmpfs":
        text = "it is kept in this host's memory: a power failure takes everything"
        seen += limit("mount", text, "use it for tests and rehearsals only")
    elif not mount.is_network:
        text = "only this host reaches it: a group here survives its processes and not the host"
        seen.append(StorageFinding("mount", Outcome.NOTE, text, "for two hosts use shared storage"))
    return seen


def _space(bench: Bench) -> list[StorageFinding]:
    room = bench.host.space(bench.dirfd)
    figures = {
        "free_bytes": room.free_bytes,
        "total_bytes": room.total_bytes,
        "free_files": room.free_files,
    }
    text = f"{size_of(room.free_bytes)} free of {size_of(room.total_bytes)}"
    no_inodes = bool(room.total_files) and room.free_files < 100
    if room.free_bytes < _FREE_BAD or no_inodes:
        what = f"{room.free_files} inodes free" if no_inodes else text
        return bad(
            "space",
            f"{what}: publishes would be refused soon",
            "free space or enlarge it",
            **figures,
        )
    if room.free_bytes < _FREE_LIMIT or room.free_bytes * 20 < room.total_bytes:
        return limit("space", text, "enlarge it, or set limits (docs/limits.md)", **figures)
    return good("space", text, **figures)


def _owner(bench: Bench) -> list[StorageFinding]:
    host = bench.host
    with bench.opened("owned") as fd:
        state = bench.disk.fstat(fd)
    figures = {"uid": host.uid, "gid": host.gid, "file_uid": state.uid, "file_gid": state.gid}
    if state.uid != host.uid:
        text = (
            f"a file made by uid {host.uid} ({host.user}) belongs to uid {state.uid}: the file "
            "server maps users"
        )
        hint = (
            "give the server a user with the same uid on every host, which the export does not "
            "map, and run this as it"
        )
        return limit("owner", text, hint, **figures)
    return good("owner", f"a file made by uid {host.uid} ({host.user}) belongs to it", **figures)


def _clock(bench: Bench) -> list[StorageFinding]:
    """The time that storage gives a file lies between ours before and after, if the clocks
    agree.
    """
    before = bench.clock.wall_ns()
    with bench.opened("clock") as fd:
        bench.disk.pwrite(fd, b"x", 0)
        bench.disk.fsync(fd)
        stamp = bench.disk.fstat(fd).mtime_ns
    after = bench.clock.wall_ns()
    skew = max(before - stamp, stamp - after, 0) / 1e9 * (1 if stamp > after else -1)
    if abs(skew) > _SKEW_LIMIT_S:
        hint = "run NTP on both: timestamps of messages and limits by age follow this host's clock"
        return limit(
            "clock",
            f"the storage's clock is {abs(skew):.1f} s {_side(skew)} ours",
            hint,
            skew_s=skew,
        )
    return good(
        "clock", f"the storage's clock agrees with ours within {_SKEW_LIMIT_S:g} s", skew_s=skew
    )


def _side(skew: float) -> str:
    return "ahead of" if skew > 0 else "behind"


def _locks(bench: Bench) -> list[StorageFinding]:
    mine = StoreLock(bench.disk, bench.dirfd, bench.path, bench.locker)
    again = StoreLock(bench.disk, bench.dirfd, bench.path, bench.locker)
    private = "the lock would not keep two servers apart: " + _STORAGE
    with bench.neighbour() as other:
        try:
            mine.acquire()
            took = bench.timed(lambda: _refused(again))
            if not _refused(again):
                return bad(
                    "lock", "two descriptors of one process held the lock at the same time", private
                )
            if other.lock():
                return bad("lock", "two processes held the lock at the same time", private)
            if other.lock_as_original():
                text = "a process got the kind of lock that original servers take, beside ours"
                return bad(
                    "lock", text, "no original server may serve this directory; better: " + _STORAGE
                )
            with bench.opened(LOCK_NAME):
                pass  # a POSIX lock would be gone with this close
            if other.lock():
                return bad(
                    "lock",
                    "the lock was lost when another descriptor of the file was closed",
                    _STORAGE,
                )
            mine.verify()
            mine.release()
            if not other.lock():
                return bad(
                    "lock", "the lock was given back, and another process was refused", _STORAGE
                )
            other.unlock()
        finally:
            mine.release()
            again.release()
    return good("lock", f"one holder at a time, asked in {took * MS:.2f} ms", poll_ms=took * MS)


def _refused(lock: StoreLock) -> bool:
    try:
        lock.acquire()
    except LockBusyError:
        return True
    return False


def _release_on_kill(bench: Bench) -> list[StorageFinding]:
    mine = StoreLock(bench.disk, bench.dirfd, bench.path, bench.locker)
    try:
        with bench.neighbour() as other:
            if not other.lock():
                return bad("release", "a free lock was refused", _STORAGE)
            if not _refused(mine):
                return bad("release", "two processes held the lock at the same time", _STORAGE)
            began = bench.clock.mono()
            other.kill()
            while _refused(mine):
                if bench.clock.mono() - began > _RELEASE_S:
                    text = f"the lock of a killed process was still held after {_RELEASE_S:g} s"
                    return bad("release", text, "a takeover would wait for ever: " + _STORAGE)
                bench.sleep(0.001)
            seconds = bench.clock.mono() - began
    finally:
        mine.release()
    return good(
        "release",
        f"the lock of a killed process was free after {seconds * MS:.0f} ms",
        seconds_s=seconds,
    )


def _names(bench: Bench) -> list[StorageFinding]:
    """Claims need an exclusive create, slices a link that refuses, replaced files a rename that is
    seen.
    """
    with bench.neighbour() as other:
        if not other.create("claim"):
            return bad(
                "names", "a file that did not exist could not be created exclusively", _STORAGE
            )
        try:
            with bench.opened("claim", os.O_RDWR | os.O_CREAT | os.O_EXCL):
                return bad(
                    "names",
                    "two processes created one file exclusively: two owners of one epoch",
                    _STORAGE,
                )
        except FileExistsError:
            pass
        bench.put("new", b"n" * BLOCK)
        bench.put("old", b"o" * BLOCK)
        if other.read("old", BLOCK, 0) != b"o" * BLOCK:
            return bad(
                "names", "another process did not see a file that was written and synced", _STORAGE
            )
        bench.disk.rename(bench.dirfd, "new", "old")
        bench.disk.fsync(bench.dirfd)
        if other.read("old", BLOCK, 0) != b"n" * BLOCK:
            return bad("names", "another process read the old file after a rename", _STORAGE)
        if finding := _link(bench):
            return finding
        bench.disk.unlink(bench.dirfd, "old")
        bench.disk.fsync(bench.dirfd)
        if other.read("old", BLOCK, 0) is not None:
            return bad("names", "another process still found a file that was removed", _STORAGE)
    return good(
        "names",
        "exclusive create, rename, link, removal and the sync of a directory work, and are seen",
    )


def _link(bench: Bench) -> list[StorageFinding]:
    try:
        bench.disk.link(bench.dirfd, "old", "linked")
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
            raise
        return bad(
            "names",
            "a file cannot have two names (link): new slices are made visible that way",
            _STORAGE,
        )
    try:
        bench.disk.link(bench.dirfd, "old", "linked")
    except FileExistsError:
        return []
    return bad("names", "a link replaced a file that existed", _STORAGE)


def _direct(bench: Bench) -> list[StorageFinding]:
    disk = bench.direct
    needed = bench.host.mount.is_network
    try:
        with bench.opened("direct") as fd:
            bench.disk.pwrite(fd, b"d" * BLOCK, 0)
            bench.disk.fsync(fd)
        fd = disk.open(bench.dirfd, "direct", os.O_RDWR)
        try:
            same = disk.pread(fd, BLOCK, 0) == b"d" * BLOCK
            disk.pwrite(fd, b"e" * BLOCK, BLOCK)
            same = same and disk.pread(fd, BLOCK, BLOCK) == b"e" * BLOCK
        finally:
            disk.close(fd)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise
        return _no_direct(needed=needed)
    if not same:
        return bad(
            "direct", "a direct read (O_DIRECT) showed other bytes than were written", _STORAGE
        )
    return good("direct", "direct reads and writes (O_DIRECT) work")


def _no_direct(*, needed: bool) -> list[StorageFinding]:
    if not needed:
        return [
            StorageFinding(
                "direct",
                Outcome.NOTE,
                "no direct I/O (O_DIRECT), which is not needed on local storage",
            )
        ]
    text = "no direct I/O (O_DIRECT): a member might believe what its host remembers of the epoch"
    return bad(
        "direct", text, "a server starts here only with -ft_allow direct_io; better: " + _STORAGE
    )


def _offsets(bench: Bench) -> list[StorageFinding]:
    with bench.opened("offsets") as fd, bench.opened("offsets") as second:
        bench.disk.pwrite(fd, b"b" * BLOCK, 2 * BLOCK)
        bench.disk.pwrite(second, b"a" * BLOCK, 0)
        bench.disk.fdatasync(fd)
        bench.disk.fdatasync(second)
        whole = b"a" * BLOCK + bytes(BLOCK) + b"b" * BLOCK
        if bench.fresh("offsets", 4 * BLOCK) != whole:
            return bad(
                "offsets",
                "writes at explicit offsets, or the hole between them, came back otherwise",
                _STORAGE,
            )
        try:
            bench.disk.pwrite(fd, b"f" * BLOCK, bench.far)
            bench.disk.fdatasync(fd)
        except OSError as error:
            if error.errno not in {errno.EFBIG, errno.ENOSPC, errno.EDQUOT}:
                raise
            text = f"a sparse file cannot grow beyond 2 GiB ({error.strerror})"
            return limit("offsets", text, "raise the limit of file sizes of this user (ulimit -f)")
        if bench.fresh("offsets", BLOCK, bench.far) != b"f" * BLOCK:
            return bad("offsets", "what was written beyond 2 GiB came back otherwise", _STORAGE)
    return good("offsets", "writes at explicit offsets, holes and files beyond 2 GiB work")


def _visibility(bench: Bench) -> list[StorageFinding]:
    """A record that another process has synced is what the next look shows, through a handle that
    was open before.
    """
    stale = 0
    slowest = 0.0
    with bench.neighbour() as other:
        other.write("epoch", bytes(BLOCK), 0)
        with bench.opened("epoch", os.O_RDONLY, asking=True) as fd:
            for number in range(1, _ROUNDS + 1):
                block = number.to_bytes(8, "little") * (BLOCK // 8)
                other.write("epoch", block, 0)
                began = bench.clock.mono()
                stale += bench.asking.pread(fd, BLOCK, 0) != block
                slowest = max(slowest, bench.clock.mono() - began)
    if stale:
        text = f"{stale} of {_ROUNDS} looks showed an older record than another process had synced"
        return bad("visibility", text, "a former owner might not notice its successor: " + _STORAGE)
    text = (
        f"a record that another process synced is seen at the next look ({slowest * MS:.2f} ms "
        "at most)"
    )
    return good("visibility", text, slowest_ms=slowest * MS)


def _syncs(bench: Bench) -> list[StorageFinding]:
    times = []
    with bench.opened("synced") as fd:
        for number in range(bench.syncs):
            bench.disk.pwrite(fd, b"s" * 512, number * 512)
            times.append(bench.timed(lambda: bench.disk.fdatasync(fd)))
    times.sort()
    half = times[len(times) // 2]
    most = times[-1]
    p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
    figures = {
        "count": len(times),
        "min_ms": times[0] * MS,
        "p50_ms": half * MS,
        "p99_ms": p99 * MS,
        "max_ms": most * MS,
        "histogram": _histogram(times),
    }
    text = f"a sync of 512 bytes takes {half * MS:.2f} ms (p99 {p99 * MS:.2f}, max {most * MS:.2f})"
    if most > _SYNC_BAD_S:
        hint = (
            "an owner falls silent after 3 s and ends after 10 s without an answer: use storage "
            "that answers sooner"
        )
        return bad("sync", text, hint, **figures)
    if p99 > _SYNC_LIMIT_S:
        return limit(
            "sync",
            text,
            "every publisher waits for a sync: use quicker storage, or publish many at once",
            **figures,
        )
    found = good("sync", text, **figures)
    if half < _UNBELIEVABLE_S and bench.host.mount.fstype != "tmpfs":
        why = (
            "that is quicker than most disks store: a cache that forgets at a power failure may "
            "answer"
        )
        found += limit("sync", why, "see that the write cache is protected by a battery, or off")
    found.append(
        StorageFinding(
            "sync",
            Outcome.NOTE,
            "whether what was synced survives a power failure cannot be seen from here",
            "pull the plug under ftstanctl check-store --phase attack, then --phase verify",
        )
    )
    return found


def _histogram(times: Sequence[float]) -> list[dict[str, float]]:
    """Counts up to each bound, in milliseconds; steps that nothing fell into are left out."""
    rows = []
    below = 0
    for bound in (*_BOUNDS_MS, float("inf")):
        upto = sum(1 for x in times if x * MS <= bound)
        if upto > below:
            rows.append(
                {
                    "upto_ms": bound if bound != float("inf") else times[-1] * MS,
                    "count": upto - below,
                }
            )
        below = upto
    return rows


CHECKS = (
    Check("mount", "reading the mount table", _mount),
    Check("space", "asking for free space", _space),
    Check("owner", "comparing uids", _owner),
    Check("clock", "comparing clocks", _clock),
    Check("lock", "trying the lock between two processes", _locks),
    Check("release", "killing a process that holds the lock", _release_on_kill),
    Check("names", "creating, renaming, linking and removing files", _names),
    Check("direct", "reading and writing past the cache", _direct),
    Check("offsets", "writing at offsets", _offsets),
    Check("visibility", "reading what another process writes", _visibility),
    Check("sync", "timing syncs", _syncs),
)


def expected(bench: Bench, findings: Sequence[StorageFinding]) -> list[Expected]:
    """How long takeovers will take here, from what was measured.

    Empty where the storage is unsuitable.
    """
    if any(finding.outcome is Outcome.BAD for finding in findings):
        return []
    network = bench.host.mount.is_network
    poll = POLL_NETWORK_S if network else POLL_LOCAL_S
    sync = next(
        (float(str(x.figures["p50_ms"])) / MS for x in findings if "p50_ms" in x.figures), 0.0
    )
    seconds = poll + SYNCS_IN_A_ROW * sync
    rows = [
        Expected(
            "kill -9 of the active", seconds, f"one poll of the lock and {SYNCS_IN_A_ROW} syncs"
        ),
        Expected(
            "stop or switchover",
            SYNCS_IN_A_ROW * sync,
            f"{SYNCS_IN_A_ROW} syncs; the standby is told",
        ),
    ]
    if network:
        why = (
            f"the file server's lease, {USUAL_LEASE_S:g} s unless it was set otherwise: measure "
            "it with --peer --freeze"
        )
        rows.append(Expected("the active's host dies or is cut off", USUAL_LEASE_S + seconds, why))
    else:
        rows.append(Expected("the active's host dies", None, "the storage dies with it"))
    return rows
