"""RetainedSlices: the limits of a channel, and how slices go that hold nothing any more.

Messages go from the front and only in memory; files go later, whole, lowest number first, each
after a confirm and only when every lower number is durably gone, else removing a seal would bring
dead bytes back. The newest slice always stays: it remembers the last sequence. ``upkeep.py`` says
when.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError, StoreError
from ftstan.base.log import stream as log
from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import Slice, SliceView, dat_name, idx_name, show
from ftstan.stores.file.regular import open_file
from ftstan.stores.file.state.statefile import read_file
from ftstan.stores.limits import reached_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.interface import ChannelLimits

#: What is added to the names of a slice that the archive script gets.
ARCHIVED = ".bak"

_ENTRY = records.INDEX_SIZE
#: Index entries read at once to see which messages go.
_LOOK = 4096
_EXPIRY_RETRY_NS = 5_000_000_000


class RetainedSlices(SliceView):
    """What a channel keeps of its messages."""

    def __init__(self, env: FileEnv, name: bytes, limits: ChannelLimits) -> None:
        super().__init__(env, name)
        self.limits = limits
        self.dead: set[int] = set()
        """Numbers of slices none of whose records counts."""
        self.limits_hit = False
        self.unsure: set[int] = set()
        """Slices whose index may never become durable as it is: a clean stop writes it anew from
        the data.
        """
        self.look_again = 0
        """When the age limit may next allow less (Unix ns).

        0: not before there are other messages.
        """
        self.purged = 0
        """Up to this sequence everything was purged, as the channel's mark says.

        0: there is none.
        """
        self.missing_from = 0
        """From this sequence on messages are missing in front of all others; 0: none are."""
        self._complaint = ""

    # ---- limits
    # ----------------------------------------------------------------------------------------------

    def set_limits(self, limits: ChannelLimits) -> None:
        """The limits from now on; nothing is dropped yet, and the first drop is told again."""
        self.limits = limits
        self.limits_hit = False
        self.look_again = 0

    def enforce(self, *, warn: bool = False) -> None:
        """Drop the oldest messages until count and bytes fit; the newest always stays.

        ``warn``: say so the first time. An index that cannot be read stops this, never the publish
        that caused it.
        """
        limits = self.limits
        while self.count > 1 and (
            (limits.max_msgs and self.count > limits.max_msgs)
            or (limits.max_bytes and self.size > limits.max_bytes)
        ):
            if warn and not self.limits_hit:
                self.limits_hit = True
                log.warning(
                    reached_limits(show(self.name), self.count, self.size, limits),
                    channel=show(self.name),
                )
            excess = self.count - limits.max_msgs if limits.max_msgs else 0
            try:
                self._drop_from_head(
                    max(excess, 0), max(self.size - limits.max_bytes, 0) if limits.max_bytes else 0
                )
            except (OSError, DamageError) as error:
                if not self._head_is_gone(error):
                    self._complain(f"Unable to remove first message: {error}")
                    return

    def expire(self, now_ns: int) -> None:
        """Drop messages that are older than the age limit, from the front, up to the first that is
        not.
        """
        age = self.limits.max_age
        if not age or now_ns < self.look_again:
            return
        while self.count:
            s = self._head()
            try:
                index, _ = self._entries_from(s, self.first, _LOOK)
            except (OSError, DamageError) as error:
                if self._head_is_gone(error):
                    continue
                self._complain(f"Error during expiration: {error}")
                self.look_again = now_ns + _EXPIRY_RETRY_NS
                return
            k = records.first_younger(index, now_ns - age + 1)
            if k:
                self._advance(index, k, s)
            if k * _ENTRY < len(index):
                self.look_again = records.entry(index, k)[2] + age
                return
        self.look_again = 0

    def drop_through(self, sequence: int) -> None:
        """Drop every message up to ``sequence``.

        Never fails: what an index does not say is estimated.
        """
        if not self.count or self.first > sequence:
            return
        later = [s for s in self.slices if s.last > sequence]
        if not later:
            self.count = self.size = 0
            self.first = self.last + 1
        elif self.first < later[0].first:
            self.count = sum(s.entries for s in later)
            self.size = sum(s.size for s in later)
            self.first = later[0].first
        while self.count and self.first <= sequence:
            s = self._head()
            try:
                index, _ = self._entries_from(s, self.first, _LOOK)
            except (OSError, DamageError) as error:
                if not self._head_is_gone(error):
                    self._complain(f"Unable to remove first message: {error}")
                    self._drop_uncounted(sequence)
                continue
            k = records.find_entry(index, sequence + 1)
            if k:
                self._advance(index, k, s)
            else:
                # Sequences are missing behind what was dropped last.
                self.first = records.entry(index, 0)[0]

    def _drop_uncounted(self, sequence: int) -> None:
        """``drop_through`` in the slice that holds ``sequence``, by sequences only: its index
        cannot be read.
        """
        gone = min(sequence + 1 - self.first, self.count - 1)
        self.size -= self.size * gone // self.count
        self.count -= gone
        self.first = sequence + 1

    def _head_is_gone(self, error: Exception) -> bool:
        """Whether ``error`` was that a former owner removed the oldest slice, which has been
        dropped then.
        """
        try:
            return isinstance(error, FileNotFoundError) and self.drop_gone()
        except OSError:
            return False

    def drop_gone(self) -> bool:
        """Look whether the oldest slice is still there.

        If its data is not, its messages are dropped.

        A former owner that was paused between its confirm and its unlink removes what its limits
        had retired, even after we have listed it. Without its index, which goes first, the slice is
        read through its data until that goes, too. Returns whether anything has changed: never in
        the datastore of a node of a cluster, where nobody else removes anything. ``OSError`` passes
        through.
        """
        if self._env.options.replayed:
            return False
        s = self._head() if self.count else None
        later = [] if s is None else self.slices[self.slices.index(s) + 1 :]
        if s is None or not later:
            return False
        if self._env.is_there(self.dirfd, dat_name(s.number)):
            if (
                s.index is not None
                or not s.contiguous
                or self._env.is_there(self.dirfd, idx_name(s.number))
            ):
                return False
            s.index = self.index_from_data(s)
            return len(s.index) == s.entries * _ENTRY
        log.warning(
            f'channel "{show(self.name)}": {dat_name(s.number)} is gone: a former owner removed '
            "what the limits had "
            f"retired; the log starts at sequence {later[0].first}"
        )
        self.first = later[0].first
        self.count = sum(x.entries for x in later)
        self.size = sum(x.size for x in later)
        return True

    def index_from_data(self, s: Slice) -> bytes:
        """The entries of a slice, made anew from its records."""
        data = self._pread(
            s, dat_name(s.number), s.end - records.VERSION_SIZE, records.VERSION_SIZE
        )
        block, _, _ = records.scan_data(
            data, self.name, s.first - 1, self._env.crc, self._env.options.check_crc
        )
        return records.index_entries(block, 0, len(block), records.VERSION_SIZE, self._env.crc)

    def _complain(self, text: str) -> None:
        """An error that comes back with every batch is told once."""
        if text != self._complaint:
            log.error(text)
            self._complaint = text

    def _head(self) -> Slice:
        """The slice that holds the first live message."""
        for s in self.slices:
            if s.last >= self.first:
                return s
        raise StoreError(f'channel "{show(self.name)}": no slice holds sequence {self.first}')

    def _drop_from_head(self, excess_msgs: int, excess_bytes: int) -> None:
        s = self._head()
        guess = max(excess_msgs, excess_bytes * self.count // self.size + 8) + 1
        index, _ = self._entries_from(s, self.first, min(guess, _LOOK))
        most = min(len(index) // _ENTRY, self.count - 1)
        freed = 0
        k = 0
        while k < most and (k < excess_msgs or freed < excess_bytes):
            freed += records.entry(index, k)[3] + 40
            k += 1
        self._advance(index, k, s)

    def _advance(self, index: bytes, k: int, s: Slice) -> None:
        """The first ``k`` messages of ``index``, which starts at the first live one, in slice
        ``s``, are gone.
        """
        _, start, _, _ = records.entry(index, 0)
        sequence, offset, _, size = records.entry(index, k - 1)
        self.count -= k
        self.size -= offset + 8 + size - start + 32 * k
        if sequence < s.last:
            self.first = records.entry(index, k)[0] if k * _ENTRY < len(index) else sequence + 1
        else:
            later = self.slices[self.slices.index(s) + 1 :]
            self.first = later[0].first if later else self.last + 1

    # ---- removal
    # ----------------------------------------------------------------------------------------------

    @property
    def retired(self) -> bool:
        """Whether ``removable`` may have something to say: cheap enough to ask every channel every
        second.
        """
        return bool(self.dead) or (len(self.slices) > 1 and self.slices[0].last < self.first)

    @property
    def floor(self) -> int:
        """The first sequence of the slices that stay when ``removable`` ones are gone, or of those
        that are missing; 0 without any.
        """
        if self.missing_from:
            return self.missing_from
        stays = next((s for s in self.slices if s.last >= self.first), None)
        if stays is None and self.slices:
            stays = self.slices[-1]
        return stays.first if stays is not None else 0

    def removable(self) -> list[int]:
        """Numbers of the slices that may be unlinked now, in the order in which they must go."""
        live = {s.number: s for s in self.slices}
        keep = self.slices[-1].number if self.slices else 0
        out = []
        for number in sorted(self.dead | set(live)):
            if number not in self.dead and (number == keep or live[number].last >= self.first):
                break
            out.append(number)
        return out

    def remove(
        self, numbers: list[int], archive: Callable[[bytes, int], None] | None = None
    ) -> None:
        """Remove slices that ``removable`` named; each only after the lower ones are durably gone.

        With ``archive`` a slice whose messages counted is set aside under its ``.bak`` names, and
        ``archive(channel, number)`` is called; if that cannot be done it stays. What was purged is
        not archived. Raises ``OSError`` and ``FencedError``.
        """
        disk = self._env.disk
        for number in numbers:
            names = (idx_name(number), dat_name(number))
            self.let_go(number)
            # Asked for before the confirm: it is the directory that was ours when the store was.
            dirfd = self.dirfd
            known = next(
                (s for s in self.slices if s.number == number and s.last > self.purged), None
            )
            waits = False
            if archive is not None and known is not None:
                waits = self._set_aside(dirfd, known)
            else:
                self._env.owner.confirm()
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        disk.unlink(dirfd, name)
                    if number in self.dead and name is names[0]:
                        # A refused batch may have an index: a successor believes it then, and
                        # without one copies it.
                        disk.fsync(dirfd)
                        self._env.owner.confirm()
            disk.fsync(dirfd)
            self.dead.discard(number)
            self.unsure.discard(number)
            self.slices = [s for s in self.slices if s.number != number]
            if archive is not None and waits:
                archive(self.name, number)

    def _set_aside(self, dirfd: int, s: Slice) -> bool:
        """Rename both files of a slice, the index first: a start reads data without one.

        Returns whether they are there for the script.
        """
        disk = self._env.disk
        owner = self._env.owner
        try:
            size = self._env.size_of(dirfd, dat_name(s.number))
        except FileNotFoundError:
            return self._was_set_aside(dirfd, s.number)
        if size > s.end:
            fd = open_file(disk, dirfd, dat_name(s.number), os.O_RDWR)
            try:
                # Opened by path and confirmed after that: so this is our file, not a successor's.
                owner.confirm()
                # What a former owner wrote behind its seal is not part of what is archived.
                disk.ftruncate(fd, s.end)
                disk.fsync(fd)
            finally:
                disk.close(fd)
        bak = f"{idx_name(s.number)}{ARCHIVED}"
        index = s.index if s.index is not None else self._kept_entries(s)
        # What was read just now is open again.
        self.let_go(s.number)
        if index is not None:
            # The file of that name does not say what counts: the archive gets one that does.
            temporary = self._env.temporary(idx_name(s.number))
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(dirfd, temporary)
            fd = disk.open(dirfd, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                disk.pwrite(fd, records.VERSION + index, 0)
                disk.fsync(fd)
            finally:
                disk.close(fd)
            owner.confirm()
            disk.rename(dirfd, temporary, bak)
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(dirfd, idx_name(s.number))
        else:
            owner.confirm()
            try:
                disk.rename(dirfd, idx_name(s.number), bak)
            except FileNotFoundError:
                # Renamed by an attempt that failed after it, else there is nothing to archive with.
                if not self._env.is_there(dirfd, bak):
                    raise
        owner.confirm()
        disk.rename(dirfd, dat_name(s.number), f"{dat_name(s.number)}{ARCHIVED}")
        return True

    def _was_set_aside(self, dirfd: int, number: int) -> bool:
        """Finish with a slice whose data has gone already.

        Returns whether both files are there for the script.

        An attempt of ours renamed it and could not sync the directory, or a former owner did it
        late. Without the data there is nothing to archive: that former owner had no script, or a
        script has taken it since.
        """
        idx = idx_name(number)
        aside = {name for name, _ in self._env.disk.listdir(dirfd)}
        is_kept = f"{dat_name(number)}{ARCHIVED}" in aside
        if idx in aside:
            self._env.owner.confirm()
            if is_kept and f"{idx}{ARCHIVED}" not in aside:
                # The original renames the data first.
                self._env.disk.rename(dirfd, idx, f"{idx}{ARCHIVED}")
                return True
            # Else it would stay for ever: no slice has it any more.
            self._env.disk.unlink(dirfd, idx)
        return is_kept and f"{idx}{ARCHIVED}" in aside

    def _kept_entries(self, s: Slice) -> bytes | None:
        """The entries that count, if the index file has others too, or may not be on the disk."""
        wanted = records.VERSION_SIZE + s.entries * _ENTRY
        if s.number in self.unsure:
            return self.index_from_data(s)
        found = read_file(self._env, self.dirfd, idx_name(s.number))
        return (
            found[records.VERSION_SIZE : wanted]
            if found is not None and len(found) > wanted
            else None
        )
