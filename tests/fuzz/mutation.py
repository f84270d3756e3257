"""Inputs made of seeds by chance, for runs without libFuzzer: every change follows from the seed of
``rng``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

_NUMBERS = [
    0,
    1,
    7,
    8,
    31,
    32,
    127,
    128,
    255,
    2**16 - 1,
    2**24 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
]


def mutated(seeds: Sequence[bytes], rng: Random) -> bytes:
    """One of the seeds with one to four changes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randrange(1, 40)]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 12))
            case 4:
                size = rng.choice([1, 2, 4, 8])
                data[at : at + size] = (rng.choice(_NUMBERS) % 2 ** (8 * size)).to_bytes(
                    size, "little"
                )
            case 5:
                # A piece of another input, where it lay there or somewhere else.
                other = rng.choice(seeds)
                start = rng.choice([at, rng.randrange(len(other) + 1)])
                data[at : at + rng.choice([0, 60])] = other[start : start + 60]
            case _:
                # The first bytes say what the others are taken for.
                data[:1] = bytes([rng.randrange(256)])
    return bytes(data)
