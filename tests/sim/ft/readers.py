"""A reader of the live store, as ``ftstan/spark`` and ``ftstanctl store`` are: it stops where
``confirmed.bin`` says.

What it is shown must be what every later owner finds (*never early*), and a channel that it was
shown up to some sequence does not end before that later: a stream would take that for a channel
that has begun anew, and read it again or fail. Only what storage may forget by itself, since nobody
syncs that file, goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.stores.file.state.confirmed import NAME, decode
from tests.sim.model import Violation
from tests.sim.volume import DirNode, FileNode

if TYPE_CHECKING:
    from tests.sim.ft.ledger import Generation, Ledger
    from tests.sim.volume import Volume


class LiveReader:
    """Looks at every channel again and again, and remembers what it has seen."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._read: dict[str, bytearray] = {}
        self._reached: dict[str, tuple[Generation, int]] = {}

    def look(self, volume: Volume) -> None:
        """Read every ``confirmed.bin`` that has changed. Raises ``Violation``."""
        for name, folder in volume.root.entries.items():
            file = folder.entries.get(NAME) if isinstance(folder, DirNode) else None
            if isinstance(file, FileNode) and self._read.get(name) != file.data:
                self._read[name] = bytearray(file.data)
                self._judge(name)

    def storage_went_down(self) -> None:
        """What was not synced may be lost."""
        self._read.clear()
        self._reached.clear()

    def _judge(self, name: str) -> None:
        confirmed = decode(bytes(self._read[name]))
        life = self._ledger.generations.get(name.encode())
        if confirmed is None or life is None:
            return
        said = f"{NAME} of {name} says {confirmed.sequence} under epoch {confirmed.epoch}"
        before, reached = self._reached.get(name, (life, 0))
        if before is life and confirmed.sequence < reached:
            raise Violation(f"{said}, a reader of the live store had been shown {reached}")
        self._reached[name] = (life, confirmed.sequence)
        self._ledger.show(life, confirmed.sequence, confirmed.epoch)
