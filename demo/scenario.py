"""The story the demo tells: an FT pair under load whose active is killed three times, stopped, and
switched over.

It acts and records; it must never judge (``judge.py``), and it knows the servers only as an
operator does.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from demo.processes import CHANNEL, CLUSTER, Command, DemoError, Node, Script
from demo.report import switch_line
from ftstan.drill.ledger import SUFFIX, Ack, Fault, Tail, Takeover, Writer
from ftstan.drill.ports import free_ports
from ftstan.drill.rules import Switch

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.database import Database
    from demo.screen import Screen
    from ftstan.base.clock import Clock

SWITCHOVER = "switchover"
FAULTS = ("kill", "kill", "stop", SWITCHOVER, "kill")
RATE = 5000
LOAD = f"{RATE:,} messages a second at most, one publisher, one durable, one reader"
READY_TIMEOUT = 90.0
TAKEOVER_TIMEOUT = 45.0
FINISH_TIMEOUT = 30.0
POLL = 0.05
#: While a takeover is being timed.
FINE_POLL = 0.01

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGTERM}


@dataclass(frozen=True, slots=True)
class Places:
    """Where one run keeps its things."""

    store: str
    ledger: str
    logs: str

    @classmethod
    def make(cls, run: str) -> Places:
        """Create the directories of a run."""
        places = cls(
            os.path.join(run, "store"), os.path.join(run, "ledger"), os.path.join(run, "logs")
        )
        for path in (places.store, places.ledger, places.logs):
            os.makedirs(path)
        return places

    def store_words(self, database: Database | None) -> list[str]:
        """What tells a server where to keep messages."""
        if database is None:
            return ["-store", "file", "-dir", self.store]
        path = os.path.join(self.store, "sql-source")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write(database.source + "\n")
        words = ["-store", "sql", "-sql_driver", database.driver, "-sql_source_file", path]
        return [*words, "-admin_key", self._admin_key]

    def key_words(self, database: Database | None) -> list[str]:
        """What tells ``ftstanctl`` where the servers' key is."""
        return ["--dir", self.store] if database is None else ["--admin-key", self._admin_key]

    @property
    def _admin_key(self) -> str:
        """The key of servers without a directory."""
        return os.path.join(self.store, "admin.key")

    def ledger_file(self, name: str) -> str:
        """Return the ledger file of one writer."""
        return os.path.join(self.ledger, name + SUFFIX)

    def log(self, name: str) -> str:
        """Return the log file of one child."""
        return os.path.join(self.logs, name + ".log")


