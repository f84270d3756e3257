"""Kinds of stores that the histories run: options, limits and surroundings that together reach
every path.

Each variant says what is switched on; ``open_store`` and ``shape`` go to ``run_history`` as they
are. The archive script is simulated: it takes what it gets, so that nothing which the limits
removed may be missing from both places.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ftstan.stores.file.archive import Archivist
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import ChannelLimits
from tests.sim.filestore import open_file_store
from tests.sim.gojudge import go_judge
from tests.sim.history import STORE, Shape
from tests.sim.model import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.clock import ManualClock
    from ftstan.stores.file.store import FileStore
    from tests.sim.disk import SimDisk
    from tests.sim.history import Judge
    from tests.sim.model import Model

_EAGER = FileStoreOptions(compact_min_size=0, compact_interval=0, compact_fragmentation=1)
_TIGHT = Shape(
    batches=8,
    ticks=0.6,
    limits=ChannelLimits(max_msgs=9, max_bytes=6000, max_age=5_000_000_000),
    deletes=True,
)


class SimArchivist(Archivist):
    """Runs the script at once: it copies both files, checks that they belong together, and removes
    them.
    """

    def __init__(self, disk: SimDisk, clock: ManualClock, taken: list[bytes]) -> None:
        super().__init__("script", clock, lambda: True)
        self._disk = disk
        self._taken = taken

    def run_due(self, confirm: Callable[[], None]) -> None:
        for path, job in list(self._jobs.items()):
            confirm()
            # The script is a process of its own: that the server dies in the middle of it does not
            # stop it.
            script = self._disk.sibling()
            tree = script.tree(f"{STORE}/{job.channel}")
            dat, idx = (tree.get(p.rpartition("/")[2]) for p in (job.dat, job.idx))
            if dat is None or idx is None:
                raise Violation(
                    f"the script was given {job.dat}, and one of the files is not there"
                )
            self._taken.append(dat)
            folder = script.open_dir(f"{STORE}/{job.channel}")
            for name in (job.dat, job.idx):
                script.unlink(folder, name.rpartition("/")[2])
            script.fsync(folder)
            script.kill()
            self._disk.met["slices-archived"] += 1
            del self._jobs[path]

    def close(self, patience: float) -> None:
        del patience

    def abandon(self) -> None:
        """Nothing runs."""


@dataclass(slots=True)
class Variant:
    """``taken``: what the archive script was given in the history that runs."""

    name: str
    options: FileStoreOptions = field(default_factory=FileStoreOptions)
    shape: Shape = field(default_factory=Shape)
    hard_links: bool = True
    go: bool = False
    taken: list[bytes] = field(default_factory=list)

    def open_store(self, disk: SimDisk, clock: ManualClock) -> FileStore:
        disk.volume.hard_links = self.hard_links
        if disk.tree(STORE) == {}:
            self.taken.clear()
        store = open_file_store(
            disk, clock, replace(self.options, slice_archive_script=""), limits=self.shape.limits
        )
        if self.options.slice_archive_script:
            store._upkeep._archivist = SimArchivist(disk, clock, self.taken)
        return store

    @property
    def judge(self) -> Judge | None:
        if self.options.slice_archive_script:
            return self._nothing_is_lost
        return go_judge if self.go else None

    def _nothing_is_lost(self, disk: SimDisk, model: Model) -> None:
        """Every acknowledged message is in a slice, set aside for the script, or with the
        script.
        """
        kept = b"".join([*self.taken, *(data for data in disk.tree(STORE).values() if data)])
        for channel in model.channels.values():
            for sequence, payload in channel.fixed.items():
                if payload not in kept:
                    raise Violation(
                        f"{channel}: sequence {sequence} was removed and never given to the "
                        "archive script"
                    )

    def __str__(self) -> str:
        return self.name


PLAIN = Variant("plain", go=True)
SMALL = Variant("small slices", FileStoreOptions(slice_max_msgs=3), go=True)
TIGHT = Variant("tight limits", replace(_EAGER, slice_max_msgs=3), _TIGHT)
ARCHIVE = Variant(
    "archive",
    replace(_EAGER, slice_max_msgs=3, slice_archive_script="script"),
    replace(_TIGHT, deletes=False),
)
CAREFUL = Variant(
    "careful",
    FileStoreOptions(slice_max_bytes=2000, sync_index=True, sync_subs=True, fds_limit=6),
    Shape(channels=4, ticks=0.5),
    hard_links=False,
    go=True,
)
PURGED = Variant("purged", FileStoreOptions(slice_max_msgs=3), Shape(purges=True), go=True)
PURGED_TIGHT = Variant(
    "purged, tight limits, archive",
    replace(_EAGER, slice_max_msgs=3, slice_archive_script="script"),
    replace(_TIGHT, deletes=False, purges=True),
)
VARIANTS = (PLAIN, SMALL, TIGHT, ARCHIVE, CAREFUL, PURGED, PURGED_TIGHT)
