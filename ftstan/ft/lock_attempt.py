"""One attempt at the datastore by a standby, on the data plane's thread: look, lock, look behind
the lock.

A poll is cheap and careful: it asks for the lock on the file that is open, and creates nothing.
Under suspicion the attempt looks first: which directory the path names now, which datastore it
shows, and whether the lock file is still the path's (a holder that was paused or died on a removed
one would refuse us for ever). Only then, and only if it is the expected datastore, a missing lock
file is made. So a directory that was emptied, or the bare mount point of a share that is gone,
stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import FtstanError, LockBusyError, LockMissingError
from ftstan.ft.events import StoreSeen, TryDone, TryResult

if TYPE_CHECKING:
    from ftstan.ft.events import TryLock
    from ftstan.ft.owned import Owner


def attempt(owner: Owner, ask: TryLock) -> TryDone:
    """Try the store lock once. Errors of storage are in the answer."""
    try:
        return _under_suspicion(owner, ask) if ask.suspicious else _poll(owner)
    except FtstanError as error:
        return TryDone(TryResult.FAULT, error=error.text, hint=error.hint)


def _poll(owner: Owner) -> TryDone:
    try:
        owner.try_lock(create=False)
    except (LockBusyError, LockMissingError):
        # A poll makes no lock file; if nobody is heard, the next suspicion does.
        return TryDone(TryResult.BUSY)
    return _behind_the_lock(owner)


def _under_suspicion(owner: Owner, ask: TryLock) -> TryDone:
    look = owner.look()
    if look.elsewhere and ask.expect is None and not ask.served:
        raise LockMissingError(
            f"open {owner.path}: no such directory",
            hint="check that the shared storage is mounted on this host",
        )
    if (ask.expect is not None and look.store_id != ask.expect) or (ask.served and not look.served):
        return TryDone(TryResult.NOT_ASKED, look.store_id, owner=look.owner, served=look.served)
    owner.lock.renew()
    try:
        owner.try_lock()
    except LockBusyError:
        return TryDone(
            TryResult.BUSY,
            look.store_id,
            owner=look.owner,
            served=look.served,
            watch=owner.read_watch(),
        )
    return _behind_the_lock(owner)


def see_store(owner: Owner) -> StoreSeen:
    """Look at the directory, without trying anything."""
    try:
        look = owner.look()
    except FtstanError as error:
        return StoreSeen(None, error=f"{error.text}; {error.hint}")
    return StoreSeen(look.store_id, owner=look.owner, served=look.served)


def _behind_the_lock(owner: Owner) -> TryDone:
    """Granted: but is it the datastore that the path names?

    Nothing has been read under the lock yet.
    """
    try:
        look = owner.look()
    except FtstanError:
        owner.release()
        raise
    if look.elsewhere:
        owner.release()
        return TryDone(TryResult.NOT_ASKED, look.store_id, served=look.served)
    return TryDone(TryResult.GRANTED, look.store_id, owner=look.owner, served=look.served)
