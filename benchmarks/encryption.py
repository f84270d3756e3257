"""What encryption costs: a message alone, in microseconds, and publishes to the file store in turns
with plain ones.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.patterns import PATTERNS, streaming
from benchmarks.processes import ftstan
from ftstan.stores.encryption.cipher import KeyRing
from ftstan.stores.encryption.store import EncryptedStore
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.memory import MemoryStore
from ftstan.wire.block import MsgBlock

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from ftstan.stores.interface import ChannelStore, Store

_READY = "Streaming Server is ready"
_CIPHERS = ("AES", "CHACHA")
_SIZES = (128, 1024)
#: A batch, as one read of the socket brings it, and how many of them.
_BATCH = 1000
_BATCHES = 20
_NAMES = ("publish", "publish, 1 KiB", "1 publisher, 1 subscriber")
_PLAIN = "plain"


def run(options: argparse.Namespace) -> None:
    """Print both tables."""
    print(f"\n{'encryption, us a message above plain':44}{'stored':>10}{'read':>10}")
    for size in _SIZES:
        plain = _store_and_read(size, "", options.rounds)
        for cipher in _CIPHERS:
            stored, read = (
                one - other
                for one, other in zip(
                    _store_and_read(size, cipher, options.rounds), plain, strict=True
                )
            )
            print(f"{f'  {cipher}, {size} bytes':44}{stored:10.2f}{read:10.2f}", flush=True)
    print(
        f"\n{'file store, encrypted in turns with plain':44}{'msgs/s':>10}{'to plain':>10}"
        f"{'lowest':>8}{'highest':>9}{'server us':>11}"
    )
    for name in _NAMES:
        _publishes(name, options)


# ---- a message alone
# --------------------------------------------------------------------------------------------------


def _store_and_read(size: int, cipher: str, rounds: int) -> tuple[float, float]:
    """Microseconds of processor time a message that is stored in memory, and read from there."""
    stored = []
    read = []
    for _ in range(max(rounds, 3)):
        store: Store = MemoryStore()
        if cipher:
            store = EncryptedStore(store, KeyRing([b"key"], cipher))
        channel = store.create_channel(b"bench", ChannelLimits(max_msgs=0, max_bytes=0))
        blocks = [_block(size, first) for first in range(1, _BATCH * _BATCHES, _BATCH)]
        stored.append(_microseconds(partial(_store, store, channel, blocks)))
        read.append(_microseconds(partial(_read, channel)))
    return min(stored), min(read)


def _block(size: int, first: int) -> MsgBlock:
    block = MsgBlock()
    for i in range(_BATCH):
        block.append(first + i, b"bench", b"", b"x" * size, 1_700_000_000_000_000_000 + i)
    return block


def _store(store: Store, channel: ChannelStore, blocks: list[MsgBlock]) -> None:
    for block in blocks:
        channel.append(block)
        store.commit()


def _read(channel: ChannelStore) -> None:
    at = channel.first
    while at <= channel.last:
        block = channel.read(at, _BATCH, 1 << 24)
        assert block is not None
        at = block.last + 1


def _microseconds(function: Callable[[], object]) -> float:
    began = time.process_time_ns()
    function()
    return (time.process_time_ns() - began) / 1000 / (_BATCH * _BATCHES)


# ---- publishes
# --------------------------------------------------------------------------------------------------


def _publishes(name: str, options: argparse.Namespace) -> None:
    pattern = next(one for one in PATTERNS if one.name == name)
    count = max(int(options.count * pattern.share), 1)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftstan-bench-")))
        keys = place / "keys"
        keys.touch(0o600)
        keys.write_text("key\n", encoding="ascii")
        servers = {}
        for way in (_PLAIN, *_CIPHERS):
            words = () if way == _PLAIN else (
                "-encryption_key_file", str(keys), "-encryption_cipher", way,
            )  # fmt: skip
            servers[way] = stack.enter_context(ftstan("file", str(place / way), *words))
            servers[way].wait_for(_READY)
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in servers}
        for _ in range(options.rounds):
            for way, server in servers.items():
                figures = streaming(server, pattern, count)
                found[way].append((figures.per_second, figures.server_cpu))
    for way, rows in found.items():
        ratios = [one[0] / plain[0] for one, plain in zip(rows, found[_PLAIN], strict=True)]
        print(
            f"{f'  {name}: {way}':44}{statistics.median(r[0] for r in rows):10,.0f}"
            f"{statistics.median(ratios):10.2f}{min(ratios):8.2f}{max(ratios):9.2f}"
            f"{statistics.median(r[1] for r in rows):11.2f}",
            flush=True,
        )
