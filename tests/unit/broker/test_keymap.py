"""The table of names: nobody can choose names that make it slow, and what is replaced stays in its
place.
"""

from __future__ import annotations

import itertools
import random
import time

import pytest

from ftstan.broker.keymap import KeyMap, siphash

#: Two spellings of two words that a hash of xor, odd multiplication and shift by 29 cannot tell
#: apart, whatever its seed: the highest bit of a word goes through the multiplication as it is, and
#: the shift copies it to bit 34.
ALIKE = (b"a" * 16, bytes([97] * 7 + [97 ^ 0x80] + [97] * 4 + [97 ^ 0x04] + [97] * 2 + [97 ^ 0x80]))


def test_the_hash_is_siphash_with_one_and_three_rounds() -> None:
    # The key 00 01 .. 0f and the messages 00 01 .. of https://github.com/veorq/SipHash, in this
    # variant.
    low, high = (int.from_bytes(bytes(range(at, at + 8)), "little") for at in (0, 8))
    assert siphash(b"", low, high) == 0xABAC0158050FC4DC
    assert siphash(bytes(range(8)), low, high) != siphash(bytes(range(8)), low, high ^ 1)


def test_names_made_to_collide_are_found_as_fast_as_any() -> None:
    table: KeyMap[int] = KeyMap()
    names = [b"".join(parts) for parts in itertools.product(ALIKE, repeat=10)]
    for i, name in enumerate(names):
        table[name] = i
    # Of 1,024 names in at least 2,048 slots; by chance, a run of 64 does not happen in the life of
    # a universe.
    assert max(table.steps(name) for name in names) < 64


def test_two_tables_do_not_share_their_secret() -> None:
    names = [b"%d" % i for i in range(1000)]

    def walks() -> list[int]:
        table: KeyMap[int] = KeyMap()
        for name in names:
            table[name] = 0
        return [table.steps(name) for name in names]

    assert walks() != walks()


def test_replacing_a_known_name_does_not_build_the_table_anew() -> None:
    table: KeyMap[object] = KeyMap()
    for i in range(50_000):
        table[b"%d" % i] = i
    began = time.process_time()
    for i in range(2000):
        table[b"7"] = i
    # 2,000 rebuilds of this table take seconds; in place it is less than a millisecond.
    assert time.process_time() - began < 0.5
    assert table.get(b"7") == 1999
    assert table.steps(b"7") < 64


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_put_replaced_and_deleted_it_agrees_with_a_dictionary(seed: int) -> None:
    chance = random.Random(seed)
    table: KeyMap[int] = KeyMap()
    model: dict[bytes, int] = {}
    names = [chance.randbytes(chance.choice((0, 1, 7, 8, 9, 16, 31))) for _ in range(400)]
    for step in range(5000):
        name = chance.choice(names)
        if name in model and chance.random() < 0.4:
            del table[name]
            del model[name]
        else:
            table[name] = step
            model[name] = step
    assert table.objects == model
    assert len(table) == len(model)
    assert all(table.steps(name) < 64 for name in names)
    with pytest.raises(KeyError):
        del table[b"never"]
    assert table.objects == model
