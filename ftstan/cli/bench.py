"""``ftstanctl bench``: publish and subscribe as fast as the server lets us, and say how fast that
was.

Exit status: 0 everything was stored and delivered; 1 something was refused, or did not come within
``--timeout``; 2 wrong words; 3 no connection, not let in, or the connection was lost; 130
interrupted (``docs/ftstanctl.md``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from ftstan.base.clock import SystemClock
from ftstan.base.errors import ConfigError
from ftstan.base.sizes import size_of
from ftstan.cli.connecting import link_options
from ftstan.cli.terminal import print_json, print_table, progress, say
from ftstan.cli.words.client import EXIT_DONE, EXIT_NOT_ALL
from ftstan.client.options import check_channel
from ftstan.load import drive
from ftstan.load.clients import Where
from ftstan.load.drive import Plan, Result, Side
from ftstan.load.traffic import HEAD_SIZE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ftstan.load.traffic import Delays

#: What is shown of delays, by share of the messages.
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}

_BAR_WIDTH: Final = 40
_NS_PER_S: Final = 1_000_000_000


def run(arguments: argparse.Namespace) -> int:
    """Measure; returns the exit status. Raises ``FtstanError``."""
    plan = _plan(arguments)
    where = Where(
        urls=[server.strip() for server in arguments.server.split(",")],
        options=link_options(arguments),
        cluster=arguments.cluster,
        seconds=arguments.connect_timeout,
        clock=SystemClock(),
    )
    shown = arguments.output == "text"
    total = (plan.count if plan.publishers else 0) + plan.expected
    with progress("messages", total, shown=shown, counted=True) as advance:
        result = drive.run(plan, where, advance)
    if shown:
        _show(plan, result)
    else:
        print_json(_fields(plan, result))
    if result.complete:
        return EXIT_DONE
    _complain(result)
    return EXIT_NOT_ALL


def _plan(arguments: argparse.Namespace) -> Plan:
    check_channel(arguments.channel)
    if not arguments.pub and not arguments.sub:
        raise ConfigError(
            "nobody publishes and nobody subscribes", hint="give --pub or --sub a number above 0"
        )
    if arguments.pub and arguments.size < HEAD_SIZE:
        raise ConfigError(
            f"--size {arguments.size} is too small",
            hint=f"a message carries its time: {HEAD_SIZE} bytes or more",
        )
    if arguments.queue and not arguments.sub:
        raise ConfigError("--queue is for subscribers", hint="give --sub a number above 0")
    return Plan(
        channel=arguments.channel,
        publishers=arguments.pub,
        subscribers=arguments.sub,
        count=arguments.count,
        size=arguments.size,
        window=1 if arguments.sync else arguments.max_in_flight,
        sub_window=arguments.sub_max_in_flight,
        queue=arguments.queue,
        ack_wait=arguments.ack_wait,
        patience=arguments.timeout,
    )


# ---- what came of it
# ---------------------------------------------------------------------------------------------


def _complain(result: Result) -> None:
    if result.refused:
        say(f"{result.refused} messages were refused: {result.refusal}", file=sys.stderr)
    unanswered = result.publishers.wanted - result.publishers.messages - result.refused
    if unanswered > 0:
        say(f"{unanswered} messages were not acknowledged in time", file=sys.stderr)
    missing = result.subscribers.wanted - result.subscribers.messages
    if missing > 0 and not result.refused:
        say(f"{missing} messages did not come in time", file=sys.stderr)


def _fields(plan: Plan, result: Result) -> dict[str, object]:
    return {
        "channel": plan.channel,
        "count": plan.count,
        "size": plan.size,
        "complete": result.complete,
        "refused": result.refused,
        "redelivered": result.again,
        "publishers": _side_fields(plan, result.publishers),
        "subscribers": _side_fields(plan, result.subscribers),
    }


def _side_fields(plan: Plan, side: Side) -> dict[str, object] | None:
    """``None`` for a side that nobody is on."""
    if not side.clients:
        return None
    delays = side.delays
    return {
        "wanted": side.wanted,
        "messages": side.messages,
        "seconds": side.seconds,
        "per_second": side.per_second,
        "bytes_per_second": side.per_second * plan.size if side.delays.count else None,
        "delay_ns": {
            "min": delays.least,
            **{name: delays.below(share) for name, share in SHARES.items()},
            "max": delays.most,
        }
        if delays.count
        else None,
        "clients": [
            {"name": one.name, "messages": one.messages, "seconds": one.seconds}
            for one in side.clients
        ],
    }


def _show(plan: Plan, result: Result) -> None:
    sides = [
        (name, side)
        for name, side in (("pub", result.publishers), ("sub", result.subscribers))
        if side.clients
    ]
    heads = ("clients", "messages", "seconds", "msgs/s", "bytes/s", *SHARES, "max")
    print_table(
        ("", *heads),
        [
            (
                name,
                len(side.clients),
                side.messages,
                f"{side.seconds:.3f}",
                f"{side.per_second:,.0f}",
                size_of(side.per_second * plan.size) if side.delays.count else "-",
                *(
                    delay_of(side.delays.below(share)) if side.delays.count else "-"
                    for share in SHARES.values()
                ),
                delay_of(side.delays.most) if side.delays.count else "-",
            )
            for name, side in sides
        ],
        right=heads,
    )
    for name, side in sides:
        if side.delays.count:
            say("", f"{'from publish to ack' if name == 'pub' else 'from publish to delivery'}")
            _plot(side.delays)


def _plot(delays: Delays) -> None:
    """A bar for each step of delays; the longest fills the line."""
    steps = histogram(delays)
    most = max(count for _, count in steps)
    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for upto, count in steps:
        length = _BAR_WIDTH * count / most
        bar = (
            "#" * round(length)
            if console.options.ascii_only
            else Bar(_BAR_WIDTH, 0, length, width=_BAR_WIDTH)
        )
        table.add_row(f"<= {delay_of(upto)}", f"{100 * count / delays.count:.2f} %", bar)
    console.print(table)


def histogram(delays: Delays) -> list[tuple[int, int]]:
    """``(nanoseconds, count)``: delays up to so long, in steps of 1, 2, 5, 10, 20 ....

    The first and last not empty.
    """
    found = delays.counts()
    steps: list[tuple[int, int]] = []
    at = 0
    for upto in _steps():
        count = 0
        while at < len(found) and found[at][0] <= upto:
            count += found[at][1]
            at += 1
        if count or steps:
            steps.append((upto, count))
        if at == len(found):
            return steps
    raise AssertionError("the steps have no end")


def _steps() -> Iterator[int]:
    decade = 1
    while True:
        yield from (decade, 2 * decade, 5 * decade)
        decade *= 10


def delay_of(ns: int) -> str:
    """A delay for people, to three digits."""
    for size, unit in ((_NS_PER_S, "s"), (1_000_000, "ms"), (1_000, "us")):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"
