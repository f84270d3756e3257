"""``ftstanctl channel redrive``: publish dead letters again (``docs/dead-letters.md``).

It is a client like any other: it reads the dead-letter channel through a durable of its own, one
for each target and filter, publishes each message to the channel that it came from, and
acknowledges it behind the publish. So it can be interrupted at any moment and goes on where it
was; what was under way then may be published twice, or once where the server has a
``dedup_window``. Dead letters that come while it runs are left for the next run, its own among
them. Nothing is removed from the dead-letter channel.

What an origin says is information from whoever may publish to the dead-letter channel. One that
names what cannot be a channel counts as none: unacknowledged, so many of them would fill the window
of the durable, and nothing would ever come behind them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, FtstanError
from ftstan.base.reserved import is_reserved
from ftstan.cli import client_options
from ftstan.cli.terminal import complain, print_json, say, visible
from ftstan.cli.words.servers import EXIT_CANNOT_ASK, EXIT_DONE
from ftstan.client import ClientError, PublishRefusedError, Start
from ftstan.wire.origin import Origin, parse_origin
from ftstan.wire.subjects import publishable, valid_channel

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
    not_looked_at: int = 0
    failure: ClientError | None = None
    under_way: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def row(self) -> dict[str, int]:
        return {
            "published": self.published,
            "filtered": self.filtered,
            "without_origin": self.without_origin,
            "failed": self.failed,
            "not_looked_at": self.not_looked_at,
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
    if arguments.to and not _is_channel(arguments.to):
        raise ConfigError(f"--to {arguments.to!r} cannot name a channel")
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
            f"{result.failed} failed, {result.not_looked_at} not looked at"
        )
    if result.not_looked_at:
        error = FtstanError(
            f"the server sent nothing more: {result.not_looked_at} not looked at",
            hint="run it again; where failed ones are in the way, with --filter channel=NAME or "
            "--to CHANNEL",
        )
        complain(error, EXIT_CANNOT_ASK)
    if result.failure is not None:
        complain(result.failure, EXIT_CANNOT_ASK)
    return EXIT_CANNOT_ASK if result.failure or result.not_looked_at else EXIT_DONE


def _is_channel(name: str) -> bool:
    """Whether a message can be published to a channel of that name."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    return valid_channel(encoded) and publishable(encoded)


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
    highest = 0
    came = False
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
                highest = max(highest, message.sequence)
                came |= not message.redelivered
                if message.sequence <= last:
                    await _take(client, message, arguments, filters, result)
                if message.sequence >= last and not message.redelivered:
                    break
        except TimeoutError:
            # Where nothing new has come at all, all of it was looked at by an earlier run, or its
            # failures fill the window.
            if came or result.failed >= _MAX_IN_FLIGHT:
                result.not_looked_at = max(last - highest, 0)
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
    elif target == message.channel or not _is_channel(target):
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
        is_published = await _is_published(answer)
        await message.ack()
    except ClientError as error:
        _failed(result, error)
    else:
        result.published += is_published
        result.without_origin += not is_published
    finally:
        del result.under_way[message.sequence]


async def _is_published(answer: asyncio.Future[str]) -> bool:
    """False: no server will ever take it, for the name of the channel is a server's own.

    Raises ``ClientError``.
    """
    try:
        await answer
    except PublishRefusedError as error:
        if not is_reserved(error.channel.encode()):
            raise
        return False
    return True


def _failed(result: _Result, error: ClientError) -> None:
    result.failed += 1
    result.failure = result.failure or error


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
