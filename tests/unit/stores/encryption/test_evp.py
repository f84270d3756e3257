"""OpenSSL called directly: the library's records, and the library where it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.stores.encryption import evp, payloads
from ftstan.stores.encryption.cipher import KeyRing, UndecryptableError
from ftstan.wire.block import MsgBlock
from tests.unit.stores.encryption.test_cipher import block_of, datas_of

ALL = 1 << 62
CIPHERS = ["AES", "CHACHA"]


def test_it_can_be_used_here() -> None:
    assert evp.usable()


@pytest.mark.slow
@pytest.mark.parametrize("cipher", CIPHERS)
@given(datas=st.lists(st.binary(max_size=200) | st.binary(min_size=3000, max_size=5000)))
def test_blocks_are_the_librarys_byte_for_byte(cipher: str, datas: list[bytes]) -> None:
    keys = KeyRing([b"key"], cipher).channel(b"foo")
    assert keys.fast is not None
    plain = block_of(*datas)
    nonces = os.urandom(12 * len(datas))
    slow = payloads.seal(plain, keys.code, keys.encrypt, nonces)
    fast = payloads.seal(plain, keys.code, keys.encrypt, nonces, keys.fast)
    assert datas_of(slow) == datas_of(fast)
    assert bytes(memoryview(slow)) == bytes(memoryview(fast))
    opened, bad, error = payloads.unseal(slow, 0, ALL, ALL, keys.decrypt, fast=keys.fast)
    assert (bad, error) == (0, None)
    assert datas_of(opened) == datas


@pytest.mark.parametrize("cipher", CIPHERS)
def test_keys_of_a_ring_take_turns_and_what_none_opens_is_an_error(cipher: str) -> None:
    old = KeyRing([b"old"], cipher).channel(b"foo")
    new = KeyRing([b"new"], cipher).channel(b"foo")
    both = KeyRing([b"new", b"old"], cipher).channel(b"foo")
    datas = [(old if n % 3 else new).record(b"%d" % n) for n in range(9)]
    opened, _, error = payloads.unseal(block_of(*datas), 0, ALL, ALL, both.decrypt, fast=both.fast)
    assert error is None
    assert datas_of(opened) == [b"%d" % n for n in range(9)]
    opened, bad, error = payloads.unseal(block_of(*datas), 0, ALL, ALL, new.decrypt, fast=new.fast)
    assert isinstance(error, UndecryptableError)
    assert (datas_of(opened), bad) == ([b"0"], 2)


@pytest.mark.parametrize("cipher", CIPHERS)
@given(at=st.integers(0, 33), bit=st.integers(0, 7))
def test_no_changed_bit_passes(cipher: str, at: int, bit: int) -> None:
    keys = KeyRing([b"key"], cipher).channel(b"foo")
    assert keys.fast is not None
    record = bytearray(keys.record(b"hello"))
    record[at] ^= 1 << bit
    assert keys.fast.decrypt(bytes(record)) is None


@pytest.mark.parametrize("size", range(30))
def test_a_short_record_is_none(size: int) -> None:
    keys = KeyRing([b"key"]).channel(b"foo")
    assert keys.fast is not None
    assert keys.fast.decrypt(bytes([1] * size)) is None
    assert keys.fast.decrypt(b"") is None


def test_a_context_keeps_nothing_of_the_message_before_it() -> None:
    keys = KeyRing([b"key"], "AES").channel(b"foo")
    assert keys.fast is not None
    good = [keys.record(os.urandom(n)) for n in (1, 500, 16, 3)]
    spoiled = good[1][:-1] + bytes([good[1][-1] ^ 1])
    for record in (good[0], spoiled, good[2], spoiled[:40], good[3], good[1]):
        found = keys.fast.decrypt(record)
        assert (found is not None) == (record in good)


_WITHOUT = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
from ftstan.stores.encryption import evp
from ftstan.stores.encryption.cipher import KeyRing
keys = KeyRing([b"key"]).channel(b"foo")
assert keys.decrypt(keys.record(b"hello")) == b"hello"
print(evp.usable(), keys.fast is not None)
"""


@pytest.mark.parametrize(
    ("missing", "said"),
    [(["_hashlib"], "True True"), (["_hashlib", "_ssl"], "False False")],
)
def test_without_pythons_own_openssl_the_library_does_it(missing: list[str], said: str) -> None:
    words = [sys.executable, "-c", _WITHOUT, *missing]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (said, "")


def test_a_wrong_key_or_nonce_is_refused_before_openssl_sees_it() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        evp.Keys([b"short"]).encrypt(1, bytes(12), b"x")
    for code, nonce in ((3, bytes(12)), (1, bytes(11))):
        with pytest.raises(ValueError, match="nonce"):
            evp.Keys([bytes(32)]).encrypt(code, nonce, b"x")


def test_a_store_reads_and_writes_with_it() -> None:
    # The names are the contract of ``store.py``: a slip there would only be slow.
    keys = KeyRing([b"key"]).channel(b"foo")

    def never(*_: object) -> bytes:
        raise AssertionError

    sealed = payloads.seal(block_of(b"a"), keys.code, never, bytes(12), keys.fast)
    opened, _, error = payloads.unseal(sealed, 0, ALL, ALL, never, fast=keys.fast)
    assert error is None
    assert isinstance(opened, MsgBlock)
    assert datas_of(opened) == [b"a"]
