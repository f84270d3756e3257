"""The epoch: the only module that knows ``ft.epoch`` and ``ft.claim.<n>``, and what decides who
owns the datastore.

Theory of operation (the argument is ``docs/ft-argument.md``):

- A number is **claimed** before it is used: ``ft.claim.<n>`` is created exclusively, with n above
  every slot and claim found. So no two activations ever own one number, whoever held the store
  lock.
- ``ft.epoch`` is an array of 4 KiB slots, slot n at n * 4096 (slot 0 stays blank). Whoever takes n
  fills **every blank slot below** with its record, then writes its own slot, and looks whether
  somebody is above it. What others have left there it writes once more: they may not have synced
  it.
- An owner is **confirmed** by one read of its own slot and the next one: its own bytes in the
  first, nothing in the second. A successor's record is durable before the successor looks at any
  other file, so what was confirmed was committed before the successor measured, and is in its log.
- Hence a late write of a former owner can only land in a slot that nobody watches any more.

The fills are durable *before* the own record is written. So an own record in slot m proves that
every slot below m is durably used, whatever was paused, killed, lost or written late, and a reader
may stop there instead of reading the whole file.

Files are changed in place, never renamed, and never left open for writing: a file that this host
holds open for writing reads stale on NFS. No clock, lock or heartbeat takes part in any decision
here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftstan.base.errors import FencedError, RecoveryError, StoreError
from ftstan.ft.epoch_records import (
    NONCE_SIZE,
    SLOT_SIZE,
    Cause,
    Departure,
    Ending,
    EpochRecord,
    decode_slot,
    encode_slot,
    is_blank,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.ft.survey import Survey

EPOCH_NAME = "ft.epoch"
SLICES_PER_EPOCH = 4096
"""An activation numbers its slices from ``slice_base + 1`` to ``slice_base + SLICES_PER_EPOCH``."""

_READ_SLOTS = 64
#: A million activations: a file of more bytes is looked at slot by slot for longer than a start may
#: last.
_MOST_BYTES = 4 << 30
_MOST_AHEAD = 4096
"""Claims so far above the highest slot are believed: each was a start that died before its
record.
"""
_MOST_CLAIM = 1 << 20
"""The same where no slot tells: the epoch file would be 4 GiB."""
_CLAIM = re.compile(r"ft\.claim\.([1-9][0-9]{0,17})")
REPAIR = "if the datastore was restored or copied, run: ftstanctl store repair"
STAND_BY = "only one server can own a datastore: this one must stand by or stop"


@dataclass(frozen=True, slots=True)
class Activation:
    """A number that this process took, durably recorded: the right to write until a confirm fails.

    ``nonce`` and ``store_id`` are 16 bytes; ``since_ns`` is Unix nanoseconds; ``ours_from`` is the
    first slice number that any ftstan activation of this store could use: below it are slices of an
    original server.
    """

    epoch: int
    nonce: bytes
    store_id: bytes
    ours_from: int
    server_id: str
    host: str
    pid: int
    since_ns: int
    ft_mixed: bool
    #: Number and nonce of the activation recorded directly before this one; ``(0, b"")`` at a
    #: store's first.
    predecessor: tuple[int, bytes] = (0, b"")
    #: Whether original servers may have been members directly before this one.
    was_mixed: bool = False
    cause: Cause = Cause.UNKNOWN
    after: int = 0
    #: The last epoch behind which an original server may have served, below this one; 0: none since
    #: our first.
    originals_through: int = 0
    #: The member's name, and what its predecessor said last (``EpochRecord``).
    name: str = ""
    left_ns: int = 0
    left: Ending = Ending.UNSAID

    @property
    def slice_base(self) -> int:
        """The number below this activation's first slice."""
        return (self.epoch - 1) * SLICES_PER_EPOCH

    def raised(
        self, number: int, *, cause: Cause, since_ns: int, ft_mixed: bool | None
    ) -> Activation:
        """Its owner's next one, under ``number``, nobody having owned the store in between.

        ``ft_mixed``: the operator's word, ``None``: as before.
        """
        return replace(
            self,
            epoch=number,
            since_ns=since_ns,
            ft_mixed=self.ft_mixed if ft_mixed is None else ft_mixed,
            predecessor=(self.epoch, self.nonce),
            cause=cause,
            after=self.epoch,
            was_mixed=self.ft_mixed,
            originals_through=number - 1 if self.ft_mixed else self.originals_through,
            left_ns=0,
            left=Ending.UNSAID,
        )

    def record(self) -> EpochRecord:
        """Say what stands in this activation's own slot."""
        return EpochRecord(
            slot=self.epoch,
            epoch=self.epoch,
            server_id=self.server_id,
            nonce=self.nonce,
            store_id=self.store_id,
            host=self.host,
            pid=self.pid,
            since_ns=self.since_ns,
            ours_from=self.ours_from,
            ft_mixed=self.ft_mixed,
            cause=self.cause,
            after=self.after,
            originals_through=self.originals_through,
            name=self.name,
            left_ns=self.left_ns,
            left=self.left,
        )


