"""A scenario: which group, which load, which faults, how often.

Read from YAML; every mistake has its line.

Nothing here starts anything. The keys are described in ``docs/drills.md`` (scenarios).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from ftstan.base.errors import ConfigError
from ftstan.config import yaml
from ftstan.config.table import BY_FLAG
from ftstan.config.tree import Node, Place, Value
from ftstan.config.units import parse_duration
from ftstan.config.unknown_keys import did_you_mean
from ftstan.drill.errors import ScenarioError
from ftstan.drill.faults import KINDS, STORAGE, Expect
from ftstan.drill.inventory import read_inventory

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

T = TypeVar("T", str, int, bool)

LOCAL = "local"
REMOTE = "remote"
ACTIVE = "active"
STANDBY = "standby"

_MAX_DURATION_S = 86_400.0
_MAX_RATE = 20_000
_CLUSTER_NODES = 3
#: Options of a server that say what it stores in, and as what.
_PLACING = frozenset(
    {
        *("store", "dir", "config", "stan_config", "cluster_id"),
        *("sql_driver", "sql_source", "sql_source_file"),
    }
)
_HINT = "docs/drills.md describes every key"


@dataclass(frozen=True, slots=True)
class Member:
    """One node: ``monitor`` is the address of its pages, ``words`` what commands may put in
    braces.
    """

    name: str
    monitor: str = ""
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """The load. ``rate``: messages a second of all publishers together.

    ``size``: bytes of a payload at least.

    ``in_flight``: publishes of one publisher without an ack, at most. ``queue``: members of the
    queue group, 0: none.
    """

    channels: tuple[str, ...] = ("drill",)
    publishers: int = 2
    rate: int = 200
    size: int = 128
    in_flight: int = 64
    durables: int = 1
    queue: int = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One fault: done to ``node`` (``active``, ``standby`` or a name), lasting ``for_s``, and what
    must follow.
    """

    kind: str
    place: Place
    node: str = ACTIVE
    for_s: float = 0.0
    expect: Expect = Expect.ANY
    within_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a file says. ``file`` is where it was read from.

    ``database``: what the nodes store in, as people are shown it, if that is none of the run's own
    directories. No file says that.
    """

    file: str
    name: str
    text: str
    driver: str
    members: tuple[Member, ...]
    workload: Workload
    steps: tuple[Step, ...]
    repeat: int = 1
    settle_s: float = 2.0
    max_unavailable_s: float = 0.0
    production_safe: bool = False
    options: tuple[str, ...] = ()
    volume_mib: int = 0
    clustered: bool = False
    cluster: str = ""
    group: str = ""
    servers: tuple[str, ...] = ()
    commands: Mapping[str, str] = field(default_factory=dict)
    database: str = ""

    @property
    def needs_volume(self) -> bool:
        """Whether the local group needs a file system of its own."""
        return any(step.kind in STORAGE for step in self.steps)

    @property
    def needs_partition(self) -> bool:
        """Whether somebody has to stand between nodes and NATS."""
        return any(step.kind == "partition" for step in self.steps)


def load(path: str) -> Scenario:
    """Read and check a scenario.

    Raises ``ScenarioError``, with every line that is wrong, not only the first.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ScenarioError(
            f"{path}: {reason}",
            hint="give a scenario's file, or a name that ftstanctl drill --list shows",
        ) from error
    return read(text, path)


def read(text: str, file: str) -> Scenario:
    """The same from a text; ``file`` names it."""
    try:
        document = yaml.parse(text, file)
    except ConfigError as error:
        raise ScenarioError(error.text, hint=error.hint) from error
    reader = _Reader(file)
    scenario = reader.scenario(document.entries)
    if reader.wrong:
        raise ScenarioError("\n".join(reader.wrong), hint=_HINT)
    return scenario


def in_database(scenario: Scenario, database: str) -> Scenario:
    """The same, played by a group that stores in ``database``.

    Raises ``ScenarioError`` for what only a group with a directory can play.
    """
    file = scenario.file
    wrong: list[str] = []
    if scenario.driver != LOCAL:
        wrong.append(f"{file}: driver: {scenario.driver}: its nodes have their own store")
    if scenario.clustered:
        wrong.append(f"{file}: clustered: the nodes of a cluster store in directories")
    wrong += [
        f'{step.place}: "{step.kind}" is done to a directory; this group stores in a database'
        for step in scenario.steps
        if KINDS[step.kind].directory
    ]
    # Another database than the one that was looked at would be written to.
    wrong += [
        f'{file}: options: "{word.partition("=")[0]}" is the drill\'s to say'
        for word in scenario.options
        if _says_place(word)
    ]
    if wrong:
        raise ScenarioError("\n".join(wrong), hint=_HINT)
    return replace(scenario, database=database)


