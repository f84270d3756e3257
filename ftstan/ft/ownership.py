"""StoreOwner: lock, epoch and confirmation of one datastore directory, as one thing that the data
plane holds.

Implements ``stores.file.env.Ownership``. Order is everything: lock, claim, record durable, and only
then may anything of the store be measured or read. All calls belong to the data plane's thread;
each may block on storage.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.admin.keys import Keys, ensure_key, read_keys, rotate_key
from ftstan.base.errors import (
    ConfigError,
    FencedError,
    LockBusyError,
    LockFaultError,
    ReleasedError,
    StoreError,
)
from ftstan.base.log import stream as log
from ftstan.ft.direct import asking_disk
from ftstan.ft.epoch import (
    EPOCH_NAME,
    Activation,
    claim,
    claim_next,
    read_owner,
    read_records,
    remove_old_claims,
)
from ftstan.ft.epoch_records import SLOT_SIZE, Cause, Ending
from ftstan.ft.fencing_check import Confirmer
from ftstan.ft.lock import StoreLock
from ftstan.ft.modes import cure, make_directories
from ftstan.ft.mounts import find_mount, mount_of
from ftstan.ft.moves import read_moves, settle_moves, take_up_moves, write_moves
from ftstan.ft.survey import SERVER_NAME, survey_store
from ftstan.ft.watch import WATCH_NAME, decode_watch, departure, farewell, last_word

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.ft.epoch import LostEpochs
    from ftstan.ft.epoch_records import EpochRecord
    from ftstan.ft.mounts import Mount
    from ftstan.ft.moves import Moves
    from ftstan.ft.survey import Survey

_WATCH_READS = 3


@dataclass(frozen=True, slots=True)
class StoreLook:
    """What a directory showed: the id of its datastore, empty for none, and the newest epoch
    record.

    ``served``: somebody has served from here, be it an original server, which gives a store no id.
    ``elsewhere``: the path does not name the directory any more that is open (and locked); what it
    names instead, if anything, was not looked into.
    """

    store_id: bytes = b""
    owner: EpochRecord | None = None
    served: bool = False
    elsewhere: bool = False


class _Tenure:
    """The time from an activation to the release behind it, over every epoch that is taken in it.

    ``lost``: why it is over. It stays set: no later look at storage can undo it, and whoever comes
    back late from storage ends the tenure that it asked about, not the next one.
    """

    __slots__ = ("lost",)

    def __init__(self) -> None:
        self.lost: FencedError | None = None


def _any_will_do(_mount: Mount, _root: int) -> None:
    """Whoever starts a tool has chosen the directory."""


class StoreOwner:
    """The right of this process to write to the directory ``path``.

    Implements ``ft.owned.Owner``.
    """

    has_directory = True

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        server_id: str,
        clock: Clock,
        in_group: bool,
        name: str = "",
        mountinfo: str | None = None,
        direct: bool = True,
        judge: Callable[[Mount, int], None] = _any_will_do,
    ) -> None:
        """Open the directory, creating it if it is missing. Raises ``StoreError``.

        ``name``: the member's, for people. ``mountinfo``: another text than the kernel's, in which
        the path is looked up. ``direct``: read the epoch past this host's cache, if the file system
        is not known to be local. ``judge(mount, root)`` refuses a directory, here and wherever the
        path leads later, with ``ConfigError`` or ``StoreError``.
        """
        self._disk = disk
        self._server_id = server_id
        self._clock = clock
        self._in_group = in_group
        self._name = name
        self.ending = Ending.UNSAID
        """How this owner ends: whoever stops it on purpose says so before ``release``."""
        self.path = path
        try:
            make_directories(path)
            self.root = disk.open_dir(path)
        except OSError as error:
            is_file = isinstance(error, FileExistsError | NotADirectoryError)
            why = "not a directory" if is_file else (error.strerror or str(error)).lower()
            raise StoreError(
                f"unable to create the root directory [{path}]: mkdir {error.filename or path}: "
                f"{why}",
                hint=cure(path, error),
            ) from error
        self._mountinfo = mountinfo
        self._direct = direct
        self._judge = judge
        try:
            self._settle(self._judged(self.root))
        except (ConfigError, StoreError):
            disk.close(self.root)
            raise
        self._lock = StoreLock(disk, self.root, path)
        self._activation: Activation | None = None
        self._confirmer: Confirmer | None = None
        self._tenure: _Tenure | None = None
        self.raises = 0
        """Odd while this server raises its own epoch: for whoever confirms from another thread
        (``ft/watch.py``).
        """
        self.answered_at: float | None = None
        """When storage last answered (seconds of ``Clock.mono``), ``None``: never.

        Any thread may read it.
        """
        self._lockless = False
        self.is_fit: Callable[[int], bool] = lambda _epoch: False
        """Whether an original server could follow the owner of an epoch: the open store says so.

        Any thread may ask.
        """
        self.holder: EpochRecord | None = None
        """The newest epoch record that was read, for status and log lines: it says who took the
        store last.
        """

    # ---- the mount
    # ----------------------------------------------------------------------------------------------

    def _judged(self, root: int) -> Mount:
        """The mount of the open directory ``root``: opened, an automount has been made.

        Raises ``ConfigError`` and ``StoreError`` if this server must not go on there.
        """
        try:
            mount = self._mount_of(root)
        except OSError as error:
            raise self._unreadable(error) from error
        self._judge(mount, root)
        return mount

    def _mount_of(self, root: int) -> Mount:
        if self._mountinfo is not None:
            return find_mount(self._mountinfo, os.path.realpath(self.path))
        return mount_of(root, self.path)

    def _settle(self, mount: Mount) -> None:
        """Ask as this mount needs it, from now on."""
        self.is_network = mount.is_network
        self._asking_disk = self._asking(is_network=mount.is_network)

    def _asking(self, *, is_network: bool) -> Disk:
        return asking_disk(self._disk, is_network=is_network, direct=self._direct)

    # ---- looking, while others may own it
    # ------------------------------------------------------------------------

    def look(self) -> StoreLook:
        """Look at what the path names now; nothing is created. Raises ``StoreError``.

        Follows the path to another directory (a share that was mounted, or a store that was moved
        here since), unless the lock is held or the store is ours: then that is only told.
        """
        if not self._is_here():
            if self._lock.held or self._activation is not None:
                return StoreLook(elsewhere=True)
            if not self._follow():
                return StoreLook(elsewhere=True)
        owner = self.read_owner()
        if owner is not None:
            return StoreLook(owner.store_id, owner, served=True)
        try:
            self._disk.stat(self.root, SERVER_NAME)
        except FileNotFoundError:
            return StoreLook()
        except OSError as error:
            raise self._unreadable(error) from error
        return StoreLook(served=True)

    def read_watch(self) -> bytes | None:
        """What an owner rewrites once a second.

        Empty if there is none, ``None`` if it cannot be read.
        """
        try:
            return self._read_watch(self.root)
        except FileNotFoundError:
            return b""
        except (OSError, StoreError):
            return None

    def _read_watch(self, root: int) -> bytes:
        """``ft.watch`` in the directory ``root``. Raises ``OSError`` and ``StoreError``."""
        fd = self._asking_disk.open(root, WATCH_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return self._asking_disk.pread(fd, SLOT_SIZE, 0)
        finally:
            self._asking_disk.close(fd)

    def _is_here(self) -> bool:
        """Whether the path still names the directory that is open.

        A handle that went stale is no longer here.
        """
        try:
            fd = self._disk.open_dir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            ours = self._disk.fstat(self.root)
            named = self._disk.fstat(fd)
        except OSError as error:
            if error.errno == errno.ESTALE:
                return False
            raise self._unreadable(error) from error
        finally:
            self._disk.close(fd)
        return (ours.dev, ours.ino) == (named.dev, named.ino)

    def _follow(self) -> bool:
        """Go on in the directory that the path names now; false if it names none.

        Raises ``StoreError``, also for a mount that would refuse a start: then everything stays as
        it is, until the next look.
        """
        try:
            root = self._disk.open_dir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            mount = self._judged(root)
        except (ConfigError, StoreError) as error:
            with contextlib.suppress(OSError):
                self._disk.close(root)
            raise StoreError(
                f"{self.path} names another directory by now, in which this server does not go "
                f"on: {error.text.removeprefix('ft:').lstrip()}",
                hint=error.hint,
            ) from error
        old = self.root
        self.root = root
        self._settle(mount)
        self._lock.move(root)
        with contextlib.suppress(OSError):
            self._disk.close(old)
        return True

    def _unreadable(self, error: OSError) -> StoreError:
        return StoreError(
            f"datastore {self.path}: {(error.strerror or str(error)).lower()}",
            hint="check the storage and the kernel log of this host",
        )

    # ---- taking
    # ----------------------------------------------------------------------------------------------

    @property
    def lock(self) -> StoreLock:
        """The lock of the directory."""
        return self._lock

    def _has_answered(self) -> None:
        self.answered_at = self._clock.mono()

    def try_lock(self, *, create: bool = True) -> None:
        """Try the store lock once. Raises as ``StoreLock.acquire`` does."""
        try:
            self._lock.acquire(create=create)
        except LockBusyError:
            # An answer, too.
            self._has_answered()
            raise
        self._has_answered()

    def read_owner(self) -> EpochRecord | None:
        """The newest epoch record, ``None`` if no ftstan server ever owned the store.

        Raises ``StoreError``.
        """
        self.holder = read_owner(self._asking_disk, self.root)
        self.answered_at = self._clock.mono()
        return self.holder

    def read_records(self, count: int) -> list[tuple[int, EpochRecord | None]]:
        """The newest ``count`` activations, newest first (``ft.epoch.read_records``).

        Raises ``StoreError``.
        """
        return read_records(self._asking_disk, self.root, count)

    def read_keys(self) -> Keys:
        """The keys that operators prove themselves with. Raises ``StoreError``."""
        return read_keys(self._disk, self.root)

    def rotate_key(self, grace_s: int) -> Keys:
        """Replace that key; the one before counts for ``grace_s`` seconds more.

        Raises ``FencedError`` and ``StoreError``.
        """
        now_ns = self._clock.wall_ns()
        return rotate_key(self._disk, self.root, self.confirm, grace_s=grace_s, now_ns=now_ns)

    def read_moves(self) -> Moves:
        """Which channels have moved to or from this datastore. Raises ``RecoveryError`` and
        ``StoreError``.
        """
        return read_moves(self._disk, self.root)

    def take_up_moves(self) -> Moves:
        """The same for the owner that begins: from now on no former owner can change it.

        Raises ``FencedError`` too.
        """
        return take_up_moves(self._disk, self.root, self.confirm)

    def settle_moves(self) -> Moves:
        """The same behind a write that was refused: it comes no more.

        Raises ``FencedError`` too.
        """
        return settle_moves(self._disk, self.root, self.confirm)

    def write_moves(self, moves: Moves) -> None:
        """Replace that, durable on return. Raises ``FencedError`` and ``StoreError``."""
        write_moves(self._disk, self.root, self.confirm, moves)

    @property
    def name(self) -> str:
        """The member's name."""
        return self._name

    def is_paused(self) -> bool:
        """Whether a pause of this member is kept in the datastore. Raises ``StoreError``."""
        # Late, here and below: only members of a group have pauses.
        from ftstan.ft.pause import is_paused  # noqa: PLC0415

        return is_paused(self._disk, self.root, self._name)

    def keep_pause(self, line: str) -> None:
        """Keep a pause of this member over restarts. Raises ``StoreError``."""
        from ftstan.ft.pause import keep_pause  # noqa: PLC0415

        keep_pause(self._disk, self.root, self._name, line)

    def end_pause(self) -> None:
        """Keep it no more. Raises ``StoreError``."""
        from ftstan.ft.pause import end_pause  # noqa: PLC0415

        end_pause(self._disk, self.root, self._name)

    def activate(
        self,
        lost: LostEpochs | None = None,
        *,
        cause: Cause = Cause.UNKNOWN,
        after: int = 0,
        ft_mixed: bool | None = None,
        without_lock: bool = False,
        heard_under: int | None = 0,
    ) -> Activation:
        """Take the next epoch; the lock is held.

        ``lost``: what a repair knows of epochs that are gone.

        ``cause`` and ``after`` say why (``EpochRecord``). ``ft_mixed``: the operator's word whether
        original servers may be members; ``None`` keeps what is recorded. ``without_lock``: the
        holder of the lock is silent, and the epoch fences it; ``regain_lock`` follows.
        ``heard_under``: the epoch under which an original server was heard last
        (``ft.epoch.claim``). Raises ``FencedError``, ``RecoveryError`` or ``StoreError``.
        """
        if not self._lock.held and not without_lock:
            raise LockFaultError("the store lock is not held")
        if ft_mixed:
            self._refuse_moved()
        self._lockless = not self._lock.held
        activation = claim(
            self._asking_disk,
            self.root,
            server_id=self._server_id,
            clock=self._clock,
            survey=lambda: survey_store(self._disk, self.root, self._has_answered),
            in_group=self._in_group,
            ft_mixed=ft_mixed,
            lost=lost,
            cause=cause,
            after=after,
            heard_under=heard_under,
            locked=self._lock.held,
            name=self._name,
            departed=departure(self.read_watch()),
        )
        if self._tenure is None:
            self._tenure = _Tenure()
        self._install(activation)
        return activation

    def _refuse_moved(self) -> None:
        """Raise ``StoreError`` if a channel has moved: the store is not to become mixed.

        Before anything is claimed: every later owner carries on what is recorded, and none of them
        could serve. Where that says mixed already, a mark that cannot be read keeps nobody away.
        """
        # Late: only the operator's word needs it.
        from ftstan.stores.file.log.moved_mark import MIXED, moved_in  # noqa: PLC0415

        owner = self.read_owner()
        is_mixed = owner is not None and owner.ft_mixed
        try:
            moved = moved_in(self._asking_disk, self.root, sure=is_mixed)
        except OSError as error:
            raise self._unreadable(error) from error
        if moved:
            raise StoreError(
                MIXED.format(name=moved[0]),
                hint="this member takes the store only without -ft_mixed on, or after: ftstanctl "
                f"channel moved {moved[0]} off",
            )

    def tidy(self) -> None:
        """Remove the claims of former activations and see to the administrators' key: nobody waits
        for that.

        Raises ``FencedError``.
        """
        try:
            remove_old_claims(self._asking_disk, self.root, self.activation, self.confirm)
        except StoreError as error:
            # They only take up names; the next activation tries again.
            log.warning(error.text)
        try:
            ensure_key(self._disk, self.root, self.confirm)
        except StoreError as error:
            log.warning(f"{error.text}; {error.hint}")

    def _install(self, activation: Activation) -> None:
        """Serve under ``activation`` from now on.

        Raises ``FencedError``: then nothing of it can be used.
        """
        confirmer = Confirmer(self._asking_disk, self.root, activation, is_network=self.is_network)
        former = self._confirmer
        self._confirmer = confirmer
        self._activation = activation
        self.holder = activation.record()
        if former is not None:
            with contextlib.suppress(OSError):
                former.close()

    def _lose(self, tenure: _Tenure | None, error: FencedError) -> FencedError:
        """That tenure is over, whatever storage says from now on.

        Returns the error that every later call of it gets.
        """
        if tenure is None:
            return error
        if tenure.lost is None:
            tenure.lost = error
        return tenure.lost

    # ---- Ownership
    # ----------------------------------------------------------------------------------------------

    @property
    def activation(self) -> Activation:
        """The present activation. Raises ``FencedError`` if there is none, or if it is over."""
        tenure = self._tenure
        if tenure is not None and tenure.lost is not None:
            raise tenure.lost
        if self._activation is None:
            raise ReleasedError("the datastore is not ours")
        return self._activation

    @property
    def present(self) -> Activation | None:
        """The present activation, if there is one. Any thread may ask."""
        return self._activation

    @property
    def slice_base(self) -> int:
        """The number below this activation's first slice."""
        return self.activation.slice_base

    @property
    def ours_from(self) -> int:
        """The first slice number of our first activation on this store."""
        return self.activation.ours_from

    @property
    def identity(self) -> tuple[int, bytes]:
        """Number and nonce of this activation."""
        return self.activation.epoch, self.activation.nonce

    @property
    def predecessor(self) -> tuple[int, bytes]:
        """Number and nonce of the activation directly before this one.

        ``(0, b"")`` if there was none.
        """
        return self.activation.predecessor

    @property
    def asking(self) -> Disk:
        """The disk whose reads ask storage, whatever this host remembers: for what former owners
        wrote.
        """
        return self._asking_disk

    @property
    def mixed(self) -> bool:
        """Whether original servers may be members of the group."""
        return (self._activation or self.activation).ft_mixed

    @property
    def originals_through(self) -> int:
        """The last epoch behind which an original server may have served, 0 for none.

        In a mixed group this one.
        """
        activation = self.activation
        return activation.epoch if activation.ft_mixed else activation.originals_through

    def confirm(self) -> None:
        """Raise ``FencedError`` unless storage says that the store is ours.

        An original server claims no epoch: in a mixed group the lock must still be on the file that
        the path names. Every way to write or send passes here, and a refusal is final: after one,
        nothing of this activation is ever confirmed again.
        """
        tenure = self._tenure
        activation = self.activation
        if self._confirmer is None:
            raise ReleasedError("the datastore is not ours")
        try:
            self._confirmer()
            self.answered_at = self._clock.mono()
            if activation.ft_mixed:
                self._lock.verify()
        except FencedError as error:
            raise self._lose(tenure, error) from error.__cause__

    def confirm_anew(self) -> None:
        """Confirm, also with the epoch file that a successor would find by its name now.

        Raises ``FencedError``: final, as a refused ``confirm``.
        """
        tenure = self._tenure
        self.confirm()
        try:
            self.confirm_beside()
        except FencedError as error:
            raise self._lose(tenure, error) from error.__cause__

    def confirm_beside(self) -> None:
        """Confirm on another thread than the one that owns the store; ends nothing here.

        Opens the epoch file by its name, where a successor would find it, and compares it with the
        one that ``confirm`` reads: of a file that somebody has put in its place, or removed, that
        one learns nothing on network storage. Raises ``FencedError``, also while this server goes
        on to another epoch: ask again later then.
        """
        own = self._confirmer
        named = Confirmer(self._asking_disk, self.root, self.activation, is_network=self.is_network)
        try:
            if own is not None:
                named.compare(own)
        finally:
            with contextlib.suppress(OSError):
                named.close()

    def raise_epoch(self) -> None:
        """Take the next number while serving.

        If anybody took it first, the store is not ours any more.
        """
        self._raise(Cause.RAISED)

    def set_mixed(self, *, on: bool) -> None:
        """Record, while serving, whether original servers may be members.

        As ``raise_epoch`` in everything else.

        Does nothing if that is what is recorded. Raises ``FencedError`` and ``StoreError``.
        """
        if on and self._lockless:
            raise StoreError(
                "the datastore was taken without its lock, which an original server would go by",
                hint="it is recorded when the former owner has let go of the lock",
            )
        if on != self.activation.ft_mixed:
            # Whoever took the lock from us without an epoch must not be written over, not even
            # here.
            self.verify_lock()
            self._raise(Cause.MIXED_SWITCHED, on)

    def leave_to_original(self) -> None:
        """Record that every slice in the store is an original server's from now on.

        What it does to them then, a kill included, is read as its own when we come back. Every
        slice must be one that no former owner of ours can have open. As ``raise_epoch`` in
        everything else.
        """
        try:
            left = survey_store(self._disk, self.root)
        except OSError as error:
            raise self._unreadable(error) from error
        self._raise(Cause.TOOL, left=left)

    def _raise(
        self, cause: Cause, ft_mixed: bool | None = None, left: Survey | None = None
    ) -> None:
        """Go on to a higher epoch without giving up the store.

        Nobody may have owned the store in between, since nothing is read again: ``claim_next``
        proves that before the new activation can confirm anything. Raises ``FencedError``: the old
        one is over, too. Raises ``StoreError``: the old one goes on, unless its next confirm finds
        that it cannot.
        """
        self.confirm()
        tenure = self._tenure
        self.raises += 1
        try:
            activation = claim_next(
                self._asking_disk,
                self.root,
                self.activation,
                clock=self._clock,
                cause=cause,
                ft_mixed=ft_mixed,
                left=left,
            )
            self._install(activation)
        except FencedError as error:
            raise self._lose(tenure, error) from error.__cause__
        finally:
            self.raises += 1

    # ---- giving up
    # ----------------------------------------------------------------------------------------------

    def verify_lock(self) -> None:
        """Raise ``FencedError`` if the lock file is not the one that we locked, or if the path
        names another datastore by now.

        An owner without lock has none yet.
        """
        tenure = self._tenure
        try:
            if not self._lockless:
                self._lock.verify()
            self._verify_place()
        except FencedError as error:
            raise self._lose(tenure, error) from error.__cause__

    def _verify_place(self) -> None:
        """A datastore that was put in our directory's place has a lock of its own, and whoever
        starts or stands by finds that one. A path that names no datastore misleads nobody.

        One handle answers everything: between two openings the path can come to name our own
        directory again. What cannot be read now is asked again by the next probe.
        """
        with contextlib.suppress(OSError, StoreError):
            root = self._disk.open_dir(self.path)
            try:
                if self._is_ours(root) or not self._is_datastore(root):
                    return
            finally:
                self._disk.close(root)
            raise FencedError(
                f"{self.path}: another datastore stands in the place of the one that this server "
                "serves, so another server can own that one",
                hint="stop every server before a datastore is moved, copied or restored",
            )

    def _is_datastore(self, root: int) -> bool:
        """Whether anybody has served from the directory ``root``, be it an original server."""
        for name in (EPOCH_NAME, SERVER_NAME):
            with contextlib.suppress(FileNotFoundError):
                self._disk.stat(root, name)
                return True
        return False

    def _is_ours(self, root: int) -> bool:
        """Whether ``root`` is the directory that we serve from, over whatever mount it was opened.

        The device number of a share that was unmounted lazily and mounted again can be another one.
        Then ``ft.watch`` decides (``_shows_our_watch``), several times: the watch may be writing
        it.
        """
        ours = self._disk.fstat(self.root)
        named = self._disk.fstat(root)
        if ours.dev == named.dev:
            return ours.ino == named.ino
        return any(self._shows_our_watch(root) for _ in range(_WATCH_READS))

    def _shows_our_watch(self, root: int) -> bool:
        """Whether ``ft.watch`` in ``root`` shows what our own directory shows, or what we have
        written since; true also while no probe of ours has written yet.

        A copy cannot pass: its record stays as it was copied, while each probe writes and syncs a
        higher number into ours before it comes here. So a copy that was made in between passes
        until the next probe that can write (a full disk may refuse). Our own directory is read
        first: if both are one file, the second answer cannot be older. Who wrote the copy's
        record makes no difference: a successor has another server id, and a former activation of
        this server a lower epoch.
        """
        data = self.read_watch()
        if data is None:
            # A channel of that name: this server does without the file, and nothing is proved.
            return False
        mine = decode_watch(data)
        if mine is None or mine.server_id != self._server_id:
            return True
        try:
            named = decode_watch(self._read_watch(root))
        except (FileNotFoundError, IsADirectoryError, PermissionError, StoreError):
            return False
        return (
            named is not None
            and named.server_id == mine.server_id
            and (named.epoch, named.counter) >= (mine.epoch, mine.counter)
        )

    def regain_lock(self) -> bool:
        """Try for the lock that this owner took the store without; returns whether it holds it.

        Whoever holds it was fenced by the epoch, so there is nothing to hurry or to fail for.
        """
        if self._lockless:
            self._lock.renew()
            try:
                self._lock.acquire()
            except (LockBusyError, LockFaultError):
                return False
            self._lockless = False
        return self._lock.held

    def release(self) -> None:
        """Give the lock back.

        What was written under it stays valid until somebody takes a higher epoch.
        """
        self._say_farewell()
        if self._confirmer is not None:
            with contextlib.suppress(OSError):
                self._confirmer.close()
        self._confirmer = None
        self._activation = None
        self._tenure = None
        self._lockless = False
        self._lock.release()

    def _say_farewell(self) -> None:
        """Say on storage how this owner ends, and without a lock that nobody has to wait for it.

        A hint, no more.
        """
        if self._activation is None or not (self._lockless or self.ending):
            return
        with contextlib.suppress(OSError, StoreError, FencedError):
            try:
                # NONBLOCK: a pipe of that name must not hold up the stop, and with it the lock.
                fd = self._disk.open(
                    self.root, WATCH_NAME, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                )
            except FileNotFoundError:
                # The first owner ends before its first probe.
                self.confirm()
                fd = self._disk.open(
                    self.root, WATCH_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                )
            try:
                # Behind the opening: a successor's file is not ours to write.
                self.confirm()
                epoch = self.activation.epoch
                say = farewell if self._lockless else last_word
                data = say(epoch, self._server_id, self._clock.wall_ns(), self.ending)
                self._disk.pwrite(fd, data, 0)
                if self._lockless:
                    # Others go by it. The end of an owner with a lock is only told.
                    self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)

    def close(self) -> None:
        """Release everything, the directory handle too; harmless when it has been done."""
        self.release()
        # Once: the number of a closed handle may be another server's by now, in a program that has
        # several.
        root = self.root
        self.root = -1
        if root >= 0:
            with contextlib.suppress(OSError):
                self._disk.close(root)
