"""Attack: a spoilt ``moved.bin`` of one channel, in a mixed group, where no channel can be marked,
ends the start of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.datastores import serving
from tests.filenode import Owner
from tests.unit.ft.test_mixed import owner_of
from tests.unit.stores.test_recovery_damage import left_by
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("mark", [bytes(21), b"FTSTMOV2" + bytes(13), b""])
def test_a_spoilt_mark_ends_no_start_of_a_mixed_group(mark: bytes) -> None:
    node = Node(fresh(), Owner(mixed=True))
    node.put(b"a")
    node.put(b"b", channel=b"bar")
    disk = left_by(node, lambda tree: tree.update({"foo/moved.bin": mark}))
    new = Node(disk, Owner(2, mixed=True))
    assert new.channel().mover == b""
    assert contents(new) == [(1, b"a")]
    assert contents(new, b"bar") == [(1, b"b")]


def test_it_keeps_no_member_away_whose_operator_says_mixed(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.publish(b"foo", b"a")
        node.stop()
    owner = owner_of(tmp_path)
    owner.try_lock()
    owner.activate(ft_mixed=True)
    owner.close()
    (tmp_path / "foo" / "moved.bin").write_bytes(bytes(21))
    owner = owner_of(tmp_path)
    owner.try_lock()
    assert owner.activate(ft_mixed=True).ft_mixed
    owner.close()
