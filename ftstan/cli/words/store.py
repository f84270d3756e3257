"""The words of ``ftstanctl store``, and its exit statuses."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.cli import contexts
from ftstan.cli.program import give_examples
from ftstan.cli.words.databases import add_source_options
from ftstan.cli.words.servers import count, sequence

if TYPE_CHECKING:
    import argparse


EXIT_CLEAN = 0
EXIT_DAMAGE = 1
EXIT_FAILED = 2

_COMMANDS = (
    (
        "ls",
        "list the channels, or the slices and subscriptions of one",
        ("store ls /nss/orders", "store ls postgres:/etc/ftstan/sql --channel orders"),
    ),
    (
        "dump",
        "print messages, subscriptions and clients as JSON lines",
        (
            "store dump /nss/orders --channel orders --from 100 --to 110",
            "store dump /nss/orders --output table",
        ),
    ),
    (
        "verify",
        "read everything and say what is damaged",
        ("store verify /nss/orders", "store verify -c /etc/ftstan/ftstan.conf --output json"),
    ),
    (
        "du",
        "show where the bytes are",
        ("store du /nss/orders", "store du /nss/orders --channel orders"),
    ),
    (
        "repair",
        "end damage: copy aside, then keep what can be read",
        (
            "store repair /nss/orders --dry-run",
            "store repair /nss/orders --aside /backup/orders.damaged",
        ),
    ),
    (
        "compact",
        "merge small slices of former activations",
        ("store compact /nss/orders", "store compact /nss/orders --channel orders"),
    ),
    (
        "handover",
        "leave exactly what an original server would have written",
        ("store handover /nss/orders", "store handover /nss/orders --output json"),
    ),
    (
        "purge",
        "remove the oldest messages of a channel, or all, every server stopped",
        (
            "store purge /nss/orders orders.new --keep 1000 --dry-run",
            "store purge /nss/orders orders.new --before 2026-07-01T00:00Z --yes",
        ),
    ),
    (
        "rekey",
        "encrypt every payload with the first key of a file, the server stopped",
        (
            "store rekey /nss/orders --encryption-key-file keys --encryption-cipher AES",
            "store rekey /nss/orders --encryption-key-file keys --to-plain",
        ),
    ),
)
#: That of every NATS server that was not told another.
_MAX_PAYLOAD = 1 << 20
_SLICE_BYTES = 64 << 20
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Place(str):
    """A directory or database that was said on the command line, not in a context."""

    __slots__ = ()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    commands = parser.add_subparsers(
        title="commands", dest="verb", required=True, metavar="<command>"
    )
    for name, text, examples in _COMMANDS:
        command = commands.add_parser(name, help=text, description=text)
        give_examples(command, *examples)
        _common(command, purging=name == "purge")
    schema = commands.add_parser(
        "sql-schema",
        help="print the statements that make the tables of a database",
        description="print the statements that make the tables of a database",
    )
    give_examples(schema, "store sql-schema postgres", "store sql-schema mysql")
    schema.add_argument("driver", choices=("mysql", "postgres"), help="the server's -sql_driver")
    commands.choices["verify"].add_argument(
        "--max-payload",
        type=int,
        default=_MAX_PAYLOAD,
        metavar="BYTES",
        help="name messages larger than this max_payload, which no NATS server delivers "
        "(default: 1048576)",
    )
    dump = commands.choices["dump"]
    dump.set_defaults(output="json")
    dump.add_argument(
        "--raw", action="store_true", help="every record as it lies in the files, hidden ones too"
    )
    dump.add_argument(
        "--from", type=int, default=0, dest="first", metavar="SEQ", help="first sequence"
    )
    dump.add_argument("--to", type=int, default=0, dest="last", metavar="SEQ", help="last sequence")
    repair_parser = commands.choices["repair"]
    repair_parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and change nothing"
    )
    repair_parser.add_argument(
        "--aside", metavar="PATH", help="the side directory (default: <DIR>.repair-<time>)"
    )
    for name in ("compact", "handover"):
        commands.choices[name].add_argument(
            "--slice-bytes",
            type=int,
            default=_SLICE_BYTES,
            metavar="N",
            help=f"merge slices up to this size (default {_SLICE_BYTES})",
        )
    _purge(commands.choices["purge"])
    for name in ("ls", "du", "dump", "verify", "purge", "rekey"):
        _database(commands.choices[name])
    _copy(commands)
    for name in ("dump", "verify", "rekey"):
        commands.choices[name].add_argument(
            "--encryption-key-file",
            metavar="FILE",
            default="",
            help="the server's -encryption_key_file (default: NATS_STREAMING_ENCRYPTION_KEY)",
        )
    commands.choices["rekey"].add_argument(
        "--encryption-cipher",
        metavar="CIPHER",
        default="",
        help="the server's -encryption_cipher: AES or CHACHA",
    )
    commands.choices["rekey"].add_argument(
        "--to-plain",
        action="store_true",
        help="decrypt everything instead, and let servers without a key serve the store again",
    )


def _database(parser: argparse.ArgumentParser) -> None:
    """The flags that name a database instead of a directory."""
    parser.add_argument(
        "-c",
        "--config",
        default="",
        metavar="FILE",
        help="what the server with this configuration file stores in, and its keys",
    )
    add_source_options(parser, "the server's -sql_driver: a database instead of DIR")


def _copy(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "copy a whole store between directories and databases, every server stopped"
    parser = commands.add_parser("copy", help=text, description=text)
    give_examples(
        parser,
        "store copy /nss/orders /backup/orders",
        "store copy /nss/orders postgres:/etc/ftstan/sql",
    )
    for name, what in (("source", "FROM"), ("target", "TO")):
        parser.add_argument(
            name,
            metavar=what,
            help="a datastore directory, or DRIVER:FILE: postgres or mysql, and the server's "
            "-sql_source_file",
        )
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="default: table"
    )
    parser.add_argument(
        "--crc-poly",
        type=int,
        default=0xEDB88320,
        metavar="N",
        help="the server's -file_crc_poly, if it is set",
    )


def _purge(parser: argparse.ArgumentParser) -> None:
    bounds = parser.add_mutually_exclusive_group()
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
    bounds.add_argument(
        "--before",
        type=before,
        metavar="SEQ|TIME",
        help="only those in front of this sequence, or of the first message that was stored at "
        "this time or later, such as 2026-07-01T12:00Z",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would go, and change nothing"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


@dataclass(frozen=True, slots=True)
class Before:
    """The first message that stays: its sequence, or if that is 0 the first one at or after
    ``timestamp`` (Unix ns).
    """

    sequence: int = 0
    timestamp: int = 0


def before(text: str) -> Before:
    """A sequence or a time from the command line; a time without a zone is this host's."""
    if text.isdigit():
        return Before(sequence=sequence(text))
    try:
        since = dt.datetime.fromisoformat(text).astimezone(dt.UTC) - _EPOCH
    except OverflowError as error:
        raise ValueError from error
    at = since // dt.timedelta(microseconds=1) * 1000
    if not 0 <= at < 1 << 63:
        raise ValueError
    return Before(timestamp=at)


# What argparse calls a wrong value.
before.__name__ = "sequence or time"


def _common(parser: argparse.ArgumentParser, *, purging: bool) -> None:
    parser.add_argument(
        "dir",
        metavar="DIR",
        nargs="?",
        default="",
        type=Place,
        help="the datastore directory, or DRIVER:FILE for a database (default: $FTSTAN_DIR, else "
        "the context's)",
    )
    contexts.add_context_option(parser)
    if purging:
        parser.add_argument("channel", metavar="CHANNEL", help="the channel's name")
    else:
        parser.add_argument("--channel", metavar="NAME", help="this channel only")
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="default: table"
    )
    parser.add_argument(
        "--crc-poly",
        type=int,
        default=0xEDB88320,
        metavar="N",
        help="the server's -file_crc_poly, if it is set",
    )
