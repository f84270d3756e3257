"""Tasks: none ends unseen, and those that are told to end do."""

from __future__ import annotations

import ast
import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError, StoppedError
from ftstan.nats import binary, launch, tasks
from ftstan.nats.embedded import NatsServerChild, NatsServerOptions

if TYPE_CHECKING:
    from collections.abc import Coroutine

PACKAGE = Path(__file__).parents[3] / "ftstan"
#: Rooms whose programs are no servers.
OTHERS = ("bridge", "cli", "client", "drill", "load", "spark")


def test_a_task_that_loses_the_first_cancellation_is_asked_again() -> None:
    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    async def work() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await tasks.end(task, 0.01)
        assert task.cancelled()

    asyncio.run(work())


def test_the_error_of_the_task_is_not_lost() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async def work() -> None:
        task = asyncio.create_task(broken())
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            await tasks.end(task, 0.01)

    asyncio.run(work())


async def raising(error: BaseException) -> None:
    raise error


def ends_of(start: Coroutine[None, None, None]) -> list[str]:
    """Why the server was ended by what ``start`` began."""
    ends: list[str] = []

    async def work() -> None:
        tasks.end_server_with(ends.append)
        await start
        await asyncio.sleep(0.01)

    asyncio.run(work())
    return ends


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), MemoryError(), NatsError("odd")]
)
def test_a_task_that_the_server_needs_takes_it_along(error: Exception) -> None:
    async def start() -> None:
        tasks.spawn(raising(error), "supervisor")

    (why,) = ends_of(start())
    assert why.startswith(f"the task supervisor ended: {tasks.cause(error)}")


def test_errors_of_ours_may_be_taken_by_who_started_the_task_and_a_stop_is_none() -> None:
    taken: list[str] = []

    async def start() -> None:
        for error in (NatsError("ours"), StoppedError("stop"), KeyError("theirs")):
            tasks.spawn(raising(error), "work", lambda error: taken.append(error.text))

    (why,) = ends_of(start())
    assert "KeyError: 'theirs'" in why
    assert taken == ["ours"]


def test_what_was_asked_for_from_outside_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    async def start() -> None:
        tasks.aside(raising(ValueError("odd")), "answer")

    assert ends_of(start()) == []
    text = capfd.readouterr().err
    assert "Internal error: answer: ValueError: odd (test_tasks.py:" in text
    assert "Traceback" not in text


def test_memory_that_is_used_up_ends_the_server_wherever_it_is_missed() -> None:
    ends: list[str] = []

    async def start() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(tasks.loop_errors(ends.append))
        tasks.aside(raising(MemoryError()), "answer")

        def missing() -> None:
            raise MemoryError

        loop.call_soon(missing)

    assert ends_of(start()) + ends == ["out of memory"] * 2


def test_an_error_in_a_callback_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    async def start() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(tasks.loop_errors(pytest.fail))
        loop.call_soon(int, "odd")

    assert ends_of(start()) == []
    text = capfd.readouterr().err
    assert "ValueError: invalid literal for int() with base 10: 'odd'" in text
    assert "Traceback" not in text


def test_every_task_of_a_server_is_started_by_the_one_helper() -> None:
    found = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE)
        if name.parts[0] in OTHERS or name.as_posix() == "nats/tasks.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in {"create_task", "ensure_future"}:
                found += [f"{name}:{node.lineno}"]
    assert found == []


@pytest.mark.processes
def test_a_child_for_which_no_file_can_be_opened_is_started_when_one_can_be(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ends: list[str] = []
    real = binary.binary_path
    refusals = [OSError(24, "Too many open files")] * 2

    def scarce() -> str:
        if refusals:
            raise refusals.pop()
        return real()

    async def work() -> None:
        tasks.end_server_with(ends.append)
        child = NatsServerChild(NatsServerOptions(cluster_id="c", host="127.0.0.1", port=-1))
        await child.start()
        first = child.pid
        try:
            monkeypatch.setattr(launch, "binary_path", scarce)
            assert child._process is not None
            child._process.kill()
            async with asyncio.timeout(20):
                while refusals or child.pid in {None, first}:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            await child.stop()

    asyncio.run(work())
    assert ends == []
    assert (
        "could not be started again: cannot start nats-server: [Errno 24] Too many open files"
        in capfd.readouterr().err
    )
