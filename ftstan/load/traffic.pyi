from typing import Final

from typing_extensions import Buffer

from ftstan.wire.frames import OutBuf

ANSWERS_SID: Final[int]
HEARTBEATS_SID: Final[int]
MESSAGES_SID: Final[int]
HEAD_SIZE: Final[int]
MARK_SIZE: Final[int]
GUID_PREFIX_SIZE: Final[int]

class Delays:
    count: int
    least: int
    most: int
    def observe(self, ns: int) -> None: ...
    def merge(self, other: Delays) -> None: ...
    def below(self, share: float) -> int: ...
    def counts(self) -> list[tuple[int, int]]: ...

class Traffic:
    out: OutBuf
    delays: Delays
    done: int
    wanted: int
    answers: list[bytes | None]
    complaint: bytes
    def open(self, max_payload: int) -> None: ...
    def feed(self, data: Buffer) -> None: ...

class Publisher(Traffic):
    refused: int
    refusal: bytes | None
    def begin(
        self,
        subject: bytes,
        acks: bytes,
        *,
        client_id: bytes,
        conn_id: bytes,
        channel: bytes,
        guid_prefix: bytes,
        mark: bytes,
        size: int,
        count: int,
        window: int,
    ) -> None: ...
    def stop(self) -> None: ...
    def fill(self, most_bytes: int) -> int: ...

class Subscriber(Traffic):
    again: int
    def begin(self, ack_inbox: bytes, channel: bytes, *, mark: bytes, count: int) -> None: ...
