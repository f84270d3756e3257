"""Which entries of the log nobody needs any more. Pure, but for the file of the nodes.

An entry is needed until every known node has it in its store, synced, and a majority says so now. A
log that has grown above its bound waits for as many nodes alone as JetStream asks for an
acknowledgement: a node that is away then copies the store of another one when it comes back
(``ftstan.cluster.copying``).

Nodes are known until they are removed: those that were founders or were added, and those that were
heard of since. What a node said last counts while it is away. A disk that was emptied meanwhile
makes that word a lie: it costs that node a copy, nobody an entry: the majority that is asked now
has it all.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import StoreError
from ftstan.cluster.members import UNNAMED, belongs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ftstan.cluster.beats import Report

_NAME: Final = "nodes.json"
#: Copies of the log, hence nodes of which a majority must answer.
_NODES: Final = 3


def purge_to(
    known: dict[str, int], reports: Iterable[Report], incarnation: str, *, is_large: bool
) -> int:
    """The first entry that is still needed: those before it may go. 0: all are needed.

    ``known``: up to where each known node was complete when it was last heard of. ``is_large``:
    whether the log has outgrown its bound.
    """
    now = {said.node: said.stored for said in reports if said.incarnation == incarnation}
    everyone = known | now
    # However many nodes were replaced and not removed, a large log does not wait for them.
    majority = (_NODES if is_large else max(_NODES, len(everyone))) // 2 + 1
    if len(now) < majority:
        return 0
    # What so many nodes have at least, asked a moment ago.
    safe = sorted(now.values(), reverse=True)[majority - 1]
    if is_large:
        return safe
    return min(safe, *everyone.values())


class KnownNodes:
    """The nodes of the cluster as this one knows them, kept in ``directory``.

    ``changes()``: those that were added (true) or removed, as the log says.
    """

    def __init__(
        self,
        directory: str,
        founders: Iterable[str],
        changes: Callable[[], Mapping[str, bool]] = dict,
    ) -> None:
        self._path = os.path.join(directory, _NAME)
        self._changes = changes
        self.stored = dict.fromkeys(founders, 0)
        """Up to which entry the store of each was complete."""
        self.stored |= self._read()

    @property
    def members(self) -> dict[str, int]:
        """Those of them that are nodes of the cluster now. Any thread may ask."""
        changes = self._changes()
        known = dict.fromkeys(changes, 0) | dict(self.stored)
        known.pop(UNNAMED, None)
        return {node: stored for node, stored in known.items() if belongs(changes, node)}

    def is_removed(self, node: str) -> bool:
        """Whether somebody removed it, and nobody added it again."""
        return not belongs(self._changes(), node)

    def _read(self) -> dict[str, int]:
        # It decides when entries go, never whether they may: one that cannot be read is begun anew.
        try:
            with open(self._path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {str(node): stored for node, stored in found.items() if type(stored) is int}

    def hear(self, reports: Iterable[Report], incarnation: str) -> None:
        """Remember what nodes say. Raises ``StoreError``."""
        before = dict(self.stored)
        for said in reports:
            if said.incarnation == incarnation:
                self.stored[said.node] = said.stored
        if self.stored == before:
            return
        fresh = f"{self._path}.new"
        try:
            with open(fresh, "w", encoding="utf-8") as file:
                json.dump(self.stored, file)
            os.rename(fresh, self._path)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror}") from error
