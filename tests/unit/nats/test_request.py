"""Questions of a command that runs once, against a real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.errors import ConfigError, NatsError
from ftstan.config.options import LinkOptions
from ftstan.nats.control import Control
from ftstan.nats.request import asking
from tests.processes import free_ports
from tests.unit.nats.test_control import run, server, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.processes import Stage

pytestmark = pytest.mark.processes

GENEROUS_S = 30.0


async def answering(url: str, *answers: bytes) -> AsyncIterator[None]:
    """Somebody who answers each question on ``ask`` with all of ``answers``."""
    control = Control([url], cluster_id="c")
    tasks: set[asyncio.Task[None]] = set()

    async def reply(to: str) -> None:
        for answer in answers:
            await control.publish(to, answer)

    await control.serve("ask", lambda _, to: tasks.add(asyncio.ensure_future(reply(to))))
    await control.start()
    await until(lambda: control.connected)
    try:
        yield
    finally:
        await control.close()


def test_everybody_who_answers_in_time_is_heard() -> None:
    async def work() -> None:
        child = server()
        await child.start()
        async for _ in answering(child.client_url, b"one", b"two", b"three"):
            with asking(child.client_url, LinkOptions(), seconds=5) as asker:
                assert await asyncio.to_thread(asker.ask_all, "ask", b"?", 0.5) == [
                    b"one",
                    b"two",
                    b"three",
                ]
                two = await asyncio.to_thread(
                    asker.ask_all, "ask", b"?", GENEROUS_S, enough=lambda found: len(found) >= 2
                )
                assert two[:2] == [b"one", b"two"]
                assert await asyncio.to_thread(asker.ask, "ask", b"?", GENEROUS_S) == b"one"
        await child.stop()

    run(work())


def test_an_answer_that_nobody_waits_for_any_more_does_not_spoil_the_next_question() -> None:
    async def work() -> None:
        child = server()
        await child.start()
        # Several reads long: the question before ends in the middle of it.
        async for _ in answering(child.client_url, b"first", b"A" * 900_000):
            with asking(child.client_url, LinkOptions(), seconds=5) as asker:
                for _ in range(10):
                    assert await asyncio.to_thread(asker.ask, "ask", b"?", GENEROUS_S) == b"first"
        await child.stop()

    run(work())


def test_where_nobody_listens_the_question_comes_back_at_once() -> None:
    async def work() -> None:
        child = server()
        await child.start()
        with asking(child.client_url, LinkOptions(), seconds=5) as asker:
            # The patience of run() is shorter than this wait.
            assert await asyncio.to_thread(asker.ask, "nobody.here", b"?", 3600) is None
            assert await asyncio.to_thread(asker.ask_all, "nobody.here", b"?", 3600) == []
        await child.stop()

    run(work())


def test_the_next_server_is_asked_when_the_first_is_down() -> None:
    async def work() -> None:
        child = server()
        await child.start()
        down = f"nats://127.0.0.1:{free_ports(1)[0]}"
        async for _ in answering(child.client_url, b"here"):
            with asking(f"{down}, {child.client_url}", LinkOptions(), seconds=5) as asker:
                assert await asyncio.to_thread(asker.ask, "ask", b"?", GENEROUS_S) == b"here"
        await child.stop()

    run(work())


@pytest.mark.parametrize(
    ("login", "given"),
    [
        ({"user": "u", "password": "p"}, LinkOptions("u", "p")),
        ({"token": "t"}, LinkOptions(token="t")),
    ],
)
def test_credentials_let_in_and_without_them_nobody_is_asked(
    login: dict[str, Any], given: LinkOptions
) -> None:
    async def work() -> None:
        child = server(**login)
        await child.start()
        with asking(child.client_url, given, seconds=5) as asker:
            assert await asyncio.to_thread(asker.ask, "nobody.here", b"?", GENEROUS_S) is None
        with (
            pytest.raises(NatsError, match=r"no NATS server can be asked.*Authorization Violation"),
            asking(child.client_url, LinkOptions(), seconds=5),
        ):
            pass
        await child.stop()

    run(work())


def test_servers_that_cannot_be_reached_are_named_without_their_passwords() -> None:
    (port,) = free_ports(1)
    url = f"nats://u:secret@127.0.0.1:{port}"
    with pytest.raises(NatsError) as caught, asking(url, LinkOptions(), seconds=1):
        pass
    assert caught.value.text.startswith(
        f"no NATS server can be asked: nats://[REDACTED]@127.0.0.1:{port}: "
    )
    assert "secret" not in caught.value.text
    assert "FTSTAN_SERVER" in caught.value.hint


def test_what_is_no_url_is_told() -> None:
    with (
        pytest.raises(ConfigError, match="malformed url"),
        asking("127.0.0.1:4222", LinkOptions(), seconds=1),
    ):
        pass


def test_a_complete_answer_ends_the_wait_when_nobody_adds_to_it() -> None:
    async def work() -> None:
        child = server()
        await child.start()
        async for _ in answering(child.client_url, b"one", b"two", b"three"):
            with asking(child.client_url, LinkOptions(), seconds=5) as asker:
                found = await asyncio.to_thread(
                    asker.ask_all, "ask", b"?", 3600, quiet=bool, quiet_s=0.5
                )
                assert found == [b"one", b"two", b"three"]
                incomplete = await asyncio.to_thread(
                    asker.ask_all, "ask", b"?", 1.0, quiet=lambda found: len(found) > 3, quiet_s=0
                )
                assert len(incomplete) == 3
        await child.stop()

    run(work())


def test_a_question_that_permissions_forbid_is_told_in_the_servers_words(stage: Stage) -> None:
    nats = stage.nats(
        settings="authorization { users = [ "
        '{user: u, password: p, permissions: {publish: "other"}} ] }'
    )
    with (
        asking(nats.url, LinkOptions("u", "p"), seconds=5) as asker,
        pytest.raises(NatsError, match='Permissions Violation for Publish to "ask"'),
    ):
        asker.ask("ask", b"?", 3600)
