"""The bridge under faults: itself killed, the NATS server of JetStream, the active of a group, the
leader of a stream with three copies. Everything is in the stream, once.
"""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError
from tests.ft.bridged import CHANNEL, STREAM, Sides, fill, from_files, whole
from tests.processes import HOST, Nats, free_ports, until

if TYPE_CHECKING:
    from tests.processes import Stage

pytestmark = pytest.mark.processes


def test_a_bridge_that_was_killed_in_its_backlog_goes_on_where_the_stream_is(stage: Stage) -> None:
    sides = Sides(stage, 60_000)
    bridge = sides.start("bridge", *from_files(sides))
    until(lambda: sides.last > 500, "the bridge to begin")
    bridge.kill()
    assert sides.last < 60_000
    sides.publish(60_001, 60_100)
    assert sides.once(*from_files(sides)).status == 0
    assert sides.rows() == whole(60_100)


def test_a_nats_server_that_was_killed_loses_and_repeats_nothing(stage: Stage) -> None:
    sides = Sides(stage, 60_000)
    js = stage.nats("js", settings=f'jetstream {{ store_dir: "{stage.directory}/other" }}\n')
    bridge = sides.start("bridge", *from_files(sides), "--jetstream", js.url)
    stan, sides.nats = sides.nats, js
    until(lambda: sides.last > 500, "the bridge to begin")
    js.kill()
    sides.nats = stage.nats("js2", port=js.port, settings=(stage.directory / "js.conf").read_text())
    until(lambda: sides.last == 60_000, "the backlog to be mirrored")
    sides.nats = stan
    sides.publish(60_001, 60_050)
    sides.nats = js
    until(lambda: sides.last == 60_050, "the tail to be mirrored")
    assert sides.rows() == whole(60_050)
    bridge.signal(signal.SIGTERM)
    assert bridge.status() == 0


def test_a_takeover_loses_and_repeats_nothing(stage: Stage) -> None:
    fill(stage, 1, 5000)
    sides = Sides(stage, group=True)
    standby = stage.member("b", "-ns", sides.nats.url)
    standby.wait_until_standing_by()
    bridge = sides.start("bridge", *from_files(sides))
    bridge.wait_for("on by the durable")
    publishing = threading.Thread(target=sides.publish, args=(5001, 25_000))
    publishing.start()
    until(lambda: sides.last > 7000, "the tail to be under way")
    sides.server.kill()
    publishing.join()
    standby.wait_until_active()

    def level() -> bool:
        shown = sides.bridge("status", "--output", "json")
        return shown.status == 0 and sides.last >= 25_000

    until(level, "the stream to be level")
    bridge.signal(signal.SIGTERM)
    assert bridge.status() == 0
    assert [sequence for sequence, _ in sides.rows()] == list(range(1, sides.last + 1))
    verified = sides.bridge("verify", "--channel", CHANNEL, "--output", "json")
    assert json.loads(verified.out)["channels"][0]["differs_at"] == 0


def three(stage: Stage) -> list[Nats]:
    """Three NATS servers with JetStream."""
    ports = free_ports(6)
    routes = ", ".join(f"nats://{HOST}:{port}" for port in ports[3:])
    found = []
    for n in range(3):
        settings = (
            f'server_name: js{n}\njetstream {{ store_dir: "{stage.directory}/js{n}" }}\n'
            f"cluster {{ name: js, listen: {HOST}:{ports[3 + n]}, routes: [{routes}] }}\n"
        )
        found.append(stage.nats(f"js{n}", port=ports[n], settings=settings))
    return found


def wait_for_leader(sides: Sides, server: Nats) -> None:
    def elected() -> bool:
        js = sides.js(server)
        try:
            js.api("STREAM.NAMES", {}, 1.0)
        except NatsError:
            return False
        finally:
            js.link.close()
        return True

    until(elected, "JetStream to have a leader")


def test_the_leader_of_a_stream_with_three_copies_is_killed(stage: Stage) -> None:
    sides = Sides(stage, 30_000)
    servers = three(stage)
    urls = ",".join(server.url for server in servers)
    wait_for_leader(sides, servers[0])
    words = (*from_files(sides), "--jetstream", urls, "--replicas", "3")
    bridge = sides.start("bridge", *words)
    sides.nats = servers[0]
    until(lambda: sides.last > 500, "the bridge to begin")
    js = sides.js()
    told = js.api(f"STREAM.INFO.{STREAM}", {}, 5.0)
    js.link.close()
    leader = int(told["cluster"]["leader"].removeprefix("js"))
    servers[leader].kill()
    sides.nats = servers[(leader + 1) % 3]
    until(lambda: sides.last == 30_000, f"the backlog to be mirrored; {bridge.tail()}")
    bridge.signal(signal.SIGTERM)
    assert bridge.status() == 0
    assert sides.rows() == whole(30_000)


def test_a_stream_with_three_copies_is_purged_to_where_its_channel_begins(stage: Stage) -> None:
    sides = Sides(stage, 100, "-max_msgs", "100")
    servers = three(stage)
    wait_for_leader(sides, servers[0])
    words = ("--jetstream", ",".join(server.url for server in servers), "--replicas", "3")
    assert sides.once(*words).status == 0
    sides.publish(101, 250)
    assert sides.once(*words, "--purge-at-gap").status == 0
    sides.nats = servers[1]
    assert sides.rows() == whole(250, 151)
