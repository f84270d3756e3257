"""``ftstanctl channel redrive``: what becomes of dead letters that cannot be published."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from ftstan.cli import client_options, redrive
from ftstan.client import ClientError, Message, PublishRefusedError
from ftstan.wire.origin import Origin, encode_origin

#: A channel cannot have the name of a file of servers.
RESERVED = b"ft.epoch"
WINDOW = 512


@dataclass
class Server:
    """A session with a dead-letter channel that sends no more than the window, as a server does.

    ``refuses``: channels of which it answers publishes with an error; ``sends``: how many it sends
    before it is too busy.
    """

    letters: list[bytes]
    refuses: tuple[str, ...] = ()
    sends: int = 1 << 30
    published: list[str] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    sent: int = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def subscribe(self, *_: object, **__: object) -> Server:
        return self

    async def next(self, _: float) -> Message:
        await asyncio.sleep(0)
        in_flight = self.sent - len(self.acknowledged)
        if self.sent == min(len(self.letters), self.sends) or in_flight >= WINDOW:
            raise TimeoutError
        self.sent += 1
        reply = self.letters[self.sent - 1]
        return Message("dead", self.sent, b"x", 1, reply=reply, subscription=self)  # type: ignore[arg-type]

    async def ack(self, message: Message) -> None:
        self.acknowledged.add(message.sequence)

    async def publish_async(self, channel: str, *_: object, **__: object) -> asyncio.Future[str]:
        future = asyncio.get_running_loop().create_future()
        if channel in self.refuses:
            future.set_exception(PublishRefusedError("refused", channel=channel, guid="g"))
        elif "/" in channel:
            raise ClientError("not sent")
        else:
            self.published.append(channel)
            future.set_result("guid")
        return future


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: Server
) -> tuple[int, dict[str, Any], str]:
    """Redrive all that the server has: the exit status, what is printed, and the complaints."""

    async def connect(*_: object, **__: object) -> Server:
        return server

    monkeypatch.setattr(client_options, "connect", connect)
    arguments = argparse.Namespace(name="dead", to="", filter=[], output="json")
    status = redrive.run(arguments, len(server.letters))
    said = capsys.readouterr()
    return status, json.loads(said.out), said.err


def of(channel: bytes, count: int = 1) -> list[bytes]:
    return [encode_origin(Origin(channel, n + 1)) for n in range(count)]


@pytest.mark.parametrize("name", [b"no/channel", b"a..b", b"a.*", b"with blank", b"\xff"])
def test_origins_that_name_no_channel_do_not_keep_what_comes_behind_them(
    name: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server([*of(name, 600), *of(b"orders")])
    status, said, _ = run(monkeypatch, capsys, server)
    assert status == 0
    assert (said["without_origin"], said["published"], said["failed"]) == (600, 1, 0)
    assert server.published == ["orders"]


def test_origins_that_name_a_channel_of_the_servers_own_do_not_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = RESERVED.decode()
    server = Server([*of(RESERVED, 600), *of(b"orders")], refuses=(own,))
    status, said, _ = run(monkeypatch, capsys, server)
    assert status == 0
    assert (said["without_origin"], said["published"]) == (600, 1)


def test_failures_that_fill_the_window_are_told_with_what_was_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server([*of(b"full", 600), *of(b"orders", 10)], refuses=("full",))
    status, said, err = run(monkeypatch, capsys, server)
    assert status != 0
    assert (said["failed"], said["published"], said["not_looked_at"]) == (WINDOW, 0, 98)
    assert "98 not looked at" in err
    assert "refused" in err


def test_a_server_that_stops_in_between_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, err = run(monkeypatch, capsys, Server(of(b"orders", 10), sends=4))
    assert status != 0
    assert (said["published"], said["not_looked_at"]) == (4, 6)
    assert "6 not looked at" in err


def test_what_an_earlier_run_has_looked_at_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said, _ = run(monkeypatch, capsys, Server(of(b"orders", 10), sends=0))
    assert status == 0
    assert said["not_looked_at"] == 0
