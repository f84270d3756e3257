"""The npm client ``node-nats-streaming`` against real servers: what its users see, alone and over a
failover.

``node/client.js`` drives the client; this module says what must come of it. The expectations are
those of the client's own manual and of ``docs/compat/protocol.md``.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.wire.subjects import Subjects
from tests.ft.client import Arrived, NatsConnection
from tests.processes import (
    CLUSTER,
    GROUP,
    HOST,
    PATIENCE_S,
    READY,
    ROOT,
    Child,
    children,
    free_ports,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.certificates import Certificates
    from tests.processes import Server, Stage

pytestmark = [pytest.mark.processes, pytest.mark.node]

CHANNEL = "orders"
SCRIPT = ROOT / "tests" / "compat" / "node" / "client.js"


@dataclass(frozen=True, slots=True)
class Message:
    sequence: int
    data: str
    redelivered: bool
    time_ms: int


class ClientError(Exception):
    """What the client reported to its user."""


class NodeClient:
    """The process in which the client runs.

    Connections and subscriptions go by names that the test gives.
    """

    def __init__(self, stage: Stage, name: str = "node") -> None:
        # A sanitizer that is preloaded into Python has no business in Node.js.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self._child = Child(
            ["node", str(SCRIPT)], stage.directory / f"{name}.log", environment, piped=True
        )
        stage.adopt(self._child)
        self._results: queue.Queue[dict[str, Any]] = queue.Queue()
        self._events: list[dict[str, Any]] = []
        self._serial = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._child.stdout:
            happened = json.loads(line)
            if "event" in happened:
                self._events.append(happened)
            else:
                self._results.put(happened)

    def _call(self, op: str, **more: Any) -> Any:
        self._serial += 1
        self._child.stdin.write(json.dumps({"id": self._serial, "op": op, **more}).encode() + b"\n")
        self._child.stdin.flush()
        try:
            result = self._results.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"no result of {op} {more}\n{self._child.tail()}") from None
        assert result["id"] == self._serial
        if "error" in result:
            raise ClientError(result["error"])
        return result["value"]

    def connect(self, name: str, *ports: int, client_id: str = "", **options: Any) -> None:
        servers = [f"nats://{HOST}:{port}" for port in ports]
        self._call(
            "connect",
            **{"as": name},
            cluster=CLUSTER,
            client=client_id or name,
            servers=servers,
            options=options,
        )

    def close(self, name: str) -> None:
        self._call("close", of=name)

    def publish(self, by: str, *payloads: str, channel: str = CHANNEL) -> list[str]:
        """Publish all at once and wait for the acks; gives the guids.

        Raises ``ClientError`` on an error ack.
        """
        guids = []
        for guid, acked, error in self._call("publish", by=by, channel=channel, payloads=payloads):
            if error is not None:
                raise ClientError(error)
            assert acked == guid
            guids.append(guid)
        return guids

    def subscribe(
        self, by: str, name: str, channel: str = CHANNEL, group: str = "", **options: Any
    ) -> None:
        self._call(
            "subscribe", by=by, **{"as": name}, channel=channel, group=group, options=options
        )

    def ack(self, name: str, *sequences: int) -> None:
        self._call("ack", of=name, sequences=sequences)

    def close_subscription(self, name: str) -> None:
        self._call("closeSubscription", of=name)

    def unsubscribe(self, name: str) -> None:
        self._call("unsubscribe", of=name)

    def messages(self, name: str) -> list[Message]:
        """What a subscription has got so far."""
        return [
            Message(e["sequence"], e["data"], e["redelivered"], e["time"])
            for e in list(self._events)
            if e["event"] == "message" and e["of"] == name
        ]

    def wait_for(self, name: str, sequences: Sequence[int]) -> None:
        """Wait until a subscription has got exactly ``sequences``, in this order."""

        def there() -> bool:
            got = [message.sequence for message in self.messages(name)]
            assert got == list(sequences[: len(got)]), f"{name} got {got}"
            return len(got) == len(sequences)

        until(there, f"{list(sequences)} on {name}")

    def wait_for_news(self, name: str, sequences: Sequence[int]) -> None:
        """The same, leaving out what came again: what a server noted last of deliveries and acks
        may die with it.
        """

        def there() -> bool:
            got = list(dict.fromkeys(message.sequence for message in self.messages(name)))
            assert got == list(sequences[: len(got)]), f"{name} got {got}"
            return len(got) == len(sequences)

        until(there, f"{list(sequences)} on {name}")

    def suspend(self) -> None:
        """Stop the whole process; its connections stay open."""
        self._child.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._child.signal(signal.SIGCONT)

    def happened(self, event: str, of: str) -> list[dict[str, Any]]:
        return [e for e in list(self._events) if e["event"] == event and e["of"] == of]


@pytest.fixture
def node(stage: Stage) -> NodeClient:
    return NodeClient(stage)


@pytest.fixture(params=["memory", "file"])
def server(stage: Stage, request: pytest.FixtureRequest) -> Server:
    server = stage.file_server("server") if request.param == "file" else stage.server("server")
    server.wait_for(READY)
    return server


@pytest.fixture
def connected(node: NodeClient, server: Server) -> NodeClient:
    """A client named ``me`` that has published ``one`` to ``five``."""
    node.connect("me", server.port)
    node.publish("me", "one", "two", "three", "four", "five")
    return node


class TestPublish:
    def test_each_publish_is_acked_with_its_own_guid(self, connected: NodeClient) -> None:
        guids = connected.publish("me", *(str(n) for n in range(500)))
        assert len(set(guids)) == 500

    def test_an_illegal_channel_is_an_error_for_its_publisher(self, connected: NodeClient) -> None:
        with pytest.raises(ClientError, match=r"^stan: invalid publish request$"):
            connected.publish("me", "x", channel="a/b")
        assert connected.publish("me", "the connection goes on")

    def test_a_channel_beyond_the_limit_is_an_error_for_its_publisher(
        self, stage: Stage, node: NodeClient
    ) -> None:
        server = stage.server("server", "-mc", "1")
        server.wait_for(READY)
        node.connect("me", server.port)
        node.publish("me", "x", channel="first")
        with pytest.raises(ClientError, match=r"^too many channels$"):
            node.publish("me", "x", channel="second")


class TestConnect:
    def test_a_client_id_that_lives_is_refused_to_another(
        self, connected: NodeClient, server: Server
    ) -> None:
        with pytest.raises(ClientError, match=r"^stan: clientID already registered$"):
            connected.connect("other", server.port, client_id="me")
        assert connected.publish("me", "the first one goes on")

    def test_a_client_id_is_free_after_close(self, connected: NodeClient, server: Server) -> None:
        connected.close("me")
        connected.connect("again", server.port, client_id="me")
        assert connected.publish("again", "six")


class TestStartPositions:
    def starts_with(self, node: NodeClient, sequences: Sequence[int], **options: Any) -> None:
        node.subscribe("me", "sub", **options)
        node.publish("me", "six")
        node.wait_for("sub", [*sequences, 6])
        words = ["one", "two", "three", "four", "five", "six"]
        assert [m.data for m in node.messages("sub")] == [
            words[m.sequence - 1] for m in node.messages("sub")
        ]
        assert not any(m.redelivered for m in node.messages("sub"))

    def test_only_new_messages_come_by_default(self, connected: NodeClient) -> None:
        self.starts_with(connected, [])

    def test_all_available(self, connected: NodeClient) -> None:
        self.starts_with(connected, [1, 2, 3, 4, 5], all=True)

    def test_a_sequence(self, connected: NodeClient) -> None:
        self.starts_with(connected, [3, 4, 5], sequence=3)

    def test_the_last_received(self, connected: NodeClient) -> None:
        self.starts_with(connected, [5], last=True)

    def test_a_time_in_the_past(self, connected: NodeClient) -> None:
        connected.subscribe("me", "all", all=True)
        connected.wait_for("all", [1, 2, 3, 4, 5])
        old = connected.messages("all")[-1].time_ms
        until(lambda: time.time() * 1000 > old + 2000, "the first five messages to grow old")
        connected.publish("me", "six")
        middle = old + 1000
        connected.subscribe("me", "sub", delta=round(time.time() * 1000 - middle))
        connected.wait_for("sub", [6])


class TestAcks:
    def test_what_is_not_acked_comes_again_with_the_flag_until_it_is(
        self, connected: NodeClient
    ) -> None:
        connected.subscribe("me", "sub", all=True, manualAcks=True, ackWait=1000, maxInFlight=10)
        connected.wait_for("sub", [1, 2, 3, 4, 5])
        connected.ack("sub", 1, 2, 4, 5)
        until(lambda: len(connected.messages("sub")) >= 7, "two redeliveries")
        connected.ack("sub", 3)
        first = connected.messages("sub")[:5]
        again = connected.messages("sub")[5:]
        assert not any(message.redelivered for message in first)
        assert {(message.sequence, message.data, message.redelivered) for message in again} == {
            (3, "three", True)
        }

    def test_no_more_than_max_in_flight_wait_for_their_acks(self, connected: NodeClient) -> None:
        connected.subscribe("me", "sub", all=True, manualAcks=True, maxInFlight=2)
        connected.wait_for("sub", [1, 2])
        connected.publish("me", "six")
        assert len(connected.messages("sub")) == 2
        connected.ack("sub", 1)
        connected.wait_for("sub", [1, 2, 3])
        connected.ack("sub", 2, 3)
        connected.wait_for("sub", [1, 2, 3, 4, 5])


class TestSubscriptions:
    def test_a_durable_goes_on_where_it_was_closed(
        self, connected: NodeClient, server: Server
    ) -> None:
        connected.subscribe("me", "sub", all=True, durable="audit")
        connected.wait_for("sub", [1, 2, 3, 4, 5])
        connected.close_subscription("sub")
        connected.publish("me", "six")
        connected.subscribe("me", "resumed", all=True, durable="audit")
        connected.wait_for("resumed", [6])
        connected.close("me")
        connected.connect("again", server.port, client_id="me")
        connected.publish("again", "seven")
        connected.subscribe("again", "resumed again", all=True, durable="audit")
        connected.wait_for("resumed again", [7])

    def test_a_durable_that_was_unsubscribed_is_forgotten(self, connected: NodeClient) -> None:
        connected.subscribe("me", "sub", all=True, durable="audit")
        connected.wait_for("sub", [1, 2, 3, 4, 5])
        connected.unsubscribe("sub")
        connected.subscribe("me", "new", all=True, durable="audit")
        connected.wait_for("new", [1, 2, 3, 4, 5])

    def test_a_durable_that_is_open_is_refused_to_another_subscription(
        self, connected: NodeClient
    ) -> None:
        connected.subscribe("me", "sub", durable="audit")
        with pytest.raises(ClientError, match=r"^stan: duplicate durable registration$"):
            connected.subscribe("me", "other", durable="audit")

    def test_nothing_comes_after_an_unsubscribe(self, connected: NodeClient) -> None:
        connected.subscribe("me", "sub")
        connected.subscribe("me", "other")
        connected.publish("me", "six")
        connected.wait_for("sub", [6])
        connected.unsubscribe("sub")
        connected.publish("me", "seven")
        connected.wait_for("other", [6, 7])
        connected.wait_for("sub", [6])


class TestQueueGroups:
    def test_each_message_goes_to_one_member(self, connected: NodeClient, server: Server) -> None:
        connected.connect("other", server.port)
        for by, name in (("me", "one"), ("me", "two"), ("other", "three")):
            connected.subscribe(by, name, group="workers")
        connected.publish("me", *(str(n) for n in range(6, 36)))
        members = ("one", "two", "three")
        until(lambda: sum(len(connected.messages(name)) for name in members) >= 30, "30 messages")
        got = [message.sequence for name in members for message in connected.messages(name)]
        assert sorted(got) == list(range(6, 36))
        assert all(connected.messages(name) for name in members)

    def test_what_a_member_leaves_behind_goes_to_the_others(
        self, connected: NodeClient, server: Server
    ) -> None:
        connected.connect("other", server.port)
        connected.subscribe("me", "stays", group="workers")
        connected.subscribe("other", "leaves", group="workers", manualAcks=True, ackWait=60_000)
        connected.publish("me", "six", "seven", "eight", "nine")
        until(lambda: connected.messages("leaves"), "a message to the member that will leave")
        until(
            lambda: len(connected.messages("stays")) + len(connected.messages("leaves")) >= 4,
            "four messages",
        )
        held = {message.sequence for message in connected.messages("leaves")}
        connected.close("other")
        until(
            lambda: {m.sequence for m in connected.messages("stays")} == {6, 7, 8, 9},
            "all at the one that stays",
        )
        assert {m.sequence for m in connected.messages("stays") if m.redelivered} == held

    def test_a_durable_group_goes_on_with_whoever_comes_back(
        self, connected: NodeClient, server: Server
    ) -> None:
        connected.subscribe("me", "first", group="workers", durable="audit", all=True)
        connected.wait_for("first", [1, 2, 3, 4, 5])
        connected.close_subscription("first")
        connected.publish("me", "six")
        connected.connect("other", server.port)
        connected.subscribe("other", "second", group="workers", durable="audit", all=True)
        connected.wait_for("second", [6])


class TestConnectionLost:
    def test_a_client_gives_up_when_nobody_answers_its_pings(
        self, stage: Stage, node: NodeClient
    ) -> None:
        nats = stage.nats()
        server = stage.server("server", "-ns", nats.url)
        server.wait_for(READY)
        node.connect("me", nats.port, stanPingInterval=300, stanMaxPingOut=2)
        server.kill()
        until(lambda: node.happened("lost", "me"), "the client to give up")
        (lost,) = node.happened("lost", "me")
        assert "stan: connection lost due to PING failure" in lost["text"]

    def test_a_client_that_was_replaced_is_told_by_its_next_ping(
        self, stage: Stage, node: NodeClient, server: Server
    ) -> None:
        node.connect(
            "first", server.port, client_id="me", stanPingInterval=300, stanMaxPingOut=1000
        )
        node.subscribe("first", "sub")
        node.suspend()
        other = NodeClient(stage, "other")
        other.connect("second", server.port, client_id="me")
        node.resume()
        until(lambda: node.happened("lost", "first"), "the first client to be told")
        assert (
            "client has been replaced or is no longer registered"
            in node.happened("lost", "first")[0]["text"]
        )
        other.publish("second", "it is the second one's name now")
        assert node.messages("sub") == []


class TestFailover:
    def test_members_of_a_group_share_on_the_other_node(
        self, stage: Stage, node: NodeClient
    ) -> None:
        a, b = stage.routed_pair()
        node.connect("me", b.port, stanPingInterval=300, stanMaxPingOut=100)
        node.connect("other", b.port, stanPingInterval=300, stanMaxPingOut=100)
        node.subscribe("me", "one", group="workers", durable="audit", all=True)
        node.subscribe("other", "two", group="workers", durable="audit", all=True)
        node.publish("me", "before")
        until(lambda: node.messages("one") or node.messages("two"), "the first message")

        a.kill()
        b.wait_until_active()

        node.publish("me", *(str(n) for n in range(2, 12)))
        fresh = [1, *range(2, 12)]
        until(
            lambda: (
                {m.sequence for name in ("one", "two") for m in node.messages(name)} == set(fresh)
            ),
            "all messages at the members",
        )
        new = [
            m.sequence for name in ("one", "two") for m in node.messages(name) if not m.redelivered
        ]
        assert sorted(sequence for sequence in new if sequence > 1) == list(range(2, 12))
        assert all(node.messages(name) for name in ("one", "two"))
        assert not node.happened("lost", "me")

    def test_pings_keep_a_connection_over_a_failover(self, stage: Stage, node: NodeClient) -> None:
        a, b = stage.routed_pair()
        node.connect("me", b.port, stanPingInterval=300, stanMaxPingOut=100)
        node.subscribe("me", "sub", all=True)
        node.publish("me", "before")
        node.wait_for("sub", [1])

        a.kill()
        b.wait_until_active()

        pings: list[Arrived] = []
        observer = NatsConnection(b.port)
        observer.listen(Subjects.for_cluster(CLUSTER).pings, pings.append)
        observer.pump(lambda: len(pings) >= 3, "three pings to the new active")
        observer.close()
        node.publish("me", "after")
        node.wait_for_news("sub", [1, 2])
        assert not node.happened("lost", "me")
        assert not node.happened("error", "me")

    def test_a_client_that_knows_both_nats_servers_follows_the_survivor(
        self, stage: Stage, node: NodeClient
    ) -> None:
        a, b = stage.routed_pair()
        node.connect("me", a.port, b.port, noRandomize=True)
        node.subscribe("me", "sub", all=True, durable="audit")
        node.publish("me", "before")
        node.wait_for("sub", [1])

        a.kill()
        b.wait_until_active()

        until(lambda: node.happened("reconnect", "me"), "the client to find the survivor")
        node.publish("me", "after")
        node.wait_for_news("sub", [1, 2])
        assert not node.happened("lost", "me")

    def test_a_durable_resumes_on_the_other_node(self, stage: Stage, node: NodeClient) -> None:
        a, b = stage.routed_pair()
        node.connect("me", a.port, b.port)
        node.publish("me", "one", "two", "three")
        node.subscribe("me", "sub", all=True, durable="audit", manualAcks=True, ackWait=60_000)
        node.wait_for("sub", [1, 2, 3])
        node.close_subscription("sub")

        a.kill()
        b.wait_until_active()

        node.connect("other", b.port)
        node.publish("other", "four")
        node.close("me")
        node.connect("again", b.port, client_id="me")
        node.subscribe("again", "resumed", durable="audit", manualAcks=True)
        node.wait_for("resumed", [1, 2, 3, 4])
        assert [(m.data, m.redelivered) for m in node.messages("resumed")] == [
            ("one", True),
            ("two", True),
            ("three", True),
            ("four", False),
        ]

    def test_a_stop_of_the_active_costs_publishers_and_subscribers_nothing(
        self, stage: Stage, node: NodeClient
    ) -> None:
        nats = stage.nats()
        a, b = stage.pair_on(nats)
        node.connect("me", nats.port)
        node.subscribe("me", "sub", all=True, durable="audit")
        node.publish("me", "before")
        a.signal(signal.SIGTERM)
        for number in range(20):
            node.publish("me", *(f"{number}.{i}" for i in range(10)))
        assert a.status() == 143
        b.wait_until_active()
        node.publish("me", "after")
        node.wait_for_news("sub", range(1, 203))
        assert not node.happened("lost", "me")
        assert not node.happened("error", "me")

    def test_a_switchover_costs_publishers_and_subscribers_nothing(
        self, stage: Stage, node: NodeClient
    ) -> None:
        nats = stage.nats()
        a, b = stage.pair_on(nats)
        node.connect("me", nats.port)
        node.subscribe("me", "sub", all=True, durable="audit")
        node.publish("me", "before")
        words = [
            "--server",
            nats.url,
            "--cluster",
            CLUSTER,
            "--group",
            GROUP,
            "--dir",
            str(stage.store),
        ]
        asked = stage.run(
            "ctl", [sys.executable, "-m", "ftstan.cli.ctl", "ft", "switchover", *words]
        )
        for number in range(20):
            node.publish("me", *(f"{number}.{i}" for i in range(10)))
        assert asked.status() == 0
        b.wait_until_active()
        assert a.status() == 75
        node.publish("me", "after")
        node.wait_for_news("sub", range(1, 203))
        assert not node.happened("lost", "me")
        assert not node.happened("error", "me")

    def test_a_client_that_gave_up_connects_again_under_its_id_and_its_durable_goes_on(
        self, stage: Stage, node: NodeClient
    ) -> None:
        nats = stage.nats()
        first = stage.file_server("first", "-ns", nats.url)
        first.wait_for(READY)
        node.connect("me", nats.port, stanPingInterval=300, stanMaxPingOut=2)
        node.subscribe("me", "sub", all=True, durable="audit", manualAcks=True, ackWait=60_000)
        node.publish("me", "one", "two")
        node.wait_for("sub", [1, 2])
        first.kill()
        until(lambda: node.happened("lost", "me"), "the client to give up")

        stage.file_server("second", "-ns", nats.url).wait_for(READY)
        node.connect("again", nats.port, client_id="me")
        node.publish("again", "three")
        node.subscribe("again", "resumed", durable="audit", manualAcks=True)
        node.wait_for("resumed", [1, 2, 3])
        assert [m.redelivered for m in node.messages("resumed")] == [True, True, False]

    def test_publishes_are_refused_a_connection_of_a_memory_server_that_is_gone(
        self, stage: Stage, node: NodeClient
    ) -> None:
        ports = free_ports(2)
        server = stage.server("server", port=ports[0], monitor=ports[1])
        server.wait_for(READY)
        node.connect("me", server.port, stanPingInterval=300, stanMaxPingOut=100)
        server.kill()
        stage.server("server", port=ports[0], monitor=ports[1]).wait_for(READY)
        until(lambda: node.happened("lost", "me"), "the client to be told")
        (lost,) = node.happened("lost", "me")
        assert "client has been replaced or is no longer registered" in lost["text"]


class TestTls:
    def test_a_client_with_tls_takes_the_direct_road_and_comes_back_to_it(
        self, stage: Stage, node: NodeClient, certificates: Certificates
    ) -> None:
        pair = certificates.server
        server = stage.file_server(
            "server",
            *("-tls", "-tlscert", pair.cert, "-tlskey", pair.key),
            *("-tls_client_cacert", certificates.ca.cert),
        )
        server.wait_for(READY)
        authority = Path(certificates.ca.cert).read_text(encoding="ascii")
        node.connect("me", server.port, tls={"ca": [authority]})
        node.subscribe("me", "sub", all=True)
        node.publish("me", "one", "two")
        node.wait_for("sub", [1, 2])
        # Connect, subscribe, publishes, acks; answers, messages.
        until(lambda: server.serverz()["direct_road"]["direct_in"] >= 6, "the acks")
        road = server.serverz()["direct_road"]
        assert road["encrypted"] == road["connections"] == 1
        assert road["direct_out"] >= 6
        (nats,) = children(server.pid)
        os.kill(nats, signal.SIGKILL)
        until(lambda: node.happened("reconnect", "me"), "the client to come back")
        # What is published before that nobody hears.
        server.wait_for("reconnected to NATS Server")
        node.publish("me", "three")
        node.wait_for("sub", [1, 2, 3])
        assert server.serverz()["direct_road"]["direct_in"] > road["direct_in"]
