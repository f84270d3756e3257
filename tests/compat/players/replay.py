"""Plays a recorded session again: its clients word by word, against our server.

Lines of clients go out in the order and with the pauses of the recording, and none before what its
client had received by then has arrived. What came from the server earlier (subjects, ack inboxes)
is replaced by what our server gave; all else is the clients' choice and stays. Heartbeats are
answered where the recording answers them. Servers are started, stopped and killed where the
recording does so; the clock starts anew whenever one begins to listen to its clients, and nothing
goes out that the recorded server was already there to hear.
"""

from __future__ import annotations

import json
import re
import signal
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftstan.wire import messages
from tests.compat.players.lines import HEARTBEAT, Line, snake
from tests.compat.players.natswire import Link, Operation
from tests.compat.players.stage import Program, Stage, UnplayableError
from tests.compat.players.transcript import Transcript
from tests.processes import ROOT, STANDING_BY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.compat.players.recordings import Scenario

STORES = ROOT / "tests" / "data" / "datastores"

OWED_S = 3.0
"""How long a line waits for what its clients had received in the recording.

Then it goes out all the same: what is missing is for the judge.
"""
_EXIT_S = 5.0
_MAY_STAND_BY = {("ft-two-actives", "serverB")}
"""Who serves in the recording and need not: this one stands by when it hears that its group has
another store.
"""
_STAY = {("ft-two-actives", "serverA.exit1"), ("ft-two-actives", "serverB.exit1")}
"""Ends of servers in the recording that do not come here."""
_STAYS_S = 2.5
"""How long they are waited for all the same: two heartbeats."""
_PROGRAM_S = 60.0
_FROM_THE_PUBLISHES = {"restart-queue"}
"""Its statements count the redeliveries in a pause behind the restart, and those are due by the
time of the publishes: who starts more slowly must make that pause shorter.
"""
_SHORTEST_S = 0.3
_START_S = 2.0
"""A recorded server that took longer to listen was a standby before."""
_ONE_WRITE_S = 0.001
_LATE_S = 0.05

Inbox = tuple[str, str]
"""A connection and a subject to which messages come."""

Pool = tuple[Inbox, ...]
"""Inboxes of the members of one queue group, or a single inbox: which of them gets a message is the
server's choice.
"""

_REFERENCE = re.compile(r"\$\{(.*)\.(\w+)\}(.*)")
_STARTED = re.compile(r"(\w+)\.start\d+")
_EXITED = re.compile(r"(\w+)\.exit\d+")
_SCRIPT = re.compile(r"Node client script '(\w+)' starts")


@dataclass(slots=True)
class Heartbeats:
    """What a client did with the heartbeats to one inbox, in the recording."""

    answered: list[bool] = field(default_factory=list)
    came: int = 0

    def next(self) -> bool:
        """Whether to answer the next one; beyond the recording, what was done last goes on."""
        self.came += 1
        if not self.answered:
            return True
        return self.answered[min(self.came, len(self.answered)) - 1]


