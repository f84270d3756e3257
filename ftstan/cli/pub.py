"""``ftstanctl pub``: publish, and say what was stored (``docs/ftstanctl.md``).

Exit status: 0 every message was stored, 1 one was refused or is not known to be stored, 2 wrong
words, 3 no connection.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.cli import client_options
from ftstan.cli.terminal import complain, print_json, say
from ftstan.cli.words.client import EXIT_DONE, EXIT_NOT_ALL
from ftstan.client import ClientError, PublishRefusedError

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

_LONGEST_LINE = 64 << 20


def run(arguments: argparse.Namespace) -> int:
    """Publish; returns the exit status. Raises ``ConfigError``, ``ClientError``."""
    if arguments.lines and arguments.data is not None:
        raise ConfigError(
            "--lines reads messages from standard input", hint="leave the message out"
        )
    return asyncio.run(_publish(arguments))


async def _messages(arguments: argparse.Namespace) -> AsyncIterator[bytes]:
    if arguments.lines:
        async for line in _lines():
            yield line.removesuffix(b"\n").removesuffix(b"\r")
        return
    data = (
        sys.stdin.buffer.read()
        if arguments.data is None
        else arguments.data.encode("utf-8", "surrogateescape")
    )
    for _ in range(arguments.count):
        yield data


async def _lines() -> AsyncIterator[bytes]:
    """Lines of standard input.

    Where they have to be waited for, everything else goes on meanwhile.
    """
    file = sys.stdin.buffer
    mode = os.fstat(file.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()):
        for line in file:
            yield line
        return
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        while line := await reader.readline():
            yield line
    except ValueError:
        raise ConfigError(
            "a line is longer than NATS carries", hint="publish it without --lines"
        ) from None
    finally:
        transport.close()


async def _publish(arguments: argparse.Namespace) -> int:
    answers: set[asyncio.Future[str]] = set()
    stored = refused = unknown = 0
    failure: ClientError | None = None

    def count(answer: asyncio.Future[str]) -> None:
        nonlocal stored, refused, unknown, failure
        answers.discard(answer)
        error = None if answer.cancelled() else answer.exception()
        if error is None:
            stored += 1
        else:
            refused += isinstance(error, PublishRefusedError)
            unknown += not isinstance(error, PublishRefusedError)
            failure = failure or (error if isinstance(error, ClientError) else None)

    async with await client_options.connect(
        arguments, ack_timeout=arguments.timeout, republish=arguments.republish
    ) as client:
        async for data in _messages(arguments):
            answer = await client.publish_async(arguments.channel, data)
            answers.add(answer)
            answer.add_done_callback(count)
        await client.flush()
        await asyncio.gather(*answers, return_exceptions=True)
    if arguments.output == "json":
        print_json(
            {"channel": arguments.channel, "stored": stored, "refused": refused, "unknown": unknown}
        )
    else:
        say(f"{stored} stored in {arguments.channel}")
    if failure is None:
        return EXIT_DONE
    return complain(failure, EXIT_NOT_ALL)
