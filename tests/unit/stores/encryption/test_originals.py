"""Stores that originals encrypted give what the originals gave, and ours are theirs to read."""

from __future__ import annotations

import json
import tarfile
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import RecoveryError, StoreError
from ftstan.config.flags import parse
from ftstan.config.limits import Limits
from ftstan.stores.contract.place import FREE, put
from ftstan.stores.encryption.cipher import KeyRing, UndecryptableError
from ftstan.stores.encryption.ring import encrypted, ring_of
from ftstan.stores.encryption.store import EncryptedStore
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.wire import codec
from tests.command_lines import to_options
from tests.oracle.godecrypt import GoUndecryptable, decrypted
from tests.oracle.gostore import read_store
from tests.sim.filestore import SimOwner

if TYPE_CHECKING:
    from ftstan.config.options import EncryptionOptions
    from ftstan.stores.interface import ChannelStore, Store

DATA = Path(__file__).parents[3] / "data" / "encrypted"
VIEWS = [
    pytest.param(path.stem, view, id=f"{path.stem}: {view['label']}")
    for path in sorted(DATA.glob("*.json"))
    if path.stem != "damage"
    for view in json.loads(path.read_text())["views"]
    if "channels" in view
]
DAMAGE = json.loads((DATA / "damage.json").read_text())


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(DATA / f"{name}.tar.gz") as tar:
        tar.extractall(folder, filter="data")
    return folder / "DATASTORE"


def opened(path: Path, *, check_crc: bool = True) -> FileStore:
    disk = LocalDisk()
    root = disk.open_dir(str(path))
    clock = ManualClock()
    options = FileStoreOptions(check_crc=check_crc)
    return FileStore(
        disk, root, SimOwner(disk, root, clock), clock, options, limits=Limits.same(FREE)
    )


def options_of(flags: list[str]) -> EncryptionOptions:
    words = flags[: flags.index("-sc")] if "-sc" in flags else flags
    return to_options(parse(["-encryption_accept_unreadable", *words])).encryption


def store_of(path: Path, view: dict[str, Any], *, check_crc: bool = True) -> Store:
    options = options_of(view["flags"])
    ring = ring_of(options, view.get("environment", {}))
    return encrypted(opened(path, check_crc=check_crc), ring, options)


def read_until_refused(channel: ChannelStore) -> tuple[list[list[object]], str]:
    """Sequence, timestamp, length and digest of what a subscription gets, and where that ends."""
    rows: list[list[object]] = []
    at = channel.first
    while 0 < at <= channel.last:
        try:
            block = channel.read(at, 5, 1000)
        except StoreError as error:
            return rows, error.text
        assert block is not None
        for i in range(block.position(at), len(block)):
            sequence, _, _, data, timestamp, _, _ = codec.decode_msg_proto(block.payload(i))
            rows.append([sequence, timestamp, len(data), sha1(data).hexdigest()])
            at = sequence + 1
    return rows, ""


@pytest.mark.parametrize(("name", "view"), VIEWS)
def test_what_an_original_stored_is_read_as_an_original_reads_it(
    name: str, view: dict[str, Any], tmp_path: Path
) -> None:
    store = store_of(unpacked(name, tmp_path), view)
    channels = {c.name.decode(): c for c in store.recover().channels}
    assert channels.keys() == view["channels"].keys()
    refusals = []
    for channel, wanted in view["channels"].items():
        found = channels[channel]
        rows, refusal = read_until_refused(found)
        if name == "limits":
            # They are not those of this test: what they have taken is still there.
            rows = [row for row in rows if wanted["first_seq"] <= int(str(row[0]))]
        else:
            sizes = (found.count, found.size, found.first, found.last)
            assert sizes == tuple(wanted[k] for k in ("msgs", "bytes", "first_seq", "last_seq"))
        assert rows == wanted["messages"]
        if refusal:
            refusals.append(f"[ERR] STREAM: {refusal}")
    lookups = [error for error in view["errors"] if "Error looking up" in error]
    assert set(lookups) <= set(refusals)
    assert bool(lookups) <= bool(refusals)
    if not view["errors"]:
        assert not refusals
    store.abandon()


