"""Which entries may go: what all nodes have, or a majority where the log is too large."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.cluster.beats import Report
from ftstan.cluster.purging import KnownNodes, purge_to

if TYPE_CHECKING:
    from pathlib import Path

LOG = bytes(range(16)).hex()


def said(node: str, stored: int, incarnation: str = LOG) -> Report:
    return Report(node, incarnation, 100, 0, 1, stored=stored)


@pytest.mark.parametrize(
    ("known", "reports", "all_have", "majority_has"),
    [
        # All answer.
        ({}, {"a": 30, "b": 10, "c": 20}, 10, 20),
        # One is away: what it said last counts.
        ({"a": 5, "b": 5, "c": 7}, {"a": 30, "b": 10}, 7, 10),
        # One of the founders was never there.
        ({"a": 0, "b": 0, "c": 0}, {"a": 30, "b": 10}, 0, 10),
        # A disk was emptied.
        ({"a": 30, "b": 30, "c": 30}, {"a": 30, "b": 30, "c": 0}, 0, 30),
        # No majority answers, whatever was said before.
        ({"a": 30, "b": 30, "c": 30}, {"a": 30}, 0, 0),
        # Nobody knows of a third node.
        ({}, {"a": 30, "b": 10}, 10, 10),
        # Five nodes: of a large log two must have an entry, as many as JetStream confirms it for.
        ({}, {"a": 9, "b": 8, "c": 7, "d": 6, "e": 5}, 5, 8),
        # Three were replaced by others, and nobody removed them.
        (
            {"a": 90, "b": 90, "c": 90, "d": 10, "e": 10, "f": 10},
            {"a": 90, "b": 90, "c": 80},
            0,
            90,
        ),
    ],
)
def test_what_all_nodes_have_may_go_and_what_a_majority_has_where_the_log_is_large(
    known: dict[str, int], reports: dict[str, int], all_have: int, majority_has: int
) -> None:
    answers = [said(node, stored) for node, stored in reports.items()]
    assert purge_to(known, answers, LOG, is_large=False) == all_have
    assert purge_to(known, answers, LOG, is_large=True) == majority_has


def test_nodes_of_another_log_count_for_nothing() -> None:
    answers = [said("a", 30), said("b", 30, "00" * 16)]
    assert purge_to({}, answers, LOG, is_large=True) == 0


def test_nodes_are_known_for_good(tmp_path: Path) -> None:
    nodes = KnownNodes(str(tmp_path), ("a", "b"))
    assert nodes.stored == {"a": 0, "b": 0}
    nodes.hear([said("b", 7), said("c", 9), said("d", 9, "00" * 16)], LOG)
    again = KnownNodes(str(tmp_path), ("a", "b"))
    assert again.stored == {"a": 0, "b": 7, "c": 9}


@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}', "\xff"])
def test_a_file_of_nodes_that_cannot_be_read_is_begun_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes.json").write_text(text, encoding="latin-1")
    assert KnownNodes(str(tmp_path), ("a",)).stored == {"a": 0}


def test_a_node_that_was_removed_is_waited_for_no_more_and_one_that_was_added_is(
    tmp_path: Path,
) -> None:
    changes: dict[str, bool] = {}
    nodes = KnownNodes(str(tmp_path), ("a", "b", "c"), lambda: changes)
    nodes.hear([said("a", 30), said("b", 20)], LOG)
    answers = [said("a", 30), said("b", 20)]
    assert purge_to(nodes.members, answers, LOG, is_large=False) == 0
    changes = {"c": False}
    assert nodes.is_removed("c")
    assert nodes.members == {"a": 30, "b": 20}
    assert purge_to(nodes.members, answers, LOG, is_large=False) == 20
    changes = {"c": False, "d": True}
    assert nodes.members == {"a": 30, "b": 20, "d": 0}
    assert purge_to(nodes.members, answers, LOG, is_large=False) == 0
    changes = {"c": True, "d": True}
    assert not nodes.is_removed("c")
    assert set(nodes.members) == {"a", "b", "c", "d"}
