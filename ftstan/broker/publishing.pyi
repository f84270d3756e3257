from typing_extensions import Buffer

from ftstan.base.errors import StoreError
from ftstan.broker.dedup import Window
from ftstan.broker.delivery import Delivery
from ftstan.broker.keymap import KeyMap
from ftstan.broker.state import Channel, Subscription
from ftstan.wire.frames import OutBuf

INVALID_PUBLISH: bytes
TOO_LARGE: str
WRONG_SUBJECT: bytes
SERVERS_REPLY: str
PUBLISH_SID: int
FIRST_ACK_SID: int

class Core(Delivery):
    channels: KeyMap[Channel]
    by_sid: dict[int, Subscription]
    replies: OutBuf
    acks: OutBuf
    touched: list[Channel]
    wall: int
    is_full: bool
    passing_over: int
    no_room: bool
    window: Window | None
    taken: list[bytes] | None
    answered: dict[bytes, int] | None
    publish_prefix: bytes
    publish_end: int
    has_second_copies: bool
    holds_publishes: bool
    discovery_initial: int
    in_msgs: int
    in_bytes: int
    def feed(self, data: Buffer, start: int, end: int, wall: int, now: int) -> int: ...
    def on_request(
        self, sid: int, subject: bytes, reply: bytes, payload: bytes | None, headers: bytes
    ) -> None: ...
    def on_malformed(self, kind: str, client_id: bytes, reason: str) -> None: ...
    def on_refused(self, kind: str) -> None: ...
    def on_link(self, kind: int, text: bytes) -> None: ...
    def open_channel(self, name: bytes) -> Channel: ...
    def is_second_copy(self, sid: int, channel: bytes) -> bool: ...
    def may_publish_to(self, name: bytes) -> bool: ...
    def is_servers(self, subject: bytes) -> bool: ...
    def hold_publish(
        self, client_id: bytes, conn_id: bytes, subject: bytes, reply: bytes, payload: bytes
    ) -> bool: ...
    def publish_again(self, subject: bytes, reply: bytes, payload: bytes) -> None: ...
    def stage(self) -> bool: ...
    def settle(self, failed: dict[bytes, StoreError]) -> bool: ...
    def write_events(self) -> None: ...
    def sent(self) -> None: ...
    def lost(self, now: int) -> list[Subscription]: ...
