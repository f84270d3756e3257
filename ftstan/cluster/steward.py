"""What a leader looks after beside serving: that its stream is still the one that it knows, that
the stream is led by another server than its own, that no removed node holds a copy of it which a
member could hold, and that entries go that nobody needs any more.

The second is about time alone. If the process that serves and the server that leads the stream die
together, a takeover waits for JetStream's own election, which takes seconds; if they do not, it
does not. Blocking, on a link of its own, for a thread that nothing waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import NatsError, StoreError
from ftstan.base.log import stream as log
from ftstan.cluster.beats import decode_report
from ftstan.cluster.log import LogLostError
from ftstan.cluster.names import question_subject, stream_name
from ftstan.cluster.purging import purge_to
from ftstan.nats.clustered import server_name
from ftstan.nats.jetstream import ApiError

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.cluster.log import ReplicatedLog
    from ftstan.cluster.purging import KnownNodes
    from ftstan.nats.jetstream import JetStream

_CONNECT_S: Final = 1.0
_API_S: Final = 2.0
_ASK_S: Final = 0.3
#: Between two looks at what nobody needs.
PURGE_EVERY_S: Final = 10.0
#: Entries that are worth a purge: each one is an entry of JetStream's own log.
FEWEST: Final = 100
#: What nodes said so long ago is not believed: this process may have stood still.
_STALE_S: Final = 5.0
_HINT: Final = "see docs/clustering.md, A log that lost entries"


class Steward:
    """``rlog`` is for looking and purging, over ``js``. ``server``: the name of this node's server.

    ``most``: bytes of the log above which no node is waited for that is away.
    """

    def __init__(
        self,
        js: JetStream,
        rlog: ReplicatedLog,
        clock: Clock,
        nodes: KnownNodes,
        *,
        cluster_id: str,
        server: str,
        most: int,
    ) -> None:
        self._js = js
        self._log = rlog
        self._clock = clock
        self._nodes = nodes
        self._cluster_id = cluster_id
        self._stream = stream_name(cluster_id)
        self._question = question_subject(cluster_id)
        self._server = server
        self._most = most
        self._purge_at = clock.mono() + PURGE_EVERY_S
        self.copies = 0
        """Whole copies of the log that were seen last; any thread may look."""

    def look(self, incarnation: bytes) -> None:
        """Look once. Raises ``LogLostError``: the log of ``incarnation`` is not there any more."""
        try:
            if not self._js.connected:
                self._js.connect(_CONNECT_S)
            found = self._log.find()
            if found == incarnation:
                self._place()
                if self._clock.mono() >= self._purge_at:
                    self._purge_at = self._clock.mono() + PURGE_EVERY_S
                    self._purge(incarnation.hex())
                return
        except LogLostError:
            raise
        except NatsError as error:
            log.debug(f"cluster: {error.text}")
            return
        what = "is gone" if found is None else "was deleted and made again"
        raise LogLostError(f"the stream of this cluster {what}: somebody deleted it", hint=_HINT)

    def _place(self) -> None:
        told = self._js.api(f"STREAM.INFO.{self._stream}", {}, _API_S).get("cluster", {})
        whole = [copy for copy in told.get("replicas", ()) if _is_whole(copy)]
        self.copies = bool(told.get("leader")) + len(whole)
        if told.get("leader") != self._server:
            return
        other = _current(told)
        if not other:
            return
        try:
            self._js.api(
                f"STREAM.LEADER.STEPDOWN.{self._stream}",
                {"placement": {"preferred": other}},
                _API_S,
            )
        except ApiError as error:
            log.debug(f"cluster: {error.text}")
        else:
            log.debug(f"cluster: the stream is led by {other} now, not by this node's server")

    def _purge(self, incarnation: str) -> None:
        asked = self._clock.mono()
        answers = self._js.ask(self._question, b"", _ASK_S, lambda _came: False)
        said = [decode_report(answer.payload) for answer in answers if not answer.status]
        reports = [one for one in said if one is not None and not self._nodes.is_removed(one.node)]
        try:
            self._nodes.hear(reports, incarnation)
        except StoreError as error:
            log.warning(f"cluster: {error.text}")
        bounds = self._log.bounds()
        is_large = bounds.size > self._most
        first = purge_to(self._nodes.members, reports, incarnation, is_large=is_large)
        if first - bounds.first >= FEWEST and self._clock.mono() - asked <= _STALE_S:
            self._log.purge(first)
            log.debug(f"cluster: entries {bounds.first} to {first - 1} of the log were purged")
        # Behind the purge: JetStream may refuse it for as long as a majority of servers is away.
        self._move_copy([one.node for one in reports if one.incarnation == incarnation])

    def _move_copy(self, present: list[str]) -> None:
        """Have JetStream move the copy that a removed node's server holds to a member's server.

        Without a member to take it, it stays where it is: one copy less would help nobody.
        """
        if not self._server:
            # Nobody says on which of these servers a node is.
            return
        told = self._js.api(f"STREAM.INFO.{self._stream}", {}, _API_S).get("cluster", {})
        copies = told.get("replicas", ())
        holders = {str(copy.get("name", "")) for copy in copies} | {str(told.get("leader", ""))}
        members = {server_name(self._cluster_id, node) for node in present}
        removed = holders - {server_name(self._cluster_id, node) for node in self._nodes.members}
        is_whole = all(
            _is_whole(copy) for copy in copies if str(copy.get("name", "")) not in removed
        )
        if not removed or not members - holders or not is_whole:
            return
        gone = min(removed)
        self._js.api(f"STREAM.PEER.REMOVE.{self._stream}", {"peer": gone}, _API_S)
        log.info(f"cluster: the copy of the log on {gone} moves to the server of a member")

    def close(self) -> None:
        """Give the link up."""
        self._js.close()


def _current(cluster: dict[str, Any]) -> str:
    """A server that has everything and answers; empty if there is none."""
    for replica in cluster.get("replicas", ()):
        if _is_whole(replica):
            return str(replica.get("name", ""))
    return ""


def _is_whole(copy: dict[str, Any]) -> bool:
    return bool(copy.get("current")) and not copy.get("offline")
