"""Hostile clients against a broker: seeded, quick, and judged after every batch.

Payloads begin as a valid message of the subject with values that a real program, or a malicious
one, would use; then most of them are damaged. What must hold whatever arrives is in ``Attack``;
whether a payload can be decoded at all is judged by an oracle that does not share our code.
``python -m tests.fuzz.hostile [SEED]`` (``make soak-fuzz``) goes on until it is stopped.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from ftstan.broker import constants as c
from ftstan.broker.bounds import MAX_REQUEST
from ftstan.broker.broker import BrokerOptions
from ftstan.stores.interface import ChannelLimits
from tests.compat.driver import SUBJECTS, Driver, sequences
from tests.oracle.godecode import TABLES, UndecodableError, Value, decode
from tests.oracle.wiregen import varint

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = ChannelLimits(max_msgs=20, max_bytes=1 << 20, max_subs=20)
OPTIONS = BrokerOptions(max_channels=40, limits=LIMITS)
CANARY = b"canary"
UNREADABLE = b"\0"

#: Subject, message, what must answer a payload that cannot be decoded (``None``: nothing), and the
#: message of answers.
REQUESTS: tuple[tuple[str, str, str | None, str], ...] = (
    (SUBJECTS.discovery, "ConnectRequest", c.INVALID_CONNECT, "ConnectResponse"),
    (SUBJECTS.subscribe, "SubscriptionRequest", c.INVALID_SUBSCRIBE, "SubscriptionResponse"),
    (SUBJECTS.unsubscribe, "UnsubscribeRequest", c.INVALID_UNSUBSCRIBE, "SubscriptionResponse"),
    (SUBJECTS.sub_close, "UnsubscribeRequest", c.INVALID_UNSUBSCRIBE, "SubscriptionResponse"),
    (SUBJECTS.close, "CloseRequest", c.INVALID_CLOSE, "CloseResponse"),
    (SUBJECTS.pings, "Ping", None, "PingResponse"),
)

_IDS = [b"c0", b"c1", b"c2", b"c3", b"", b"a b", b"\xff", b"c0\x00", b"x" * 300, CANARY + b"2"]
_CHANNELS = [
    b"foo",
    b"bar",
    b"a.b.c",
    b"",
    b".",
    b"foo.*",
    b">",
    b"a..b",
    b"a/b",
    b"FOO",
    b"\xff",
    b"c" * 250,
]
_INBOXES = [
    b"in.1",
    b"in.2",
    b"in.3",
    b"",
    b"a b",
    b"in\r\nPUB x 0\r\n\r\n",
    b"*",
    b">",
    b"in\x00",
    b"i" * 5000,
]
#: What later requests need to know of one that was granted.
_LATER = ("client_id", "conn_id", "subject", "inbox", "durable_name")
_NUMBERS = [0, 1, 2, 10, 30, -1, -(2**31), 2**31 - 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1]


class BrokenPromiseError(AssertionError):
    """Something that must hold whatever arrives does not."""


def _check(holds: object, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


def is_decodable(name: str, data: bytes) -> bool:
    """Whether the original would read ``data`` as the message ``name``.

    What is too large is not looked at.
    """
    try:
        decode(name, data if len(data) <= MAX_REQUEST else UNREADABLE)
    except UndecodableError:
        return False
    return True


class Attack:
    """A broker with one honest client, the canary, and everybody else.

    ``met`` counts what happened.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.met: Counter[str] = Counter()
        self.driver = Driver(options=OPTIONS)
        self.driver.connect(CANARY)
        self.driver.subscribe(CANARY, client_id=CANARY, inbox=b"canary.in")
        self.baseline = self.driver.broker.counts()
        self._sung = 0
        self._acks: list[bytes] = [b"_INBOX.nobody"]
        self._granted: dict[str, list[dict[str, Value]]] = {name: [] for _, name, _, _ in REQUESTS}
        """What the server agreed to: half of the requests go on from there."""

    # ---- making payloads
    # -----------------------------------------------------------------------------------------

    def _value(self, name: str, kind: str) -> Value:
        rng = self.rng
        if kind != "b":
            return bool(rng.getrandbits(1)) if kind == "bool" else rng.choice(_NUMBERS)
        pool = {
            "client_id": _IDS,
            "conn_id": [b"conn." + i for i in _IDS],
            "subject": _CHANNELS,
            "inbox": [*_INBOXES, *self._acks[-20:]],
            "heartbeat_inbox": [b"hb.c0", b"hb.c1", *_INBOXES],
            "durable_name": [b"", b"", b"dur", b"d:d", b"\xfe" * 100],
            "q_group": [b"", b"", b"group", b"g:g", b"\xfe"],
            "guid": [b"g", b"", b"ft1.g", b"\xff" * 500],
        }
        return rng.choice(pool.get(name, [b"", b"x", bytes(rng.randrange(2000))]))

    def _message(self, name: str) -> bytes:
        out = bytearray()
        known = self._known(name)
        for number, (field, kind) in TABLES[name].items():
            if field not in known and self.rng.random() < 0.15:
                continue
            value = known[field] if field in known else self._value(field, kind)
            if isinstance(value, bytes):
                out += varint(number << 3 | 2) + varint(len(value)) + value
            else:
                out += varint(number << 3) + varint(int(value))
        return bytes(out)

    def _known(self, name: str) -> dict[str, Value]:
        """Fields that fit to something that the server has agreed to, most of the time."""
        rng = self.rng
        if rng.random() < 0.3:
            return {}
        connected = self._granted["ConnectRequest"]
        subscribed = self._granted["SubscriptionRequest"]
        match name:
            case "SubscriptionRequest" if connected:
                limits: dict[str, Value] = {
                    "max_in_flight": rng.choice([1, 5]),
                    "ack_wait_in_secs": rng.choice([1, 30]),
                }
                start: dict[str, Value] = {
                    "subject": b"foo",
                    "inbox": b"in.1",
                    "start_position": rng.randrange(5),
                }
                return {"client_id": rng.choice(connected[-5:])["client_id"], **limits, **start}
            case "UnsubscribeRequest" if subscribed:
                return rng.choice(subscribed[-5:])
            case "Ping" | "CloseRequest" | "PubMsg" if connected:
                last = rng.choice(connected[-5:])
                return {k: last[k] for k in ("client_id", "conn_id")} | {
                    "subject": rng.choice([b"foo", b"bar"])
                }
        return {}

    def _damage(self, data: bytes) -> bytes:
        rng = self.rng
        raw = bytearray(data)
        match rng.randrange(9):
            case 0:
                del raw[rng.randrange(len(raw) + 1) :]
            case 1:
                for _ in range(rng.randrange(1, 5)):
                    if raw:
                        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            case 2:
                at = rng.randrange(len(raw) + 1)
                raw[at:at] = rng.randbytes(rng.randrange(1, 12))
            case 3:
                # A length that reaches beyond the end, or beyond memory.
                raw += varint(rng.randrange(1, 16) << 3 | 2) + varint(
                    rng.choice([7, 2**31, 2**40, 2**63, 2**64 - 1])
                )
            case 4:
                raw = bytearray(rng.randbytes(rng.randrange(64)))
            case 5:
                # The right field in a wrong wire type.
                raw += varint(
                    rng.randrange(1, 12) << 3 | rng.choice([0, 1, 3, 4, 5, 6, 7])
                ) + rng.randbytes(8)
            case 6:
                raw += bytes([0x80]) * rng.randrange(1, 15)
            case 7:
                raw += varint(rng.randrange(1, 12) << 3 | 2) + varint(100_000) + bytes(100_000)
            case _:
                raw += bytes([0x0B]) * rng.randrange(1, 2000)
        return bytes(raw)

    def payload(self, name: str) -> bytes:
        """Something that claims to be the message ``name``."""
        data = self._message(name)
        return self._damage(data) if self.rng.random() < 0.6 else data

    # ---- attacking
    # ----------------------------------------------------------------------------------------------

    def run(self, count: int) -> None:
        """Send ``count`` hostile messages and judge what comes of them.

        Raises ``BrokenPromiseError``.
        """
        kinds: list[Callable[[], None]] = [
            self._request,
            self._request,
            self._publish,
            self._ack,
            self._inbox,
        ]
        for i in range(count):
            self.rng.choice(kinds)()
            if self.rng.random() < 0.02:
                self.driver.wait(self.rng.choice([0.1, 0.6, 31.0, 45.0]))
                self.met["time passed"] += 1
            if i % 200 == 199:
                self._canary()
                self.driver.broker.tick()
                self.met["ticks"] += 1
            self.driver.out.clear()
        self._canary()

    def _request(self) -> None:
        subject, name, refusal, answer_name = self.rng.choice(REQUESTS)
        data = self.payload(name)
        reply = self.driver.reply() if self.rng.random() < 0.9 else b""
        before = self.driver.broker.counts()
        self.driver.frame(subject, data, reply)
        out = self.driver.run()
        answers = [o.payload for o in out if reply and o.subject == reply]
        _check(len(answers) <= 1, f"{name} was answered {len(answers)} times: {data!r}")
        if not is_decodable(name, data):
            counts = self.driver.broker.counts()
            same = all(counts[k] == before[k] for k in ("clients", "channels", "subscriptions"))
            _check(same, f"an undecodable {name} changed something: {data!r}")
            # Who names no subject for the answer gets none.
            refusal = refusal if reply else None
        self.judge(name, refusal, answer_name, data, answers)

    def judge(
        self, name: str, refusal: str | None, answer_name: str, data: bytes, answers: list[bytes]
    ) -> None:
        """Judge what came for ``data``, and remember what was granted.

        The first words are those of ``REQUESTS``.

        With a ``refusal`` what cannot be decoded must have been answered. Raises
        ``BrokenPromiseError``.
        """
        if not is_decodable(name, data):
            self.met[f"undecodable {name}"] += 1
            if refusal is None:
                _check(not answers, f"an undecodable {name} was answered: {data!r}")
            else:
                _check(answers, f"an undecodable {name} was not answered: {data!r}")
                error = decode(answer_name, answers[0])["error"]
                _check(error == refusal.encode(), f"an undecodable {name} got {error!r}: {data!r}")
            return
        self.met[f"decodable {name}"] += 1
        for answer in answers:
            response = decode(answer_name, answer)
            self.met[f"{name} {'refused' if response['error'] else 'granted'}"] += 1
            if response["error"]:
                continue
            granted = decode(name, data)
            inbox = response.get("ack_inbox")
            if isinstance(inbox, bytes) and inbox:
                self._acks.append(inbox)
                granted |= {"inbox": inbox}
            self._granted[name].append({k: granted[k] for k in _LATER if k in granted})

    def _publish(self) -> None:
        data = self.payload("PubMsg")
        reply = self.rng.choice([self.driver.reply(), self.driver.reply(), b"", b"hb.c0"])
        suffix = self.rng.choice([b"foo", b"canary.x", b"$"])
        self.driver.frame(SUBJECTS.publish.encode() + b"." + suffix, data, reply)
        answers = [
            o.payload
            for o in self.driver.run()
            if reply.startswith(b"_INBOX.reply") and o.subject == reply
        ]
        _check(len(answers) <= 1, f"a publish was answered {len(answers)} times: {data!r}")
        for answer in answers:
            error = decode("PubAck", answer)["error"]
            self.met[f"PubMsg {'refused' if error else 'granted'}"] += 1
            try:
                decode("PubMsg", data)
            except UndecodableError:
                _check(
                    error == b"stan: invalid publish request",
                    f"an undecodable publish got {error!r}: {data!r}",
                )
                self.met["undecodable PubMsg"] += 1

    def ack_inbox(self) -> bytes:
        """Where an ack may go: an inbox that the server once named, or nobody's."""
        return self.rng.choice(self._acks)

    def _ack(self) -> None:
        self.driver.frame(self.ack_inbox(), self.payload("Ack"), b"")
        self.driver.run()
        self.met["Ack"] += 1

    def _inbox(self) -> None:
        """Something for the server's own inbox, where heartbeat answers come: status lines of
        nobody, too.
        """
        inboxes = [s for s in self.driver.subs.values() if s.endswith(b".*")]
        subject = inboxes[0].removesuffix(b"*") + self.rng.choice(
            [b"1", b"2", b"x", b"99999999999999999999999"]
        )
        if self.rng.random() < 0.5:
            self.driver.status(
                subject,
                self.rng.choice(
                    [b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n", b"\r\n\r\n"]
                ),
            )
        else:
            self.driver.frame(subject, self.rng.randbytes(self.rng.randrange(50)))
        self.driver.run()
        self.met["inbox"] += 1

    def _canary(self) -> None:
        """The honest client is served as if nobody else were there."""
        self._sung += 1
        song = b"song %d" % self._sung
        acks = self.driver.publish(song, channel=CANARY, client_id=CANARY)
        _check(
            [(a.guid, a.error) for a in acks] == [(song, b"")], f"the canary's publish got {acks}"
        )
        heard = sequences(self.driver.out, b"canary.in")
        _check(heard and heard[-1] == self._sung, f"the canary heard {heard} and not {self._sung}")
        acks_inbox = next(s for sid, s in sorted(self.driver.subs.items()) if sid >= 64)
        self.driver.ack(acks_inbox, self._sung, channel=CANARY)

    # ---- what is left
    # --------------------------------------------------------------------------------------------

    def clean_up(self) -> dict[str, int]:
        """Close everybody but the canary; what the broker holds then."""
        # Whoever asks for the id of somebody else waits until it is known whether that one lives.
        self.driver.wait(1.0)
        # Also those whose connect named no subject for the answer.
        for client_id in set(self.driver.broker.clients.objects) - {CANARY}:
            self.driver.close(client_id)
        self.driver.wait(1.0)
        self.driver.out.clear()
        self._acks = self._acks[:1]
        broker = self.driver.broker
        return {
            "clients": len(broker.clients),
            "connection ids": len(broker.conns),
            "ack inboxes": len(broker.by_sid),
            "live subscriptions": sum(len(channel.subs) for channel in broker.channels.values()),
        }


def blocks() -> int:
    """Memory blocks in use, once everything that is not is gone."""
    gc.collect()
    return sys.getallocatedblocks()


def main(seed: int) -> None:
    """Attack until stopped; every seed is a broker of its own."""
    total = 0
    start = time.monotonic()
    while True:
        attack = Attack(seed)
        try:
            attack.run(5000)
        except BaseException:
            print(f"seed {seed}")
            raise
        total += 5000
        print(
            f"seed {seed}: {total} messages in {time.monotonic() - start:.0f} s, "
            f"{dict(attack.met)}",
            flush=True,
        )
        seed += 1


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    except KeyboardInterrupt:
        print("stopped")