class Replay:
    """One session. ``programs``: the real client programs run, and their recorded lines are not
    played.

    ``flags`` are more of them for every streaming server.
    """

    def __init__(
        self,
        scenario: Scenario,
        directory: Path,
        *,
        programs: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        self._more_flags = flags
        self._scenario = scenario
        self._recorded = scenario.lines()
        self._programs = programs
        self.transcript = Transcript()
        self._stage = Stage(directory, self.transcript)
        self._links: dict[str, Link] = {}
        self._running: list[Program] = []
        self._owed: Counter[Pool] = Counter()
        self._pools: dict[Inbox, Pool] = {}
        self._said = 0
        self._behind = 0.0
        self._last = 0.0
        self._to_catch_up = 0.0
        self._started: dict[str, tuple[float, float]] = {}
        self.slower = 0.0
        """How much longer one of our servers took to start than the recorded one, in seconds, but
        the first of all.
        """
        self._deliveries: dict[int, tuple[str, str, int]] = {}
        self._idents: dict[str, int] = {}
        self._heartbeats: dict[str, Heartbeats] = {}
        self._study()

    def _study(self) -> None:
        """Which delivery of its subject each recorded one is, which heartbeats were answered, who
        shares messages.
        """
        counts: Counter[Inbox] = Counter()
        groups: dict[tuple[str, str, str], Pool] = {}
        for line in self._recorded:
            if line.of_client and line.type == "SubscriptionRequest" and line.value("q_group"):
                group = (
                    line.value("subject"),
                    line.value("q_group"),
                    line.value("durable_name") or "",
                )
                groups[group] = (*groups.get(group, ()), (line.conn, line.value("inbox")))
        self._pools = {inbox: pool for pool in groups.values() for inbox in pool}
        answered = {
            line.subject
            for line in self._recorded
            if line.of_client and line.dir == "c2s" and line.op == "PUB"
        }
        for line in self._recorded:
            if line.id:
                self._idents[line.id] = line.n
            if not line.delivered:
                continue
            if line.kind == HEARTBEAT:
                self._heartbeats.setdefault(line.subject, Heartbeats()).answered.append(
                    line.reply in answered
                )
            else:
                key = line.conn, line.subject
                self._deliveries[line.n] = *key, counts[key]
                counts[key] += 1

    async def run(self) -> list[Line]:
        """Play it all; gives what happened."""
        try:
            await self._stage.open(self._scenario.nats_conf)
            self._behind = self.transcript.now - self._recorded[0].t
            at = 0
            while at < len(self._recorded):
                at = await self._step(at)
            await self._wait_for_owed()
        finally:
            for link in self._links.values():
                await link.close()
            await self._stage.close()
        return self.transcript.lines

    async def _step(self, at: int) -> int:
        """Play the line at ``at``, or several that were one write; gives the next to play."""
        line = self._recorded[at]
        if line.conn == "runner":
            await self._event(line)
        elif (
            line.op == "SUB" and line.conn.startswith("server") and line.subject.endswith(".pings")
        ):
            await self._listening(line)
        elif line.op == "LOG" and line.conn.startswith("server") and STANDING_BY in line.text:
            await (await self._stage.server(line.conn)).wait_until_it_says(STANDING_BY)
            self._up(line.conn, line)
        elif line.op == "LOG" and self._is_program(line):
            self._said += 1
        elif line.of_client and not self._is_program(line):
            if line.delivered and line.kind != HEARTBEAT:
                inbox = line.conn, line.subject
                self._owed[self._pools.get(inbox, (inbox,))] += 1
            elif line.dir == "c2s":
                group = self._one_write(at)
                await self._send(group)
                return group[-1].n + 1
        return at + 1

    def _is_program(self, line: Line) -> bool:
        return self._programs and line.conn.startswith("node")

    async def _listening(self, line: Line) -> None:
        """A recorded server begins to listen to its clients: so must ours."""
        name = line.conn.partition(".")[0]
        server = await self._stage.server(name)
        if (self._scenario.name, name) in _MAY_STAND_BY:
            await self.transcript.until(server.listening, _EXIT_S)
        else:
            await server.wait_until_listening()
        self._up(name, line)

    def _up(self, name: str, line: Line) -> None:
        """A server has come to where the recorded one was at this line."""
        recorded, ours = self._started.get(name, (line.t, self.transcript.now))
        if (
            0 < line.t - recorded < _START_S
            and len(self._started) + self._stage.servers[name].starts > 2
        ):
            self.slower = max(self.slower, self.transcript.now - ours - (line.t - recorded))
            if self._scenario.name in _FROM_THE_PUBLISHES:
                self._to_catch_up = self.slower
        self._behind = self.transcript.now - line.t

    # Time

    async def _wait_for(self, line: Line) -> None:
        """Wait for what is owed, then until it is time for a recorded line."""
        await self._wait_for_owed()
        await self._wait_for_time(line)

    async def _wait_for_time(self, line: Line) -> None:
        """Who is late stays late: pauses are kept."""
        caught_up = max(0.0, min(self._to_catch_up, line.t - self._last - _SHORTEST_S))
        self._to_catch_up -= caught_up
        self._behind -= caught_up
        self._last = line.t
        await self.transcript.until(lambda: False, line.t + self._behind - self.transcript.now)
        late = self.transcript.now - self._behind - line.t
        if late > _LATE_S:
            self._behind += late

    async def _wait_for_owed(self) -> None:
        def came(pool: Pool) -> int:
            return sum(len(self.transcript.arrived[inbox]) for inbox in pool)

        def missing() -> list[Pool]:
            return [pool for pool, count in self._owed.items() if came(pool) < count]

        if await self.transcript.until(lambda: not missing(), OWED_S):
            return
        for pool in missing():
            self.transcript.event("", f"waited in vain for a message to {pool}")
            # Once is enough: what follows must not wait for it again.
            self._owed[pool] = came(pool)

    # What is done to servers and programs

    async def _event(self, line: Line) -> None:
        if self._programs and "signal" in line.args:
            await self.transcript.until(lambda: self._lines_said() >= self._said, _PROGRAM_S)
        if started := _STARTED.fullmatch(line.id):
            await self._wait_for_time(line)
            self.transcript.event(line.id, line.text)
            server = await self._stage.server(started[1])
            self._started[started[1]] = line.t, self.transcript.now
            await server.serve(self._flags(line))
        elif exited := _EXITED.fullmatch(line.id):
            stays = (self._scenario.name, line.id) in _STAY
            await self.transcript.until(
                (await self._stage.server(exited[1])).ended, _STAYS_S if stays else _EXIT_S
            )
        elif "signal" in line.args:
            await self._wait_for(line)
            self.transcript.event(line.id, line.text)
            (await self._stage.server(line.args["to"])).signal(signal.Signals[line.args["signal"]])
        elif self._programs and (script := _SCRIPT.fullmatch(line.text)):
            await self._start_program(script[1])
        elif self._programs and line.id.endswith(".exit"):
            program = self._running[-1]
            if not await self.transcript.until(program.ended, _PROGRAM_S):
                raise UnplayableError("the program does not end")
        else:
            await self._wait_for_time(line)
            self.transcript.event(line.id, line.text)

    def _flags(self, line: Line) -> list[str]:
        flags = ["-cid", line.args["cluster_id"], *line.args["flags"]]
        directory = self._stage.directory
        if line.args["store"]:
            store = directory / line.args["store"]
            if line.args.get("server_version") == "v0.10.0":
                _begin_as_v0_10(store)
            flags += ["-store", "file", "-dir", str(store)]
        if config := line.args.get("config_file"):
            path = directory / f"{line.id}.conf"
            path.write_text(config, encoding="utf-8")
            flags += ["-sc", str(path)]
        return [*flags, *self._more_flags]

    def _lines_said(self) -> int:
        names = {program.name for program in self._running}
        return sum(line.op == "LOG" and line.conn in names for line in self.transcript.lines)

    async def _start_program(self, script: str) -> None:
        number = len(self._running) + 1
        program = await self._stage.program("node" if number == 1 else f"node{number}")
        self._running.append(program)
        await program.start(
            ["node", str(ROOT / "tests/compat/node/sessions.js"), script, program.url]
        )

    # What clients send

    def _one_write(self, at: int) -> list[Line]:
        """The line at ``at`` and those that its client sent in the same breath."""
        group = [self._recorded[at]]
        for line in self._recorded[at + 1 :]:
            if line.conn.startswith("server"):
                continue
            same = (
                line.conn == group[0].conn
                and line.dir == "c2s"
                and line.op in {"PUB", "SUB", "UNSUB", "PING"}
            )
            if group[0].op == "CONNECT" or not same or line.t - group[-1].t > _ONE_WRITE_S:
                break
            group.append(line)
        return group

    async def _send(self, group: list[Line]) -> None:
        await self._wait_for(group[0])
        conn = group[0].conn
        match group[0].op:
            case "CONNECT":
                link = self._links[conn] = Link(
                    self._stage.nats_port, lambda *told: self._told(conn, *told)
                )
                await link.open()
            case "CLOSE":
                self.transcript.event("", f"{conn} closes its connection")
                await self._links[conn].close()
                return
        self._links[conn].write(b"".join(self._said_by_client(line) for line in group))

    def _said_by_client(self, line: Line) -> bytes:
        """The bytes of a line with everything replaced.

        It stands in the transcript before they are sent.
        """
        if line.op == "PONG" or line.kind == HEARTBEAT or self._answers_heartbeat(line):
            return b""
        subject = line.subject
        payload = line.payload
        for part, reference in line.sources.items():
            value = self._resolve(reference)
            if value is None:
                self.transcript.event(
                    "", f"{line.id or line.subject} was not sent: there is no {reference}"
                )
                return b""
            if part == "subject":
                subject = value
            else:
                payload = _with_field(line, part.partition(".")[2], value)
        operation = Operation(
            line.op, b"", subject, line.reply, line.sid, payload=payload, options=line.options
        )
        self.transcript.passed(line.conn, "c2s", operation, line.id)
        return _encoded(operation)

    def _answers_heartbeat(self, line: Line) -> bool:
        found = _REFERENCE.fullmatch(line.sources.get("subject", ""))
        return found is not None and self._source(found[1]).kind == HEARTBEAT

    def _source(self, ident: str) -> Line:
        return self._recorded[int(ident[1:]) if ident.startswith("#") else self._idents[ident]]

    def _resolve(self, reference: str) -> Any:
        """What our server gave in place of what the recorded one gave.

        ``None`` if it gave nothing.
        """
        found = _REFERENCE.fullmatch(reference)
        assert found is not None, reference
        conn, subject, number = self._deliveries[self._source(found[1]).n]
        arrived = self.transcript.arrived[conn, subject]
        value = arrived[number].value(snake(found[2])) if number < len(arrived) else None
        return None if value is None else value + found[3]

    def _told(self, conn: str, direction: str, operation: Operation | None) -> None:
        if operation is None:
            self.transcript.event("", f"the connection of {conn} has ended")
            return
        line = self.transcript.passed(conn, direction, operation)
        if line is None or line.kind != HEARTBEAT:
            return
        if self._heartbeats.setdefault(line.subject, Heartbeats()).next():
            answer = Operation("PUB", b"", line.reply, payload=b"")
            self.transcript.passed(conn, "c2s", answer, f"{line.id}.answer" if line.id else "")
            self._links[conn].write(_encoded(answer))


def _begin_as_v0_10(store: Path) -> None:
    """The file of a real 0.10.0 store that names its subjects: with a NUID in place of the cluster
    id.
    """
    with tarfile.open(STORES / "v0.10.0" / "clean.tar.gz") as archive:
        info = archive.extractfile("DATASTORE/server.dat")
        assert info is not None
        store.mkdir()
        (store / "server.dat").write_bytes(info.read())


def _with_field(line: Line, name: str, value: str) -> bytes:
    """The payload with one field replaced."""
    assert line.payload is not None
    message = messages.parse(getattr(messages, line.type), line.payload)
    setattr(message, snake(name), value.encode())
    return messages.encode(message)


def _encoded(operation: Operation) -> bytes:
    match operation.name:
        case "CONNECT":
            return b"CONNECT " + json.dumps(operation.options).encode() + b"\r\n"
        case "SUB":
            return f"SUB {operation.subject} {operation.sid}\r\n".encode()
        case "UNSUB":
            return f"UNSUB {operation.sid}\r\n".encode()
        case "PUB":
            payload = operation.payload or b""
            words = " ".join(
                word
                for word in ("PUB", operation.subject, operation.reply, str(len(payload)))
                if word
            )
            return words.encode() + b"\r\n" + payload + b"\r\n"
    return operation.name.encode() + b"\r\n"
