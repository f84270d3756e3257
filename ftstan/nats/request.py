"""Questions over NATS from a command that runs once: one short connection, a subject, the answers.

For tools; servers have ``ftstan.nats.control``. No question is repeated: whoever asks at a terminal
wants to know. The next one finds another server, if that of the one before has ended. It is the
raw link that asks: a command is typed and waited for, and a client of NATS with all that it can do
takes longer to load than the question takes.
"""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING, Final

from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.nats.link import (
    NO_SERVERS,
    ConnectionLostError,
    Link,
    LoginRefusedError,
    UnreachableError,
)
from ftstan.nats.url import parse_urls
from ftstan.wire.frames import Parser, pub_frame
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ftstan.config.options import LinkOptions
    from ftstan.nats.url import NatsUrl

_NAME: Final = "ftstanctl"
_SEND_S: Final = 5.0
_CHUNK: Final = 65536


class Asker:
    """A connection to the first of some servers that answers; use ``asking``.

    ``connect`` opens one.
    """

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._link = connect()
        self._nuid = Nuid()
        self._clock = SystemClock()
        self._sid = 0

    def close(self) -> None:
        """Give the connection up."""
        self._link.close()

    def ask(self, subject: str, payload: bytes, seconds: float) -> bytes | None:
        """The first answer, ``None`` if nobody listens there or none came in time.

        Raises ``NatsError``.
        """
        answers = self.ask_all(subject, payload, seconds, enough=bool)
        return answers[0] if answers else None

    def ask_all(
        self,
        subject: str,
        payload: bytes,
        seconds: float,
        *,
        enough: Callable[[list[bytes]], bool] = lambda _: False,
        quiet: Callable[[list[bytes]], bool] = lambda _: False,
        quiet_s: float = 0.0,
    ) -> list[bytes]:
        """Every answer that comes within ``seconds``.

        Sooner if ``enough`` says so, or if nobody listens there; and if ``quiet`` says so once
        nothing has come for ``quiet_s``, and for three times as long as the last answer took:
        where hosts are slow, others may be slower.

        Raises ``NatsError``.
        """
        if not self._link.connected:
            self._link = self._connect()
        began = self._clock.mono()

        def until(answers: list[bytes]) -> float:
            if enough(answers):
                return began
            if quiet(answers):
                now = self._clock.mono()
                return now + max(quiet_s, 3 * (now - began))
            return math.inf

        try:
            return self._hear(subject, payload, began + seconds, until)
        except ConnectionLostError as error:
            raise NatsError(
                f"the NATS server did not take the question: {error.text}",
                hint="check the server and ask again",
            ) from error

    def _hear(
        self, subject: str, payload: bytes, end: float, until: Callable[[list[bytes]], float]
    ) -> list[bytes]:
        """The answers until ``end``, or until the time that ``until`` gave for the last ones."""
        link = self._link
        self._sid += 1
        sid = self._sid
        inbox = b"_INBOX." + self._nuid.next().encode()
        question = pub_frame(os.fsencode(subject), inbox, payload)
        link.send(b"SUB %b %d\r\n%b" % (inbox, sid, question), _SEND_S)
        parser = Parser(link.max_payload)
        events = parser.feed(link.leftover)
        link.leftover = b""
        buffer = memoryview(bytearray(_CHUNK))
        answers: list[bytes] = []
        silence = math.inf
        while True:
            for event in events:
                if event[0] == "PING":
                    link.send(b"PONG\r\n", _SEND_S)
                elif event[0] == "-ERR":
                    raise NatsError(
                        f"the NATS server did not take the question: {_text(event[1])}",
                        hint="see what its permissions let this login do, and whether the names of "
                        "cluster and group are right",
                    )
                elif event[0] == "HMSG" and event[2] == sid and not event[-1]:
                    # The server says that nobody listens.
                    end = 0.0
                elif event[0] in {"MSG", "HMSG"} and event[2] == sid:
                    answers.append(bytes(event[-1]))
                    silence = until(answers)
            left = min(end, silence) - self._clock.mono()
            if left <= 0:
                # The next question goes on behind what an answer has begun.
                link.leftover = parser.unfinished
                link.send(b"UNSUB %d\r\n" % sid, _SEND_S)
                return answers
            link.wait(left)
            events = parser.feed(buffer[: link.recv_into(buffer)])


def _text(said: bytes) -> str:
    return said.strip(b"'").decode("utf-8", "replace")


@contextlib.contextmanager
def asking(urls: str, options: LinkOptions, *, seconds: float) -> Iterator[Asker]:
    """Connect to one of ``urls`` (comma separated), trying each for ``seconds``; closed at the end.

    ``options``: login and TLS.

    Raises ``NatsError``: none can be reached, or none lets us in; and ``ConfigError`` for what is
    no URL.
    """
    parsed = parse_urls(urls)
    asker = Asker(lambda: _connect(parsed, options, seconds))
    try:
        yield asker
    finally:
        asker.close()


def _connect(urls: Sequence[NatsUrl], options: LinkOptions, seconds: float) -> Link:
    problems: list[str] = []
    hint = (
        "check --server (or FTSTAN_SERVER), the login (--user and --pass, --auth, --nkey, "
        "--creds) and TLS"
    )
    for url in urls:
        link = Link([url], name=_NAME, clock=SystemClock(), options=options)
        try:
            link.connect(2 * seconds)
        except NatsError as error:
            problems.append(error.text.removeprefix(NO_SERVERS))
            if error.hint and not isinstance(error, (UnreachableError, LoginRefusedError)):
                hint = error.hint
            continue
        return link
    # A key that cannot be read is the same problem at every address.
    told = "; ".join(dict.fromkeys(problems))
    raise NatsError(f"no NATS server can be asked: {told}", hint=hint)
