from collections.abc import Callable

from ftstan.base.errors import StoreError
from ftstan.stores.encryption.evp import Keys
from ftstan.wire.block import MsgBlock

def seal(
    block: MsgBlock,
    code: int,
    encrypt: Callable[[bytes, bytes, None], bytes],
    nonces: bytes,
    fast: Keys | None = ...,
) -> MsgBlock: ...
def unseal(
    block: MsgBlock,
    sequence: int,
    max_msgs: int,
    max_bytes: int,
    decrypt: Callable[[bytes], bytes],
    refuse_plain: bool = ...,
    fast: Keys | None = ...,
) -> tuple[MsgBlock, int, StoreError | None]: ...
def count_others(block: MsgBlock, is_wanted: Callable[[bytes], bool]) -> int: ...
def stored_data(block: MsgBlock, i: int) -> bytes: ...
