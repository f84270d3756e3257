"""Attack: a clean stop forgets a quarantine, and what our index proves is cut by the start after
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.stores.test_confirmed import contents_of_readable
from tests.unit.stores.test_recovery_damage import left_by, written

if TYPE_CHECKING:
    from tests.oracle.goview import Tree
    from tests.unit.stores.test_slices import Node


def flipped_last() -> Node:
    """A channel that was killed within its first second: no ``confirmed.bin``."""
    old = written(b"one", b"two", b"three")

    def change(tree: Tree) -> None:
        data = bytearray(tree["foo/msgs.1.dat"] or b"")
        data[data.rfind(b"three")] ^= 1
        tree["foo/msgs.1.dat"] = bytes(data)

    return old.successor(left_by(old, change))


def test_restarts_after_clean_stops_quarantine_it_again() -> None:
    node = flipped_last()
    assert node.store.quarantined == ["foo"]
    for _ in range(3):
        node.store.close()
        node = node.successor()
        assert node.store.quarantined == ["foo"]
        assert node.channel().last == 3
        assert contents_of_readable(node) == [1, 2]


def test_a_restart_after_a_kill_quarantines_it_again() -> None:
    node = flipped_last()
    again = node.successor(node.disk.crash(process_only=True))
    assert again.store.quarantined == ["foo"]