@pytest.mark.parametrize("recipe", DAMAGE["recipes"], ids=lambda recipe: recipe["name"])
def test_damage_behind_a_good_checksum_is_found_where_an_original_finds_it(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    path = unpacked("damage-base", tmp_path)
    file = path / recipe["file"]
    data = bytearray(file.read_bytes())
    at = recipe["offset"]
    if "xor" in recipe:
        data[at] ^= int(recipe["xor"], 16)
    else:
        data[at : at + len(recipe["write"]) // 2] = bytes.fromhex(recipe["write"])
    file.write_bytes(data)
    store = store_of(path, DAMAGE, check_crc=False)
    found = {}
    errors = []
    for channel in store.recover().channels:
        rows, refusal = read_until_refused(channel)
        found[channel.name.decode()] = [row[0] for row in rows]
        if refusal:
            errors.append(f"[ERR] STREAM: {refusal}")
        if channel.name == b"foo" and recipe["verdict"]["sha1_of_5"]:
            assert rows[4][3] == recipe["verdict"]["sha1_of_5"]
    assert found == recipe["verdict"]["delivered"]
    assert errors == recipe["verdict"]["errors"]
    store.abandon()


@pytest.mark.parametrize("cipher", ["AES", "CHACHA"])
def test_what_we_store_an_original_reads_and_it_is_nowhere_plain(
    cipher: str, tmp_path: Path
) -> None:
    datas = [b"a secret that no file may hold %d" % i for i in range(20)] + [b"", b"x" * 70_000]
    for part in (datas[:10], datas[10:]):
        # The second time goes on behind the first: another nonce for every message.
        store = EncryptedStore(opened(tmp_path), KeyRing([b"key", b"old"], cipher))
        found = {c.name: c for c in store.recover().channels}
        for name in (b"foo", b"bar.baz"):
            put(store, found.get(name) or store.create_channel(name, FREE), *part)
        store.close()
    view = read_store(tmp_path)
    nonces = set()
    for channel in view.channels.values():
        stored = [message.data for message in channel.messages.values()]
        assert [decrypted(b"key", channel.name, data) for data in stored] == datas
        nonces |= {data[1:13] for data in stored if data}
    assert len(nonces) == 2 * (len(datas) - 1)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"secret" not in file.read_bytes(), file


def test_the_second_opinion_tells_keys_apart(tmp_path: Path) -> None:
    path = unpacked("two-keys", tmp_path)
    view = read_store(path)
    foo = view.channels[b"foo"]
    assert decrypted(b"fixture-key-1", b"foo", foo.messages[1].data)
    with pytest.raises(GoUndecryptable):
        decrypted(b"fixture-key-1", b"foo", foo.messages[9].data)


def test_a_ring_reads_what_two_keys_wrote(tmp_path: Path) -> None:
    ring = KeyRing([b"fixture-key-2", b"fixture-key-1"])
    store = EncryptedStore(opened(unpacked("two-keys", tmp_path)), ring)
    for channel in store.recover().channels:
        rows, refusal = read_until_refused(channel)
        assert (len(rows), refusal) == (channel.count, "")
    assert ring.undecryptable == 0
    store.abandon()


def test_a_wrong_key_is_refused_at_start_in_one_line(tmp_path: Path) -> None:
    store = EncryptedStore(opened(unpacked("killed", tmp_path)), KeyRing([b"wrong"]))
    with pytest.raises(
        RecoveryError,
        match=r"^the encryption key does not decrypt the newest message of \d+ of 12 channels: "
        r"[^\n]*, \.\.\.$",
    ):
        store.recover()


def test_a_key_that_lacks_one_channels_newest_messages_is_refused_with_its_name(
    tmp_path: Path,
) -> None:
    store = EncryptedStore(opened(unpacked("two-keys", tmp_path)), KeyRing([b"fixture-key-2"]))
    with pytest.raises(RecoveryError, match=r"of 1 of 3 channels: old\.only$"):
        store.recover()


def test_an_undecryptable_message_is_counted_once_and_never_given(tmp_path: Path) -> None:
    ring = KeyRing([b"fixture-key-1"])
    store = EncryptedStore(opened(unpacked("two-keys", tmp_path)), ring, accept_unreadable=True)
    foo = next(c for c in store.recover().channels if c.name == b"foo")
    for _ in range(3):
        with pytest.raises(
            UndecryptableError,
            match=r"^Error looking up message foo:9 \(cipher: message authentication failed\)$",
        ) as caught:
            foo.read(9, 100, 1 << 20)
        assert "encryption_key_file" in caught.value.hint
    assert ring.undecryptable == 1
    store.abandon()
