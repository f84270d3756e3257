"""Where a drill was played and with what: a report that does not say so cannot be compared with
another.

Kept beside the ledger as ``setting.json``, before the first fault: ``--judge`` finds it there.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ftstan.drill.node_watch import get
from ftstan.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.drill.scenario import Member, Scenario

FILE = "setting.json"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node as its pages told: an original has no host there, and its own version."""

    name: str
    host: str
    version: str
    monitor: str


@dataclass(frozen=True, slots=True)
class Setting:
    """``host`` and ``version`` are those of who played; ``load`` and ``driver`` are in words.

    ``database``: what a local group stored in, if not in a directory.
    """

    host: str
    version: str
    driver: str
    load: str
    nodes: tuple[NodeFacts, ...]
    database: str = ""


async def look(scenario: Scenario, members: Sequence[Member]) -> Setting:
    """Ask every node who it is."""
    nodes = await asyncio.gather(*map(_node, members))
    return Setting(
        socket.gethostname(),
        __version__,
        scenario.driver,
        load_text(scenario),
        tuple(nodes),
        scenario.database,
    )


def load_text(scenario: Scenario) -> str:
    """The load in words."""
    load = scenario.workload
    channels = ", ".join(load.channels)
    queue = f", a queue group of {load.queue}" if load.queue else ""
    return (
        f"{load.rate} messages a second of {load.size} bytes from {load.publishers} "
        f"publisher{_s(load.publishers)} with at most {load.in_flight} in flight each, on "
        f"{channels}; {load.durables} durable{_s(load.durables)}{queue}"
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"


async def _node(member: Member) -> NodeFacts:
    page = _json((await get(f"{member.monitor}/streaming/ftz"))[1])
    if "version" not in page:
        page = _json((await get(f"{member.monitor}/streaming/serverz"))[1])
    host = str(page.get("host", ""))
    return NodeFacts(member.name, host, str(page.get("version", "")), member.monitor)


def _json(body: bytes) -> dict[str, object]:
    try:
        page = json.loads(body)
    except ValueError:
        return {}
    return page if isinstance(page, dict) else {}


def write(setting: Setting, directory: str) -> None:
    """Keep it in ``directory``. Raises ``OSError``."""
    with open(os.path.join(directory, FILE), "w", encoding="utf-8") as file:
        json.dump(asdict(setting), file, indent=2)
        file.write("\n")


def read(directory: str) -> Setting | None:
    """What was kept in ``directory``; ``None`` if there is nothing that can be read."""
    try:
        with open(os.path.join(directory, FILE), encoding="utf-8") as file:
            row = json.load(file)
        nodes = tuple(NodeFacts(**node) for node in row.pop("nodes"))
        return Setting(**row, nodes=nodes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
