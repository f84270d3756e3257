"""The words of ``ftstanctl ft``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.admin.protocol import MAX_HISTORY
from ftstan.cli import contexts
from ftstan.cli.program import give_examples
from ftstan.cli.words.servers import (
    add_answer_options,
    add_key_options,
    add_watch_options,
    count,
    moment,
    seconds,
)

if TYPE_CHECKING:
    import argparse

_COMMANDS = (
    (
        "status",
        "show each member, and whether the group is healthy",
        ("ft status --group orders --watch", "ft status --dir /nss/orders"),
    ),
    (
        "switchover",
        "hand over to a standby, and wait until it serves",
        (
            "ft switchover --group orders --dir /nss/orders",
            "ft switchover --group orders --to host2 --at 03:00 --dir /nss/orders",
        ),
    ),
    (
        "pause",
        "keep a standby from taking over, until resume; a restart does not end it",
        (
            "ft pause host2 --group orders --dir /nss/orders",
            "ft pause --group orders --admin-key stan.key --yes",
        ),
    ),
    (
        "resume",
        "end a pause",
        (
            "ft resume host2 --group orders --dir /nss/orders",
            "ft resume --group orders --admin-key stan.key",
        ),
    ),
    (
        "history",
        "show who owned the datastore, since when, and why",
        ("ft history --group orders --count 5", "ft history --dir /nss/orders --output json"),
    ),
    (
        "mixed",
        "say whether original servers may be members",
        (
            "ft mixed on --group orders --dir /nss/orders",
            "ft mixed off --group orders --dir /nss/orders",
        ),
    ),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    commands = parser.add_subparsers(
        title="commands", dest="verb", required=True, metavar="<command>"
    )
    for verb, text, examples in _COMMANDS:
        command = commands.add_parser(verb, help=text, description=text)
        give_examples(command, *examples)
        contexts.add_options(command)
        add_answer_options(command)
    added = commands.choices
    add_watch_options(added["status"], "members")
    added["status"].add_argument(
        "--wide", action="store_true", help="every column; a table of 80 characters without"
    )
    added["status"].add_argument(
        "--dir", metavar="DIR", help="look at the datastore, and ask nobody: for when NATS is down"
    )
    added["switchover"].add_argument(
        "--at",
        type=moment,
        default=0,
        metavar="TIME",
        help="when: 03:00, 2026-11-28T03:00 (local time unless it ends in Z), or +2h",
    )
    added["switchover"].add_argument(
        "--cancel", action="store_true", help="end what was planned with --at"
    )
    added["switchover"].add_argument(
        "--to",
        default="",
        metavar="NODE",
        help="the successor: its name, its server id or the beginning of it, or its host",
    )
    added["switchover"].add_argument(
        "--wait",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="for the successor to serve (default 30)",
    )
    for verb in ("pause", "resume"):
        added[verb].add_argument(
            "node", nargs="?", default="", metavar="NODE", help="default: the only standby"
        )
    added["mixed"].add_argument(
        "word",
        choices=("on", "off"),
        metavar="on|off",
        help="whether original servers may be members",
    )
    added["history"].add_argument(
        "--count",
        type=count,
        default=20,
        metavar="N",
        help=f"newest epochs (default 20, at most {MAX_HISTORY})",
    )
    added["history"].add_argument(
        "--dir", metavar="DIR", help="read it from the datastore, and ask nobody"
    )
    for verb in ("switchover", "pause", "resume", "mixed"):
        add_key_options(added[verb])
    for verb in ("switchover", "pause"):
        added[verb].add_argument("--yes", action="store_true", help="do not ask on a terminal")
