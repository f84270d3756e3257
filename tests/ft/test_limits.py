"""Limits of single channels from a configuration file, with real servers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import ftstan
from ftstan.base.errors import ConfigError, NatsError
from ftstan.config.limits import INHERIT
from ftstan.config.options import ChannelLimits, ServerOptions, StoreLimits
from tests.ft.client import StanClient
from tests.processes import CLUSTER, READY, until

if TYPE_CHECKING:
    from ftstan import StanServer
    from tests.processes import Nats, Server, Stage

pytestmark = pytest.mark.processes

FILE = """\
store_limits {
  max_channels: 5, max_msgs: 100
  channels {
    few { max_msgs: 3 }
    "few.*" { max_msgs: 5, max_subs: 1 }
    "gone.>" { max_inactivity: "500ms" }
  }
}
"""

LIST = """\
-------- List of Channels --------
few
 |-> Messages                    3
few.*
 |-> Subscriptions               1
 |-> Messages                    5
gone.>
 |-> Inactivity              500ms
----------------------------------"""


def start(stage: Stage, name: str, text: str) -> tuple[Server, StanClient]:
    path = stage.directory / "server.conf"
    path.write_text(text)
    server = stage.file_server(name, "-sc", str(path))
    server.wait_for(READY)
    client = StanClient(server.port, client_id=name)
    client.connect()
    return server, client


def left(client: StanClient, channel: bytes, last: int) -> list[int]:
    """Sequences that a new subscription gets, up to the last one."""
    subscription = client.subscribe(channel)
    client.nats.pump(
        lambda: subscription.sequences[-1:] == [last], f"message {last} of {channel.decode()}"
    )
    return subscription.sequences


def refused(client: StanClient, channel: bytes) -> list[str]:
    """What a publish is answered with."""
    (guid,) = client.offer(channel, b"x")
    client.settle([guid])
    return client.errors.get(guid, [])


def test_a_server_keeps_to_the_limits_of_its_file_and_to_other_ones_when_it_starts_again(
    stage: Stage,
) -> None:
    server, client = start(stage, "first", FILE)
    lines = [line.removeprefix("[INF] STREAM: ") for line in server.lines()]
    assert LIST in "\n".join(lines)
    for channel in (b"few", b"few.x", b"other"):
        client.publish(channel, *(b"%d" % n for n in range(10)))
    assert left(client, b"few", 10) == [8, 9, 10]
    assert left(client, b"few.x", 10) == [6, 7, 8, 9, 10]
    assert left(client, b"other", 10) == list(range(1, 11))
    with pytest.raises(AssertionError, match="too many subscriptions per channel"):
        client.subscribe(b"few.x")
    client.publish(b"gone.a", b"x")
    client.publish(b"stays", b"x")
    assert refused(client, b"one.more") == ["too many channels"]
    server.wait_for('Channel "gone.a" has been deleted')
    until(lambda: refused(client, b"one.more") == [], "room for one more channel")
    client.close()
    server.kill()

    other = FILE.replace("max_msgs: 5", "max_msgs: 2").replace("max_subs: 1", "max_subs: 3")
    server, client = start(stage, "second", other)
    assert left(client, b"few.x", 10) == [9, 10]
    client.subscribe(b"few.x")
    assert left(client, b"few", 10) == [8, 9, 10]


def test_a_file_whose_limits_cannot_be_is_refused_before_anything_is_touched(stage: Stage) -> None:
    path = stage.directory / "server.conf"
    path.write_text('store_limits { mc: 1, channels { a {}, b {}, "c.*" {} } }\n')
    server = stage.server("server", "-store", "file", "-dir", str(stage.store), "-sc", str(path))
    assert server.status() == 1
    text = "Failed to start: too many channels defined (2). The max channels limit is set to 1"
    assert f"[FTL] STREAM: {text}" in server.lines()
    assert not stage.store.exists()
    path.write_text('store_limits { channels { "a..b" { max_msgs: 1 } } }\n')
    server = stage.server("other", "-store", "file", "-dir", str(stage.store), "-sc", str(path))
    assert server.status() == 1
    assert server.lines()[0] == 'invalid channel name "a..b"'
    assert not stage.store.exists()


# ---- changed while serving, in a program
# ----------------------------------------------------------------------------


def program(stage: Stage, nats: Nats, group: str = "") -> StanServer:
    return ftstan.StanServer(
        ServerOptions(
            cluster_id=CLUSTER,
            store="FILE",
            dir=str(stage.store),
            ft_group=group,
            nats_servers=(nats.url,),
            limits=StoreLimits(channel=ChannelLimits(max_msgs=8)),
        )
    )


def test_a_program_gives_its_server_other_limits_while_it_serves(stage: Stage) -> None:
    nats = stage.nats()
    with program(stage, nats) as server:
        client = StanClient(nats.port)
        client.connect()
        client.publish(b"orders", *(b"%d" % n for n in range(10)))
        assert left(client, b"orders", 10) == list(range(3, 11))
        assert server.set_limits(StoreLimits(channel=ChannelLimits(max_msgs=2))) == [
            "Messages: 8 -> 2"
        ]
        client.publish(b"orders", b"x")
        assert left(client, b"orders", 11) == [10, 11]
        with pytest.raises(ConfigError, match="cannot be negative"):
            server.set_limits(StoreLimits(-1))
        client.publish(b"orders", b"y")
        assert left(client, b"orders", 12) == [11, 12]
        client.close()
    with pytest.raises(NatsError, match="does not run"):
        server.set_limits(StoreLimits())


def test_a_standby_that_was_given_other_limits_serves_with_them(stage: Stage) -> None:
    nats = stage.nats()
    active = program(stage, nats, "group")
    standby = program(stage, nats, "group")
    try:
        active.start()
        until(lambda: active.is_serving, "the first member to serve")
        standby.start()
        client = StanClient(nats.port)
        client.connect()
        client.publish(b"orders", *(b"%d" % n for n in range(10)))
        few = StoreLimits(
            channel=ChannelLimits(max_msgs=2), channels=(("bar", replace(INHERIT, max_msgs=4)),)
        )
        standby.set_limits(few)
        assert left(client, b"orders", 10) == list(range(3, 11))
        active.stop()
        until(lambda: standby.is_serving, "the standby to serve")
        assert left(client, b"orders", 10) == [9, 10]
        client.publish(b"bar", *(b"%d" % n for n in range(10)))
        assert left(client, b"bar", 10) == [7, 8, 9, 10]
    finally:
        active.stop()
        standby.stop()
