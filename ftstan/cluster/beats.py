"""What nodes say to each other over plain NATS: the leader's beats, and how far each node is.

None of it carries safety: a beat only keeps candidates quiet, and what a node says of itself only
makes another one refuse. Messages that are not understood are ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.cluster.entry import Position


@dataclass(frozen=True, slots=True)
class Report:
    """One node, as it sees itself.

    ``incarnation`` (hexadecimal) is empty for a node that has no log yet. ``sequence``, ``crc`` and
    ``epoch`` say how far it has read or written, ``seen`` the furthest entry it has heard of.
    ``leads``: it appends. ``leaves``: it is about to stop. ``trouble``: why it does not follow.
    ``life``: drawn by each process, so that two with one id are told apart. ``stored``: up to which
    entry its store is complete and synced. ``to``: the node that is to lead after one that leaves,
    empty for any. ``time``: what a leader's clock shows, Unix nanoseconds. ``seeds``: there is no
    log yet, and this node makes it behind what its store has. ``lacks``: it has channels of which a
    repair has found messages lost.
    """

    node: str
    incarnation: str
    sequence: int
    crc: int
    epoch: int
    seen: int = 0
    leads: bool = False
    leaves: bool = False
    trouble: str = ""
    life: str = ""
    stored: int = 0
    to: str = ""
    time: int = 0
    seeds: bool = False
    lacks: bool = False

    def encode(self) -> bytes:
        """As bytes."""
        return json.dumps(asdict(self)).encode()


def report(node: str, at: Position, seen: int, *, leads: bool) -> Report:
    """The report of ``node``, which is at ``at``."""
    return Report(
        *(node, at.incarnation.hex(), at.sequence, at.crc, at.epoch, max(seen, at.sequence)),
        leads=leads,
    )


_TYPES = {
    "node": str,
    "incarnation": str,
    "sequence": int,
    "crc": int,
    "epoch": int,
    "seen": int,
    "leads": bool,
    "leaves": bool,
    "trouble": str,
    "life": str,
    "stored": int,
    "to": str,
    "time": int,
    "seeds": bool,
    "lacks": bool,
}

#: Nobody of ours has others in them.
_NAMES = ("node", "incarnation", "life", "to")


def decode_report(data: bytes) -> Report | None:
    """What a node said; ``None`` if it is no report."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    fields = {name: said[name] for name in _TYPES if name in said}
    if any(type(value) is not _TYPES[name] for name, value in fields.items()):
        return None
    if not all(0 <= value < 1 << 63 for value in fields.values() if isinstance(value, int)):
        return None
    if not all(fields.get(name, "").isprintable() for name in _NAMES):
        return None
    try:
        return Report(**fields)
    except TypeError:
        return None