@dataclass(frozen=True, slots=True)
class LostEpochs:
    """What a repair found out about a store whose epochs were lost, or restored from an older copy.

    ``floor`` is the highest epoch that anything in the store shows, ``ours_from`` what the lost
    record must have said.
    """

    floor: int
    ours_from: int


@dataclass(frozen=True, slots=True)
class EpochState:
    """What there is of the epochs: the newest record, the highest used slot (0: none), the claims,
    ascending.
    """

    newest: EpochRecord | None
    top: int
    claims: tuple[int, ...]
    present: bool


@dataclass(frozen=True, slots=True)
class _Slots:
    """What the file shows: the highest used slot (0: none), the newest record, the blank slots
    below that top.

    ``records``: from the newest one, which may be a filler, down to the one that its writer has in
    its own slot. ``used``: the bytes of every used slot down to that one.
    """

    top: int
    records: tuple[EpochRecord, ...]
    blanks: tuple[int, ...]
    used: dict[int, bytes]

    @property
    def newest(self) -> EpochRecord | None:
        return self.records[0] if self.records else None

    @property
    def on_top(self) -> EpochRecord | None:
        """The record of the highest used slot, ``None`` if that one cannot be read."""
        return next((record for record in self.records if record.slot == self.top), None)

    def blanks_below(self, number: int) -> list[int]:
        """The unused slots below ``number``, including those above the top."""
        return [*self.blanks, *range(self.top + 1, number)]

    def beneath(self) -> _Slots:
        """These slots without the top one."""
        blank = set(self.blanks)
        top = next((slot for slot in range(self.top - 1, 0, -1) if slot not in blank), 0)
        records = tuple(record for record in self.records if record.slot != self.top)
        used = {slot: data for slot, data in self.used.items() if slot != self.top}
        return _Slots(top, records, tuple(slot for slot in self.blanks if slot < top), used)

    @property
    def is_open(self) -> bool:
        """Whether the top slot is torn, or filled: a record of its own may be on its way there just
        now.
        """
        record = self.on_top
        return self.top > 0 and (record is None or record.is_filler)

    @property
    def mixed(self) -> bool:
        """Whether one of them says that original servers may be members.

        What a filler says may have been nobody's record, and a record that cannot be read lives on
        in its fillers.
        """
        return any(record.ft_mixed for record in self.records)


