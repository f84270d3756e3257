"""Who belongs to a cluster, out of what the log says of its nodes. Pure.

The log names nodes that were added or removed. Whoever it does not name belongs to the cluster,
until all but one were removed: from then on only those belong that are added by name. So the one
that is left knows that nobody leads after it, without asking anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Stands in the log for all nodes that it does not name, and in requests for all but the leader.
UNNAMED: Final = ""
OTHERS: Final = "*"


def belongs(changes: Mapping[str, bool], node: str) -> bool:
    """Whether it is a node of the cluster. ``changes``: added (true) or removed, last word each."""
    return changes.get(node, changes.get(UNNAMED, True))


def without_others(known: Iterable[str], node: str) -> dict[str, bool]:
    """The changes after which ``node`` alone is left.

    ``known``: those that may be named in the log as nodes.
    """
    return dict.fromkeys(known, False) | {UNNAMED: False, node: True}


def is_alone(changes: Mapping[str, bool], node: str) -> bool:
    """Whether no other node belongs to the cluster, nor one that nobody has heard of."""
    return (
        not changes.get(UNNAMED, True)
        and belongs(changes, node)
        and not any(is_in for other, is_in in changes.items() if other != node)
    )
