"""``python -m demo.migration``: a pair of streaming servers is left for JetStream, under load.

A bridge mirrors the channel into a stream with three copies. The active server, the bridge and the
stream's leader are killed; publishers and subscribers change sides one by one; the channel is cut
over, and taken back once. Exit status 0 only if both sides have the same counts and checksums each
time, and everything that a publisher was told is stored was read by everybody, once and in order.
1: it was not. 2: the demo could not be carried out. No child outlives it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from demo.movers import (
    NEW,
    NOWHERE,
    OLD,
    STREAM,
    Publisher,
    Subscriber,
    failures,
    problems,
    to_jetstream,
)
from demo.processes import CHANNEL, CLUSTER, DemoError, Node
from demo.screen import Screen
from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError
from ftstan.drill.ports import LOOPBACK, free_ports
from ftstan.drill.processes import Child, nats_words, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

EXIT_CLEAN: Final = 0
EXIT_VIOLATION: Final = 1
EXIT_FAILED: Final = 2
EXIT_INTERRUPTED: Final = 130
_SERVERS: Final = 3
_PUBLISHERS: Final = 3
_SUBSCRIBERS: Final = 2
_STOP_S: Final = 20.0
_OUT: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "out")
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Migration:
    """One run in the directory ``place``. ``play``, then ``end`` whatever happened."""

    def __init__(self, place: str, screen: Screen, pause: float) -> None:
        self._place = place
        self._store = os.path.join(place, "store")
        self._screen = screen
        self._pause = pause
        os.makedirs(self._store)
        ports = free_ports(6 + 2 * _SERVERS)
        self._nodes = [
            Node(
                name,
                store=["-store", "file", "-dir", self._store],
                log=self._path(f"node-{name}.log"),
                port=ports[number],
                routes=(ports[2 + number], ports[3 - number]),
                monitor_port=ports[4 + number],
                streaming="streaming { allow_channel_move: true, dedup_window: 100000 }\n",
            )
            for number, name in enumerate("AB")
        ]
        self._ports = ports[6:]
        self._jetstream: list[Child] = []
        self._runs = 0
        self._bridge: Child | None = None
        stan = [node.url for node in self._nodes]
        self._urls = [f"nats://{LOOPBACK}:{port}" for port in self._ports[:_SERVERS]]
        self._publishers = [
            Publisher(f"publisher{n}", stan, self._urls) for n in range(1, _PUBLISHERS + 1)
        ]
        self._subscribers = [
            Subscriber(f"subscriber{n}", stan, self._urls) for n in range(1, _SUBSCRIBERS + 1)
        ]
        self._started = 0

    def play(self) -> int:
        """Tell the story; gives how many things were wrong. Raises ``FtstanError``."""
        self._begin()
        self._kills()
        self._move_everybody()
        self._cut_over()
        self._load()
        self._undo()
        self._load()
        return self._judge()

    # ---- the story

    def _begin(self) -> None:
        self._screen.say("starting three NATS servers with JetStream, and a pair of ftstan")
        self._jetstream = [self._start_jetstream(n) for n in range(_SERVERS)]
        for node in self._nodes:
            node.start()
        self._wait("an active server", lambda: any(node.is_active() for node in self._nodes))
        self._wait("JetStream to have a leader", self._has_leader)
        for one in (*self._publishers, *self._subscribers):
            one.start()
            self._started += 1
        self._start_bridge()
        self._wait("the bridge to mirror", lambda: self._last() > 0)
        self._load()

    def _kills(self) -> None:
        victim = next(node for node in self._nodes if node.is_active())
        self._screen.say(f"SIGKILL: the active server {victim.name}")
        victim.signal(signal.SIGKILL)
        victim.wait_for_end()
        self._wait("the other to be active", lambda: any(n.is_active() for n in self._nodes))
        victim.start()
        self._load()
        self._screen.say("SIGKILL: the bridge")
        assert self._bridge is not None
        self._bridge.kill()
        self._start_bridge()
        self._load()
        found: list[int] = []

        def leads() -> bool:
            found[:] = [self._leader()]
            return found[0] >= 0

        self._wait("the stream to have a leader", leads)
        leader = found[0]
        self._screen.say(f"SIGKILL: the NATS server js{leader}, which leads the stream")
        self._jetstream[leader].kill()
        self._load()
        self._jetstream[leader] = self._start_jetstream(leader)
        self._load()

    def _move_everybody(self) -> None:
        order = [
            *(self._publishers[0], self._subscribers[0]),
            *(self._publishers[1], self._subscribers[1]),
            *self._publishers[2:],
        ]
        for one in order:
            self._screen.say(f"{one.name} moves to {NEW}")
            one.move(NEW)
            self._load()

    def _cut_over(self) -> None:
        self._screen.say("ftstanctl bridge cutover")
        told = self._ctl("cutover", "--dir", self._store, "--yes", "--wait", "100")["channels"][0]
        self._say_equal(told)
        self._wait_for_bridge()

    def _undo(self) -> None:
        self._screen.say("ftstanctl bridge undo")
        told = self._ctl("undo", "--dir", self._store, "--yes")["channels"][0]
        self._screen.say(f"the channel takes publishes again behind {told['last']}")
        self._start_bridge()
        # What a publisher sends to the channel must not overtake what it has sent to the stream.
        publisher, reader = self._publishers[0], self._subscribers[0]
        publisher.move(NOWHERE)
        self._load()
        self._wait("its messages to come through", lambda: reader.has_read(publisher.newest))
        for one in (publisher, reader):
            self._screen.say(f"{one.name} moves back to {OLD}")
            one.move(OLD)

    def _judge(self) -> int:
        for publisher in self._publishers:
            publisher.stop()
        self._wait("everything to come through", self._is_level)
        told = self._ctl("verify", "--channel", CHANNEL)["channels"][0]
        self._say_equal(told)
        last = self._last()
        self._wait(
            "everybody to have read all", lambda: all(s.last >= last for s in self._subscribers)
        )
        for subscriber in self._subscribers:
            subscriber.stop()
        ended = failures((*self._publishers, *self._subscribers))
        for line in ended:
            self._screen.say(f"WRONG: {line}")
        rows = self._rows()
        found = problems(rows, self._publishers, self._subscribers, self._screen.say)
        counts = ", ".join(f"{one.name} {one.stored}" for one in self._publishers)
        self._screen.say(f"{len(rows)} messages on both sides; stored: {counts}")
        return found + len(ended)

    def _say_equal(self, told: dict[str, Any]) -> None:
        self._screen.say(
            f"channel: {told['channel_messages']} messages, CRC {told['channel_crc']}; "
            f"stream: {told['stream_messages']} messages, CRC {told['stream_crc']}"
        )

    def _load(self) -> None:
        time.sleep(self._pause)
        self._tend_bridge()
        if ended := failures((*self._publishers, *self._subscribers)):
            raise DemoError(f"an application ended: {ended[0]}", hint=f"see {self._place}")

    # ---- children

    def _path(self, name: str) -> str:
        return os.path.join(self._place, name)

    def _start_jetstream(self, number: int) -> Child:
        clients, routes = self._ports[:_SERVERS], self._ports[_SERVERS:]
        urls = ", ".join(f"nats://{LOOPBACK}:{port}" for port in routes)
        settings = self._path(f"js{number}.conf")
        with open(settings, "w", encoding="utf-8") as file:
            file.write(
                f"server_name: js{number}\n"
                f'jetstream {{ store_dir: "{self._path(f"js{number}")}" }}\n'
                f"cluster {{ name: js, listen: {LOOPBACK}:{routes[number]}, routes: [{urls}] }}\n"
            )
        words = nats_words(clients[number], "-c", settings)
        return Child(words, self._path(f"js{number}.log"), directory=_ROOT)

    def _start_bridge(self) -> None:
        words = ["run", "--channel", CHANNEL, "--back", "--replicas", str(_SERVERS)]
        log = self._path("bridge.log")
        self._bridge = Child(self._words(*words, "--dir", self._store), log, directory=_ROOT)

    def _tend_bridge(self) -> None:
        """What a supervisor does: a bridge that did not get JetStream in time is started again."""
        bridge = self._bridge
        if bridge is not None and bridge.returncode:
            self._screen.say(f"the bridge has ended: {bridge.last_lines(1)}; it is started again")
            self._start_bridge()

    def _words(self, verb: str, *words: str) -> list[str]:
        stan = ",".join(node.url for node in self._nodes)
        where = ["--server", stan, "--cluster", CLUSTER, "--jetstream", ",".join(self._urls)]
        ctl = [sys.executable, "-m", "ftstan.cli.ctl", "bridge", verb]
        return [*ctl, *where, "--connect-timeout", "20", *words]

    def _ctl(self, verb: str, *words: str) -> dict[str, Any]:
        """What a command says, as JSON. Raises ``DemoError`` if its status is not 0."""
        self._runs += 1
        out = self._path(f"{self._runs}-{verb}.log")
        named = (CHANNEL,) if verb in ("cutover", "undo") else ()
        child = Child(self._words(verb, *named, *words, "--output", "json"), out, directory=_ROOT)
        self._wait(f"ftstanctl bridge {verb}", lambda: not child.running)
        text = child.text()
        if child.returncode != 0:
            raise DemoError(
                f"ftstanctl bridge {verb} ended with status {child.returncode}: {text}",
                hint=f"see {self._place}",
            )
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def _wait_for_bridge(self) -> None:
        """It ends by itself, for the channel has moved."""

        def has_ended() -> bool:
            return self._bridge is not None and self._bridge.returncode == 0

        self._wait("the bridge to end", has_ended)

    def _wait(self, what: str, condition: Callable[[], object]) -> None:
        def reached() -> bool:
            self._tend_bridge()
            return bool(condition())

        try:
            until(reached, what)
        except TimeoutError as error:
            raise DemoError(str(error), hint=f"see the logs in {self._place}") from error

    # ---- looking

    def _asked(self, what: str) -> dict[str, Any]:
        js = to_jetstream(self._urls, "look")
        try:
            js.connect(2.0)
            return js.api(what, {}, 2.0)
        except FtstanError:
            return {}
        finally:
            js.close()

    def _has_leader(self) -> bool:
        return "streams" in self._asked("STREAM.NAMES")

    def _last(self) -> int:
        return int((self._asked(f"STREAM.INFO.{STREAM}").get("state") or {}).get("last_seq", 0))

    def _leader(self) -> int:
        """The number of the server that leads the stream, -1 if nobody says so now."""
        told = (self._asked(f"STREAM.INFO.{STREAM}").get("cluster") or {}).get("leader")
        return int(str(told).removeprefix("js")) if told else -1

    def _is_level(self) -> bool:
        with contextlib.suppress(DemoError):
            row = self._ctl("status")["channels"][0]
            return not row["lag"] and not row["waiting"]
        return False

    def _rows(self) -> list[tuple[int, bytes]]:
        js = to_jetstream(self._urls, "judge")
        js.connect(5.0)
        found: list[tuple[int, bytes]] = []
        while rows := js.get(STREAM, len(found) + 1, 1000, 4 << 20, 5.0).rows:
            found += [(sequence, data) for sequence, _, data in rows]
        js.close()
        return found

    def end(self) -> None:
        """End every child that still runs."""
        if self._bridge is not None:
            self._bridge.stop(_STOP_S)
        for node in self._nodes:
            node.end()
        for child in self._jetstream:
            child.stop(_STOP_S)


def main() -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.migration", description="From a pair of servers to JetStream and back."
    )
    parser.add_argument(
        "--pause", type=float, default=3.0, help="seconds under load after each step (3)"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    screen = Screen(SystemClock())
    place = os.path.join(_OUT, f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    screen.say(f"datastore, streams and logs in {os.path.relpath(place)}")
    migration = Migration(place, screen, options.pause)
    try:
        found = migration.play()
    except KeyboardInterrupt:
        screen.say("interrupted")
        return EXIT_INTERRUPTED
    except FtstanError as error:
        screen.say(f"the demo failed: {error}")
        if error.hint:
            print(f"hint: {error.hint}")
        return EXIT_FAILED
    finally:
        # A second Ctrl-C must not leave a child behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        migration.end()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if found:
        print(f"NOT CLEAN. Everything is kept: {os.path.relpath(place)}")
        return EXIT_VIOLATION
    screen.say("clean: counts and checksums of both sides are equal")
    shutil.rmtree(place)
    return EXIT_CLEAN


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
