"""Keys, records and nonces, against the vectors that an original made."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.stores.encryption import payloads
from ftstan.stores.encryption.cipher import (
    OVERHEAD,
    KeyRing,
    UndecryptableError,
    channel_key,
    master_key,
    usual_cipher,
)
from ftstan.wire import codec
from ftstan.wire.block import MsgBlock
from tests.oracle.godecrypt import decrypted

NONCE = bytes.fromhex("5db4813b0000000000000001")
VECTORS = {
    b"foo": (
        "5e9e7bb8c8fd4571cef7ea6683b1b6fdf883488b242ab5f28433711b775cd6e3",
        "015db4813b00000000000000017720e2eee679bdb60d7cb819a28e09cc189027e485",
        "025db4813b0000000000000001de8f8ffe3c26c1aeacb21b33751e15e0db0067addc",
    ),
    b"a.b": (
        "6cde403c5a18031e71da803b2cb4e67f2e54db68507ab2a76bda3d67d6de8b48",
        "015db4813b000000000000000127c881cfc7f59d5a73795a4f1bbaf23396d5e00fce",
        "025db4813b0000000000000001e358a063789643b1393af4038d0a71508b82cee363",
    ),
}


def block_of(*datas: bytes, first: int = 1) -> MsgBlock:
    block = MsgBlock()
    for i, data in enumerate(datas):
        block.append(first + i, b"foo", b"reply" if i % 2 else b"", data, 1_700_000_000_000 + i)
    return block


def datas_of(block: MsgBlock) -> list[bytes]:
    return [codec.decode_msg_proto(block.payload(i))[3] for i in range(len(block))]


@pytest.mark.parametrize("channel", VECTORS)
def test_keys_and_records_are_those_of_the_original(channel: bytes) -> None:
    key, aes, chacha = VECTORS[channel]
    master = master_key(b"mykey")
    assert master.hex() == "5e50f405ace6cbdf17379f4b9f2b0c9f4144c5e380ea0b9298cb02ebd8ffe511"
    assert channel_key(master, channel).hex() == key
    for cipher, record in (("AES", aes), ("chacha", chacha)):
        keys = KeyRing([b"mykey"], cipher).channel(channel)
        sealed = payloads.seal(block_of(b"hello"), keys.code, keys.encrypt, NONCE)
        assert datas_of(sealed)[0].hex() == record
        # Either cipher reads what the other one wrote.
        assert keys.decrypt(bytes.fromhex(aes)) == keys.decrypt(bytes.fromhex(chacha)) == b"hello"


def test_without_a_cipher_the_processor_decides() -> None:
    assert [usual_cipher(m) for m in ("x86_64", "i686", "aarch64", "riscv64")] == [
        "AES",
        "AES",
        "CHACHA",
        "CHACHA",
    ]


def test_what_does_not_begin_like_a_record_was_stored_plain() -> None:
    keys = KeyRing([b"k"]).channel(b"foo")
    assert keys.decrypt(b"\x03 plain") == b"\x03 plain"
    assert keys.decrypt(b"plain") == b"plain"


@pytest.mark.parametrize("record", [b"", b"\x01", b"\x02" + bytes(12)])
def test_what_is_too_short_for_a_record_is_refused_in_the_originals_words(record: bytes) -> None:
    keys = KeyRing([b"k"]).channel(b"foo")
    with pytest.raises(UndecryptableError) as caught:
        keys.decrypt(record)
    assert caught.value.text == f"trying to decrypt data that is not (len={len(record)})"


@pytest.mark.parametrize("position", [1, 12, 13, 17, -1])
def test_no_bit_of_a_record_can_be_changed(position: int) -> None:
    record = bytearray.fromhex(VECTORS[b"foo"][1])
    record[position] ^= 4
    with pytest.raises(UndecryptableError, match=r"^cipher: message authentication failed$"):
        KeyRing([b"mykey"]).channel(b"foo").decrypt(bytes(record))
    record[0] = 2
    with pytest.raises(UndecryptableError, match=r"^chacha20poly1305: message authentication"):
        KeyRing([b"mykey"]).channel(b"foo").decrypt(bytes(record))


def test_another_key_and_another_channel_read_nothing() -> None:
    record = bytes.fromhex(VECTORS[b"foo"][1])
    for key, channel in ((b"other", b"foo"), (b"mykey", b"bar")):
        with pytest.raises(UndecryptableError):
            KeyRing([key]).channel(channel).decrypt(record)


def test_the_first_key_of_a_ring_writes_and_all_of_them_read() -> None:
    old = KeyRing([b"old"]).channel(b"foo")
    new = KeyRing([b"new"]).channel(b"foo")
    ring = KeyRing([b"new", b"older", b"old", b"new"], "CHACHA").channel(b"foo")
    record = datas_of(payloads.seal(block_of(b"hello"), old.code, old.encrypt, NONCE))[0]
    for _ in range(2):
        assert ring.decrypt(record) == b"hello"
    written = datas_of(payloads.seal(block_of(b"later"), ring.code, ring.encrypt, NONCE))[0]
    assert written[0] == 2
    assert new.decrypt(written) == b"later"
    assert ring.decrypt(record) == b"hello"
    assert (ring.is_of_first_key(written), ring.is_of_first_key(record)) == (True, False)
    # The cipher counts, too: whoever changes it may have a reason.
    assert not new.is_of_first_key(written)


def test_a_rings_keys_are_in_no_text_of_it() -> None:
    assert repr(KeyRing([b"sesame", b"sesame", b"other"])) == "KeyRing(2 keys)"


def test_a_block_comes_back_as_it_was_but_for_29_bytes_a_payload() -> None:
    keys = KeyRing([b"k"], "AES").channel(b"foo")
    datas = [b"x", b"", b"y" * 127, b"z" * 200, bytes(70_000), b"\x01\x02" * 20, b"\x02"]
    plain = block_of(*datas, first=7)
    sealed = payloads.seal(plain, keys.code, keys.encrypt, os.urandom(12 * len(datas)))
    stored = datas_of(sealed)
    assert [len(data) for data in stored] == [len(d) + OVERHEAD if d else 0 for d in datas]
    assert stored == [payloads.stored_data(sealed, i) for i in range(len(datas))]
    opened, _, error = payloads.unseal(sealed, 0, 1000, 1 << 30, keys.decrypt)
    assert error is None
    assert bytes(memoryview(opened)) == bytes(memoryview(plain))
    assert [
        (opened.sequence(i), opened.timestamp(i), opened.payload(i)) for i in range(len(opened))
    ] == [(plain.sequence(i), plain.timestamp(i), plain.payload(i)) for i in range(len(plain))]


def test_a_block_is_opened_from_a_sequence_on_up_to_both_bounds() -> None:
    keys = KeyRing([b"k"], "AES").channel(b"foo")
    plain = block_of(*(b"%d" % i * 10 for i in range(9)))
    sealed = payloads.seal(plain, keys.code, keys.encrypt, os.urandom(12 * 9))

    def opened(sequence: int, msgs: int, size: int) -> list[int]:
        block, _, error = payloads.unseal(sealed, sequence, msgs, size, keys.decrypt)
        assert error is None
        return [block.sequence(i) for i in range(len(block))]

    assert opened(4, 3, 1 << 20) == [4, 5, 6]
    assert opened(8, 3, 1 << 62) == [8, 9]
    assert opened(4, 100, 1) == [4]
    assert opened(4, 0, 1 << 20) == [4]
    assert opened(4, 100, sealed.sizes(3, 5)) == [4, 5]
    assert opened(10, 1, 1) == []


def test_a_block_ends_before_what_cannot_be_decrypted() -> None:
    keys = KeyRing([b"k"], "AES").channel(b"foo")
    mixed = payloads.seal(block_of(b"a", b"b"), keys.code, keys.encrypt, os.urandom(24))
    mixed.extend(block_of(b"\x01 stored before", b"plain", first=3))
    block, sequence, error = payloads.unseal(mixed, 1, 9, 1 << 20, keys.decrypt)
    assert (datas_of(block), sequence) == ([b"a", b"b"], 3)
    assert isinstance(error, UndecryptableError)
    block, sequence, error = payloads.unseal(mixed, 3, 9, 1 << 20, keys.decrypt)
    assert (len(block), sequence) == (0, 3)
    assert error is not None
    block, _, error = payloads.unseal(mixed, 4, 9, 1 << 20, keys.decrypt)
    assert (datas_of(block), error) == ([b"plain"], None)


def test_an_empty_payload_that_somebody_encrypted_is_empty() -> None:
    keys = KeyRing([b"k"], "AES").channel(b"foo")
    record = b"\x01" + NONCE + keys.encrypt(NONCE, b"", None)
    block = block_of(record)
    opened, _, error = payloads.unseal(block, 1, 9, 1 << 20, keys.decrypt)
    assert (datas_of(opened), error) == ([b""], None)


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=40)), max_size=20),
    st.sampled_from(["AES", "CHACHA"]),
    st.integers(0, 25),
)
def test_whatever_is_sealed_is_what_an_original_reads_and_comes_back(
    rows: list[tuple[bytes, bytes]], cipher: str, start: int
) -> None:
    keys = KeyRing([b"new", b"old"], cipher).channel(b"any.name")
    plain = MsgBlock()
    for i, (data, reply) in enumerate(rows):
        plain.append(2 * i + 1, b"any.name", reply, data, i << 40)
    sealed = payloads.seal(plain, keys.code, keys.encrypt, os.urandom(12 * len(rows)))
    assert [decrypted(b"new", b"any.name", data) for data in datas_of(sealed)] == datas_of(plain)
    assert payloads.count_others(sealed, keys.is_of_first_key) == 0
    opened, _, error = payloads.unseal(sealed, start, 1 << 40, 1 << 60, keys.decrypt)
    wanted = range(plain.position(start), len(plain))
    assert error is None
    assert [opened.payload(i) for i in range(len(opened))] == [plain.payload(i) for i in wanted]
