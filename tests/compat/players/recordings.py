"""The recorded sessions of ``tests/data/wire`` and their index."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.compat.players.lines import Line, snake

DATA = Path(__file__).parents[2] / "data" / "wire"

#: What the index says of itself: items that a client, an onlooker of the server's NATS connections,
#: or the user of a program can see. Those of scope ``go-server`` are about how the recorded server
#: does it inside.
SCOPES = ("client", "server", "program")


@dataclass(frozen=True, slots=True)
class Item:
    """One statement about a session. ``parts`` is what the judge reads."""

    key: str
    text: str
    scope: str
    parts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A recorded session. ``nats_conf``: lines for the configuration of its NATS server."""

    name: str
    description: str
    items: tuple[Item, ...]
    nats_conf: str

    def lines(self) -> list[Line]:
        """The recording."""
        return read_lines(DATA / f"{self.name}.v0.25.6.jsonl.gz")


def read_lines(recording: Path) -> list[Line]:
    """The lines of a recording."""
    with gzip.open(recording, "rt", encoding="utf-8") as file:
        return [_line(json.loads(raw)) for raw in file]


def _line(raw: dict[str, Any]) -> Line:
    decoded = raw.get("decoded")
    args = raw.get("args", {})
    return Line(
        n=raw["n"],
        t=raw["t"],
        conn=raw["conn"],
        op=raw["op"],
        dir=raw["dir"],
        id=raw.get("id", ""),
        subject=raw.get("subject", ""),
        reply=raw.get("reply", ""),
        sid=raw.get("sid", ""),
        text=raw.get("text", ""),
        hdr=raw.get("hdr", ""),
        payload=bytes.fromhex(raw["payload_hex"]) if "payload_hex" in raw else None,
        type=decoded["type"] if decoded else raw.get("decode_error", "").partition(":")[0],
        fields={snake(name): value for name, value in decoded["fields"].items()}
        if decoded
        else None,
        kind=raw.get("kind", ""),
        args=args if isinstance(args, dict) else {},
        options=raw.get("json", {}),
        sources=raw.get("from", {}),
    )


@cache
def index() -> dict[str, Any]:
    """The index as it is."""
    found: dict[str, Any] = json.loads((DATA / "index.json").read_text(encoding="utf-8"))
    return found


@cache
def scenarios() -> dict[str, Scenario]:
    """Every recorded session by its name."""
    return {raw["name"]: _scenario(raw) for raw in index()["scenarios"]}


def _scenario(raw: dict[str, Any]) -> Scenario:
    items = [
        Item(
            part["key"],
            part["text"],
            part["scope"],
            {name: value for name, value in part.items() if name not in {"key", "text", "scope"}},
        )
        for part in raw["invariants"]
    ]
    return Scenario(raw["name"], raw["description"], tuple(items), raw.get("nats_conf", ""))


def exempted() -> set[tuple[str, str]]:
    """Pairs (general invariant, scenario) of which the index says that the scenario breaks the
    invariant on purpose.
    """
    return {
        (g["name"], e["scenario"]) for g in index()["general_invariants"] for e in g["exceptions"]
    }
