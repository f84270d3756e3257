"""What a leader looks after beside serving: that its stream is still the one that it knows, and
that the stream is led by another server than its own.

The second is about time alone. If the process that serves and the server that leads the stream die
together, a takeover waits for JetStream's own election, which takes seconds; if they do not, it
does not. Blocking, on a link of its own, for a thread that nothing waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import NatsError
from ftstan.base.log import stream as log
from ftstan.cluster.jetstream import ApiError
from ftstan.cluster.log import LogLostError
from ftstan.cluster.names import stream_name

if TYPE_CHECKING:
    from ftstan.cluster.jetstream import JetStream
    from ftstan.cluster.log import ReplicatedLog

_CONNECT_S: Final = 1.0
_API_S: Final = 2.0
_HINT: Final = "see docs/clustering.md, A log that lost entries"


class Steward:
    """``rlog`` is for looking only, over ``js``. ``server``: the name of this node's server."""

    def __init__(self, js: JetStream, rlog: ReplicatedLog, cluster_id: str, server: str) -> None:
        self._js = js
        self._log = rlog
        self._stream = stream_name(cluster_id)
        self._server = server

    def look(self, incarnation: bytes) -> None:
        """Look once. Raises ``LogLostError``: the log of ``incarnation`` is not there any more."""
        try:
            if not self._js.connected:
                self._js.connect(_CONNECT_S)
            found = self._log.find()
            if found == incarnation:
                self._place()
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

    def close(self) -> None:
        """Give the link up."""
        self._js.close()


def _current(cluster: dict[str, Any]) -> str:
    """A server that has everything and answers; empty if there is none."""
    for replica in cluster.get("replicas", ()):
        if replica.get("current") and not replica.get("offline"):
            return str(replica.get("name", ""))
    return ""