def in_directory(scenario: Scenario) -> Scenario:
    """The same, if it needs no database. Raises ``ScenarioError``."""
    wrong = [
        f'{step.place}: "{step.kind}" is done to a database'
        for step in scenario.steps
        if KINDS[step.kind].database and scenario.driver == LOCAL
    ]
    if wrong:
        raise ScenarioError("\n".join(wrong), hint="name one with --sql-driver")
    return scenario


def _says_place(word: str) -> bool:
    flag = BY_FLAG.get(word.lstrip("-").partition("=")[0])
    return word.startswith("-") and flag is not None and flag.key in _PLACING


#: What remote nodes need a command for, by fault: beginning, and end where it lasts.
COMMANDS = {
    "kill": ("kill",),
    "stop": ("stop",),
    "pause": ("pause", "resume"),
    "kill-nats": ("kill-nats",),
    "partition": ("partition", "heal"),
    "unlink-lock": ("unlink-lock",),
    "fill-disk": ("fill-disk", "free-disk"),
    "slow-storage": ("slow-storage", "fast-storage"),
    "freeze-storage": ("freeze-storage", "thaw-storage"),
    "rolling-restart": ("stop", "start"),
    "switchover": (),
    "freeze-host": ("freeze-host", "thaw-host"),
    "kill-host": ("kill-host", "start-host"),
    "cut-storage": ("cut-storage", "heal-storage"),
    "restart-storage": ("restart-storage",),
    "kill-sessions": ("kill-sessions",),
    "reboot-all": ("reboot-all",),
    "upgrade": ("upgrade",),
}
_COMMAND_NAMES = sorted({name for names in COMMANDS.values() for name in names} | {"start"})

_KEYS = (
    *(
        "name",
        "text",
        "driver",
        "nodes",
        "inventory",
        "workload",
        "faults",
        "repeat",
        "settle",
        "max_unavailable",
    ),
    *("production_safe", "options", "volume_mib", "clustered", "cluster", "group", "servers"),
    "commands",
)
_WORKLOAD_KEYS = ("channels", "publishers", "rate", "size", "in_flight", "durables", "queue")
_STEP_KEYS = ("do", "node", "for", "expect", "within")
_INVENTORY_KEYS = ("file", "group", "monitor")


