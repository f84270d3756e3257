"""``ftstanctl sub``: print the messages of a channel (``docs/ftstanctl.md``).

Exit status: 0 what was asked for has come (``--count``), or nothing more within ``--timeout`` and
no count was asked for; 1 fewer than ``--count`` came in time; 64 wrong words; 3 no connection, or
the session was lost for good; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from datetime import datetime
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.cli import client_options
from ftstan.cli.origins import origin_fields, who
from ftstan.cli.terminal import print_json, say, time_of, visible
from ftstan.cli.wordorder import SUBSCRIPTION_VERBS
from ftstan.cli.words.client import EXIT_DONE, EXIT_NOT_ALL
from ftstan.client import Start
from ftstan.config.unknown_keys import nearest

if TYPE_CHECKING:
    import argparse

    from ftstan.client import Message


def run(arguments: argparse.Namespace) -> int:
    """Print messages; returns the exit status. Raises ``ConfigError``, ``ClientError``."""
    if arguments.durable and not arguments.queue and not arguments.client_id:
        raise ConfigError(
            "a durable belongs to a client id", hint="give one with --client-id, the same each time"
        )
    start = _start(arguments)
    if arguments.no_ack and arguments.count > arguments.max_in_flight:
        raise ConfigError(
            f"without acks only --max-in-flight {arguments.max_in_flight} messages come, not "
            f"{arguments.count}",
            hint="raise --max-in-flight, or leave --no-ack out",
        )
    _tell_slip(arguments.channel)
    return asyncio.run(_print(arguments, start))


def _tell_slip(channel: str) -> None:
    """Tell somebody at a terminal, who would wait for ever for messages of a mistyped verb."""
    near = nearest(channel, SUBSCRIPTION_VERBS)
    if near and sys.stderr.isatty():
        say(f"reading the channel {visible(channel)}", file=sys.stderr)
        say(f"hint: did you mean ftstanctl sub {near}?", file=sys.stderr)


def _start(arguments: argparse.Namespace) -> Start:
    if arguments.since:
        try:
            when = datetime.fromisoformat(arguments.since)
        except ValueError:
            raise ConfigError(
                f"--since {arguments.since!r} is no time", hint="for example 2026-07-01T12:00:00Z"
            ) from None
        return Start.time(when if when.tzinfo else when.astimezone())
    if arguments.first:
        return Start.first()
    if arguments.last:
        return Start.last()
    if arguments.sequence:
        return Start.sequence(arguments.sequence)
    return Start.ago(arguments.ago) if arguments.ago else Start.new()


async def _print(arguments: argparse.Namespace, start: Start) -> int:
    got = 0
    async with await client_options.connect(arguments) as client:
        subscription = await client.subscribe(
            arguments.channel,
            start=start,
            durable=arguments.durable,
            queue=arguments.queue,
            max_in_flight=arguments.max_in_flight,
            ack_wait=arguments.ack_wait,
            manual_acks=True,
        )
        try:
            while not arguments.count or got < arguments.count:
                message = await subscription.next(arguments.timeout)
                _show(message, arguments.output)
                got += 1
                if not arguments.no_ack:
                    await message.ack()
        except TimeoutError:
            pass
        finally:
            if arguments.forget:
                await subscription.unsubscribe()
    return EXIT_NOT_ALL if got < arguments.count else EXIT_DONE


def _show(message: Message, output: str) -> None:
    if output == "raw":
        sys.stdout.buffer.write(message.data + b"\n")
    elif output == "json":
        print_json(_fields(message))
    else:
        again = f" again ({message.redelivery_count})" if message.redelivered else ""
        text = visible(message.data.decode("utf-8", "backslashreplace"))
        say(f"#{message.sequence} {time_of(message.timestamp)}{again}{_from(message)} {text}")
    # Whoever reads a pipe shall see a message when it comes, and before it is acknowledged.
    sys.stdout.flush()


def _from(message: Message) -> str:
    """Where a dead letter comes from; empty for any other message."""
    origin = origin_fields(message.reply)
    if origin is None:
        return ""
    words = (
        f"{origin['channel']} #{origin['sequence']}, {who(origin)}, {origin['deliveries']} times"
    )
    return f" [{visible(words)}]"


def _fields(message: Message) -> dict[str, object]:
    try:
        data = {"data": message.data.decode()}
    except UnicodeDecodeError:
        data = {"data_base64": base64.b64encode(message.data).decode()}
    origin = origin_fields(message.reply)
    return {
        "channel": message.channel,
        "sequence": message.sequence,
        "timestamp": message.timestamp,
        "redelivered": message.redelivered,
        "redelivery_count": message.redelivery_count,
        **({} if origin is None else {"origin": origin}),
        **data,
    }
