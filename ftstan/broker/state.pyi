from ftstan.broker.inflight import InFlight
from ftstan.broker.timers import Timer
from ftstan.config.options import DeliveryRules
from ftstan.stores.interface import ChannelStore
from ftstan.wire.block import SubEvents

class Listener:
    channel: Channel
    last_sent: int
    on_hold: bool
    queued: bool

class Subscription(Listener):
    client: object | None
    group: QueueGroup | None
    sub_id: int
    inbox: bytes
    ack_inbox: bytes
    sid: int
    max_in_flight: int
    ack_wait: int
    pending: InFlight
    ready: bool
    stalled: bool
    hb_failed: bool
    counted: bool
    place: int
    timer_at: int
    moved_at: int
    acked_at: int
    timer: Timer | None
    durable: bytes
    client_id: bytes
    rules: DeliveryRules | None
    first_at: dict[int, int] | None
    def __init__(self, channel: Channel, sub_id: int, group: QueueGroup | None = ...) -> None: ...
    def set_rules(self, rules: DeliveryRules | None) -> None: ...
    def attach(self, client: object | None) -> None: ...
    def seen(
        self,
    ) -> tuple[bytes, bytes, bytes, bytes, bytes, bool, bool, int, int, int, int, bool]: ...

class QueueGroup(Listener):
    name: bytes
    durable: bool
    shadow: Subscription | None
    resuming: Subscription | None
    stored: bool
    untreated: int
    size: int
    head: Subscription | None
    def __init__(self, channel: Channel, name: bytes) -> None: ...
    def members(self, most: int = ...) -> list[Subscription]: ...
    @property
    def is_stalled(self) -> bool: ...
    def carries(self) -> bool: ...
    def add(self, sub: Subscription) -> None: ...
    def remove(self, sub: Subscription) -> None: ...
    def update(self, sub: Subscription) -> None: ...
    def next_member(self, *, again: bool = ...) -> Subscription | None: ...

class Channel:
    name: bytes
    store: ChannelStore
    applied: int
    durable: int
    last_ts: int
    active_at: int
    events: SubEvents
    subs: list[Subscription]
    groups: dict[bytes, QueueGroup]
    durables: dict[tuple[bytes, bytes], Subscription]
    by_ack_inbox: dict[bytes, Subscription]
    by_inbox: dict[bytes, Subscription]
    stored_subs: int
    refused: bytes | None
    mover: bytes | None
    rules: DeliveryRules | None
    def __init__(self, name: bytes, store: ChannelStore) -> None: ...
    def census(self) -> tuple[int, int, int]: ...
