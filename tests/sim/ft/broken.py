"""Groups that are broken on purpose: each breaks a rule of the argument in ``docs/ft-argument.md``
and must be caught.

Every function here takes a monkeypatch and breaks the product (or, where the rule is about the road
between the rooms, what stands for it in ``load.py`` and ``nodes.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ftstan.base.errors import FencedError
from ftstan.broker.broker import Broker
from ftstan.ft import epoch, ownership
from ftstan.ft.epoch_records import SLOT_SIZE, Cause, decode_slot, encode_slot
from ftstan.ft.fencing_check import Confirmer
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.survey import survey_store
from ftstan.node.dataplane import DataPlane
from ftstan.node.group import FtGroup
from ftstan.node.handover import Handover
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.env import FileEnv
from ftstan.stores.file.log.retention import RetainedSlices
from ftstan.stores.file.log.slices import SliceLog, dat_name
from ftstan.stores.file.recovery import damage, judging
from ftstan.stores.file.state import checkpoint, confirmed
from ftstan.stores.file.state.statefile import StateFile, read_file
from ftstan.stores.file.store import FileStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future

    import pytest

    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.base.errors import StoreError
    from ftstan.ft.epoch import Activation
    from ftstan.node.handover_buffer import BufferedPublishes
    from ftstan.stores.file.recovery.judging import ChannelVerdict
    from ftstan.stores.file.recovery.measure import Found, Measured
    from ftstan.stores.file.state.confirmed import Confirmed, ConfirmedFile
    from ftstan.wire.block import MsgBlock

    Patch = pytest.MonkeyPatch

_LEASE_S = 5.0
#: Histories after which a group that is broken on purpose must have been caught.
PATIENCE = 2000


def confirm_before_sync(patch: Patch) -> None:
    def commit(self: FileStore) -> dict[bytes, StoreError]:
        self.confirm()
        self.confirmed_ahead = True  # type: ignore[attr-defined]
        return real_commit(self)

    def confirm(self: FileStore) -> None:
        if not getattr(self, "confirmed_ahead", False):
            real_confirm(self)
        self.confirmed_ahead = False  # type: ignore[attr-defined]

    real_commit = FileStore.commit
    real_confirm = FileStore.confirm
    patch.setattr(FileStore, "commit", commit)
    patch.setattr(FileStore, "confirm", confirm)


def emitted_before_confirm(patch: Patch) -> None:
    """What was committed is sent, and only then storage is asked."""
    confirm = FileStore.confirm
    commit = FileStore.commit
    sent = Broker.sent

    def later(self: FileStore) -> dict[bytes, StoreError]:
        failed = commit(self)
        self.confirm_later = True  # type: ignore[attr-defined]
        return failed

    def skipped(self: FileStore) -> None:
        if getattr(self, "confirm_later", False):
            self.confirm_later = False  # type: ignore[attr-defined]
            return
        confirm(self)

    def then_confirm(self: Broker) -> None:
        sent(self)
        self.store.confirm()

    patch.setattr(FileStore, "commit", later)
    patch.setattr(FileStore, "confirm", skipped)
    patch.setattr(Broker, "sent", then_confirm)


def confirm_by_clock(patch: Patch) -> None:
    asked: dict[StoreOwner, float] = {}
    confirm = StoreOwner.confirm

    def within_lease(self: StoreOwner) -> None:
        now = self._clock.mono()
        if now - asked.get(self, -_LEASE_S) >= _LEASE_S:
            confirm(self)
            asked[self] = now

    patch.setattr(StoreOwner, "confirm", within_lease)


def no_claim(patch: Patch) -> None:
    def take_number(disk: Disk, root_fd: int, floor: int) -> int:
        top = max(floor, epoch._scan_path(disk, root_fd).top)
        return 1 + max(top, *epoch._claims(disk, root_fd, top), 0)

    patch.setattr(epoch, "_take_number", take_number)


def _folded(number: int) -> int:
    return 1 + number % 2


def slots_used_again(patch: Patch) -> None:
    """Two slots, taken in turn; the owner looks at both."""

    def scan(disk: Disk, fd: int) -> epoch._Slots:
        records = []
        for slot in (1, 2):
            data = disk.pread(fd, SLOT_SIZE, slot * SLOT_SIZE)
            number = int.from_bytes(data[12:20], "little")
            record = decode_slot(data, number) if data else None
            if record is not None:
                records.append(record)
        newest = max(records, key=lambda r: r.slot, default=None)
        return epoch._Slots(newest.slot if newest else 0, (newest,) if newest else (), (), {})

    def write(disk: Disk, root_fd: int, activation: Activation, *_: object) -> None:
        fd = disk.open(root_fd, epoch.EPOCH_NAME, 2)
        disk.pwrite(fd, encode_slot(activation.record()), _folded(activation.epoch) * SLOT_SIZE)
        disk.fsync(fd)
        disk.close(fd)

    def read_back(disk: Disk, root_fd: int, activation: Activation) -> None:
        found = epoch._scan_path(disk, root_fd)
        if found.newest != activation.record():
            raise FencedError("overtaken")

    def confirm(self: Confirmer) -> None:
        found = scan(self._disk, self._fd)
        if found.newest is None or encode_slot(found.newest) != self._alone:
            raise FencedError("superseded")

    patch.setattr(epoch, "_scan", scan)
    patch.setattr(epoch, "_write", write)
    patch.setattr(epoch, "_read_back", read_back)
    patch.setattr(epoch._Slots, "blanks_below", lambda *_: [])
    patch.setattr(Confirmer, "__call__", confirm)


def blanks_left_blank(patch: Patch) -> None:
    write = epoch._write

    def own_slot_only(disk: Disk, root_fd: int, activation: Activation, *_: object) -> None:
        write(disk, root_fd, activation, {})

    patch.setattr(epoch, "_write", own_slot_only)


def next_slot_not_read(patch: Patch) -> None:
    def confirm(self: Confirmer) -> None:
        if self._disk.pread(self._fd, SLOT_SIZE, self._offset) != self._alone:
            raise FencedError("superseded")

    patch.setattr(Confirmer, "__call__", confirm)


def temporaries_left(patch: Patch) -> None:
    patch.setattr(judging, "remove_temporaries", lambda _env, _dirfd: None)


def temporaries_of_anybody_removed(patch: Patch) -> None:
    def without_confirm(env: FileEnv, dirfd: int) -> None:
        for name, is_dir in env.disk.listdir(dirfd):
            if name.startswith("tmp.") and not is_dir:
                env.disk.unlink(dirfd, name)

    patch.setattr(judging, "remove_temporaries", without_confirm)


def state_files_appended(patch: Patch) -> None:
    append = StateFile.append

    def in_place(self: StateFile, data: bytes) -> int | None:
        old = None if self.replaced else read_file(self._env, self._directory(), self._name)
        if old is None:
            return append(self, data)
        self._fd = self._env.files.opened(self._env.disk.open(self._directory(), self._name, 2))
        self._end = len(old)
        self.replaced = True
        return append(self, data)

    patch.setattr(StateFile, "append", in_place)


def slices_by_highest_number(patch: Patch) -> None:
    def next_number(self: SliceLog) -> int:
        return max(self._highest, self._env.number_floor.get(self.name, 0)) + 1

    patch.setattr(SliceLog, "_next_number", next_number)


def tail_not_copied(patch: Patch) -> None:
    patch.setattr(SliceLog, "copy_tail", lambda _self, _tail: None)


def no_seal(patch: Patch) -> None:
    def all_count(
        _env: FileEnv, _log: SliceLog, _v: ChannelVerdict, _m: Measured, found: list[Found]
    ) -> list[tuple[Found, int]]:
        return [(f, f.last) for f in found]

    patch.setattr(judging, "_seal", all_count)


def torn_ends_cut_in_place(patch: Patch) -> None:
    def cut(env: FileEnv, slog: SliceLog, verdict: ChannelVerdict) -> None:
        for f, bad in verdict.ends:
            damage.cut(env, slog.dirfd, dat_name(f.number), bad)

    patch.setattr(judging, "end_what_was_torn", cut)


def heartbeat_obeyed(patch: Patch) -> None:
    async def obey(self: FtGroup) -> None:
        self._node.fenced(FencedError("ft: epoch: a higher one was heard"))

    patch.setattr(FtGroup, "_confirm", obey)


def events_without_replacement(patch: Patch) -> None:
    patch.setattr(FileChannel, "_replace_soon", lambda _self: None)


def fills_not_synced(patch: Patch) -> None:
    """The slots below and the own record become durable together, in any order."""

    def write(disk: Disk, root_fd: int, activation: Activation, below: Mapping[int, bytes]) -> None:
        fd = disk.open(root_fd, epoch.EPOCH_NAME, 2)
        for slot, data in below.items():
            disk.pwrite(fd, data.ljust(SLOT_SIZE, b"\0"), slot * SLOT_SIZE)
        disk.pwrite(fd, encode_slot(activation.record()), activation.epoch * SLOT_SIZE)
        disk.fsync(fd)
        disk.close(fd)

    patch.setattr(epoch, "_write", write)


def adopted_as_sure(patch: Patch) -> None:
    patch.setattr(SliceLog, "_doubtful", lambda *_args, **_kwargs: set())


def self_raise_unchecked(patch: Patch) -> None:
    """A server that goes on to a higher epoch takes any number for its own, as at a takeover, and
    reads nothing.
    """

    def unchecked(
        disk: Disk,
        root_fd: int,
        before: Activation,
        *,
        clock: Clock,
        cause: Cause,
        ft_mixed: bool | None = None,
        left: object = None,
    ) -> Activation:
        assert left is None, "no group leaves its store to an original"
        return epoch.claim(
            disk,
            root_fd,
            server_id=before.server_id,
            clock=clock,
            survey=lambda: survey_store(disk, root_fd),
            ft_mixed=ft_mixed,
            cause=cause,
        )

    patch.setattr(ownership, "claim_next", unchecked)


def confirmer_installed_early(patch: Patch) -> None:
    """As it was: the new activation is in force, and then looked at."""

    def raise_then_look(
        self: StoreOwner, cause: Cause, ft_mixed: bool | None = None, left: object = None
    ) -> None:
        assert left is None, "no group leaves its store to an original"
        before = self.activation
        self.confirm()
        self.raises += 1
        try:
            activation = epoch.claim(
                self._asking_disk,
                self.root,
                server_id=self._server_id,
                clock=self._clock,
                survey=lambda: survey_store(self._disk, self.root),
                cause=cause,
                ft_mixed=ft_mixed,
            )
            self._install(activation)
        finally:
            self.raises += 1
        if activation.epoch != before.epoch + 1:
            raise FencedError("ft: epoch: overtaken")

    def call(
        self: DataPlane, function: Callable[[], object], *, may_lose: bool = False
    ) -> Future[object]:
        del may_lose
        return real_call(self, function, may_lose=True)

    real_call = DataPlane.call
    patch.setattr(StoreOwner, "_raise", raise_then_look)
    patch.setattr(DataPlane, "call", call)


def index_before_data(patch: Patch) -> None:
    """Index entries are written with their data, and nothing says which of the two becomes durable
    first.
    """
    write = SliceLog.write
    finish_parts = SliceLog._finish_parts

    def write_both(self: SliceLog) -> int | None:
        fd = write(self)
        block = self._staged
        if block is not None:
            for active, i, j, offset in self._parts:
                if active.has_index:
                    self._write_entries(active, block, i, j) if not self._env.owner.mixed else None
                    self.indexed_early = True  # type: ignore[attr-defined]
                del offset
        return fd

    def once(self: SliceLog, block: MsgBlock) -> None:
        if getattr(self, "indexed_early", False):
            self.indexed_early = False  # type: ignore[attr-defined]
            entries = SliceLog._write_entries
            patch.setattr(SliceLog, "_write_entries", lambda *_: None)
            try:
                finish_parts(self, block)
            finally:
                patch.setattr(SliceLog, "_write_entries", entries)
            return
        finish_parts(self, block)

    patch.setattr(SliceLog, "write", write_both)
    patch.setattr(SliceLog, "_finish_parts", once)


def bridged_after_anybody(patch: Patch) -> None:
    """What was kept during a hand-over is used, whoever has owned the store since."""
    decide = Handover.decide

    async def unchecked(self: Handover, activation: Activation) -> BufferedPublishes | None:
        if self._taken is not None:
            activation = replace(activation, predecessor=(self._taken.leaving.epoch, b""))
        return await decide(self, activation)

    patch.setattr(Handover, "decide", unchecked)


def repeats_remembered_late(patch: Patch) -> None:
    """What a repeat is known by is written behind the data."""
    remember = FileStore.remember
    confirm = FileStore.confirm
    waiting: dict[FileStore, tuple[object, object]] = {}

    def later(self: FileStore, fresh: object, window: object) -> None:
        waiting[self] = (fresh, window)

    def then(self: FileStore) -> None:
        confirm(self)
        if self in waiting:
            remember(self, *waiting.pop(self))  # type: ignore[arg-type]

    patch.setattr(FileStore, "remember", later)
    patch.setattr(FileStore, "confirm", then)


def sizes_by_name(patch: Patch) -> None:
    """Files are asked for by their names, which a host answers from memory."""

    def size_of(self: FileEnv, dirfd: int, name: str) -> int:
        return self.disk.stat(dirfd, name).size

    def id_of(env: FileEnv, dirfd: int, name: str) -> tuple[int, int, int]:
        s = env.disk.stat(dirfd, name)
        return s.size, s.mtime_ns, s.ino

    patch.setattr(FileEnv, "size_of", size_of)
    patch.setattr(checkpoint, "_id_of", id_of)


def confirmed_unconfirmed(patch: Patch) -> None:
    """``confirmed.bin`` says what was written, whoever owns the store by now."""

    def write_all(env: FileEnv, items: Iterable[tuple[ConfirmedFile, SliceLog, Confirmed]]) -> None:
        for file, slog, now in items:
            with file.told_once(slog):
                fd = confirmed._open(env.disk, slog.dirfd) if file.replaced else -1
                if fd >= 0:
                    file.write(fd, now)
                else:
                    file.replace(slog.dirfd, now)

    patch.setattr(confirmed, "write_all", write_all)


def removed_without_the_script(patch: Patch) -> None:
    """What the limits take is removed, though there is a script that wants it."""
    remove = RetainedSlices.remove

    def no_archive(
        self: RetainedSlices,
        numbers: list[int],
        archive: Callable[[bytes, int], None] | None = None,
    ) -> None:
        del archive
        remove(self, numbers)

    patch.setattr(RetainedSlices, "remove", no_archive)


VARIANTS: dict[str, Callable[[Patch], None]] = {
    "confirm before the sync": confirm_before_sync,
    "emit before the confirm": emitted_before_confirm,
    "confirm by clock": confirm_by_clock,
    "no claim": no_claim,
    "slots used again": slots_used_again,
    "blank slots below left blank": blanks_left_blank,
    "no sync between fills and the own record": fills_not_synced,
    "the next slot is not read": next_slot_not_read,
    "the self-raise is not checked": self_raise_unchecked,
    "the new confirmer is installed early": confirmer_installed_early,
    "temporaries left": temporaries_left,
    "temporaries of anybody removed": temporaries_of_anybody_removed,
    "state files appended": state_files_appended,
    "events without a replacement": events_without_replacement,
    "slices by the highest number": slices_by_highest_number,
    "index before data": index_before_data,
    "adopted slices are sure": adopted_as_sure,
    "tail not copied": tail_not_copied,
    "no seal": no_seal,
    "torn ends cut in place": torn_ends_cut_in_place,
    "heartbeat obeyed": heartbeat_obeyed,
    "bridge without the predecessor check": bridged_after_anybody,
    "repeats remembered behind the data": repeats_remembered_late,
    "sizes by a name": sizes_by_name,
    "confirmed.bin without a confirm": confirmed_unconfirmed,
    "removed without the script": removed_without_the_script,
}


class Chance(NamedTuple):
    """Which histories find a variant: the first one that does, and from there on those of one kind
    (``shapes.shape_of``) where only that kind meets it often, or all.
    """

    first: int
    step: int = 1

    @property
    def seeds(self) -> range:
        """All that may be tried."""
        return range(self.first, self.first + PATIENCE * self.step, self.step)


#: Those that random histories find within ``PATIENCE`` (``docs/testing.md``).
CAUGHT_BY_CHANCE: dict[str, Chance] = {
    "confirm before the sync": Chance(58),
    "emit before the confirm": Chance(45),
    "confirm by clock": Chance(0),
    "no claim": Chance(84),
    "slots used again": Chance(102),
    "blank slots below left blank": Chance(1),
    "the next slot is not read": Chance(0),
    "the self-raise is not checked": Chance(62),
    "the new confirmer is installed early": Chance(21),
    "temporaries left": Chance(33),
    "temporaries of anybody removed": Chance(1075),
    "state files appended": Chance(15),
    "events without a replacement": Chance(2),
    "slices by the highest number": Chance(410, 12),
    "index before data": Chance(337, 12),
    "adopted slices are sure": Chance(32),
    "tail not copied": Chance(8),
    "no seal": Chance(30),
    "torn ends cut in place": Chance(1561, 36),
    "heartbeat obeyed": Chance(0),
    "bridge without the predecessor check": Chance(394),
    "repeats remembered behind the data": Chance(347),
    "sizes by a name": Chance(2221, 36),
    "confirmed.bin without a confirm": Chance(1531),
    "removed without the script": Chance(15),
}