class Scenario:
    """One run. ``play`` returns when the story is told.

    ``end`` leaves no child behind, whatever happened.
    """

    faults: tuple[str, ...] = FAULTS
    patience = 1.0
    """How many times as long as a pair of servers everything may take."""
    noun = "ft"
    """What ``ftstanctl`` is asked with."""

    def __init__(
        self,
        places: Places,
        screen: Screen,
        clock: Clock,
        seconds: float,
        database: Database | None = None,
    ) -> None:
        """``database``: started already; the pair keeps everything in it, else in a directory."""
        self._places = places
        self._database = database
        self._screen = screen
        self._clock = clock
        self._pause = seconds / (len(self.faults) + 1)
        self._ledger = Writer(places.ledger_file("runner"))
        self._nodes = self._make_nodes()
        self._active = self._nodes[0]
        self._epoch = 0
        self._scripts: dict[str, Script] = {}  # those that must be running
        self._ever_started: list[Script] = []
        self._commands: list[Command] = []

    def play(self) -> None:
        """Start everything, take the active away again and again under load, and let the clients
        finish.
        """
        self._begin()
        for fault in self.faults:
            self._load()
            self._befall(fault)
        self._load()
        self._finish()

    def end(self) -> None:
        """End every child that still runs."""
        for script in self._ever_started:
            script.end()
        for command in self._commands:
            command.end()
        for node in self._nodes:
            node.end()
        self._ledger.close()

    def last_words(self) -> str:
        """Return the last log lines of both nodes, and what a client complained of, for a run that
        failed.
        """
        logs = [(f"node {node.name}", node.last_lines() or ["(none)"]) for node in self._nodes]
        logs += [
            (script.name, lines) for script in self._ever_started if (lines := script.last_lines())
        ]
        return "\n".join("\n".join([f"--- last lines of {name}", *lines]) for name, lines in logs)

    # --- the chapters

    def _begin(self) -> None:
        began_us = self._now_us()
        for node in self._nodes:
            node.start()
        self._screen.say(self._started())
        self._wait(
            "a node to become active",
            READY_TIMEOUT,
            lambda: self._found_active() is not None,
        )
        active_us = self._now_us()
        self._wait_for_standby()
        self._show_status()
        self._start("publisher", rate=str(RATE))
        self._start("consumer")
        acks = Tail(self._places.ledger_file("publisher"))
        self._new_epoch(Fault(began_us, 0, "", "start"), active_us, acks)

    def _befall(self, fault: str) -> None:
        """Let it happen."""
        self._take_away(fault)

    def _take_away(self, fault: str) -> None:
        self._scripts.pop(f"reader {self._epoch}").stop()
        victim = self._active
        heir = self._heir()
        acks = Tail(self._places.ledger_file("publisher"))
        acks.skip()
        done = Fault(self._now_us(), self._epoch, victim.name, fault)
        asked = self._do(fault, victim, heir)

        def taken() -> bool:
            if asked is not None:
                asked.done()  # who was refused need not be waited for
            return self._found_active(but=victim) is not None

        self._wait("a takeover", TAKEOVER_TIMEOUT, taken, but=victim, poll=FINE_POLL)
        active_us = self._now_us()
        if asked is not None:
            done = self._asked_at(done, self._active, active_us)
        self._ledger.write(done)
        self._new_epoch(done, active_us, acks, but=victim)
        victim.wait_for_end()
        if asked is not None:
            self._answer(asked, but=victim)
        victim.start()
        self._wait_for_standby()
        if asked is not None:
            self._show_status()

    def _asked_at(self, fault: Fault, heir: Node, active_us: int) -> Fault:
        """The same fault at the time when the server got the request: the command that brings it
        takes a while to start. The successor says how long ago that was.
        """
        age = heir.handover_age()
        t = self._now_us() - round(age * 1e6) if age is not None else fault.t
        return replace(fault, t=t) if fault.t <= t <= active_us else fault

    def _do(self, fault: str, victim: Node, heir: Node) -> Command | None:
        """Take the store away from ``victim``.

        Gives the command that was asked to, if it was a command.
        """
        if fault == SWITCHOVER:
            return self._command(victim, heir)
        victim.signal(_SIGNALS[fault])
        self._screen.say(f"sent {_SIGNALS[fault].name} to {victim.name}, the active node")
        return None

    def _command(self, victim: Node, heir: Node) -> Command:
        self._screen.say(f"ftstanctl ft switchover: {victim.name} is asked to hand over")
        return self._ctl("switchover", *self._places.key_words(self._database), node=heir)

    def _new_epoch(self, fault: Fault, active_us: int, acks: Tail, but: Node | None = None) -> None:
        ack_us = self._first_ack(acks, active_us, but)
        self._epoch = fault.epoch + 1
        takeover = Takeover(
            active_us, self._epoch, self._active.name, active_us - fault.t, ack_us - fault.t
        )
        self._ledger.write(takeover)
        self._screen.say(switch_line(Switch.of(takeover, fault)))
        self._start_reader(f"reader {self._epoch}")

    def _load(self) -> None:
        until = self._clock.mono() + self._pause
        self._wait("time to pass", 2 * self._pause, lambda: self._clock.mono() >= until)
        # On a busy machine it may not be there yet, and an epoch that nobody read is no proof.
        reader = self._scripts[f"reader {self._epoch}"]
        self._wait("the reader", READY_TIMEOUT, lambda: reader.count("up_to") > 0)

    def _finish(self) -> None:
        self._scripts.pop(f"reader {self._epoch}").stop()
        self._screen.say("no more payloads; waiting for the outstanding acks")
        publisher = self._scripts.pop("publisher")
        publisher.command("drain")
        self._wait("the last acks", FINISH_TIMEOUT, lambda: not publisher.running)
        publisher.end()
        last_id = publisher.text("last_id")
        if not last_id:
            raise DemoError("the publisher ended without its last ack", hint=f"see {publisher.log}")
        self._screen.say("reading the log once more; waiting for the durable")
        self._start_reader("last reader")
        for name in ("consumer", "last reader"):
            self._scripts[name].command(f"until {last_id}")
        # Who does not get on is stopped; what it did not see is for the judge to say.
        seen = -1
        end = self._clock.mono()
        while any(script.running for script in self._scripts.values()):
            now_seen = sum(script.count("received") for script in self._scripts.values())
            if now_seen != seen:
                seen = now_seen
                end = self._clock.mono() + FINISH_TIMEOUT
            if self._clock.mono() >= end:
                break
            self._look()
            time.sleep(POLL)
        for name in list(self._scripts):
            self._scripts.pop(name).stop()

    # --- the tools

    def _ctl(self, verb: str, *words: str, node: Node) -> Command:
        log = self._places.log(f"ftstanctl-{len(self._commands)}-{verb}")
        command = Command(verb, *words, node=node, log=log, noun=self.noun)
        self._commands.append(command)
        return command

    def _answer(self, command: Command, but: Node | None = None) -> None:
        """Wait until ``command`` is done and show what it said."""
        self._wait("ftstanctl", FINISH_TIMEOUT, command.done, but=but)
        for line in command.said():
            self._screen.say(f"  {line}")

    def _show_status(self) -> None:
        self._screen.say("ftstanctl ft status")
        self._answer(self._ctl("status", "--expect", str(len(self._nodes)), node=self._active))

    def _started(self) -> str:
        return f"started nodes A and B on one {'database' if self._database else 'datastore'}"

    def _is_active(self, node: Node) -> bool:
        return node.is_active()

    def _found_active(self, but: Node | None = None) -> Node | None:
        """The active node from now on, if there is one."""
        for node in self._nodes:
            if node is not but and self._is_active(node):
                self._active = node
                return node
        return None

    def _make_nodes(self) -> tuple[Node, ...]:
        port_a, port_b, route_a, route_b, monitor_a, monitor_b = free_ports(6)
        store = self._places.store_words(self._database)
        log = self._places.log
        return (
            Node(
                "A",
                store=store,
                log=log("node-A"),
                port=port_a,
                routes=(route_a, route_b),
                monitor_port=monitor_a,
            ),
            Node(
                "B",
                store=store,
                log=log("node-B"),
                port=port_b,
                routes=(route_b, route_a),
                monitor_port=monitor_b,
            ),
        )

    def _heir(self) -> Node:
        """Who is to follow, or one of them."""
        return self._nodes[1] if self._active is self._nodes[0] else self._nodes[0]

    def _start(self, name: str, script: str = "", **more: str) -> None:
        file = name.replace(" ", "-")
        ledger = self._places.ledger_file(file)
        with open(ledger, "xb"):
            pass  # it exists from now on, for whoever follows it
        urls = ",".join(node.url for node in self._nodes)
        flags = {"urls": urls, "cluster": CLUSTER, "channel": CHANNEL, "ledger": ledger} | more
        self._scripts[name] = Script(name, script or f"{name}.js", self._places.log(file), flags)
        self._ever_started.append(self._scripts[name])

    def _start_reader(self, name: str) -> None:
        self._start(name, "reader.js", reader=name.replace(" ", "-"), epoch=str(self._epoch))

    def _wait_for_standby(self) -> None:
        other = self._heir()
        self._wait(
            f"{other.name} to stand by", READY_TIMEOUT, lambda: other.state() == "FT_STANDBY"
        )
        self._screen.say(f"{self._active.name} is active, {other.name} stands by")

    def _first_ack(self, acks: Tail, since_us: int, but: Node | None) -> int:
        """Wait for the first ack in the publisher's ledger that came at or after ``since_us``.

        Return its time.
        """
        found: list[int] = []

        def look() -> bool:
            found.extend(
                record.t
                for record in acks.new()
                if isinstance(record, Ack) and record.t >= since_us
            )
            return bool(found)

        self._wait("the next ack", TAKEOVER_TIMEOUT, look, but=but)
        acks.close()
        return found[0]

    def _wait(
        self,
        what: str,
        timeout: float,
        done: Callable[[], bool],
        *,
        but: Node | None = None,
        poll: float = POLL,
    ) -> None:
        """Wait until ``done()``.

        Raises ``DemoError`` after ``timeout`` seconds, times ``patience``, or when a child but
        ``but`` ends.
        """
        timeout *= self.patience
        end = self._clock.mono() + timeout
        while not done():
            if self._clock.mono() > end:
                raise DemoError(f"waited {timeout:.0f} s for {what}, in vain")
            for node in self._nodes:
                if node is not but:
                    self._require_alive(node)
            for script in self._scripts.values():
                script.require_alive()
            self._look()
            time.sleep(poll)

    def _require_alive(self, node: Node) -> None:
        node.require_alive()

    def _look(self) -> None:
        """Renew the progress line."""
        publisher = self._scripts.get("publisher")
        consumer = self._scripts.get("consumer")
        parts = [f"epoch {self._epoch}", f"active {self._active.name}"]
        if publisher is not None:
            parts.append(f"acked {publisher.count('acked'):,}")
            parts.append(f"outstanding {publisher.count('outstanding'):,}")
        if consumer is not None:
            parts.append(f"durable at {consumer.count('up_to'):,}")
        self._screen.progress("  ".join(parts))

    def _now_us(self) -> int:
        return self._clock.wall_ns() // 1000
