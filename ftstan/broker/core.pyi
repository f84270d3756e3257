from typing import Generic, TypeVar

from typing_extensions import Buffer

from ftstan.broker.dedup import Window
from ftstan.broker.inflight import InFlight
from ftstan.errors import StoreError
from ftstan.stores.interface import ChannelStore
from ftstan.wire.block import SubEvents
from ftstan.wire.frames import OutBuf

INVALID_PUBLISH: bytes
PUBLISH_SID: int
FIRST_ACK_SID: int

_V = TypeVar("_V")

class KeyMap(Generic[_V]):
    objects: dict[bytes, _V]
    def __len__(self) -> int: ...
    def __contains__(self, key: bytes) -> bool: ...
    def get(self, key: bytes) -> _V | None: ...
    def values(self) -> list[_V]: ...
    def __setitem__(self, key: bytes, value: _V) -> None: ...
    def __delitem__(self, key: bytes) -> None: ...

class Subscription:
    client: object | None
    channel: Channel
    sub_id: int
    inbox: bytes
    ack_inbox: bytes
    sid: int
    max_in_flight: int
    ack_wait: int
    last_sent: int
    pending: InFlight
    ready: bool
    stalled: bool
    on_hold: bool
    hb_failed: bool
    queued: bool
    blocked: bool
    timer_at: int
    durable: bytes
    client_id: bytes
    def __init__(self, channel: Channel, sub_id: int) -> None: ...
    def attach(self, client: object | None) -> None: ...

class Channel:
    name: bytes
    store: ChannelStore
    applied: int
    durable: int
    last_ts: int
    events: SubEvents
    subs: list[Subscription]
    durables: dict[tuple[bytes, bytes], Subscription]
    by_ack_inbox: dict[bytes, Subscription]
    by_inbox: dict[bytes, Subscription]
    stored_subs: int
    refused: bytes | None
    def __init__(self, name: bytes, store: ChannelStore) -> None: ...

class Core:
    channels: KeyMap[Channel]
    by_sid: dict[int, Subscription]
    replies: OutBuf
    deliveries: OutBuf
    acks: OutBuf
    ready: list[Subscription]
    touched: list[Channel]
    batch: int
    wall: int
    now: int
    max_payload: int
    budget: int
    window: Window | None
    taken: list[bytes] | None
    answered: set[bytes] | None
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    def feed(self, data: Buffer, start: int, end: int, wall: int, now: int) -> int: ...
    def on_request(self, sid: int, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None: ...
    def on_link(self, kind: int, text: bytes) -> None: ...
    def open_channel(self, name: bytes) -> Channel: ...
    def arm(self, sub: Subscription, at: int) -> None: ...
    def on_read_error(self, sub: Subscription, error: StoreError) -> None: ...
    def note_implied_ack(self, sub: Subscription, seq: int) -> None: ...
    def enqueue(self, sub: Subscription) -> None: ...
    def stage(self) -> bool: ...
    def settle(self, failed: dict[bytes, StoreError]) -> bool: ...
    def write_events(self) -> None: ...
    def sent(self) -> None: ...
    def lost(self, now: int) -> list[Subscription]: ...
    def drop_caches(self) -> None: ...
    def redeliver(self, sub: Subscription, seq: int) -> bool: ...
    def timestamp_of(self, channel: Channel, seq: int) -> int: ...
