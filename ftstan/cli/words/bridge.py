"""The words of ``ftstanctl bridge``, and its exit statuses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ftstan.cli import contexts
from ftstan.cli.program import give_examples
from ftstan.cli.words.client import number, seconds

if TYPE_CHECKING:
    import argparse


EXIT_DONE = 0
EXIT_STOPPED = 1
EXIT_CANNOT = 3

_COMMANDS = (
    (
        "run",
        "mirror channels into streams, until it is ended",
        (
            "bridge run --channel orders --dir /nss/orders",
            "bridge run --channel orders --channel bills --jetstream nats://js1:4222 --dry-run",
        ),
    ),
    (
        "status",
        "show how far the streams of the channels are",
        ("bridge status", "bridge status --jetstream nats://js1:4222 --output json"),
    ),
    (
        "verify",
        "compare channels with their streams, message by message",
        ("bridge verify --channel orders", "bridge verify --channel orders --dir /nss/orders"),
    ),
    (
        "consumers",
        "make consumers that stand where durables and their queue groups stand",
        (
            "bridge consumers --channel orders --dir /nss/orders --dry-run",
            "bridge consumers --channel orders --dir /nss/orders --output json",
        ),
    ),
    (
        "cutover",
        "let a channel's publishers be refused, and its stream take over",
        (
            "bridge cutover orders --dir /nss/orders",
            "bridge cutover orders --jetstream nats://js1:4222 --admin-key stan.key --yes",
        ),
    ),
    (
        "undo",
        "take a cut-over back: what the stream has got since goes to the channel",
        (
            "bridge undo orders --dir /nss/orders",
            "bridge undo orders --jetstream nats://js1:4222 --admin-key stan.key --yes",
        ),
    ),
)
#: Where --channel is not needed.
_WITHOUT_FLAG = frozenset(("status", "cutover", "undo"))
_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="<verb>")
    found = {}
    for name, text, examples in _COMMANDS:
        verb = verbs.add_parser(name, help=text, description=text)
        give_examples(verb, *examples)
        found[name] = verb
        _add_places(verb, is_needed=name not in _WITHOUT_FLAG)
    _add_run(found["run"])
    for name in ("cutover", "undo"):
        _add_move(found[name])
    found["consumers"].add_argument(
        "--dry-run", action="store_true", help="say what would be made, and make nothing"
    )
    for name in found.keys() - {"run"}:
        found[name].add_argument(
            "--output", choices=("table", "json"), default="table", help="default: table"
        )
    for verb in found.values():
        contexts.add_options(verb, group=False, enforce_tls=False)
        _add_jetstream(verb)


def _add_places(parser: argparse.ArgumentParser, *, is_needed: bool) -> None:
    parser.add_argument(
        "--channel",
        action="append",
        required=is_needed,
        default=None,
        metavar="NAME",
        help="a channel; may be repeated"
        + (" (default: all with a stream)" if parser.prog.endswith("status") else ""),
    )
    parser.add_argument(
        "--client-id",
        default="ftstan-bridge",
        metavar="ID",
        help="default: ftstan-bridge"
        if is_needed and parser.prog.endswith("run")
        else "default: ftstan-bridge, with the verb's name behind it",
    )
    parser.add_argument(
        "--connect-timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="for the connection (default 10)",
    )
    if not parser.prog.endswith("status"):
        _add_datastore(parser)
    parser.add_argument(
        "--stream",
        action="append",
        type=named,
        default=[],
        metavar="CHANNEL=NAME",
        help="the stream of a channel (default: its name with _ for what JetStream does not take)",
    )
    parser.add_argument(
        "--stream-prefix", default="", metavar="TEXT", help="put before the names of streams"
    )


def _add_move(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", metavar="CHANNEL", help="a channel")
    parser.add_argument(
        "--wait",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long the bridge may take for each of its steps (default 60)",
    )
    parser.add_argument(
        "--admin-key",
        "--key-file",
        default="",
        metavar="FILE",
        help="a copy of the datastore's admin.key (default: that in --dir)",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _add_datastore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        dest="datastore",
        default="",
        metavar="DIR",
        help="the datastore: what is in its files is read there, without load on the server "
        "(default: everything comes from the server)",
    )
    parser.add_argument(
        "--crc-poly",
        type=lambda text: int(text, 0),
        default=0xEDB88320,
        metavar="N",
        help="the server's -file_crc_poly",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replicas", type=number, default=1, metavar="N", help="of a new stream (default 1)"
    )
    parser.add_argument(
        "--storage", choices=("file", "memory"), default="file", help="of a new stream"
    )
    for flag, kind, text in (
        ("--max-msgs", number, "messages that a new stream keeps"),
        ("--max-bytes", size, "bytes that a new stream keeps, as 10G"),
        ("--max-age", seconds, "seconds that a new stream keeps a message"),
    ):
        parser.add_argument(
            flag, type=kind, default=0, metavar="N", help=f"{text} (default: no limit)"
        )
    parser.add_argument(
        "--purge-at-gap",
        action="store_true",
        help="where messages expired before they were mirrored, let the stream begin behind them",
    )
    parser.add_argument(
        "--metrics-file",
        default="",
        metavar="FILE",
        help="write measures for the textfile collector of Prometheus every 5 seconds",
    )
    parser.add_argument(
        "--back",
        action="store_true",
        help="also publish to the channel what new publishers send to its name in JetStream",
    )
    parser.add_argument("--once", action="store_true", help="end when every channel is level")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and write nothing"
    )
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="json: a line each"
    )


def _add_jetstream(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("JetStream")
    group.add_argument(
        "--jetstream",
        "--jetstream-url",
        dest="jetstream",
        default="",
        metavar="URL",
        help="NATS servers with JetStream, several with commas (default: --server, with its login)",
    )
    for flag, metavar, text in (
        ("user", "USER", "with --jetstream-pass"),
        ("pass", "PASSWORD", "see --jetstream-user"),
        ("auth", "TOKEN", "instead of user and password"),
        ("nkey", "FILE", "a user's nkey seed"),
        ("creds", "FILE", "a credentials file"),
        ("tlsca", "FILE", "authorities of the server's certificate"),
        ("tlscert", "FILE", "our certificate, with --jetstream-tlskey"),
        ("tlskey", "FILE", "the private key of --jetstream-tlscert"),
        ("tlsname", "NAME", "what the server's certificate must be valid for"),
    ):
        group.add_argument(
            f"--jetstream-{flag}", default="", metavar=metavar, help=f"there: {text}"
        )


def named(text: str) -> tuple[str, str]:
    """A channel and its stream."""
    channel, equals, stream = text.partition("=")
    if not (channel and equals and stream):
        raise ValueError
    return channel, stream


def size(text: str) -> int:
    """Bytes, with K, M, G or T behind the number or without."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.lower())
    if found is None or not int(found[1]):
        raise ValueError
    return int(found[1]) * _SUFFIXES[found[2]]


named.__name__ = "CHANNEL=NAME"
size.__name__ = "size"
