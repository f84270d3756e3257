"""Recorded damage and its verdicts: 224 ways to spoil a real datastore, and what the real v0.25.6
server did with each.

The recipes are in ``tests/data/datastores/damage.json``: ``plain`` is a start without,
``truncating`` a start with ``-file_truncate_bad_eof``. ``channels`` and ``clients`` are given where
they differ from the undamaged store.
"""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.oracle.goview import Tree

DATA = Path(__file__).parent.parent / "data" / "datastores"

Recipe = dict[str, Any]


@cache
def recipes() -> list[Recipe]:
    """Every recipe: name, base, what, ops, plain, truncating."""
    found: list[Recipe] = json.loads((DATA / "damage.json").read_text(encoding="utf-8"))
    return found


@cache
def _archive(base: str) -> tuple[tuple[str, bytes | None], ...]:
    entries: list[tuple[str, bytes | None]] = []
    with tarfile.open(DATA / base) as tar:
        for member in tar:
            _, _, name = member.name.partition("/")
            if not name:
                continue
            reader = None if member.isdir() else tar.extractfile(member)
            entries.append((name, None if reader is None else reader.read()))
    return tuple(entries)


def archived_tree(base: str) -> Tree:
    """The files of an archived store, for example ``v0.25.6/clean.tar.gz``."""
    return dict(_archive(base))


def extract(base: str, folder: Path) -> Path:
    """Unpack an archived store under ``folder``; returns its root, ``folder/DATASTORE``."""
    with tarfile.open(DATA / base) as tar:
        tar.extractall(folder, filter="data")
    return folder / "DATASTORE"


def damaged_tree(recipe: Recipe) -> Tree:
    """The base store of ``recipe`` with its operations applied."""
    tree = archived_tree(recipe["base"])
    for op in recipe["ops"]:
        _apply(tree, op)
    return tree


def write_tree(tree: Tree, root: Path) -> None:
    """Put the files of ``tree`` into the directory ``root``, which is created."""
    root.mkdir(parents=True)
    for name, data in sorted(tree.items()):
        path = root / name
        if data is None:
            path.mkdir(exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _apply(tree: Tree, op: Recipe) -> None:
    name: str = op["file"]
    old = bytearray(tree.get(name) or b"")
    match op["op"]:
        case "truncate":
            size = op["size"]  # a negative one counts from the end, as slices do
            tree[name] = bytes(old[:size])
        case "zero-extend":
            tree[name] = bytes(old) + bytes(op["count"])
        case "flip":
            old[op["offset"]] ^= op["mask"]
            tree[name] = bytes(old)
        case "write":
            new = bytes.fromhex(op["hex"])
            at = len(old) if op["offset"] is None else op["offset"]
            old[at : at + len(new)] = new
            tree[name] = bytes(old)
        case "delete":
            for path in _at_or_below(tree, name):
                del tree[path]
        case "mkdir":
            tree[name] = None
        case "copy" | "rename" as kind:
            for path in _at_or_below(tree, name):
                moved = tree[path] if kind == "copy" else tree.pop(path)
                tree[op["to"] + path.removeprefix(name)] = moved
        case other:
            raise ValueError(f"unknown operation {other!r}")


def _at_or_below(tree: Tree, name: str) -> list[str]:
    return [p for p in tree if p == name or p.startswith(name + "/")]
