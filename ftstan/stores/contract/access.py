"""What a kind of store does before it is open: the lock, and who owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import FencedError, LockBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.interface import Lock, StoreAccess


class AccessContract:
    """Statements about nodes that want one store.

    The fixture ``new_access`` gives the access of another node to the same fresh store with every
    call; ``exclusive`` is set to false for a store that no two nodes can share (memory).
    """

    exclusive = True

    def test_a_node_takes_the_lock_becomes_the_owner_and_opens_the_store(
        self, new_access: Callable[[], StoreAccess]
    ) -> None:
        access = new_access()
        access.lock().acquire()
        access.activate()
        store = access.open()
        found = store.recover()
        assert (found.info, found.clients, found.channels) == (None, [], [])
        store.confirm()
        store.close()
        access.close()

    def test_the_lock_is_one_object_and_taking_it_twice_is_taking_it_once(
        self, new_access: Callable[[], StoreAccess]
    ) -> None:
        access = new_access()
        lock = access.lock()
        assert access.lock() is lock
        lock.acquire()
        lock.acquire()
        lock.verify()
        lock.release()
        lock.release()
        access.close()

    def test_only_one_node_has_the_lock(self, new_access: Callable[[], StoreAccess]) -> None:
        if not self.exclusive:
            return
        first = new_access()
        second = new_access()
        first.lock().acquire()
        assert _is_busy(second.lock())
        first.lock().release()
        second.lock().acquire()
        second.lock().verify()
        assert _is_busy(first.lock())
        for access in (first, second):
            access.close()

    def test_a_lock_that_is_not_held_is_not_verified(
        self, new_access: Callable[[], StoreAccess]
    ) -> None:
        if not self.exclusive:
            return
        access = new_access()
        assert _is_fenced(access.lock().verify)
        access.lock().acquire()
        access.lock().release()
        assert _is_fenced(access.lock().verify)
        access.close()

    def test_closing_gives_the_lock_back(self, new_access: Callable[[], StoreAccess]) -> None:
        first = new_access()
        second = new_access()
        first.lock().acquire()
        first.close()
        second.lock().acquire()
        second.close()

    def test_a_successor_ends_the_former_owner_whatever_became_of_its_lock(
        self, new_access: Callable[[], StoreAccess]
    ) -> None:
        if not self.exclusive:
            return
        first = new_access()
        second = new_access()
        first.lock().acquire()
        first.activate()
        former = first.open()
        former.recover()
        former.confirm()
        # The lock moves while its holder believes in it, as it can on a network.
        first.lock().release()
        second.lock().acquire()
        second.activate()
        assert _is_fenced(former.confirm)
        successor = second.open()
        successor.recover()
        successor.confirm()
        assert _is_fenced(former.confirm)
        former.abandon()
        successor.close()
        for access in (first, second):
            access.close()


def _is_busy(lock: Lock) -> bool:
    try:
        lock.acquire()
    except LockBusyError:
        return True
    return False


def _is_fenced(ask: Callable[[], None]) -> bool:
    try:
        ask()
    except FencedError:
        return True
    return False
