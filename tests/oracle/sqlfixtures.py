"""Databases that original servers wrote (``tests/data/sql``): their dumps, the views that an
original has of them, and what was done to damaged ones.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
import tarfile
from typing import TYPE_CHECKING, Any

from tests.processes import ROOT
from tests.sqlservers import execute

if TYPE_CHECKING:
    from ftstan.stores.sql.source import Source

DATA = ROOT / "tests" / "data" / "sql"
DRIVERS = ("postgres", "mysql")


@functools.cache
def files(driver: str) -> dict[str, bytes]:
    """Every file of a kind of database, by its name."""
    with tarfile.open(DATA / f"{driver}.tar.gz") as archive:
        return {
            member.name.rpartition("/")[2]: content.read()
            for member in archive
            if member.isfile() and (content := archive.extractfile(member)) is not None
        }


def views() -> list[tuple[str, str, str]]:
    """Driver, base and name of each view."""
    return [
        (driver, name.split(".")[0], name.removesuffix(".json"))
        for driver in DRIVERS
        for name in sorted(files(driver))
        if name.endswith(".json") and not name.endswith(".acked.json")
    ]


def view(driver: str, name: str) -> dict[str, Any]:
    """What an original server said of it."""
    said: dict[str, Any] = json.loads(files(driver)[f"{name}.json"])
    return said


def damages() -> list[dict[str, Any]]:
    """What was done to which base, and the verdicts."""
    said: list[dict[str, Any]] = json.loads(gzip.decompress((DATA / "damage.json.gz").read_bytes()))
    return said


def seen(damage: dict[str, Any], driver: str) -> dict[str, Any]:
    """Channels as the original saw them after a damage, without those that it did not see."""
    view = damage["verdict"][driver].get("view") or {}
    if "channels" in view:
        found: dict[str, Any] = view["channels"]
        return found
    if not view:
        return {}
    (whole,) = (one for one in damages() if one["name"] == "undamaged")
    every = whole["verdict"][driver]["view"]["channels"] | view["differs_from_undamaged"]
    return {name: one for name, one in every.items() if one}


def load(source: Source, base: str) -> None:
    """Fill an empty database."""
    text = files(source.driver)[f"{base}.sql"].decode("utf-8")
    text = text.replace("public.", "") if source.driver == "postgres" else text
    # Every statement of a dump ends at the end of a line; no text in it has a line feed.
    execute(source, *(one for one in re.split(r";\n", text) if one.strip()))
