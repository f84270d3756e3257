"""The control thread's connection, against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base import log
from ftstan.base.errors import NatsError
from ftstan.config.options import LinkOptions
from ftstan.nats.control import Control
from ftstan.nats.embedded import NatsServerChild, NatsServerOptions
from ftstan.nats.request import asking
from tests.processes import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

pytestmark = pytest.mark.processes


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def server(port: int = -1, **more: Any) -> NatsServerChild:
    return NatsServerChild(NatsServerOptions(cluster_id="c", host="127.0.0.1", port=port, **more))


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # what we wait for happens in another process
        await asyncio.sleep(0.01)


class Heard:
    """What a control connection told its owner."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.lost: list[str] = []
        self.back: list[str] = []

    def message(self, subject: str, data: bytes) -> None:
        self.messages.append((subject, data))

    def disconnected(self, error: NatsError) -> None:
        self.lost.append(str(error))

    def reconnected(self, url: str) -> None:
        self.back.append(url)

    def control(self, *urls: str, **login: Any) -> Control:
        options = LinkOptions(**login)
        return Control(
            urls,
            cluster_id="c",
            options=options,
            on_disconnect=self.disconnected,
            on_reconnect=self.reconnected,
        )


def test_a_subscription_made_before_the_first_connect_receives() -> None:
    async def work() -> None:
        child = server()
        heard = Heard()
        await child.start()
        control = heard.control(child.client_url)
        await control.subscribe("a.*", heard.message)
        assert not control.connected
        await control.start()
        await until(lambda: control.connected)
        await control.publish("a.b", b"\x00one")
        await control.flush()
        await until(lambda: heard.messages)
        assert heard.messages == [("a.b", b"\x00one")]
        await control.close()
        assert not control.connected
        assert (heard.lost, heard.back) == ([], [])
        await child.stop()

    run(work())


def test_it_connects_when_the_server_starts_later_than_we_do() -> None:
    async def work() -> None:
        (port,) = free_ports(1)
        heard = Heard()
        control = heard.control(f"nats://127.0.0.1:{port}")
        await control.start()
        with pytest.raises(NatsError, match="outbound buffer limit exceeded"):
            await control.publish("a", b"")
        with pytest.raises(NatsError, match="not connected"):
            await control.flush()
        child = server(port)
        await child.start()
        await until(lambda: control.connected)
        assert heard.back == []
        await control.close()
        await child.stop()

    run(work())


def test_it_comes_back_with_its_subscriptions_when_the_server_was_killed() -> None:
    async def work() -> None:
        child = server(user="u", password="s3cret")
        heard = Heard()
        await child.start()
        control = heard.control(child.client_url.replace("//", "//u:s3cret@"))
        await control.subscribe("a", heard.message)
        await control.start()
        await until(lambda: control.connected)
        for payload in (b"1", b"2"):
            heard.lost = []
            heard.back = []
            heard.messages = []
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            await until(lambda: heard.lost)
            with pytest.raises(NatsError, match="outbound buffer limit exceeded"):
                await control.publish("a", b"lost")
            await until(lambda: heard.back)
            await control.publish("a", payload)
            await until(lambda: heard.messages)
            assert heard.messages == [("a", payload)]
            assert len(heard.lost) == 1
        assert "[REDACTED]" in heard.back[0]
        assert "s3cret" not in heard.back[0]
        await control.close()
        await child.stop()

    run(work())


def test_it_goes_to_the_next_server_when_one_stays_away() -> None:
    async def work() -> None:
        first = server()
        second = server()
        heard = Heard()
        await first.start()
        await second.start()
        control = heard.control(first.client_url, second.client_url)
        await control.start()
        await until(lambda: control.connected)
        await first.stop()
        await until(lambda: heard.back)
        assert heard.back == [second.client_url]
        await control.close()
        await second.stop()

    run(work())


def test_a_refused_login_is_logged_once_and_tried_for_ever(tmp_path: Path) -> None:
    async def work() -> None:
        child = server(token="right")
        heard = Heard()
        await child.start()
        control = heard.control(child.client_url, token="wrong")
        await control.start()
        # Three refusals in the server's log: attempts went on after the first.
        await until(lambda: path.read_text().count("authentication error") >= 3)
        assert not control.connected
        await control.close()
        await child.stop()
        assert path.read_text().count('connection "_NSS-c-ft" cannot be made: ') == 1
        assert "Authorization Violation" in path.read_text()

    path = tmp_path / "log"
    log.configure(file=str(path))
    try:
        run(work())
    finally:
        log.configure()


