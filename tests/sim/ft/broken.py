"""Groups that are broken on purpose: each breaks one rule of the argument in ``docs/ft.md``, and must be caught.

Every function here takes a monkeypatch and breaks the product (or, where the rule is about the road between the rooms,
what stands for it in ``load.py`` and ``nodes.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.errors import FencedError
from ftstan.ft import epoch
from ftstan.ft.epoch import Confirmer
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.slots import SLOT_SIZE, decode_slot, encode_slot
from ftstan.stores.file import recovery
from ftstan.stores.file.slices import SliceLog
from ftstan.stores.file.statefile import StateFile, read_file
from tests.sim.ft.load import Load
from tests.sim.ft.nodes import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from ftstan.disk import Disk
    from ftstan.errors import StoreError
    from ftstan.ft.epoch import Activation
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.measure import Found

    Patch = pytest.MonkeyPatch

_LEASE_S = 5.0


def confirm_before_sync(patch: Patch) -> None:
    def commit(self: Load) -> dict[bytes, StoreError]:
        self._confirm()
        return self.store.commit()

    patch.setattr(Load, "commit", commit)


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
        return 1 + max(floor, epoch._scan_path(disk, root_fd).top, *epoch._claims(disk, root_fd), 0)

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
        return epoch._Slots(top=newest.slot if newest else 0, newest=newest, blanks=())

    def write(disk: Disk, root_fd: int, activation: Activation, _found: epoch._Slots) -> None:
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
    patch.setattr(Confirmer, "__call__", confirm)


def blanks_left_blank(patch: Patch) -> None:
    write = epoch._write

    def own_slot_only(disk: Disk, root_fd: int, activation: Activation, _found: epoch._Slots) -> None:
        write(disk, root_fd, activation, epoch._Slots(activation.epoch - 1, None, ()))

    patch.setattr(epoch, "_write", own_slot_only)


def next_slot_not_read(patch: Patch) -> None:
    def confirm(self: Confirmer) -> None:
        if self._disk.pread(self._fd, SLOT_SIZE, self._offset) != self._alone:
            raise FencedError("superseded")

    patch.setattr(Confirmer, "__call__", confirm)


def temporaries_left(patch: Patch) -> None:
    patch.setattr(recovery, "remove_temporaries", lambda _env, _dirfd: None)


def temporaries_of_anybody_removed(patch: Patch) -> None:
    def without_confirm(env: FileEnv, dirfd: int) -> None:
        for name, is_dir in env.disk.listdir(dirfd):
            if name.startswith("tmp.") and not is_dir:
                env.disk.unlink(dirfd, name)

    patch.setattr(recovery, "remove_temporaries", without_confirm)


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
    def all_count(_env: FileEnv, _log: SliceLog, found: list[Found], _dead: set[int]) -> list[tuple[Found, int]]:
        return [(f, f.last) for f in found]

    patch.setattr(recovery, "_seal", all_count)


def heartbeat_obeyed(patch: Patch) -> None:
    def obey(self: Node) -> None:
        raise FencedError("a higher epoch was heard")

    patch.setattr(Node, "_confirm_now", obey)


VARIANTS: dict[str, Callable[[Patch], None]] = {
    "confirm before the sync": confirm_before_sync,
    "confirm by clock": confirm_by_clock,
    "no claim": no_claim,
    "slots used again": slots_used_again,
    "blank slots below left blank": blanks_left_blank,
    "the next slot is not read": next_slot_not_read,
    "temporaries left": temporaries_left,
    "temporaries of anybody removed": temporaries_of_anybody_removed,
    "state files appended": state_files_appended,
    "slices by the highest number": slices_by_highest_number,
    "tail not copied": tail_not_copied,
    "no seal": no_seal,
    "heartbeat obeyed": heartbeat_obeyed,
}

#: Those that random histories find soon; the others are found by histories written by hand (``docs/ft.md``).
CAUGHT_BY_CHANCE = tuple(
    name for name in VARIANTS if name not in {"slots used again", "slices by the highest number", "temporaries left"}
)