def claim(
    disk: Disk,
    root_fd: int,
    *,
    server_id: str,
    clock: Clock,
    survey: Callable[[], Survey],
    in_group: bool = False,
    ft_mixed: bool | None = None,
    lost: LostEpochs | None = None,
    cause: Cause = Cause.UNKNOWN,
    after: int = 0,
    heard_under: int | None = 0,
    locked: bool = True,
    name: str = "",
    departed: Departure | None = None,
    host: str | None = None,
    pid: int | None = None,
    token: Callable[[int], bytes] = secrets.token_bytes,
) -> Activation:
    """Take the next epoch of the datastore ``root_fd`` and make it durable.

    The caller holds the store lock, or takes the store from a silent owner without it
    (``docs/ft.md``, "Stealing").

    ``survey`` looks at the names in the store; it is called only if no epoch was ever recorded.
    ``ft_mixed`` is the operator's word; ``None`` keeps what is recorded, and at a store's first
    epoch means: mixed if a group takes over a store in which an original server has served.
    ``lost`` is a repair's word: the number is above its floor, and a missing or empty epoch file is
    made anew. ``cause`` and ``after`` are recorded (``EpochRecord``); the first epoch of a store
    has a cause of its own. ``heard_under``: the epoch under which an original server was heard
    last, 0 for none, ``None`` for the newest: it makes nothing mixed, but what it may have written
    is read with care, by whoever gets round to that. ``locked``: whether the lock is held; without
    it the store of a mixed group is not taken. ``name``: the member's; ``departed``: what an owner
    said last, recorded if it is the one directly before. ``host``, ``pid`` and ``token`` default to
    those of this process.

    After this returned, no former owner can be confirmed any more; nothing else of the store may
    have been read before. Raises ``FencedError`` if another server took a higher number meanwhile,
    or if only the lock may be gone by; ``RecoveryError`` if the epochs of this store were lost,
    ``StoreError`` if the storage refuses.
    """
    try:
        seen: Survey | None = None
        if lost is None:
            seen = _first_look(disk, root_fd, survey)
            floor = -(-seen.highest_slice // SLICES_PER_EPOCH) if seen else 0
            lost = LostEpochs(floor, floor * SLICES_PER_EPOCH + 1)
        elif _look(disk, root_fd) is None:
            _create(disk, root_fd)
        number = _take_number(disk, root_fd, lost.floor)
        # Read again behind the claim: who finished meanwhile is either above us, or the one whose
        # facts we carry on.
        found = _scan_path(disk, root_fd)
        if found.top >= number:
            raise _overtaken(number, found.on_top)
        nonce = token(NONCE_SIZE)
        store_id = token(NONCE_SIZE)
        since_ns = clock.wall_ns()

        def carry_on(found: _Slots) -> Activation:
            previous = found.newest
            mixed = _mixed(ft_mixed, found, seen, in_group=in_group)
            if mixed and not locked:
                # Recorded since this server made up its mind: whoever holds the lock may obey no
                # epoch.
                raise FencedError(
                    f"ft: epoch {number} was not taken: the group is mixed by now, and the store "
                    "lock is not held",
                    hint=STAND_BY,
                )
            return Activation(
                epoch=number,
                nonce=nonce,
                store_id=previous.store_id if previous else store_id,
                # The survey came before a look that found no record: so it saw no slice of ours,
                # only an original server's.
                # It only grows, and a filler may be older than the record below it.
                ours_from=max(
                    (record.ours_from for record in found.records), default=lost.ours_from
                ),
                server_id=server_id,
                host=socket.gethostname() if host is None else host,
                pid=os.getpid() if pid is None else pid,
                since_ns=since_ns,
                ft_mixed=mixed,
                # A torn slot on top was somebody's whose name is lost: then nobody is known to have
                # been just before us.
                predecessor=(previous.epoch, previous.nonce)
                if previous and previous is found.on_top
                else (0, b""),
                cause=Cause.FIRST_START
                if seen is not None and previous is None and cause is not Cause.TOOL
                else cause,
                after=after,
                was_mixed=found.mixed,
                originals_through=_originals_through(number, found, heard_under),
                name=name,
                left_ns=departed.at_ns if departed and _is_of(departed, previous) else 0,
                left=departed.how if departed and _is_of(departed, previous) else Ending.UNSAID,
            )

        activation = carry_on(found)
        if found.blanks_below(number) or found.is_open:
            # Numbers that were claimed before ours: whoever has one may get its record written, and
            # own the store, at any moment. Once our own slot is used nobody can any more, and who
            # has done so is seen, before its record is written over.
            ahead = replace(
                activation.record(), epoch=number + 1, ft_mixed=activation.ft_mixed or found.mixed
            )
            _announce(disk, root_fd, ahead)
            found = _scan_path(disk, root_fd)
            if found.top != number:
                raise _overtaken(number, found.on_top)
            found = found.beneath()
            activation = carry_on(found)
        below = {
            slot: encode_slot(activation.record().filling(slot))
            for slot in found.blanks_below(number)
        }
        _write(disk, root_fd, activation, found.used | below)
        _read_back(disk, root_fd, activation)
    except OSError as error:
        raise StoreError(
            f"{EPOCH_NAME}: the epoch cannot be raised: {error.strerror or error}",
            hint=f"{_remedy(error)}; nothing was taken over",
        ) from error
    return activation


def _is_of(departed: Departure, previous: EpochRecord | None) -> bool:
    return previous is not None and previous.epoch == departed.epoch


def claim_next(
    disk: Disk,
    root_fd: int,
    before: Activation,
    *,
    clock: Clock,
    cause: Cause,
    ft_mixed: bool | None = None,
    left: Survey | None = None,
    token: Callable[[int], bytes] = secrets.token_bytes,
) -> Activation:
    """Take a higher number for the owner of ``before``, which serves on under it without reading
    the store again.

    So nobody else may have owned the store since ``before``, not even for a moment. The number
    behind ``before`` may be claimed already, by a server that died, or that is just taking the
    store over. What decides is whether anybody has a *record* between the two numbers, and that is
    looked at only when no such record can become valid any more:

    1. A filler goes into the slot of our own number. From here on whoever holds a lower number
       finds a slot above its own behind its record, and knows that it does not own the store.
       Readers do not stop at fillers, so if we end here the slots below are still filled by the
       next server.
    2. The slots between the two numbers are read. A record there: its writer may have owned the
       store. We are fenced.
    3. All blank: nobody did, and nobody can. They are filled, and our record takes the place of the
       filler.

    ``ft_mixed`` and ``cause`` as in ``claim``. ``left``: what is in a store that is left to an
    original server. Every slice of it is that server's from here on: the number is above all of
    them, as at a store's first epoch. Raises ``FencedError``: nothing of the number may be used.
    Raises ``StoreError`` if storage refuses: ``before`` is still valid if its confirm says so.
    """
    try:
        floor = -(-left.highest_slice // SLICES_PER_EPOCH) if left is not None else 0
        number = _take_number(disk, root_fd, max(before.epoch, floor))
        # Before anything is written: a rightful successor should not find a slot of ours behind its
        # own.
        _check_unowned(disk, root_fd, before, number)
        raised = before.raised(number, cause=cause, since_ns=clock.wall_ns(), ft_mixed=ft_mixed)
        activation = replace(raised, nonce=token(NONCE_SIZE))
        if left is not None:
            activation = replace(activation, ours_from=activation.slice_base + 1)
        if number > before.epoch + 1:
            # It says what is recorded now, not what is about to be.
            _announce(disk, root_fd, _filler(before, number))
            _check_unowned(disk, root_fd, before, number)
        # The slot behind our present one comes last of those below: until it is used, we are
        # confirmed by it.
        below = reversed(range(before.epoch + 1, number))
        _write(
            disk, root_fd, activation, {slot: encode_slot(_filler(before, slot)) for slot in below}
        )
        _read_back(disk, root_fd, activation)
    except OSError as error:
        raise StoreError(
            f"{EPOCH_NAME}: the epoch cannot be raised: {error.strerror or error}",
            hint=_remedy(error),
        ) from error
    return activation


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            "the file system is full: enlarge it, or remove what is not the datastore's "
            "(docs/operate.md)"
        )
    return "check the storage and the kernel log of this host"


def _announce(disk: Disk, root_fd: int, ahead: EpochRecord) -> None:
    """Put a filler into the slot of our own number, durable: nobody with a lower one becomes an
    owner from here on.

    It is of a number above its slot: that is what makes it a filler, at which no reader stops.
    """
    fd = disk.open(root_fd, EPOCH_NAME, os.O_RDWR | os.O_NOFOLLOW)
    try:
        disk.pwrite(fd, encode_slot(ahead), ahead.slot * SLOT_SIZE)
        disk.fsync(fd)
    finally:
        disk.close(fd)


def _filler(before: Activation, slot: int) -> EpochRecord:
    return replace(before.record(), slot=slot, epoch=slot + 1)


def _check_unowned(disk: Disk, root_fd: int, before: Activation, number: int) -> None:
    """``before`` has its slot, and nobody has a record above it, up to ``number`` and beyond.

    Or ``FencedError``.

    Fillers of ``before`` itself are nobody's record: an earlier attempt left them.
    """
    fd = disk.open(root_fd, EPOCH_NAME, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        top = max(_scan(disk, fd).top, number)
        data = disk.pread(fd, (top + 1 - before.epoch) * SLOT_SIZE, before.epoch * SLOT_SIZE)
    finally:
        disk.close(fd)
    for slot in range(before.epoch + 1, top + 1):
        at = (slot - before.epoch) * SLOT_SIZE
        used = data[at : at + SLOT_SIZE]
        if not is_blank(used) and used != encode_slot(_filler(before, slot)):
            raise _overtaken(number, decode_slot(used, slot))
    if data[:SLOT_SIZE] != encode_slot(before.record()):
        raise _overtaken(number, decode_slot(data[:SLOT_SIZE], before.epoch))


def read_owner(disk: Disk, root_fd: int) -> EpochRecord | None:
    """Read the newest record: the owner's, or the last one's.

    ``None`` if no ftstan server ever owned the store.

    For messages, and to compare store ids; it proves nothing to a writer. Raises ``StoreError`` if
    storage refuses.
    """
    try:
        found = _look(disk, root_fd)
    except OSError as error:
        raise StoreError(
            f"{EPOCH_NAME}: {error.strerror or error}", hint="check the datastore's storage"
        ) from error
    if found is None or found.newest is None:
        return None
    # A filler on top says what its writer had seen, and whoever is below it may have recorded more
    # since.
    return replace(found.newest, ft_mixed=found.mixed)


def read_state(disk: Disk, root_fd: int) -> EpochState:
    """Read what there is of the epochs, for tools; it proves nothing to a writer.

    Raises ``StoreError``.
    """
    try:
        found = _look(disk, root_fd)
        claims = tuple(_claims(disk, root_fd, found.top if found else 0))
    except OSError as error:
        raise StoreError(
            f"{EPOCH_NAME}: {error.strerror or error}", hint="check the datastore's storage"
        ) from error
    if found is None:
        return EpochState(None, 0, claims, present=False)
    return EpochState(found.newest, found.top, claims, present=True)


def read_records(disk: Disk, root_fd: int, count: int) -> list[tuple[int, EpochRecord | None]]:
    """Read the newest ``count`` activations with their slots, newest first.

    ``None``: used, and cannot be read.

    Slots that a successor filled are left out: nobody served under their numbers. For people; it
    proves nothing to a writer. Raises ``StoreError`` if storage refuses.
    """
    try:
        top = _scan_path(disk, root_fd).top
        fd = disk.open(root_fd, EPOCH_NAME, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(
            f"{EPOCH_NAME}: {error.strerror or error}", hint="check the datastore's storage"
        ) from error
    records: list[tuple[int, EpochRecord | None]] = []
    try:
        while top > 0 and len(records) < count:
            low = max(top - _READ_SLOTS, 0)
            data = disk.pread(fd, (top - low) * SLOT_SIZE, (low + 1) * SLOT_SIZE)
            for slot in range(top, low, -1):
                part = data[(slot - low - 1) * SLOT_SIZE : (slot - low) * SLOT_SIZE]
                record = decode_slot(part, slot)
                if (
                    len(records) < count
                    and not is_blank(part)
                    and not (record and record.is_filler)
                ):
                    records.append((slot, record))
            top = low
    except OSError as error:
        raise StoreError(
            f"{EPOCH_NAME}: {error.strerror or error}", hint="check the datastore's storage"
        ) from error
    finally:
        disk.close(fd)
    return records


def remove_old_claims(
    disk: Disk, root_fd: int, activation: Activation, confirm: Callable[[], None]
) -> None:
    """Remove the claims below the current number: a late claimer of such a number finds our slot
    above its own.

    Raises ``FencedError`` through ``confirm``, and ``StoreError``.
    """
    try:
        old = [n for n in _claims(disk, root_fd, activation.epoch) if n < activation.epoch]
        if not old:
            return
        confirm()
        for number in old:
            # A successor may be tidying up at the same time: gone is what we want.
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(root_fd, _claim_name(number))
        disk.fsync(root_fd)
    except OSError as error:
        raise StoreError(
            f"old claims cannot be removed: {error.strerror or error}",
            hint="they are harmless; check the storage",
        ) from error


def _first_look(disk: Disk, root_fd: int, survey: Callable[[], Survey]) -> Survey | None:
    """Survey the store if no epoch was ever recorded in it, and see that there is an epoch file.

    Else ``None``.
    """
    claims = _claims(disk, root_fd, 0)
    found = _look(disk, root_fd)
    if found is None and claims:
        raise RecoveryError(
            f"{EPOCH_NAME} is missing, but {_claim_name(max(claims))} shows that this datastore "
            "had epochs",
            hint=REPAIR,
        )
    if found is not None and found.newest is not None:
        return None
    seen = survey()
    # The order matters: first the survey, then this look. No record now means that the survey saw
    # no slice of ours.
    found = _look(disk, root_fd)
    if found is not None and found.newest is not None:
        return None
    if seen.confirmed:
        raise RecoveryError(
            f"{EPOCH_NAME} {'is missing' if found is None else 'holds no readable record'}, but "
            "channel "
            f"{seen.confirmed[0]!r} was written under an epoch ({len(seen.confirmed)} such "
            "channels)",
            hint=REPAIR,
        )
    # Also if it is there: who made it may have died before its name was durable, and a claim must
    # not outlive it.
    _create(disk, root_fd)
    return seen


def _create(disk: Disk, root_fd: int) -> None:
    """Make an empty epoch file, durable before the first claim, so that a claim without the file
    means a loss.
    """
    try:
        fd = disk.open(root_fd, EPOCH_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
    except FileExistsError:
        # Somebody creates it right now; it is durable only when its directory is.
        disk.fsync(root_fd)
        return
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)
    disk.fsync(root_fd)


def _take_number(disk: Disk, root_fd: int, floor: int) -> int:
    """Claim a number above ``floor``, every slot and every claim, durably."""
    while True:
        top = max(floor, _scan_path(disk, root_fd).top)
        number = 1 + max(top, *_claims(disk, root_fd, top), 0)
        try:
            fd = disk.open(
                root_fd, _claim_name(number), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            )
        except FileExistsError:
            # Taken between the look and the try, or hidden by a stale listing: never the same
            # number again.
            floor = number
            continue
        disk.close(fd)
        # The name is the claim, and nothing is in the file: the sync of the directory makes all of
        # it durable.
        disk.fsync(root_fd)
        return number


def _write(disk: Disk, root_fd: int, activation: Activation, below: Mapping[int, bytes]) -> None:
    """Write the slots ``below`` our own, in their order, then ours.

    Also what others have there: whoever wrote it may have died before its sync, or have failed in
    it, and storage forgets it then. An owner that looks at that slot alone would be confirmed
    again, with us above it.
    """
    fd = disk.open(root_fd, EPOCH_NAME, os.O_RDWR | os.O_NOFOLLOW)
    try:
        for slot, data in below.items():
            disk.pwrite(fd, data.ljust(SLOT_SIZE, b"\0"), slot * SLOT_SIZE)
        if below:
            # Durable before our own slot is: a claimer that dies between the two must not leave a
            # blank slot under a record, where a late claimer's record would find an owner that
            # looks only at the next slot.
            disk.fsync(fd)
        disk.pwrite(fd, encode_slot(activation.record()), activation.epoch * SLOT_SIZE)
        disk.fsync(fd)
    finally:
        disk.close(fd)


def _read_back(disk: Disk, root_fd: int, activation: Activation) -> None:
    """Our record is there, through a fresh descriptor, and nothing is above it.

    Else ``FencedError``.
    """
    fd = disk.open(root_fd, EPOCH_NAME, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        found = _scan(disk, fd)
        own = disk.pread(fd, SLOT_SIZE, activation.epoch * SLOT_SIZE)
    finally:
        disk.close(fd)
    if found.top != activation.epoch or own != encode_slot(activation.record()):
        raise _overtaken(activation.epoch, found.on_top)


def _look(disk: Disk, root_fd: int) -> _Slots | None:
    """Scan the slots; ``None`` if there is no epoch file."""
    try:
        # Opened, not looked up: a network file system may remember for a while that a name did not
        # exist.
        return _scan_path(disk, root_fd)
    except FileNotFoundError:
        return None


def _scan_path(disk: Disk, root_fd: int) -> _Slots:
    # NONBLOCK: a pipe of that name must not hold up the start for ever.
    fd = disk.open(root_fd, EPOCH_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not disk.fstat(fd).is_file:
            raise OSError(
                errno.EINVAL, "it is no regular file: move it out of the datastore", EPOCH_NAME
            )
        return _scan(disk, fd)
    finally:
        disk.close(fd)


def _scan(disk: Disk, fd: int) -> _Slots:
    size = disk.fstat(fd).size
    if size > _MOST_BYTES:
        raise OSError(
            errno.EFBIG,
            f"it has {size} bytes, more than servers make it have: the storage has damaged it; cut "
            "the zeros at its end, or restore the datastore",
            EPOCH_NAME,
        )
    end = -(-size // SLOT_SIZE)
    # The size may be what this host remembers; what lies behind it is asked from storage.
    while disk.pread(fd, SLOT_SIZE, end * SLOT_SIZE):
        end += 1
    top = 0
    records = []
    blanks = []
    used = {}
    for slot in range(end - 1, 0, -1):
        data = disk.pread(fd, SLOT_SIZE, slot * SLOT_SIZE)
        if is_blank(data):
            if top:
                blanks.append(slot)
            continue
        top = top or slot
        used[slot] = data
        record = decode_slot(data, slot)
        if record is not None:
            records.append(record)
            if not record.is_filler:
                break
    return _Slots(top, tuple(records), tuple(blanks), used)


def _claims(disk: Disk, root_fd: int, top: int) -> list[int]:
    """Numbers that were claimed, ascending; ``top``: the highest used slot, 0 if none is known.

    Left out is what is no regular file, and what is so far above ``top`` that nobody claimed it in
    turn: filling the slots below would take the room. Nothing rests on it: claims are created
    exclusively, so no number is taken twice.
    """
    bound = top + _MOST_AHEAD if top else _MOST_CLAIM
    numbers = []
    for name, is_dir in disk.listdir(root_fd):
        match = None if is_dir else _CLAIM.fullmatch(name)
        if match is None or int(match[1]) > bound:
            continue
        with contextlib.suppress(FileNotFoundError):
            if disk.stat(root_fd, name).is_file:
                numbers.append(int(match[1]))
    return sorted(numbers)


def _claim_name(number: int) -> str:
    return f"ft.claim.{number}"


def _mixed(word: bool | None, found: _Slots, seen: Survey | None, *, in_group: bool) -> bool:
    if word is not None:
        return word
    if found.records:
        return found.mixed
    return in_group and seen is not None and seen.has_server


def _originals_through(number: int, found: _Slots, heard_under: int | None) -> int:
    """The last epoch below ``number`` behind which an original server may have served."""
    if found.mixed or heard_under is None:
        return number - 1
    return min(
        number - 1, max([heard_under, *(record.originals_through for record in found.records)])
    )


def _overtaken(number: int, by: EpochRecord | None) -> FencedError:
    winner = by.describe() if by and by.epoch != number else "a server whose record cannot be read"
    return FencedError(
        f"ft: epoch {number} was not obtained: it was overtaken by {winner}", hint=STAND_BY
    )
