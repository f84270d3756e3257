"""A small client of JetStream on one link: requests with an answer, and appends that say what they
follow.

Blocking, for one thread; every wait has a deadline. It decides nothing: an append whose answer did
not come is ``Unknown``, and only whoever made it can find out.

What JetStream must keep for that: ``docs/clustering.md``.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import NatsError, WireError
from ftstan.nats.link import ConnectionLostError
from ftstan.wire.frames import Parser, pub_frame
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.clock import Clock
    from ftstan.nats.link import Link

_SEND_S: Final = 5.0
_CHUNK: Final = 1 << 18
_INBOX_SID: Final = 1
#: What an answer to a direct get has beside the message itself.
_HEADERS: Final = 64 << 10
_WRONG_LAST: Final = 10071
_EXISTS: Final = 10058
_NOT_FOUND: Final = 10059

NO_RESPONDERS: Final = 503
NOT_FOUND: Final = 404
END_OF_BATCH: Final = 204
#: Why nobody knows what became of an append: copies of the stream elect, or too few are there.
NO_STREAM_LEADER: Final = "no server leads the stream now"


@dataclass(frozen=True, slots=True)
class Answer:
    """One message that answers a request. ``status`` is 0 for one without a status line."""

    status: int
    headers: dict[str, str]
    payload: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """The stream has the entry, under this sequence."""

    sequence: int


@dataclass(frozen=True, slots=True)
class WrongLast:
    """The stream did not take the entry: it says that its last sequence is another one."""

    last: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer, or one that does not say: the entry may be in the stream, now or later."""

    why: str


class ApiError(NatsError):
    """JetStream refused a request. ``code`` is its ``err_code``."""

    def __init__(self, text: str, code: int, *, hint: str = "") -> None:
        super().__init__(text, hint=hint)
        self.code = code

    @property
    def is_missing(self) -> bool:
        """Whether there is no such stream."""
        return self.code == _NOT_FOUND

    @property
    def is_other(self) -> bool:
        """Whether there is a stream of that name with other settings."""
        return self.code == _EXISTS


