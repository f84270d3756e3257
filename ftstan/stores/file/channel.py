"""FileChannel: one channel of the file store, its slices and its ``subs.dat``.

Stages what the broker applied, writes it when the store commits, and says which descriptors must be
synced. Never syncs for a publisher by itself, and never touches a file of another channel: both are
the store's part.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from ftstan.base.errors import DamageError, RefusedError, StoreFullError
from ftstan.base.log import stream as log
from ftstan.stores.file import directory
from ftstan.stores.file.dirty_channels import Unsynced
from ftstan.stores.file.env import FileEnv, is_full
from ftstan.stores.file.log import exact, moved_mark, purging, records
from ftstan.stores.file.log.slices import SliceLog, show, store_error
from ftstan.stores.file.recovery import opening, quarantine
from ftstan.stores.file.retry_backoff import RetryBackoff
from ftstan.stores.file.state import state_records, state_recovery
from ftstan.stores.file.state.compaction_due import Compaction
from ftstan.stores.file.state.confirmed import ConfirmedFile
from ftstan.stores.file.state.statefile import StateFile
from ftstan.stores.interface import ChannelEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ftstan.base.errors import StoreError
    from ftstan.stores.file.dirty_channels import Register
    from ftstan.stores.file.recovery.opening import Reading
    from ftstan.stores.file.state.statefile import Replacement
    from ftstan.stores.interface import ChannelLimits, StoredSub, SubState
    from ftstan.wire.block import MsgBlock, SubEvents

#: Descriptors of one channel: its directory, data, index and subscriptions.
_A_CHANNEL = 4
T = TypeVar("T")


class FileChannel:
    """One channel: its slices and its ``subs.dat``. Implements ``ChannelStore``."""

    def __init__(
        self, env: FileEnv, name: bytes, limits: ChannelLimits, register: Register[FileChannel]
    ) -> None:
        self._env = env
        self._register = register
        self.name = name
        self.snapshot: Callable[[], Iterable[StoredSub]] | None = None
        self.log = SliceLog(env, name, limits)
        self.next_sub_id = 1
        self.mover: bytes | None = None
        self.untouched = False
        """Whether its files are those of the last clean stop, as far as this process is
        concerned.
        """
        self._subs_durable = False
        """Whether what was found in ``subs.dat`` is durable, and not only in this host's memory."""
        self.created = False
        """Whether the channel has a directory."""
        self.quarantined = False
        """Whether its files are damaged: they are read and never written."""
        self.confirmed = ConfirmedFile(env)
        self._patience = RetryBackoff(env.clock)
        self._is_found = False
        """Whether it was there when the store was opened."""
        self._recovered: dict[int, StoredSub] | None = {}
        """What recovery found, until the file has been replaced."""
        self._subs = StateFile(env, lambda: self.log.dirfd, "subs.dat", self._write_state, name)
        self._compaction = Compaction(env.options, env.clock)
        self._rewrite = False
        """Whether the file must be replaced soon: it does not hold what was answered."""
        self._live = 0
        self._controls: list[bytes] = []
        self._controls_written = False
        self._events = bytearray()
        self._unmended = ""
        """Why what a refused batch left could not be taken away, as it was told."""
        self._unreadable: set[int] = set()
        """Sequences that were found unreadable, and told."""

    @property
    def limits(self) -> ChannelLimits:
        """The limits in force."""
        return self.log.limits

    def set_limits(self, limits: ChannelLimits) -> None:
        """The limits from now on; what they no longer allow goes with the next tick."""
        if limits != self.log.limits:
            self.log.set_limits(limits)
            self._register.expiry.look(self.name, 0)

    @property
    def first(self) -> int:
        """Sequence of the first available message."""
        return self.log.first

    @property
    def last(self) -> int:
        """Sequence of the last durable message."""
        return self.log.last

    @property
    def count(self) -> int:
        """Available messages."""
        return self.log.count

    @property
    def size(self) -> int:
        """Payload bytes plus 40 a message."""
        return self.log.size

    @property
    def last_timestamp(self) -> int:
        """Timestamp of the last message in nanoseconds, 0 if there never was one."""
        return self.log.last_timestamp

    def _give_up_directory(self, error: OSError) -> None:
        """Raise ``error``, unless it says that the directory is gone, which held nothing: it is
        made again then.
        """
        # Subscriptions found, or a file written: that was no empty directory.
        if self._recovered != {} or not directory.is_gone(self._env, self.log, error):
            raise error
        self.created = False

    def recover(self, reading: Reading) -> None:
        """Take over what was read of the channel. Raises ``OSError`` and ``FencedError``."""
        self.created = self._is_found = True
        self.quarantined = opening.settle(self._env, self.log, self.confirmed, reading)
        self.untouched = self._subs_durable = reading.entry is not None
        self._recovered = reading.subs.subs
        self.mover = reading.mover
        self.next_sub_id = reading.subs.highest + 1
        if reading.measured.foreign and not self.quarantined:
            self._register.touch(
                self
            )  # confirmed.bin has to say it, else every later start is as careful as this

    def _write_state(self) -> bytes:
        """The records of the present subscriptions."""
        if self.snapshot is not None:
            subs = {stored.state.sub_id: stored for stored in self.snapshot()}
        else:
            subs = self._stored_subs() if self._recovered is None else self._recovered
        self._live = sum(1 + len(stored.pending) for stored in subs.values())
        return state_records.snapshot_subs(subs, self.next_sub_id - 1, self._env.crc)

    def _stored_subs(self) -> dict[int, StoredSub]:
        """The subscriptions that the file holds, for when there is no broker."""
        return state_recovery.read_subs(self._env, self.name, self.log.dirfd).subs

    def keep(self) -> None:
        """Stage the channel's directory, and its ``subs.dat``."""
        self._stage()
        self._controls.append(b"")

    def append(self, block: MsgBlock) -> None:
        """Stage messages."""
        self._stage()
        self.log.append(block)

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """Messages from the first existing one at or after ``sequence``."""
        self._env.files.trim(_A_CHANNEL)
        try:
            if not self.quarantined:
                try:
                    return self._past_gone(lambda: self.log.read(sequence, max_msgs, max_bytes))
                except DamageError as error:
                    self._quarantine(error)
                except FileNotFoundError as error:
                    if not self._env.options.replayed:
                        raise
                    self._quarantine(DamageError(f"{error.filename} is gone"))
            return quarantine.read_around(
                self._env,
                self.log,
                sequence,
                max_msgs=max_msgs,
                max_bytes=max_bytes,
                told=self._unreadable,
            )
        except OSError as error:
            raise store_error(
                error, f'channel "{show(self.name)}": reading sequence {sequence}'
            ) from error

    def _past_gone(self, read: Callable[[], T]) -> T:
        while True:
            try:
                return read()
            except FileNotFoundError:
                if not self.log.drop_gone():
                    raise

    def sequence_at(self, timestamp: int) -> int:
        """First sequence at or after a time in nanoseconds."""
        self._env.files.trim(_A_CHANNEL)
        try:
            return self._past_gone(lambda: self.log.sequence_at(timestamp))
        except OSError as error:
            raise store_error(error, f'channel "{show(self.name)}": reading its index') from error

    def _stage(self) -> None:
        self._register.staged[self.name] = self
        self._register.touch(self)

    def add_sub(self, state: SubState) -> None:
        """Stage a new subscription."""
        self._stage()
        self._controls.append(state_records.sub_record(records.SUB_NEW, state, self._env.crc))
        self._compaction.stage(1, 0)
        self.next_sub_id = max(self.next_sub_id, state.sub_id + 1)

    def update_sub(self, state: SubState) -> None:
        """Stage the new state of a subscription."""
        self._stage()
        self._controls.append(state_records.sub_record(records.SUB_UPDATE, state, self._env.crc))
        self._compaction.stage(1, 1)

    def delete_sub(self, sub_id: int) -> None:
        """Stage the end of a subscription."""
        self._stage()
        self._controls.append(state_records.sub_delete_record(sub_id, self._env.crc))
        self._compaction.stage(0, 1)

    def add_events(self, events: SubEvents) -> None:
        """Stage sent and acknowledged sequences; leaves ``events`` empty."""
        if self.quarantined:
            events.clear()
            return
        self._register.touch(self)
        if self.snapshot is not None and not self._subs.replaced:
            # The file will be written from what the broker knows then: kept here, they would only
            # fill the memory while storage has no space.
            acked = events.count_acked()
            events.clear()
            self._replace_soon()
            self._register.late(self, acked=bool(acked))
            return
        self._register.events[self.name] = self
        acked = events.count_acked()
        self._compaction.stage(len(events) - acked, acked)
        self._events += records.encode_events(events, self._env.crc)

    def recovered_subs(self) -> Sequence[StoredSub]:
        """The subscriptions found at recovery, until the file is replaced."""
        return list((self._recovered or {}).values())

    def replace_recovered(self, *, also_empty: bool = False) -> None:
        """Have the ``subs.dat`` that a killed owner left replaced soon.

        What it says may be in some memory only, and records of former owners that come late still
        go there. ``also_empty``: for an original server, who goes on in a file without
        subscriptions, too.
        """
        wanted = (
            self._is_found and self._recovered is not None if also_empty else bool(self._recovered)
        )
        if wanted and not (self._subs.replaced or self._subs_durable):
            self._replace_soon()

    def purge(self, sequence: int) -> None:
        """Drop every message up to ``sequence`` for good.

        Raises ``StoreError`` and ``FencedError``.
        """
        if self.quarantined:
            raise quarantine.refusal(self.name)
        if self.created:
            self._env.files.trim(_A_CHANNEL)
            self._register.touch(self)
            try:
                if self._env.options.replayed:
                    # The purge may write down where the log ends.
                    self.sync()
            except OSError as error:
                raise store_error(error, f'channel "{show(self.name)}" cannot be synced') from error
            purging.purge(self._env, self.log, self.confirmed, sequence)

    def set_moved(self, mover: bytes | None) -> None:
        """Mark the channel as one that has moved, or as one that takes publishes again.

        Raises ``RefusedError``, ``StoreError`` and ``FencedError``.
        """
        if self.quarantined:
            raise quarantine.refusal(self.name)
        if mover is not None and self._env.owner.mixed:
            raise RefusedError(
                "in a mixed group no channel can be marked as moved: an original server would "
                "serve it all the same",
                hint="when the last original member has gone: ftstanctl ft mixed off",
            )
        if not self.created:
            raise RefusedError(
                f'channel "{show(self.name)}" holds nothing yet',
                hint="delete it instead: ftstanctl channel delete",
            )
        self._env.files.trim(_A_CHANNEL)
        self._register.touch(self)
        try:
            if mover is not None:
                # What is told as the final sequence is it only when no former owner can write
                # behind it any more, and nothing that was refused lies there.
                self.log.end_inherited()
                exact.end_refused(self._env, self.log)
            moved_mark.write(self._env, self.log.dirfd, mover)
        except OSError as error:
            # Behind its rename the mark is what the next start finds.
            with contextlib.suppress(OSError):
                self.mover = moved_mark.read(self._env.disk, self.log.dirfd)[0]
            raise store_error(
                error, f'channel "{show(self.name)}": {moved_mark.NAME} cannot be written'
            ) from error
        self.mover = mover

    def _quarantine(self, error: DamageError) -> None:
        """Write nothing more to this channel: serving it met damage."""
        self.quarantined = True
        quarantine.met(self.name, error)

    def expire(self, now_ns: int) -> None:
        """Apply the limits."""
        self.log.enforce()
        self.log.expire(now_ns)
        if self.log.retired:
            self._register.waste[self.name] = self
        if self.log.look_again:
            self._register.expiry.look(self.name, self.log.look_again)

    @property
    def end(self) -> ChannelEnd:
        """Where the channel's files end, for standbys that read ahead."""
        top = self.log.slices[-1] if self.log.slices else None
        index = records.VERSION_SIZE + records.INDEX_SIZE * top.entries if top is not None else 0
        return ChannelEnd(self.name, self.log.last, top.number if top is not None else 0, index)

    @property
    def intact(self) -> bool:
        """Whether it has files, and may write to them."""
        return self.created and not self.quarantined

    @property
    def has_controls(self) -> bool:
        """Whether the next commit has subscriptions to write."""
        return bool(self._controls)

    @property
    def staged(self) -> bool:
        """Whether the next commit has something to write here."""
        return self.log.staged or bool(self._controls)

    @property
    def unsettled(self) -> bool:
        """Whether anything is still in memory only."""
        return (
            self.staged or self._rewrite or bool(self._events or (self.log.refused and self.intact))
        )

    # ---- the commit
    # ----------------------------------------------------------------------------------------------

    def write(self) -> list[Unsynced[FileChannel]]:
        """Write what is staged; returns what must be synced.

        Raises ``OSError`` and ``StoreError``.
        """
        if self.quarantined:
            raise quarantine.refusal(self.name)
        self._patience.check()
        try:
            return self._write()
        except OSError as error:
            self._give_up_directory(error)
        # Nothing was written, and all of it is still staged.
        return self._write()

    def _write(self) -> list[Unsynced[FileChannel]]:
        if not self.created:
            directory.make(self._env, self.log)
            self.created = True
        if self.log.staged and self._env.owner.mixed and self.log.refused:
            # Before anything is acknowledged behind it: an original server would find it under the
            # same sequences.
            exact.mend(self._env, self.log)
        fd = self.log.write()
        out = [] if fd is None else [Unsynced(fd, self)]
        if self._controls:
            fd = self._write_subs(b"".join(self._controls))
            self._controls.clear()
            self._controls_written = True
            if fd is not None:
                out.append(Unsynced(fd, self, self._subs))
        return out

    def _write_subs(self, controls: bytes) -> int | None:
        """Write the events and ``controls`` behind them."""
        first = not self._subs.replaced
        # What the broker says has all of it already.
        fd = self._subs.append(
            b"" if first and self.snapshot is not None else bytes(self._events) + controls
        )
        self._subs_written(first=first)
        return fd

    def _subs_written(self, *, first: bool) -> None:
        self._events.clear()
        # They are in the file now, which has been replaced at the latest by this call.
        self._recovered = None
        self._rewrite = False
        if first:
            self._compaction.start(self._live)
        if first and self.snapshot is not None:
            self._compaction.forget()
        self._compaction.written()

    def finish(self) -> int | None:
        """What was written is durable.

        Returns the descriptor of the index if it must be synced before the ack.
        """
        fd = self.log.finish()
        self._controls_written = False
        if fd is None:
            self._patience.granted()
        return fd

    def index_synced(self) -> None:
        """The index that ``finish`` named is synced."""
        self.log.index_synced()
        self._patience.granted()

    def fail(self, error: StoreError) -> None:
        """Forget what was staged, and never write again to the files that failed."""
        self._patience.refused(error)
        self.log.fail()
        if (self._controls or self._controls_written) and not self.quarantined:
            # What the file says is not what is answered now, whichever of the two came to an end
            # first.
            self._subs.distrust()
            self._replace_soon()
            self._controls_written = False
        self._controls.clear()
        self._compaction.forget()

    def restore_state(self) -> None:
        """If ``subs.dat`` is not the file that we write to any more, see that it is written again
        from memory.

        Raises ``OSError``.
        """
        if self.intact and self.snapshot is not None and self._subs.is_displaced():
            log.warning(
                f'channel "{show(self.name)}": subs.dat was replaced by somebody: written again '
                "from memory"
            )
            self._subs.distrust()
            self._replace_soon()

    def _replace_soon(self) -> None:
        self._rewrite = True
        self._register.touch(self)

    def leave(self, item: Unsynced[FileChannel]) -> None:
        """A file could not be synced in the background: it is not written again, and what is staged
        stays staged.
        """
        if item.state is not None:
            item.state.distrust()
            self._replace_soon()
        else:
            self.log.lose_index()

    def write_events(self) -> None:
        """Hand the events to the file system, if the file has been replaced already.

        Raises ``OSError``.
        """
        if self._events and self._subs.replaced and not self.quarantined:
            self._write_events()

    def sync_events(self) -> None:
        """Make the events durable. Raises ``OSError``."""
        try:
            self._subs.sync()
        except OSError as error:
            self._replace_soon()
            if not is_full(error):
                raise

    def _write_events(self) -> None:
        with self._waiting_for_space():
            self._write_subs(b"")

    @contextlib.contextmanager
    def _waiting_for_space(self) -> Iterator[None]:
        """Without space events wait: nobody was promised that they are durable.

        Most other errors pass through.
        """
        try:
            yield
        except StoreFullError:
            self._replace_soon()
        except OSError as error:
            if is_full(error):
                self._replace_soon()
            else:
                self._give_up_directory(error)

    # ---- replacing many files at once
    # ----------------------------------------------------------------------------

    @property
    def is_late(self) -> bool:
        """Whether something waits for ``subs.dat`` to be replaced, and it can be."""
        wanted = self._rewrite or bool(self._events)
        return wanted and self.intact and not self._subs.replaced and not self._controls

    def prepare_subs(self) -> Replacement | None:
        """The new ``subs.dat`` if one is wanted.

        Once it was made, or refused, ``adopt_subs`` comes next.

        Raises ``OSError``.
        """
        if self.is_late:
            with self._waiting_for_space():
                # What the broker says has the events already.
                return self._subs.prepare(b"" if self.snapshot is not None else bytes(self._events))
        return None

    def adopt_subs(self, made: Replacement) -> None:
        """Go on with the ``subs.dat`` that was made. Raises the ``OSError`` of one that was not."""
        with self._waiting_for_space():
            self._subs.adopt(made)
            self._subs_written(first=True)

    # ---- once a second
    # -------------------------------------------------------------------------------------------

    def settle(self, *, mend: bool = True) -> None:
        """Write what no commit waited for; ``mend``: doubtful indexes in a mixed group, too.

        Raises ``OSError``.
        """
        if self.quarantined:
            self._events.clear()
            self._rewrite = False
            return
        if not self.created:
            # Nothing was ever stored, and perhaps nothing can be: a file of the store may have this
            # name.
            self._events.clear()
            self._rewrite = False
        if (self._events or self._rewrite) and not self._controls:
            self._write_events()
        if self.created and self.log.refused:
            # Also when the group is not mixed any more: entries that are ahead of their data prove
            # nothing.
            self._mend()
        if (
            mend
            and self._env.owner.mixed
            and self.log.unsure
            and self.created
            and not self.log.refused
        ):
            # An original server that follows a crash believes the index, and nothing behind it.
            exact.make_slices_exact(self._env, self.log)
        if self._compaction.may(self._subs.size) and self._subs.replaced and not self.staged:
            self._compact()

    def _mend(self) -> None:
        try:
            exact.mend(self._env, self.log)
        except (OSError, DamageError) as error:
            why = error.text if isinstance(error, DamageError) else error.strerror or str(error)
            if why != self._unmended:
                self._unmended = why
                exact.report(f'channel "{show(self.name)}": what a refused batch left', why)
        else:
            self._unmended = ""

    def _compact(self) -> None:
        if not self._compaction.worth():
            return
        try:
            self._subs.replace(bytes(self._events), keep=True)
        except StoreFullError:
            return
        except OSError as error:
            log.warning(
                f'channel "{show(self.name)}": subs.dat cannot be compacted: '
                f"{error.strerror or error}"
            )
            return
        self._events.clear()
        self._compaction.done(self._live)
        self._compaction.written()

    def unsynced(self) -> list[Unsynced[FileChannel]]:
        """The files that were written and not synced yet. Raises ``OSError``."""
        out = []
        fd = self._subs.unsynced()
        if fd is not None:
            out.append(Unsynced(fd, self, self._subs))
        fd = self.log.unsynced_index()
        if fd is not None:
            out.append(Unsynced(fd, self))
        return out

    def synced(self) -> None:
        """The files that ``unsynced`` named are synced."""
        self._subs.synced()
        self.log.index_synced()

    def sync(self) -> None:
        """Make everything durable, whatever the options say. Raises ``OSError``."""
        self.log.sync()
        self._subs.sync()

    # ---- the end
    # ----------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Write and sync what is left, release every handle.

        Returns whether the files are exact for the original.
        """
        self.replace_recovered(also_empty=True)
        self.settle()
        self.sync()
        done = True
        if self.created and not self.quarantined:
            durable = self._subs_durable or self._subs.replaced
            done = purging.tidy(self._env, self.log, self.confirmed)
            done = exact.make_channel_exact(self._env, self.log, state_durable=durable) and done
        self.release()
        return done

    def park(self) -> None:
        """Close every handle; each is opened again when it is needed."""
        self._subs.park()
        self.log.park()

    def release(self) -> None:
        """Release every handle and write nothing; what is needed is opened again."""
        self._subs.park()
        self.log.park()
        self._env.files.forget(self.name)
