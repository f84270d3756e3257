"""An original server in a group's life, as far as the store can tell: it obeys the lock and nothing
else.

It knows no epoch and reads none. It finds the log by the numbers of the slices, as that server
does, goes on in the highest one (or opens the next number), syncs data and index, and acknowledges
(``docs/compat/filestore.md``). It follows a clean stop only: after a crash of ours, ``ftstanctl
store handover`` comes first (``docs/store.md``).
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from ftstan.stores.file.log import records
from ftstan.wire.block import MsgBlock
from tests.sim.disk import Killed, SimDisk

if TYPE_CHECKING:
    from random import Random

    from tests.sim.ft.group import Group

_DAT = re.compile(r"msgs\.([0-9]+)\.dat\Z")


def interlude(group: Group, rng: Random, *, may_crash: bool = False) -> int:
    """Take the lock, publish to every channel, leave, or crash.

    Returns how many messages were acknowledged.
    """
    disk = SimDisk(group.volume, group.met)
    last = rng.choice((None, None, rng.randint(1, 40))) if may_crash else None

    def crash(number: int, _call: str, _args: tuple[object, ...]) -> None:
        if number == last:
            group.met["fault: an original server crashes"] += 1
            raise Killed(rng.choice((0, rng.randint(1, 60))))

    disk.on_call = crash
    acked = 0
    with contextlib.suppress(Killed):
        root = disk.open_dir("/")
        for name, is_dir in sorted(disk.listdir(root)):
            if is_dir:
                acked += _publish(group, disk, disk.open_dir_at(root, name), name.encode(), rng)
    disk.kill()
    return acked


def _publish(group: Group, disk: SimDisk, folder: int, channel: bytes, rng: Random) -> int:
    crc = records.Crc(group.shape.options.crc_polynomial)
    number, last = find_end(disk, folder)
    if not number:
        return 0
    block = MsgBlock()
    for sequence in range(last + 1, last + 1 + rng.randint(1, 3)):
        block.append(sequence, channel, b"", b"go %d" % group.serial(), group.clock.wall_ns())
    if rng.random() < 0.3:
        number += 1
        for kind in ("dat", "idx"):
            fd = disk.open(folder, f"msgs.{number}.{kind}", os.O_RDWR | os.O_CREAT)
            disk.pwrite(fd, records.VERSION, 0)
            disk.close(fd)
        disk.fsync(folder)
    life = group.ledger.generation(channel)
    for i in range(len(block)):
        group.ledger.offer(life, block.sequence(i), block.payload(i), block.timestamp(i))
    append(disk, folder, number, block, crc)
    for i in range(len(block)):
        group.ledger.ack(life, block.sequence(i), block.payload(i), group.ledger.top)
    return len(block)


def append(disk: SimDisk, folder: int, number: int, block: MsgBlock, crc: records.Crc) -> None:
    """Write messages behind everything that is in a slice's files, and sync them."""
    records.seal(block, crc)
    dat = disk.open(folder, f"msgs.{number}.dat", os.O_RDWR)
    idx = disk.open(folder, f"msgs.{number}.idx", os.O_RDWR)
    at = disk.fstat(dat).size
    disk.pwrite(dat, bytes(memoryview(block)), at)
    disk.pwrite(idx, records.index_entries(block, 0, len(block), at, crc), disk.fstat(idx).size)
    for fd in (dat, idx):
        disk.fsync(fd)
        disk.close(fd)


def find_end(disk: SimDisk, folder: int) -> tuple[int, int]:
    """Number of the highest slice, and the last sequence that its index names.

    Zeros if there is no slice.
    """
    numbers = [
        int(m[1]) for name, is_dir in disk.listdir(folder) if not is_dir and (m := _DAT.match(name))
    ]
    if not numbers:
        return 0, 0
    for number in sorted(numbers, reverse=True):
        fd = disk.open(folder, f"msgs.{number}.idx", os.O_RDONLY)
        index = disk.pread(fd, disk.fstat(fd).size, records.VERSION_SIZE)
        disk.close(fd)
        # Wherever it says that the record is: what an original was killed over stays in between.
        if entries := len(index) // records.INDEX_SIZE:
            return max(numbers), records.entry(index, entries - 1)[0]
    return max(numbers), 0
