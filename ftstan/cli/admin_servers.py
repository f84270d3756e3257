"""The servers of one cluster, as commands about what is served ask them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ftstan.admin.protocol import Request, Verb
from ftstan.admin.signing import plain
from ftstan.base.errors import RefusedError
from ftstan.cli.admin_client import BUSY_S, Asked, UnservedError
from ftstan.ft.health import name as server_name
from ftstan.ft.subjects import question_subject

if TYPE_CHECKING:
    from ftstan.base.states import NodeStatus

Row = dict[str, Any]

#: Of one list of one server: more no server has.
_MOST_ROWS = 10_000_000
#: Further questions when nobody serves, and what is waited before each when nobody listens (s).
_AGAIN = 3
_MOMENT_S = 0.15


@dataclass(frozen=True, slots=True)
class Servers(Asked):
    """The servers of one cluster."""

    def everybody(self) -> list[NodeStatus]:
        """Every server that answers. Raises ``UnservedError`` if none does."""
        subject = question_subject(self.cluster)
        found = self.who(subject) or self.who(subject, BUSY_S, bool)
        if not found:
            raise UnservedError(
                f"no server of cluster {self.cluster} answered",
                hint="check --server, --cluster and the servers' logs",
            )
        return found

    def serving(self) -> list[NodeStatus]:
        """The server that serves, or those that share the channels. Raises ``UnservedError``."""
        subject = question_subject(self.cluster)

        def enough(found: list[NodeStatus]) -> bool:
            return any(node.serving and not node.partitioned for node in found)

        found = self.who(subject, None, enough)
        for _ in range(_AGAIN):
            if any(node.serving for node in found):
                break
            if not found:
                # Whoever has just started listens in a moment.
                time.sleep(_MOMENT_S)
            found = self.who(subject, BUSY_S / _AGAIN, enough)
        serving = [node for node in found if node.serving]
        if not serving:
            raise UnservedError(
                f"no server of cluster {self.cluster} serves",
                hint="check --server, --cluster and the servers' logs",
            )
        return serving

    def named(self, word: str) -> NodeStatus:
        """The server of that id (or enough of its beginning) or host.

        Without a word the only one.
        """
        found = [
            node
            for node in self.everybody()
            if not word or word in {node.name, node.host} or node.server.startswith(word)
        ]
        if len(found) == 1:
            return found[0]
        known = ", ".join(server_name(node) for node in found)
        raise RefusedError(
            f"{word or 'this cluster'} is {len(found)} servers: {known}"
            if found
            else f"no server {word} answered",
            hint="name one by its name or id: ftstanctl server ls",
        )

    def rows(self, request: Request, server: NodeStatus) -> list[Row]:
        """A whole list of one server, piece by piece.

        Raises ``RefusedError`` for one that does not end: whoever may answer can say so.
        """
        rows: list[Row] = []
        while len(rows) < _MOST_ROWS:
            answer = self.ask(server, plain(request))
            rows += answer.rows
            if not (answer.more and answer.rows):
                return rows
            before = request
            request = _behind(request, answer.rows[-1])
            if request == before:
                break
        raise RefusedError(
            f"{server_name(server)} answers with a list that does not end",
            hint="somebody else may answer in its name: see the permissions in docs/security.md",
        )

    def one(self, request: Request) -> tuple[NodeStatus, Row]:
        """The one row that is asked for, and who has it. Raises ``RefusedError``: nobody has."""
        refusal: RefusedError | None = None
        for server in self.serving():
            answer = self.hear(server, plain(request))
            if answer.ok and answer.rows:
                return server, answer.rows[0]
            if refusal is None or not answer.elsewhere:
                refusal = RefusedError(f"{server_name(server)}: {answer.error}", hint=answer.hint)
        assert refusal is not None
        raise refusal


def _behind(request: Request, row: Row) -> Request:
    """The request for what comes behind that row."""
    if request.verb is Verb.SUBS:
        return replace(request, after=row["channel"], after_id=row["id"])
    return replace(request, after=row["id" if request.verb is Verb.CLIENTS else "name"])
