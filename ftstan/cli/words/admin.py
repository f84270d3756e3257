"""The words of ``ftstanctl channel``, ``client``, ``sub ls``, ``sub report``, ``sub info`` and
``server``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.cli import contexts
from ftstan.cli.program import give_examples
from ftstan.cli.words.servers import add_key_options, count, seconds, sequence

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class _Word:
    """A sub-command: whether it takes a ``name``, changes something, and destroys something."""

    text: str
    examples: tuple[str, str]
    takes: str = ""
    changes: bool = False
    destroys: bool = False
    names: bool = False
    """Whether ``--output names`` prints one name a line, for scripts and completion."""


_WORDS = {
    "channel": {
        "ls": _Word(
            "list the channels",
            ("channel ls", "channel ls --cluster orders --output json"),
            names=True,
        ),
        "report": _Word(
            "show how far behind the readers of each channel are, the worst first",
            ("channel report", "channel report --context prod --output json"),
        ),
        "info": _Word(
            "show one channel",
            ("channel info orders", "channel info orders --output json"),
            "name",
        ),
        "create": _Word(
            "make an empty channel, within the limits",
            (
                "channel create orders --dir /nss/orders",
                "channel create orders --admin-key stan.key",
            ),
            "name",
            changes=True,
        ),
        "delete": _Word(
            "delete a channel with all its messages",
            (
                "channel delete orders --dir /nss/orders",
                "channel delete orders --force --yes --dir /nss/orders",
            ),
            "name",
            changes=True,
            destroys=True,
        ),
        "moved": _Word(
            "say that a channel has moved elsewhere: publishes to it are refused, or taken again",
            (
                "channel moved orders on --dir /nss/orders",
                "channel moved orders off --admin-key stan.key",
            ),
            "name",
            changes=True,
            destroys=True,
        ),
        "move": _Word(
            "move a channel to another partition, without stopping its publishers",
            (
                "channel move orders --to host2 --dir /nss/a --to-dir /nss/b",
                "channel move --status",
            ),
            changes=True,
            destroys=True,
        ),
        "purge": _Word(
            "remove messages of a channel from its front, or all; its last sequence and "
            "subscriptions stay",
            (
                "channel purge orders --keep 1000 --dir /nss/orders",
                "channel purge orders --up-to 5000 --yes --admin-key stan.key",
            ),
            "name",
            changes=True,
            destroys=True,
        ),
        "redrive": _Word(
            "publish the messages of a dead-letter channel again, to where they came from",
            (
                "channel redrive orders.dead",
                "channel redrive orders.dead --to orders.retry --filter channel=orders.>",
            ),
            "name",
        ),
    },
    "client": {
        "ls": _Word(
            "list the clients that are registered",
            ("client ls", "client ls --output names"),
            names=True,
        ),
        "info": _Word(
            "show one client and its subscriptions",
            ("client info auditor", "client info auditor --output json"),
            "name",
        ),
        "kick": _Word(
            "close a client as one that is dead; its durables stay",
            (
                "client kick auditor --dir /nss/orders",
                "client kick auditor --yes --admin-key stan.key",
            ),
            "name",
            changes=True,
            destroys=True,
        ),
    },
    "subscription": {
        "ls": _Word(
            "list subscriptions, durables and members of queue groups",
            ("sub ls --channel orders", "sub ls --client auditor --output json"),
        ),
        "report": _Word(
            "show how far behind each subscription is, the worst first",
            ("sub report", "sub report --channel orders"),
        ),
        "info": _Word(
            "show one subscription",
            ("sub info orders 7", "sub info orders 7 --output json"),
            "channel",
        ),
    },
    "server": {
        "ls": _Word(
            "list the servers of the cluster",
            ("server ls", "server ls --cluster orders --output json"),
            names=True,
        ),
        "info": _Word(
            "show one server",
            ("server info", "server info host2 --output json"),
            "server",
        ),
        "reload": _Word(
            "have a server read its configuration again, as SIGHUP does",
            (
                "server reload host2 --dir /nss/orders",
                "server reload --admin-key stan.key",
            ),
            "server",
            changes=True,
        ),
        "drain": _Word(
            "drain a server, as SIGUSR2 does: it hands over, and ends with status 0",
            (
                "server drain host2 --dir /nss/orders",
                "server drain host2 --yes --admin-key stan.key",
            ),
            "server",
            changes=True,
            destroys=True,
        ),
    },
}


def configure(noun: str) -> Callable[[argparse.ArgumentParser], None]:
    """What adds the sub-commands of ``channel``, ``client``, ``subscription`` or ``server``."""

    def add(parser: argparse.ArgumentParser) -> None:
        commands = parser.add_subparsers(
            title="commands", dest="verb", required=True, metavar="<command>"
        )
        for verb, word in _WORDS[noun].items():
            added = commands.add_parser(verb, help=word.text, description=word.text)
            give_examples(added, *word.examples)
            contexts.add_options(added, group=False)
            added.add_argument(
                "--timeout",
                type=seconds,
                default=1.0,
                metavar="SECONDS",
                help="how long servers are waited for that may answer (default 1)",
            )
            shapes = ("table", "json", *(("names",) if verb == "ls" and word.names else ()))
            added.add_argument("--output", choices=shapes, default="table", help="default: table")
            match word.takes:
                case "name":
                    added.add_argument("name", metavar=noun.upper())
                case "server":
                    added.add_argument(
                        "server_word",
                        nargs="?",
                        default="",
                        metavar="SERVER",
                        help="its name, id or host; default: the only one",
                    )
                case "channel":
                    added.add_argument("channel", metavar="CHANNEL")
                    added.add_argument(
                        "id", type=count, metavar="ID", help="the number that sub ls shows"
                    )
            if word.changes:
                add_key_options(added)
            if word.destroys:
                added.add_argument("--yes", action="store_true", help="do not ask")
        if noun == "channel":
            commands.choices["delete"].add_argument(
                "--force",
                action="store_true",
                help="also if there are subscriptions: they and their positions are lost",
            )
            moved = commands.choices["moved"]
            moved.add_argument(
                "state", choices=("on", "off"), help="on: refuse publishes; off: take them again"
            )
            moved.add_argument(
                "--mover",
                default="",
                metavar="ID",
                help="the client that may still publish (default: none)",
            )
            _add_move_options(commands.choices["move"])
            again = commands.choices["redrive"]
            again.add_argument(
                "--to",
                default="",
                metavar="CHANNEL",
                help="publish to this channel (default: the one that each came from)",
            )
            again.add_argument(
                "--filter",
                action="append",
                default=[],
                metavar="KEY=VALUE",
                help="only those whose origin has this channel (* and > match), durable, queue or "
                "client; several must all hold",
            )
            bounds = commands.choices["purge"].add_mutually_exclusive_group()
            bounds.add_argument(
                "--keep", type=count, default=0, metavar="N", help="all but the newest N messages"
            )
            bounds.add_argument(
                "--up-to",
                type=sequence,
                default=0,
                metavar="SEQ",
                help="only those up to this sequence, itself too",
            )
        if noun == "subscription":
            for verb in ("ls", "report"):
                commands.choices[verb].add_argument(
                    "--channel", default="", metavar="CHANNEL", help="only of this channel"
                )
                commands.choices[verb].add_argument(
                    "--client", default="", metavar="ID", help="only of this client"
                )

    return add


def _add_move_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="CHANNEL", nargs="?", default="")
    parser.add_argument(
        "--to",
        default="",
        metavar="SERVER",
        help="who is to have it: the name, id or host of a server",
    )
    parser.add_argument(
        "--to-dir", default="", metavar="DIR", help="the datastore of that server, for its key"
    )
    parser.add_argument(
        "--to-admin-key",
        default="",
        metavar="FILE",
        help="a copy of that server's admin.key (default: the key of the server that has it)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="only say what would be done")
    what.add_argument(
        "--status", action="store_true", help="show the moves that servers know of, and end"
    )
    what.add_argument("--undo", action="store_true", help="take a move back that is under way")
    what.add_argument(
        "--remove-copy",
        action="store_true",
        help="remove what a channel that has moved has left at its former server",
    )
