"""What a simulated disk holds: for every file and directory what processes see, and what a power
cut would leave.

A file is its visible bytes, its durable bytes and the list of changes in between, by 512-byte
sector as the page cache held them; a directory is the same for names. A sync moves the changes
over, a crash moves some of them. Nothing here knows of handles, errors or faults (``disk.py``
does), and nothing is ever more durable than POSIX promises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from random import Random

SECTOR = 512


class CrashMode(Enum):
    """What a power cut does to unsynced effects.

    File data is cut, torn and reordered in the two middle ones.
    """

    LOST = "nothing unsynced survives"
    ORDERED = "of each directory's changes the first ones survive"
    UNORDERED = "each change of a name survives or not on its own"
    KEPT = "everything survives"


@dataclass(frozen=True, slots=True)
class Change:
    """One unsynced effect on a file: the sectors it touched, padded with zeros, and the size after
    it.
    """

    sectors: dict[int, bytes]
    size: int
    cut: bool


@dataclass(frozen=True, slots=True)
class NameChange:
    """One unsynced effect on a directory; a rename removes and adds in one."""

    removes: str | None
    adds: str | None
    node: Node | None

    def apply(self, entries: dict[str, Node]) -> None:
        if self.removes is not None:
            entries.pop(self.removes, None)
        if self.adds is not None and self.node is not None:
            entries[self.adds] = self.node


@dataclass(frozen=True, slots=True)
class Meta:
    mode: int
    uid: int = 0
    gid: int = 0


@dataclass(eq=False, slots=True)
class FileNode:
    ino: int
    meta: Meta
    durable_meta: Meta
    mtime_ns: int = 0
    links: int = 0
    opens: int = 0
    by: set[Any] = field(default_factory=set)
    """Machines with changes that nobody has synced."""
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)

    def write(self, data: bytes, offset: int) -> None:
        """Put ``data`` at ``offset``; a gap before it reads as zeros."""
        end = offset + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        self.data[offset:end] = data
        touched = range(offset // SECTOR, (end + SECTOR - 1) // SECTOR)
        self.changes.append(
            Change({s: self._sector(s) for s in touched}, len(self.data), cut=False)
        )

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros."""
        cut = size < len(self.data)
        if cut:
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))
        partly = {size // SECTOR: self._sector(size // SECTOR)} if cut and size % SECTOR else {}
        self.changes.append(Change(partly, size, cut))

    def sync(self) -> None:
        """Make the changes durable."""
        for change in self.changes:
            _resize(self.durable, change.size)
            for sector, content in change.sectors.items():
                _put(self.durable, sector, content)
        self.changes.clear()
        self.by.clear()

    def forget(self) -> None:
        """A failed sync: processes go on seeing the bytes, but nothing will ever write these pages
        again.
        """
        self.changes.clear()

    def survive(self, rng: Random, met: Counter[str]) -> bytearray:
        """The bytes found after a power cut: some version of each sector, some version of the
        size.
        """
        steps = len(self.changes)
        if not steps:
            return bytearray(self.durable)
        fate = rng.choice(("data-lost", "data-kept", "data-torn", "data-reordered"))
        met[fate] += 1
        if fate == "data-lost":
            return self._compose(0, lambda _: 0)
        if fate == "data-kept":
            return self._compose(steps, lambda _: steps)
        if fate == "data-torn":
            step = rng.randint(1, steps)
            torn = sorted(self.changes[step - 1].sectors)
            arrived = set(torn[: rng.randint(0, len(torn))])
            found = self._compose(
                rng.choice((step - 1, step)), lambda sector: step if sector in arrived else step - 1
            )
        else:
            found = self._compose(rng.randint(0, steps), lambda _: rng.randint(0, steps))
        self._note_holes(found, met)
        return found

    def survive_apart(self, rng: Random, met: Counter[str]) -> bytearray:
        """The bytes found where each write arrived or not on its own, as those that a host sent and
        did not commit.
        """
        if any(change.cut for change in self.changes):
            return self.survive(rng, met)
        met["data-apart"] += 1
        found = bytearray(self.durable)
        for change in self.changes:
            if rng.random() < 0.5:
                _resize(found, max(change.size, len(found)))
                for sector, content in change.sectors.items():
                    _put(found, sector, content)
        return found

    def _compose(self, size_step: int, step_of: Callable[[int], int]) -> bytearray:
        """The file with its size after ``size_step`` changes and sector ``s`` after ``step_of(s)``
        of them.
        """
        found = bytearray(self.durable)
        _resize(found, self.changes[size_step - 1].size if size_step else len(self.durable))
        last = (len(found) + SECTOR - 1) // SECTOR
        for sector in range(last):
            if any(
                sector in c.sectors or (c.cut and c.size < (sector + 1) * SECTOR)
                for c in self.changes
            ):
                _put(
                    found,
                    sector,
                    self._version(sector, self._allowed(sector, size_step, step_of(sector))),
                )
        return found

    def _allowed(self, sector: int, size_step: int, step: int) -> int:
        """A cut is journalled with the size: no sector that it reaches comes from the other side of
        it.
        """
        for number, change in enumerate(self.changes, 1):
            if change.cut and change.size < (sector + 1) * SECTOR:
                step = max(step, number) if size_step >= number else min(step, number - 1)
        return step

    def _version(self, sector: int, step: int) -> bytes:
        content = bytes(self.durable[sector * SECTOR : (sector + 1) * SECTOR])
        for change in self.changes[:step]:
            if change.cut and change.size <= sector * SECTOR:
                content = b""
            content = change.sectors.get(sector, content)
        return content.ljust(SECTOR, b"\0")

    def _note_holes(self, found: bytearray, met: Counter[str]) -> None:
        for at in range(len(self.durable), len(found), SECTOR):
            if not any(found[at : at + SECTOR]) and any(self.data[at : at + SECTOR]):
                met["data-zeros-inside"] += 1
                return

    def _sector(self, sector: int) -> bytes:
        return bytes(self.data[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")


@dataclass(eq=False, slots=True)
class DirNode:
    ino: int
    meta: Meta
    durable_meta: Meta
    mtime_ns: int = 0
    links: int = 1
    opens: int = 0
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    changes: list[NameChange] = field(default_factory=list)

    def change(
        self, *, removes: str | None = None, adds: str | None = None, node: Node | None = None
    ) -> None:
        """Remove and add names at once, volatile until ``sync``."""
        change = NameChange(removes, adds, node)
        change.apply(self.entries)
        self.changes.append(change)

    def sync(self) -> None:
        """Make the names durable."""
        self.durable = dict(self.entries)
        self.changes.clear()

    def survive(self, rng: Random, mode: CrashMode, met: Counter[str]) -> dict[str, Node]:
        """The names found after a power cut."""
        if mode is CrashMode.ORDERED:
            kept = self.changes[: rng.randint(0, len(self.changes))]
        else:
            kept = [
                c
                for c in self.changes
                if mode is CrashMode.KEPT or (mode is not CrashMode.LOST and rng.random() < 0.5)
            ]
        if self.changes:
            met["names-lost"] += len(self.changes) - len(kept)
            met["names-kept"] += len(kept)
            met["names-reordered"] += kept != self.changes[: len(kept)]
        entries = dict(self.durable)
        for change in kept:
            change.apply(entries)
        return entries


Node = FileNode | DirNode


@dataclass(eq=False, slots=True)
class Volume:
    """A file system. ``space``: bytes that files may still grow by, ``None`` without limit.

    ``hard_links``: whether a file may have a second name; some file systems refuse that.
    """

    root: DirNode
    inodes: set[int]
    space: int | None = None
    ticks: int = 0
    hard_links: bool = True

    @classmethod
    def empty(cls) -> Volume:
        meta = Meta(0o755)
        return cls(DirNode(1, meta, meta), {1})

    def new_ino(self) -> int:
        """The lowest free number: real file systems reuse them at once, too."""
        ino = 1
        while ino in self.inodes:
            ino += 1
        self.inodes.add(ino)
        return ino

    def now_ns(self) -> int:
        """Time stamps as coarse as a kernel's: many changes share one."""
        self.ticks += 1
        return 1_700_000_000_000_000_000 + self.ticks // 16 * 4_000_000

    def release(self, node: Node) -> None:
        """Free what has neither a name nor a handle any more."""
        if node.links == 0 and node.opens == 0:
            self.inodes.discard(node.ino)
            if isinstance(node, FileNode):
                self.grow(-len(node.data))

    def grow(self, size: int) -> None:
        if self.space is not None:
            self.space -= size

    def restart(self, rng: Random, met: Counter[str]) -> None:
        """The storage restarts below machines that go on: they send again what they have not
        synced.

        Of a file that only dead machines wrote to some of the unsynced changes are found, in any
        order.
        """
        folders = [self.root]
        while folders:
            for child in folders.pop().entries.values():
                if isinstance(child, DirNode):
                    folders.append(child)
                elif child.changes and all(machine.dead for machine in child.by):
                    survive = child.survive_apart if rng.random() < 0.75 else child.survive
                    child.data[:] = child.durable[:] = survive(rng, met)
                    child.changes.clear()
                    child.by.clear()

    def after_kill(self) -> Volume:
        """A copy in which no process is left: everything written is there, synced or not."""
        made: dict[int, Node] = {}

        def copied(node: Node) -> Node:
            if id(node) in made:
                return made[id(node)]
            if isinstance(node, FileNode):
                # Named one by one: ``replace`` takes three times as long.
                file = made[id(node)] = FileNode(
                    node.ino,
                    node.meta,
                    node.durable_meta,
                    node.mtime_ns,
                    node.links,
                    node.opens,
                    data=bytearray(node.data),
                    durable=bytearray(node.durable),
                    changes=[*node.changes],
                )
                return file
            folder = DirNode(node.ino, node.meta, node.durable_meta, node.mtime_ns, node.links)
            made[id(node)] = folder
            folder.entries = {name: copied(child) for name, child in node.entries.items()}
            folder.durable = {name: copied(child) for name, child in node.durable.items()}
            folder.changes = [
                NameChange(c.removes, c.adds, None if c.node is None else copied(c.node))
                for c in node.changes
            ]
            return folder

        root = copied(self.root)
        assert isinstance(root, DirNode)
        volume = Volume(root, set(), self.space, self.ticks, self.hard_links)
        volume._settle()
        return volume

    def after_power_cut(self, rng: Random, mode: CrashMode, met: Counter[str]) -> Volume:
        """A copy as the next boot finds it; everything in it is durable."""
        made: dict[int, Node] = {}

        def found(node: Node) -> Node:
            if id(node) in made:
                return made[id(node)]
            meta = node.meta if mode is CrashMode.KEPT else node.durable_meta
            if isinstance(node, FileNode):
                if mode in {CrashMode.LOST, CrashMode.KEPT}:
                    data = bytearray(node.durable if mode is CrashMode.LOST else node.data)
                else:
                    data = node.survive(rng, met)
                copied = FileNode(
                    node.ino, meta, meta, node.mtime_ns, data=data, durable=bytearray(data)
                )
                made[id(node)] = copied
                return copied
            folder = DirNode(node.ino, meta, meta, node.mtime_ns)
            made[id(node)] = folder
            folder.entries = {
                name: found(child) for name, child in node.survive(rng, mode, met).items()
            }
            folder.durable = dict(folder.entries)
            return folder

        root = found(self.root)
        assert isinstance(root, DirNode)
        volume = Volume(root, set(), self.space, self.ticks, self.hard_links)
        volume._settle()
        return volume

    def _settle(self) -> None:
        """Count names again, close what was open, and give a number of its own to every node."""
        seen: dict[int, Node] = {id(self.root): self.root}
        folders = [self.root]
        while folders:
            for child in folders.pop().entries.values():
                if id(child) not in seen:
                    seen[id(child)] = child
                    child.links = 0
                    if isinstance(child, DirNode):
                        folders.append(child)
                child.links += 1
        self.inodes = set()
        for node in seen.values():
            node.opens = 0
            if isinstance(node, FileNode):
                node.by.clear()
            if node.ino in self.inodes:
                node.ino = self.new_ino()
            self.inodes.add(node.ino)


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _put(data: bytearray, sector: int, content: bytes) -> None:
    at = sector * SECTOR
    fits = content[: max(0, len(data) - at)]
    data[at : at + len(fits)] = fits