def test_a_handler_that_fails_is_logged_and_does_not_end_the_connection(tmp_path: Path) -> None:
    async def work() -> None:
        child = server()
        heard = Heard()
        await child.start()
        control = heard.control(child.client_url)

        def fail(_subject: str, _data: bytes) -> None:
            raise ZeroDivisionError("a bug")

        await control.start()
        await control.subscribe("bad", fail)
        await until(lambda: control.connected)
        await control.subscribe("good", heard.message)
        await control.publish("bad", b"")
        await control.publish("good", b"")
        await until(lambda: heard.messages)
        await until(
            lambda: "a message handler failed: ZeroDivisionError('a bug')" in path.read_text()
        )
        assert control.connected
        await control.close()
        await child.stop()

    path = tmp_path / "log"
    log.configure(file=str(path))
    try:
        run(work())
    finally:
        log.configure()


def test_a_server_that_accepts_and_says_nothing_does_not_hold_up_close() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            control = Heard().control(f"nats://127.0.0.1:{silent.getsockname()[1]}")
            await control.start()
            await asyncio.sleep(0)
            await control.close()
            assert not control.connected

    run(work())


def test_close_ends_at_whatever_point_of_connecting_it_comes() -> None:
    async def work() -> None:
        child = server()
        await child.start()
        for turns in range(40):
            control = Heard().control(child.client_url)
            await control.subscribe("a", lambda _subject, _data: None)
            await control.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            await control.close()
            assert not control.connected
        await child.stop()

    run(work())


def test_requests_are_served_with_their_reply_subject_and_again_after_a_reconnect() -> None:
    async def work() -> None:
        child = server()
        heard = Heard()
        await child.start()
        control = heard.control(child.client_url)
        asked: list[tuple[bytes, str]] = []
        await control.serve("ask.me", lambda data, reply: asked.append((data, reply)))
        await control.start()
        await until(lambda: control.connected)
        for _ in range(2):
            with asking(child.client_url, LinkOptions(), seconds=5) as asker:
                answer = asyncio.create_task(asyncio.to_thread(asker.ask, "ask.me", b"how", 30))
                await until(lambda: asked)
                data, reply = asked.pop()
                assert data == b"how"
                await control.publish(reply, b"well")
                assert await answer == b"well"
            assert child.pid is not None
            heard.back = []
            os.kill(child.pid, signal.SIGKILL)
            await until(lambda: heard.back)
        await control.publish("ask.me", b"no reply subject: not a request")
        await control.flush()
        assert asked == []
        await control.close()
        await child.stop()

    run(work())


def test_a_question_to_many_brings_every_answer_that_comes_in_time() -> None:
    async def work() -> None:
        child = server()
        heard = Heard()
        await child.start()
        controls = [heard.control(child.client_url) for _ in range(3)]

        def answers(control: Control, words: bytes) -> Callable[[bytes, str], None]:
            return lambda data, reply: tasks.append(
                asyncio.ensure_future(control.publish(reply, words + data))
            )

        tasks: list[asyncio.Future[None]] = []
        for number, control in enumerate(controls[1:]):
            await control.serve("who", answers(control, b"%d:" % number))
        for control in controls:
            await control.start()
        await until(lambda: all(control.connected for control in controls))
        assert sorted(await controls[0].ask("who", b"x", 1.0)) == [b"0:x", b"1:x"]
        for control in controls:
            await control.close()
        with pytest.raises(NatsError):
            await controls[0].ask("who", b"x", 1.0)
        await child.stop()

    run(work())


def test_a_request_that_wants_its_answer_among_servers_is_refused(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def work() -> None:
        child = server()
        heard = Heard()
        await child.start()
        control = heard.control(child.client_url)
        asked: list[str] = []
        await control.serve("ask.me", lambda _, reply: asked.append(reply))
        await control.start()
        await until(lambda: control.connected)
        refused = [
            "_STAN.ft.tc.g",
            "_FTSTAN.ft.tc.g",
            "_STAN.pub.tc.foo",
            "$JS.API.STREAM.DELETE.x",
            "$SYS.REQ.A",
        ]
        for reply in [*refused, "_INBOX.x", "_STAN.acks.x"]:
            await control.publish("ask.me", b"how", reply)
        await until(lambda: len(asked) >= 2)
        await control.flush()
        assert asked == ["_INBOX.x", "_STAN.acks.x"]
        await control.close()
        await child.stop()

    run(work())
    assert (
        'a request on "ask.me" was refused: its reply subject is one of servers'
        in capfd.readouterr().err
    )
