"""The story: messages are published while slices roll, and end up in a stream, an archive, a replay
and a restore.

Each place is counted (``tally``); the story is told well when all of them hold the same messages.
It acts as an operator does: servers on their command line, ``ftstan-pipeline`` in its words, Spark
through ``format("stan")``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from demo.pipeline.publishing import Publisher, read_all
from demo.pipeline.tally import Tally, counted
from demo.processes import CLUSTER, DemoError, Node
from ftstan.cli.pipeline.command import main as pipeline
from ftstan.drill.ports import free_ports
from ftstan.spark import FORMAT
from ftstan.spark.log import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from demo.screen import Screen

CHANNELS = ("orders", "payments", "alerts")
REPLAYED = "replayed."
READY_TIMEOUT = 120.0
STEP_TIMEOUT = 300.0
READ_TIMEOUT = 120.0
POLL = 0.1
#: Each look at what the stream has counted is a query, which takes from the stream what it needs
#: itself.
LOOK = 0.5

#: A worker has ten seconds to start, and Spark ends the query when a busy machine needs more.
_SLOW = "Python worker failed to connect back"
RESTARTS = 5

#: Not where the other demo and drills take their ports from: a port is free until its server
#: starts.
_FIRST_PORT = 16_000
_CONFIG = """\
streaming {{
  dedup_window: 100000
  store_limits {{
    max_msgs: {limit}
    channels {{ "{replayed}>" {{ max_msgs: 0 }} }}
  }}
  file_options {{
    slice_max_msgs: {slice}
    slice_archive_script: "{script}"
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Places:
    """Where one run keeps its things, all below ``run``."""

    run: str

    def of(self, name: str) -> str:
        """The path of ``name``."""
        return os.path.join(self.run, name)

    @property
    def store(self) -> str:
        """The datastore of the pair."""
        return self.of("store")

    @property
    def spool(self) -> str:
        """Where the archive script puts slices."""
        return self.of("spool")

    @property
    def archive(self) -> str:
        """The archive."""
        return self.of("archive")

    @property
    def restored(self) -> str:
        """The datastore that the restore makes."""
        return self.of("restored")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much: messages in all, of a slice, kept in a channel, and ahead of the stream."""

    messages: int

    @property
    def slice(self) -> int:
        """Messages of a slice: some fifteen slices a channel."""
        return max(self.messages // len(CHANNELS) // 15, 10)

    @property
    def kept(self) -> int:
        """Messages that the limits keep in a channel: four slices."""
        return 4 * self.slice

    @property
    def ahead(self) -> int:
        """Published and not yet counted by the stream: what it has not read must not be
        archived.
        """
        return 2 * self.slice * len(CHANNELS)


@dataclass(slots=True)
class Story:
    """One run. ``play`` returns the places that were counted.

    ``end`` leaves no child behind, whatever happened.
    """

    places: Places
    screen: Screen
    sizes: Sizes
    counted: dict[str, Tally] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    _nodes: list[Node] = field(default_factory=list)
    _publisher: Publisher | None = None
    _query: StreamingQuery | None = None
    _restarts: int = RESTARTS

    def play(self, spark: SparkSession) -> None:
        """Tell it. Raises ``DemoError``, ``FtstanError``."""
        self._serve()
        published = self._publish(spark)
        self._note("published and acknowledged", published)
        self._archive(published)
        self._count("archive and datastore", published, lambda: Tally.of(self._whole(spark)))
        self._audit()
        self._replay(spark, published)
        self._restore(spark, published)
        self._compare(published)

    def end(self) -> None:
        """End everything that still runs."""
        if self._publisher is not None:
            self._publisher.end()
        if self._query is not None:
            with contextlib.suppress(Exception):
                self._query.stop()
        for node in self._nodes:
            node.end()

    def last_words(self) -> str:
        """The last log lines of the nodes, for a run that failed."""
        return "\n".join(
            "\n".join([f"--- last lines of node {node.name}", *(node.last_lines() or ["(none)"])])
            for node in self._nodes
        )

    # --- the chapters

    def _serve(self) -> None:
        os.makedirs(self.places.store)
        os.makedirs(self.places.of("logs"))
        script = self.places.of("archive-slice")
        self._pipeline("archive-script", "--spool", self.places.spool, "--write", script)
        streaming = _CONFIG.format(
            limit=self.sizes.kept, replayed=REPLAYED, slice=self.sizes.slice, script=script
        )
        port_a, port_b, route_a, route_b, monitor_a, monitor_b = free_ports(6, _FIRST_PORT)
        for name, port, routes, monitor in (
            ("A", port_a, (route_a, route_b), monitor_a),
            ("B", port_b, (route_b, route_a), monitor_b),
        ):
            log = self.places.of(f"logs/node-{name}.log")
            self._nodes.append(
                Node(
                    name,
                    store=["-store", "file", "-dir", self.places.store],
                    log=log,
                    port=port,
                    routes=routes,
                    monitor_port=monitor,
                    streaming=streaming,
                )
            )
        for node in self._nodes:
            node.start()
        self._wait("a node to become active", READY_TIMEOUT, lambda: bool(self._active()))
        self._wait(
            "a node to stand by",
            READY_TIMEOUT,
            lambda: any(self._stands_by(node) for node in self._nodes),
        )
        self.screen.say(
            f"nodes A and B on one datastore: slices of {self.sizes.slice} messages, "
            f"{self.sizes.kept} kept"
        )

    def _publish(self, spark: SparkSession) -> Tally:
        self._query = self._counting(spark)
        self.screen.say("a Spark stream counts what the servers deliver")
        publisher = self._publisher = Publisher(
            [node.url for node in self._nodes], CHANNELS, self.sizes.messages
        )
        publisher.start()
        seen = Tally()
        killed = False

        def progress() -> bool:
            nonlocal seen, killed
            # What a stream that was started again has not said yet is counted all the same.
            seen = max(seen, self._seen(spark), key=lambda tally: tally.messages)
            publisher.allow(seen.messages + self.sizes.ahead)
            acked = publisher.acked.messages
            self.screen.progress(f"acked {acked:,}  counted by the stream {seen.messages:,}")
            if not killed and acked >= self.sizes.messages // 2:
                killed = True
                self._kill()
            return publisher.done and seen.messages >= publisher.acked.messages

        self._wait(
            "the stream to count everything",
            STEP_TIMEOUT,
            progress,
            every=LOOK,
            moving=lambda: seen.messages,
        )
        if not killed:
            raise DemoError(
                "the messages were published before a node was killed", hint="give more --messages"
            )
        self._note("counted by the stream", seen)
        self._query.stop()
        self._query = None
        return publisher.acked

    def _counting(self, spark: SparkSession) -> StreamingQuery:
        """The stream, from its beginning or from where its checkpoint is."""
        urls = [node.url for node in self._nodes]
        stream = (
            spark.readStream.format(FORMAT)
            .option("servers", ",".join(urls))
            .option("clusterId", CLUSTER)
            .option("subscribe", ",".join(CHANNELS))
            .option("startingOffsets", "earliest")
            .load()
        )
        return (
            counted(stream)
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName("seen")
            .option("checkpointLocation", self.places.of("checkpoint"))
            .start()
        )

    def _seen(self, spark: SparkSession) -> Tally:
        assert self._query is not None
        if (failure := self._query.exception()) is not None:
            first = str(failure).splitlines()[0]
            if _SLOW not in first or not self._restarts:
                raise DemoError(f"the stream ended: {first}")
            self._restarts -= 1
            self.screen.say(f"the stream goes on from its checkpoint: {first}")
            self._query = self._counting(spark)
        return Tally({row[0]: (row[1], row[2]) for row in spark.table("seen").collect()})

    def _kill(self) -> None:
        active: list[Node] = []

        def found() -> bool:
            # A busy machine may be slow to answer.
            active[:] = self._active()
            return bool(active)

        self._wait("the active node to answer", READY_TIMEOUT, found)
        victim = active[0]
        victim.signal(signal.SIGKILL)
        self.screen.say(f"kill -9 of {victim.name}, the active node, under load")
        victim.wait_for_end()
        heir = next(node for node in self._nodes if node is not victim)
        self._wait(f"{heir.name} to take over", READY_TIMEOUT, heir.is_active, but=victim)
        self.screen.say(f"{heir.name} serves")
        victim.start()

    def _active(self) -> list[Node]:
        return [node for node in self._nodes if node.is_active()]

    def _archive(self, published: Tally) -> None:
        # The script is started a moment after the limits have removed a slice; what is read must
        # not move meanwhile.
        self._wait(
            "the archive script",
            READY_TIMEOUT,
            lambda: self._settled(published),
            moving=lambda: -len(self._waiting()),
        )
        said = self._pipeline("archive", self.places.spool, self.places.archive)
        self.screen.say(
            f"archived {said['messages']:,} messages of {said['slices']} slices in "
            f"{said['files']} files"
        )

    def _everything(self) -> list[str]:
        """All places that hold messages: a slice can leave the datastore after the archive was
        made.
        """
        return [self.places.archive, self.places.spool, self.places.store]

    def _waiting(self) -> list[str]:
        """Slices that wait for the script."""
        names = (
            name
            for channel in CHANNELS
            for name in os.listdir(os.path.join(self.places.store, channel))
        )
        return [name for name in names if name.endswith(".bak")]

    def _settled(self, published: Tally) -> bool:
        """Whether everything is confirmed, and no slice will leave the datastore any more."""
        ends = Store(self.places.store).ends(CHANNELS)
        for channel in CHANNELS:
            first, behind = ends[channel]
            # A slice goes when the limits keep none of its messages: of the first that is there
            # they keep some.
            if (
                behind <= published.channels[channel][0]
                or behind - first >= self.sizes.kept + self.sizes.slice
            ):
                return False
        return not self._waiting()

    def _audit(self) -> None:
        said = self._pipeline(
            "audit", self.places.store, self.places.spool, self.places.archive, *self._channels()
        )
        self.screen.say(f"the audit is clean: {len(said['channels'])} channels")

    def _replay(self, spark: SparkSession, published: Tally) -> None:
        words = [*self._everything(), *self._channels(), "--prefix", REPLAYED]
        words += ["--server", ",".join(node.url for node in self._nodes), "--cluster", CLUSTER]
        words += ["--checkpoint", self.places.of("replay.json")]
        said = self._pipeline("replay", *words)
        self.screen.say(
            f"replayed {said['messages']:,} messages to {', '.join(REPLAYED + c for c in CHANNELS)}"
        )
        self._count("replayed", published, lambda: self._replayed(spark))

    def _replayed(self, spark: SparkSession) -> Tally:
        paths = [
            os.path.join(self.places.store, REPLAYED + channel, "confirmed.bin")
            for channel in CHANNELS
        ]
        if not all(map(os.path.exists, paths)):
            return Tally()
        return Tally.of(self._read(spark, self.places.store, REPLAYED)).without(REPLAYED)

    def _restore(self, spark: SparkSession, published: Tally) -> None:
        for node in self._nodes:
            node.end()
        words = [*self._everything(), *self._channels()]
        said = self._pipeline("restore", *words, "--to", self.places.restored, "--cluster", CLUSTER)
        self.screen.say(
            f"restored {said['messages']:,} messages into a new datastore, {said['slices']} slices"
        )
        restored = self._read(spark, self.places.restored)
        self._note("restored", Tally.of(restored))
        columns = ("channel", "sequence", "timestamp_ns", "data", "reply")
        whole = self._whole(spark).select(*columns)
        if odd := whole.exceptAll(restored.select(*columns)).count():
            self.differences.append(
                f"{odd} restored messages have another sequence, timestamp or reply"
            )
        self._serve_restored(published)

    def _serve_restored(self, published: Tally) -> None:
        port, monitor, *routes = free_ports(4, _FIRST_PORT)
        log = self.places.of("logs/node-restored.log")
        node = Node(
            "restored",
            store=["-store", "file", "-dir", self.places.restored],
            log=log,
            port=port,
            routes=(routes[0], routes[1]),
            monitor_port=monitor,
        )
        self._nodes = [node]
        node.start()
        self._wait("a server of the restored datastore", READY_TIMEOUT, node.is_active)
        self._note(
            "delivered from the restored", read_all(node.url, CLUSTER, published, READ_TIMEOUT)
        )
        node.end()

    def _compare(self, published: Tally) -> None:
        for place, tally in self.counted.items():
            for channel in CHANNELS:
                if tally.channels.get(channel) != published.channels[channel]:
                    self.differences.append(f"{place}: {channel} differs from what was published")

    # --- the tools

    def _whole(self, spark: SparkSession) -> Any:
        """What archive and datastore hold together, each message once."""
        archive, spool, store = (self._read(spark, place) for place in self._everything())
        both = archive.unionByName(spool).unionByName(store)
        return both.dropDuplicates(["channel", "sequence"])

    def _read(self, spark: SparkSession, path: str, prefix: str = "") -> Any:
        # A pattern: the spool need not hold each of them.
        names = "|".join(re.escape(prefix + channel) for channel in CHANNELS)
        return (
            spark.read.format(FORMAT).option("path", path).option("subscribePattern", names).load()
        )

    def _count(self, place: str, wanted: Tally, look: Callable[[], Tally]) -> None:
        """Count a place.

        A reader of files stops where the server has confirmed, which may be a second ago.
        """
        end = time.monotonic() + READY_TIMEOUT
        while (found := look()).messages < wanted.messages and time.monotonic() < end:
            self.screen.progress(
                f"{place}: {found.messages:,} of {wanted.messages:,} are confirmed"
            )
            time.sleep(POLL)
        self._note(place, found)

    def _note(self, place: str, tally: Tally) -> None:
        self.counted[place] = tally
        self.screen.say(f"{place}: {tally.messages:,} messages")

    @staticmethod
    def _channels() -> list[str]:
        return [word for channel in CHANNELS for word in ("--channel", channel)]

    def _pipeline(self, *words: str) -> dict[str, Any]:
        """Run ``ftstan-pipeline`` in this process, on the session that is there.

        Returns what it says as JSON.
        """
        shown = [
            os.path.relpath(word, self.places.run) if os.path.isabs(word) else word
            for word in words
        ]
        self.screen.say(f"ftstan-pipeline {' '.join(shown)}")
        out = io.StringIO()
        errors = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = pipeline([*words, "--output", "json"])
        if status:
            raise DemoError(
                f"ftstan-pipeline {words[0]} ended with status {status}: "
                f"{errors.getvalue() or out.getvalue()}"
            )
        said: dict[str, Any] = json.loads(out.getvalue())
        return said

    @staticmethod
    def _stands_by(node: Node) -> bool:
        return node.state() == "FT_STANDBY"

    def _wait(
        self,
        what: str,
        timeout: float,
        done: Callable[[], bool],
        *,
        but: Node | None = None,
        every: float = POLL,
        moving: Callable[[], int] = lambda: 0,
    ) -> None:
        """Wait until ``done()``.

        Raises ``DemoError`` when ``moving()`` has not grown for ``timeout`` seconds.
        """
        end = time.monotonic() + timeout
        before = moving()
        while not done():
            if (now := moving()) > before:
                before = now
                end = time.monotonic() + timeout
            if time.monotonic() > end:
                raise DemoError(f"waited {timeout:.0f} s for {what}, in vain")
            for node in self._nodes:
                if node is not but:
                    node.require_alive()
            time.sleep(every)
