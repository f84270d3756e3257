"""Archive scripts of a simulated group, and the judge of what they were given.

A script is a process of its own on the host of whoever started it: it reads both files as that host
remembers them, keeps a copy of the data, and removes them, at once. Its start may come late: the
process that confirmed its right to it may stand still right before. That it then meets a script of
a successor is not simulated; the lock that scripts inherit is (``ftstan/stores/file/archive.py``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.stores.file.archive import Archivist
from tests.sim.ft.hosts import ClientDisk
from tests.sim.model import Violation
from tests.sim.volume import DirNode, FileNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.stores.file.archive import Job
    from tests.sim.disk import SimDisk
    from tests.sim.ft.group import Group
    from tests.sim.ft.nodes import Node


class SimScripts(Archivist):
    """The scripts of one store. ``may_start`` is the store's answer, as for the real ones."""

    def __init__(self, process: Node, may_start: Callable[[], bool]) -> None:
        super().__init__("script", process.clock, may_start)
        self._process = process

    def run_due(self, confirm: Callable[[], None]) -> None:
        """Run all that wait, one after the other."""
        for path, job in list(self._jobs.items()):
            confirm()
            if not self._may_start():
                return
            self._process.disk.stop_here("script", job.dat)
            if self._run(job):
                del self._jobs[path]

    def _run(self, job: Job) -> bool:
        group = self._process.group
        disk = self._process.disk
        script = (
            ClientDisk(disk.volume, disk.met, disk.client)
            if isinstance(disk, ClientDisk)
            else disk.sibling()
        )
        names = [path.rpartition("/")[2] for path in (job.dat, job.idx)]
        try:
            folder = script.open_dir(f"/{job.channel}")
            dat, _ = [_read(script, folder, name) for name in names]
            for name in names:
                script.unlink(folder, name)
            script.fsync(folder)
        except FileNotFoundError:
            # A former owner's script was quicker, or its channel is gone.
            group.met["archive scripts that found nothing"] += 1
            return False
        finally:
            script.kill()
        group.archived.append(dat)
        group.met["slices archived"] += 1
        group.met["slices archived late"] += self._process.superseded
        return True


def _read(disk: SimDisk, folder: int, name: str) -> bytes:
    fd = disk.open(folder, name, os.O_RDONLY)
    try:
        return disk.pread(fd, disk.fstat(fd).size, 0)
    finally:
        disk.close(fd)


def judge_archive(group: Group) -> None:
    """Raise ``Violation`` if a message that somebody was told of is in no slice, and no script was
    given it.
    """
    kept = b"".join([*group.archived, *_files(group.volume.root)])
    for life in group.ledger.generations.values():
        for sequence, payload in life.model.fixed.items():
            if sequence > life.purging and payload not in kept:
                raise Violation(
                    f"{life.model}: {sequence} was removed and never given to the archive script"
                )
    group.met["archives judged"] += 1


def _files(folder: DirNode) -> Iterator[bytes]:
    for node in folder.entries.values():
        if isinstance(node, DirNode):
            yield from _files(node)
        elif isinstance(node, FileNode):
            yield bytes(node.data)
