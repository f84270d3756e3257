"""A server without a key on a store that has encrypted payloads: refused, unless that is meant.

``server.dat`` says so of a store that a server of ours has encrypted. Where it is lost, or an
original has encrypted the store, its newest messages are looked at: encrypted payloads are 29 bytes
or more that begin with a cipher's code and go on as if at random. Chance does not make most of them
look so.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import RecoveryError, StoreError
from ftstan.base.log import stream as log
from ftstan.stores.encryption.sampling import with_some_opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.interface import ChannelStore, Recovered, Store

#: Channels, and messages of each, that are looked at.
_CHANNELS: Final = 8
_MESSAGES: Final = 8
#: So many look encrypted, or all: else it may be chance.
_FEW: Final = 3

#: What encryption adds, and the codes of its ciphers (``cipher``, whose library is not needed).
_OVERHEAD: Final = 29
_CODES: Final = (1, 2)
#: How far the count in an original's nonce may be from the sequence.
_DRIFT: Final = 1 << 20

_HINT: Final = (
    "give its key: -encryption_key_file; -encryption_accept_mixed serves what is stored as it is, "
    "and stores new messages plain"
)


def check_without_key(
    store: Store, recovered: Recovered, *, accept_mixed: bool
) -> tuple[Recovered, bool]:
    """What was recovered, and whether the store has encrypted payloads, for its mark.

    Raises ``RecoveryError`` if it has, unless ``accept_mixed``.
    """
    info = recovered.info
    if info is None and not recovered.channels:
        recovered = with_some_opened(store, recovered)
    if info is not None and info.encrypted:
        text = "the store is encrypted, and this server has no encryption key"
    elif info is None and _seems_encrypted(recovered.channels):
        text = (
            "server.dat is lost, the newest messages look encrypted, and this server has no "
            "encryption key"
        )
    else:
        if info is not None and _seems_encrypted(recovered.channels):
            log.warning(
                "the newest messages look encrypted, and this server has no encryption key: "
                "readers get what is stored"
            )
        return recovered, False
    if not accept_mixed:
        raise RecoveryError(text, hint=_HINT)
    log.warning(f"{text}: readers get what is stored (encryption_accept_mixed)")
    return recovered, True


def _seems_encrypted(channels: list[ChannelStore]) -> bool:
    found = [
        looks_encrypted(data, sequence)
        for channel in islice((c for c in channels if c.count), _CHANNELS)
        for sequence, data in _newest(channel)
    ]
    looking = sum(found)
    return looking > 0 and looking * 2 >= len(found) and (looking >= _FEW or all(found))


def _newest(channel: ChannelStore) -> Iterator[tuple[int, bytes]]:
    """Sequences and payloads of the newest messages that have one."""
    # Late: a store without messages needs none of it.
    from ftstan.stores.encryption import payloads  # noqa: PLC0415

    for sequence in range(channel.last, max(channel.first, channel.last - _MESSAGES + 1) - 1, -1):
        try:
            block = channel.read(sequence, 1, 1)
        except StoreError:
            # Its readers will be told.
            continue
        i = block.position(sequence) if block is not None else 0
        if block is None or i == len(block) or block.sequence(i) != sequence:
            continue
        if data := payloads.stored_data(block, i):
            yield sequence, data


def looks_encrypted(data: bytes, sequence: int) -> bool:
    """Whether a payload has the form of an encrypted one: a nonce that counts like sequences, as an
    original's, or bytes that look random, as ours.
    """
    if len(data) < _OVERHEAD or data[0] not in _CODES:
        return False
    if (count := int.from_bytes(data[5:13], "big")) > 0 and abs(count - sequence) <= _DRIFT:
        return True
    sample = data[1:_OVERHEAD]
    high = sum(byte > 0x7F for byte in sample)
    return len(set(sample)) * 4 >= len(sample) * 3 and len(sample) <= high * 7 <= len(sample) * 6
