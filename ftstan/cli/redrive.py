"""``ftstanctl channel redrive``: publish dead letters again (``docs/dead-letters.md``).

It is a client like any other: it reads the dead-letter channel through a durable of its own, one
for each target and filter, publishes each message to the channel that it came from, and
acknowledges it behind the publish. So it can be interrupted at any moment and goes on where it
was; what was under way then may be published twice, or once where the server has a
``dedup_window``. Dead letters that come while it runs are left for the next run, its own among
them. Nothing is removed from the dead-letter channel.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.cli import client_options
from ftstan.cli.terminal import complain, print_json, say, visible
from ftstan.cli.words.servers import EXIT_CANNOT_ASK, EXIT_DONE
from ftstan.client import ClientError, Start
from ftstan.wire.origin import Origin, parse_origin

if TYPE_CHECKING:
    import argparse

    from ftstan.client import Connection, Message

_DURABLE = "redrive"
_MAX_IN_FLIGHT = 512
#: Behind the last dead letter nothing comes: how long that is waited for, in seconds.
_IDLE_S = 3.0
_CONNECT_S = 10.0
#: What a filter can ask for.
_KEYS = ("channel", "durable", "queue", "client")


@dataclass(slots=True)
class _Result:
    """What became of the dead letters that this run has looked at."""

    published: int = 0
    filtered: int = 0
    without_origin: int = 0
    failed: int = 0
    failure: ClientError | None = None
    under_way: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def row(self) -> dict[str, int]:
        return {
            "published": self.published,
            "filtered": self.filtered,
            "without_origin": self.without_origin,
            "failed": self.failed,
        }


def run(arguments: argparse.Namespace, last: int) -> int:
    """Publish again what the channel has up to the sequence ``last``; returns the exit status.

    Raises ``ConfigError``, ``ClientError``.
    """
    filters = [_filter(text) for text in arguments.filter]
    if arguments.to == arguments.name:
        raise ConfigError(
            "--to names the dead-letter channel itself", hint="name another one, or leave it out"
        )
    said = "\0".join((arguments.name, arguments.to, *sorted(arguments.filter)))
    digest = blake2b(said.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    arguments.client_id = f"ftstanctl-redrive-{digest}"
    arguments.connect_timeout = _CONNECT_S
    result = asyncio.run(_redrive(arguments, filters, last)) if last else _Result()
    if arguments.output == "json":
        print_json({"channel": arguments.name, **result.row()})
    else:
        to = f" to {visible(arguments.to)}" if arguments.to else ""
        say(
            f"channel {visible(arguments.name)}: {result.published} published again{to}, "
            f"{result.filtered} not of the filter, {result.without_origin} without an origin, "
            f"{result.failed} failed"
        )
    if result.failure is None:
        return EXIT_DONE
    return complain(result.failure, EXIT_CANNOT_ASK)


def _filter(text: str) -> tuple[str, str]:
    """A condition ``key=value``. Raises ``ConfigError``."""
    key, equals, value = text.partition("=")
    if not equals or key not in _KEYS:
        raise ConfigError(
            f"--filter {text!r} is no condition",
            hint=f"write KEY=VALUE, KEY one of {', '.join(_KEYS)}; a channel may have * and >",
        )
    return key, value


def _passes(origin: Origin | None, filters: list[tuple[str, str]]) -> bool:
    if not filters:
        return True
    if origin is None:
        return False
    has = {
        "durable": origin.durable,
        "queue": origin.queue,
        "client": origin.client_id,
    }
    return all(
        _covers(value, _text(origin.channel)) if key == "channel" else _text(has[key]) == value
        for key, value in filters
    )


def _covers(pattern: str, name: str) -> bool:
    """Whether a channel is one of the pattern, in which ``*`` is a token, ``>`` the rest."""
    want = pattern.split(".")
    have = name.split(".")
    if want[-1] == ">":
        if len(have) < len(want):
            return False
        want = want[:-1]
        have = have[: len(want)]
    return len(want) == len(have) and all(w in ("*", h) for w, h in zip(want, have, strict=True))


async def _redrive(
    arguments: argparse.Namespace, filters: list[tuple[str, str]], last: int
) -> _Result:
    result = _Result()
    async with await client_options.connect(arguments, republish=True) as client:
        subscription = await client.subscribe(
            arguments.name,
            start=Start.first(),
            durable=_DURABLE,
            max_in_flight=_MAX_IN_FLIGHT,
            ack_wait=60,
            manual_acks=True,
        )
        try:
            while True:
                message = await subscription.next(_IDLE_S)
                if message.sequence <= last:
                    await _take(client, message, arguments, filters, result)
                if message.sequence >= last and not message.redelivered:
                    break
        except TimeoutError:
            pass
        await asyncio.gather(*result.under_way.values())
    return result


async def _take(
    client: Connection,
    message: Message,
    arguments: argparse.Namespace,
    filters: list[tuple[str, str]],
    result: _Result,
) -> None:
    if message.sequence in result.under_way:
        return
    origin = parse_origin(message.reply)
    target = arguments.to or ("" if origin is None else _text(origin.channel))
    if not _passes(origin, filters):
        result.filtered += 1
        await message.ack()
    elif not target or target == message.channel:
        result.without_origin += 1
        await message.ack()
    else:
        reply = message.reply if origin is None else origin.reply
        try:
            # The time, too: a channel that was deleted and made again has the sequence twice.
            name = f"redrive.{message.channel}.{message.sequence}.{message.timestamp}"
            digest = blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
            answer = await client.publish_async(target, message.data, reply=reply, name=digest)
        except ClientError as error:
            _failed(result, error)
            return
        result.under_way[message.sequence] = asyncio.create_task(_finish(message, answer, result))


async def _finish(message: Message, answer: asyncio.Future[str], result: _Result) -> None:
    """Acknowledge a dead letter once it is stored elsewhere."""
    try:
        await answer
        await message.ack()
    except ClientError as error:
        _failed(result, error)
    else:
        result.published += 1
    finally:
        del result.under_way[message.sequence]


def _failed(result: _Result, error: ClientError) -> None:
    result.failed += 1
    result.failure = result.failure or error


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
