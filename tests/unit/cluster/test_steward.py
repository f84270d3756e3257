"""What a leader looks after beside serving."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from ftstan.base.clock import ManualClock
from ftstan.cluster.beats import Report
from ftstan.cluster.log import ReplicatedLog, settings
from ftstan.cluster.purging import KnownNodes
from ftstan.cluster.steward import PURGE_EVERY_S, Steward
from ftstan.nats.clustered import server_name
from ftstan.nats.jetstream import Answer, ApiError
from tests.unit.cluster.stream import FakeJetStream, Stream

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.nats.jetstream import JetStream

LOG = bytes(range(16))


class Api(FakeJetStream):
    """Says who holds copies, and refuses to move one."""

    refused = 0

    def api(self, what: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        if what.startswith("STREAM.PEER.REMOVE."):
            self.refused += 1
            raise ApiError("no majority of the servers", 10009)
        said = super().api(what, request, seconds)
        copies = [{"name": server_name("cid", node), "current": True} for node in ("b", "gone")]
        return said | {"cluster": {"leader": server_name("cid", "a"), "replicas": copies}}


def test_a_copy_that_cannot_be_moved_keeps_no_entry_in_the_log(tmp_path: Path) -> None:
    stream = Stream(settings("cid", LOG), [("x", b"")] * 500)
    js = Api(stream)
    made = cast("JetStream", js)
    clock = ManualClock()
    nodes = KnownNodes(str(tmp_path), ("a", "b", "gone"), lambda: {"gone": False, "d": True})
    js.reports = [
        Answer(0, {}, Report(node, LOG.hex(), 500, 0, 1, stored=400).encode()) for node in "abd"
    ]
    steward = Steward(
        *(made, ReplicatedLog(made, "cid", clock, threading.Event()), clock, nodes),
        cluster_id="cid",
        server=server_name("cid", "b"),
        most=1 << 30,
    )
    clock.advance(PURGE_EVERY_S)
    steward.look(LOG)
    assert stream.purged == 399
    assert js.refused == 1
