"""What nats-server may plan with: a share of the smallest limit of the control groups above this
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.nats.launch import child_environment
from ftstan.nats.memory import go_limit

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({}, 0),
        ({"a/b": "max", "a": "max"}, 0),
        ({"a/b": str(2 * GIB), "a": "max"}, GIB),
        ({"a/b": str(2 * GIB), "a": str(GIB)}, GIB // 2),
        ({"": str(4 * GIB), "a/b": "max"}, 2 * GIB),
        ({"a/b": "rubbish"}, 0),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, limits: dict[str, str], share: int) -> None:
    for group, limit in limits.items():
        folder = tmp_path / "fs" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
    membership = tmp_path / "cgroup"
    membership.write_text("1:name=systemd:/x\n0::/a/b\n")
    assert go_limit(str(membership), str(tmp_path / "fs")) == share


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert go_limit(str(tmp_path / "none")) == 0


def test_the_child_is_told_unless_the_operator_has_said_something() -> None:
    assert child_environment({}, 4, memory=GIB) == {"GOMEMLIMIT": str(GIB)}
    assert child_environment({"GOMEMLIMIT": "1GiB"}, 4, memory=GIB) == {"GOMEMLIMIT": "1GiB"}
    assert child_environment({}, 4, memory=0) == {}