class JetStream:
    """Requests on ``link``. Set ``on_message(payload)`` to take what comes on ``subjects``."""

    def __init__(self, link: Link, clock: Clock, subjects: tuple[str, ...] = ()) -> None:
        self.link = link
        self._clock = clock
        self._subjects = subjects
        self.on_message: Callable[[bytes], None] = lambda _payload: None
        self.on_late: Callable[[bytes, int, bytes], None] = lambda _token, _status, _payload: None
        """Told of each answer that no request waits for, with its status: to ``send``, or one that
        came too late.
        """
        self._inbox = f"_INBOX.{Nuid().next()}"
        self._token = 0
        self._waiting = b"0"
        self._answers: list[Answer] = []
        self._parser = Parser(1 << 20)
        self._buffer = memoryview(bytearray(_CHUNK))

    @property
    def connected(self) -> bool:
        """Whether the link was up at the last call."""
        return self.link.connected

    def connect(self, seconds: float) -> None:
        """Connect, and listen. Raises ``NatsError``."""
        lines = [f"SUB {self._inbox}.* {_INBOX_SID}\r\n"]
        lines += [f"SUB {name} {sid}\r\n" for sid, name in enumerate(self._subjects, 2)]
        self.link.connect(seconds, "".join(lines).encode())
        self._parser = Parser(self.link.max_payload + _HEADERS)
        leftover = self.link.leftover
        self.link.leftover = b""
        self._take(leftover)

    def close(self) -> None:
        """Give the link up."""
        self.link.close()

    def drain(self) -> bool:
        """Take everything that has arrived; returns whether anything had.

        Raises ``ConnectionLostError``.
        """
        any_came = False
        while got := self.link.recv_into(self._buffer):
            any_came = True
            self._take(self._buffer[:got])
        return any_came

    def inbox(self, token: str) -> str:
        """Where the answer to a message of ``send`` goes that ``on_late`` gets with ``token``.

        The tokens of requests are numbers: this one holds something else.
        """
        return f"{self._inbox}.{token}"

    def send(self, frames: bytes | bytearray) -> None:
        """Send whole frames; their answers go to ``on_late``. Raises ``ConnectionLostError``."""
        self.link.send(frames, _SEND_S)

    def publish(self, subject: str, payload: bytes) -> None:
        """Publish, without an answer. Raises ``ConnectionLostError``."""
        self.link.send(pub_frame(subject.encode(), b"", payload), _SEND_S)

    def ask(
        self,
        subject: str,
        payload: bytes,
        seconds: float,
        enough: Callable[[list[Answer]], bool] = bool,
        headers: bytes = b"",
    ) -> list[Answer]:
        """The answers, until ``enough`` or for ``seconds``.

        Answers to earlier requests are dropped. Raises ``ConnectionLostError``.
        """
        self._next_token()
        answers: list[Answer] = []
        self._answers = answers
        reply = f"{self._inbox}.{self._token}".encode()
        where = subject.encode()
        if headers:
            frame = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
                *(where, reply, len(headers), len(headers) + len(payload)),
                *(headers, payload),
            )
        else:
            frame = pub_frame(where, reply, payload)
        end = self._clock.mono() + seconds
        self.link.send(frame, _SEND_S)
        while not enough(answers):
            left = end - self._clock.mono()
            if left <= 0:
                break
            self.link.wait(left)
            got = self.link.recv_into(self._buffer)
            if got:
                self._take(self._buffer[:got])
        self._next_token()
        return answers

    def _next_token(self) -> None:
        self._token += 1
        self._waiting = b"%d" % self._token

    def api(self, what: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Ask ``$JS.API.<what>``. Raises ``ApiError``, and ``NatsError`` without an answer."""
        payload = json.dumps(request).encode() if request else b""
        answers = self.ask(f"$JS.API.{what}", payload, seconds)
        if not answers:
            raise NatsError(f"JetStream did not answer {what} within {seconds:g} s")
        if answers[0].status == NO_RESPONDERS:
            raise NatsError(
                f"nobody answers for JetStream ({what})",
                hint="JetStream must be enabled in the NATS servers, for the account of this login",
            )
        told = _object(answers[0].payload)
        if error := told.get("error"):
            text, code = _refusal(error)
            raise ApiError(f"JetStream refused {what}: {text}", code)
        return told

    def append(
        self, stream: str, subject: str, data: bytes, last: int, seconds: float
    ) -> Appended | WrongLast | Unknown:
        """Append to the stream if ``last`` is its last sequence.

        Raises ``ConnectionLostError``: the entry may be in the stream.
        """
        headers = (
            f"NATS/1.0\r\nNats-Expected-Last-Sequence: {last}\r\n"
            f"Nats-Expected-Stream: {stream}\r\n\r\n"
        ).encode()
        answers = self.ask(subject, data, seconds, headers=headers)
        if not answers:
            return Unknown(f"no answer within {seconds:g} s")
        if answers[0].status:
            return Unknown(NO_STREAM_LEADER)
        told = _object(answers[0].payload)
        if error := told.get("error"):
            text, code = _refusal(error)
            found = text.rpartition(":")[2].strip()
            if code == _WRONG_LAST and found.isdigit():
                return WrongLast(int(found))
            return Unknown(text)
        if told.get("stream") != stream or told.get("seq") != last + 1:
            return Unknown(f"an answer that is not ours: {told}")
        return Appended(last + 1)

    def get(self, stream: str, sequence: int, most: int, max_bytes: int, seconds: float) -> Batch:
        """Entries from ``sequence`` on, in order and without a hole. Raises ``NatsError``."""
        request = {"seq": sequence, "batch": most, "max_bytes": max_bytes}
        answers = self.ask(
            f"$JS.API.DIRECT.GET.{stream}",
            json.dumps(request).encode(),
            seconds,
            lambda came: bool(came) and came[-1].status != 0,
        )
        rows: list[tuple[int, str, bytes]] = []
        headers: list[dict[str, str]] = []
        for answer in answers:
            if answer.status:
                break
            found = answer.headers.get("nats-sequence", "")
            if answer.headers.get("nats-stream") != stream or not found.isdigit():
                raise WireError(f"an answer that is no entry of {stream}")
            rows.append((int(found), answer.headers.get("nats-subject", ""), answer.payload))
            headers.append(answer.headers)
        ended = bool(answers) and answers[-1].status != 0
        status = answers[-1].status if ended else 0
        return Batch(rows, status, headers)

    def _take(self, data: bytes | memoryview) -> None:
        for event in self._parser.feed(data):
            match event[0]:
                case "PING":
                    self.link.send(b"PONG\r\n", _SEND_S)
                case "MSG" | "HMSG" if event[2] == _INBOX_SID:
                    token = bytes(event[1]).rpartition(b".")[2]
                    if token == self._waiting:
                        self._answers.append(_answer(event))
                    else:
                        status = 0 if event[0] == "MSG" else headers_of(bytes(event[4]))[0]
                        self.on_late(token, status, event[-1])
                case "MSG" | "HMSG":
                    self.on_message(bytes(event[-1]))
                case "-ERR":
                    said = event[1].strip(b"'").decode("utf-8", "replace")
                    self.link.close()
                    raise ConnectionLostError(f"nats: {said}")


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries as ``(sequence, subject, bytes)``, the headers of each, by their names in lower case,
    and the status that ended them.

    ``status``: ``NOT_FOUND`` if there is nothing there, ``END_OF_BATCH``, ``NO_RESPONDERS``, or 0
    if the answer broke off.
    """

    rows: list[tuple[int, str, bytes]]
    status: int
    headers: list[dict[str, str]] = field(default_factory=list)


def _answer(event: tuple[Any, ...]) -> Answer:
    if event[0] == "MSG":
        return Answer(0, {}, bytes(event[-1]))
    status, headers = headers_of(bytes(event[4]))
    return Answer(status, headers, bytes(event[-1]))


def headers_of(block: bytes) -> tuple[int, dict[str, str]]:
    """The status of a block of headers, 0 without one, and its headers by their names in lower
    case.
    """
    first, *lines = block.decode("utf-8", "replace").split("\r\n")
    words = first.split(" ")
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return status, headers


def _refusal(error: object) -> tuple[str, int]:
    """What an ``error`` of an answer says, and its code; 0 if it has none."""
    if not isinstance(error, dict):
        return str(error), 0
    code = error.get("err_code")
    text = str(error.get("description", "")) or "an error without words"
    return text, code if isinstance(code, int) else 0


def _object(data: bytes) -> dict[str, Any]:
    told: object = None
    with contextlib.suppress(ValueError):
        told = json.loads(data)
    return told if isinstance(told, dict) else {}