class _Reader:
    """Reads values, and collects what is wrong instead of stopping at the first mistake."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.wrong: list[str] = []

    def scenario(self, entries: Mapping[str, Node]) -> Scenario:
        self.known(entries, _KEYS, "")
        stem = os.path.splitext(os.path.basename(self._file))[0]
        driver = self.word(entries, "driver", (LOCAL, REMOTE), LOCAL)
        commands = self.commands(entries.get("commands"))
        clustered = self.flag(entries, "clustered")
        members = self.members(entries, driver, clustered=clustered)
        steps = self.steps(entries, members)
        scenario = Scenario(
            file=self._file,
            name=self.text(entries, "name", stem),
            text=self.text(entries, "text", ""),
            driver=driver,
            members=members,
            workload=self.workload(entries.get("workload")),
            steps=steps,
            repeat=self.number(entries, "repeat", 1, 1, 10_000),
            settle_s=self.duration(entries, "settle", 2.0),
            max_unavailable_s=self.duration(entries, "max_unavailable", 0.0),
            production_safe=self.flag(entries, "production_safe"),
            options=self.texts(entries, "options"),
            volume_mib=self.number(entries, "volume_mib", 0, 0, 1 << 20),
            clustered=clustered,
            cluster=self.text(entries, "cluster", ""),
            group=self.text(entries, "group", ""),
            servers=self.texts(entries, "servers"),
            commands=commands,
        )
        self.together(scenario, entries)
        return scenario

    # ---- what must fit together

    def together(self, scenario: Scenario, entries: Mapping[str, Node]) -> None:
        if scenario.clustered:
            for step in scenario.steps:
                if not KINDS[step.kind].clusters:
                    self.say(step.place, f'"{step.kind}" is for groups, not for clusters')
            if len(scenario.members) != _CLUSTER_NODES:
                place = entries.get("nodes", entries["clustered"]).place
                self.say(place, f"a cluster has {_CLUSTER_NODES} nodes")
        if scenario.production_safe:
            for step in scenario.steps:
                if not KINDS[step.kind].safe:
                    self.say(
                        step.place, f'"{step.kind}" is not safe in production; only switchover is'
                    )
        if scenario.driver == LOCAL:
            for key in ("commands", "inventory", "servers", "production_safe"):
                if key in entries:
                    self.say(entries[key].place, f'"{key}" is for driver: remote')
            for step in scenario.steps:
                if KINDS[step.kind].remote:
                    self.say(step.place, f'"{step.kind}" is for driver: remote')
            return
        for key in ("options", "volume_mib"):
            if key in entries:
                self.say(entries[key].place, f'"{key}" is for driver: local')
        for key in ("cluster",) if scenario.clustered else ("cluster", "group"):
            if not getattr(scenario, key):
                self.say(Place(self._file, 1, 1), f'driver: remote needs "{key}"')
        for member in scenario.members:
            if not member.monitor:
                text = f'node "{member.name}" needs "monitor", such as http://{member.name}:8222'
                self.say(
                    entries.get(
                        "nodes", entries.get("inventory", Node("", Place(self._file, 1, 1)))
                    ).place,
                    text,
                )
        for step in scenario.steps:
            for name in COMMANDS[step.kind]:
                if name not in scenario.commands:
                    self.say(step.place, f'"{step.kind}" needs a command "{name}" under "commands"')

    # ---- parts

    def workload(self, node: Node | None) -> Workload:
        usual = Workload()
        if node is None:
            return usual
        entries = self.map(node, "workload")
        self.known(entries, _WORKLOAD_KEYS, "workload")
        load = Workload(
            channels=self.texts(entries, "channels") or usual.channels,
            publishers=self.number(entries, "publishers", usual.publishers, 1, 1000),
            rate=self.number(entries, "rate", usual.rate, 1, _MAX_RATE),
            size=self.number(entries, "size", usual.size, 1, 1 << 20),
            in_flight=self.number(entries, "in_flight", usual.in_flight, 1, 1 << 14),
            durables=self.number(entries, "durables", usual.durables, 1, 100),
            queue=self.number(entries, "queue", usual.queue, 0, 100),
        )
        if load.publishers < len(load.channels):
            self.say(node.place, f"{len(load.channels)} channels need as many publishers")
        return load

    def members(
        self, entries: Mapping[str, Node], driver: str, *, clustered: bool
    ) -> tuple[Member, ...]:
        if "inventory" in entries:
            return self.inventory(entries["inventory"])
        node = entries.get("nodes")
        if node is None:
            usual = "abc" if clustered else "ab"
            return tuple(map(Member, usual)) if driver == LOCAL else self.missing("nodes")
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            if not 1 < node.value < 10:
                self.say(node.place, "a group has 2 to 9 nodes")
            return tuple(Member(chr(ord("a") + i)) for i in range(min(max(node.value, 2), 9)))
        if not isinstance(node.value, list):
            self.say(node.place, '"nodes" must be a number or a list')
            return ()
        members = tuple(self.member(item) for item in node.value)
        names = [member.name for member in members]
        if len(set(names)) != len(names) or len(names) < 2:
            self.say(node.place, "a group has two nodes or more, each with a name of its own")
        return members

    def member(self, node: Node) -> Member:
        if isinstance(node.value, str):
            return Member(node.value, words={"name": node.value})
        entries = self.map(node, "nodes")
        words = {key: str(value.value) for key, value in entries.items()}
        if "name" not in words:
            self.say(node.place, 'a node needs a "name"')
        return Member(words.get("name", ""), words.get("monitor", ""), words)

    def inventory(self, node: Node) -> tuple[Member, ...]:
        entries = self.map(node, "inventory")
        self.known(entries, _INVENTORY_KEYS, "inventory")
        path = self.text(entries, "file", "")
        group = self.text(entries, "group", "all")
        template = self.text(entries, "monitor", "http://{ansible_host}:8222")
        path = os.path.join(os.path.dirname(os.path.abspath(self._file)), path)
        try:
            hosts = read_inventory(path, group)
        except ConfigError as error:
            self.say(node.place, error.text)
            return ()
        try:
            return tuple(
                Member(words["name"], template.format_map(words), words) for words in hosts
            )
        except (KeyError, ValueError, IndexError) as error:
            self.say(node.place, f"monitor {template!r}: {error} is no variable of a host")
            return ()

    def steps(self, entries: Mapping[str, Node], members: Sequence[Member]) -> tuple[Step, ...]:
        node = entries.get("faults")
        if node is None or not isinstance(node.value, list) or not node.value:
            self.say(
                node.place if node is not None else Place(self._file, 1, 1),
                '"faults" must be a list of faults',
            )
            return ()
        return tuple(step for item in node.value if (step := self.step(item, members)) is not None)

    def step(self, node: Node, members: Sequence[Member]) -> Step | None:
        entries = {"do": node} if isinstance(node.value, str) else self.map(node, "faults")
        self.known(entries, _STEP_KEYS, "faults")
        kind = self.word(entries, "do", tuple(KINDS), "")
        if not kind:
            if "do" not in entries:
                self.say(node.place, 'a fault needs "do"')
            return None
        known = KINDS[kind]
        if "for" in entries and not known.lasts:
            self.say(entries["for"].place, f'"{kind}" takes no "for"')
        if "node" in entries and known.database:
            self.say(entries["node"].place, f'"{kind}" takes no "node": it is done to the owner')
        return Step(
            kind=kind,
            place=node.place,
            node=self.word(
                entries, "node", (ACTIVE, STANDBY, *(member.name for member in members)), ACTIVE
            ),
            for_s=self.duration(entries, "for", known.usual_s),
            expect=Expect(
                self.word(entries, "expect", tuple(Expect), _usual(entries, known.expect))
            ),
            within_s=self.duration(entries, "within", 60.0),
        )

    def commands(self, node: Node | None) -> dict[str, str]:
        if node is None:
            return {}
        entries = self.map(node, "commands")
        self.known(entries, _COMMAND_NAMES, "commands")
        return {key: self.text(entries, key, "") for key in entries}

    # ---- values

    def say(self, place: Place, text: str) -> None:
        self.wrong.append(f"{place}: {text}")

    def missing(self, key: str) -> tuple[Member, ...]:
        self.say(Place(self._file, 1, 1), f'driver: remote needs "{key}"')
        return ()

    def known(self, entries: Mapping[str, Node], keys: Collection[str], where: str) -> None:
        for key, node in entries.items():
            if key not in keys:
                inside = f" in {where}" if where else ""
                self.say(node.place, f'unknown key "{key}"{inside}{did_you_mean(key, keys)}')

    def map(self, node: Node, what: str) -> dict[str, Node]:
        if isinstance(node.value, dict):
            return node.value
        self.say(node.place, f'"{what}" must be keys and values')
        return {}

    def text(self, entries: Mapping[str, Node], key: str, usual: str) -> str:
        return self.take(entries, key, usual, str, "text")

    def texts(self, entries: Mapping[str, Node], key: str) -> tuple[str, ...]:
        node = entries.get(key)
        if node is None:
            return ()
        items = node.value if isinstance(node.value, list) else [node]
        for item in items:
            if not isinstance(item.value, str) or not item.value:
                self.say(item.place, f'"{key}" must be a list of words; put others in quotes')
        return tuple(str(item.value) for item in items)

    def flag(self, entries: Mapping[str, Node], key: str) -> bool:
        return self.take(entries, key, False, bool, "yes or no")

    def number(
        self, entries: Mapping[str, Node], key: str, usual: int, least: int, most: int
    ) -> int:
        value = self.take(entries, key, usual, int, "a whole number")
        if not least <= value <= most:
            self.say(entries[key].place, f'"{key}" must be {least} to {most}')
            return usual
        return value

    def duration(self, entries: Mapping[str, Node], key: str, usual: float) -> float:
        node = entries.get(key)
        if node is None:
            return usual
        value = _seconds(node.value)
        if value is None:
            self.say(node.place, f'"{key}" must be a duration such as 3s or 500ms')
            return usual
        if not 0 <= value <= _MAX_DURATION_S:
            self.say(
                node.place,
                f'"{key}" must be a duration of a day at most; a minute is 60s (1m is a million)',
            )
            return usual
        return value

    def word(self, entries: Mapping[str, Node], key: str, words: Sequence[str], usual: str) -> str:
        value = self.text(entries, key, usual)
        if key in entries and value not in words:
            text = (
                f'"{key}" cannot be "{value}"{did_you_mean(value, words)}; it is one of '
                f"{', '.join(words)}"
            )
            self.say(entries[key].place, text)
            return usual
        return value

    def take(self, entries: Mapping[str, Node], key: str, usual: T, kind: type[T], what: str) -> T:
        node = entries.get(key)
        if node is None:
            return usual
        # A boolean is a number to Python, and to nobody else.
        if not isinstance(node.value, kind) or (isinstance(node.value, bool) and kind is not bool):
            self.say(node.place, f'"{key}" must be {what}')
            return usual
        return node.value


def _seconds(value: Value) -> float | None:
    """A number is seconds already."""
    if isinstance(value, str):
        try:
            return parse_duration(value) / 1e9
        except ConfigError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _usual(entries: Mapping[str, Node], expect: Expect) -> str:
    # On a standby, or a node by name, nobody needs to take over.
    return expect if entries.get("node") is None or entries["node"].value == ACTIVE else Expect.ANY
