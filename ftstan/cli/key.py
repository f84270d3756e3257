"""``ftstanctl key``: show and replace the key that changes are sealed with (``docs/admin.md``), and
make nkeys, with which users log in to NATS (``docs/security.md``).

``show`` and ``nkey`` work on files of this host. ``rotate`` asks the server that owns the
datastore, which makes the new key and writes it where the old one was: a key never travels.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.admin.keys import KEY_NAME, MAX_GRACE_S, fingerprint, read_keys_at
from ftstan.admin.protocol import Request, Verb
from ftstan.base.clock import SystemClock
from ftstan.base.errors import ConfigError, RefusedError, StoreError, UsageError
from ftstan.cli import contexts
from ftstan.cli.admin_client import UnservedError, claimed
from ftstan.cli.admin_servers import Servers
from ftstan.cli.confirming import confirm
from ftstan.cli.connecting import link_options
from ftstan.cli.program import give_examples
from ftstan.cli.terminal import complain, print_json, say, time_of
from ftstan.cli.words.servers import (
    EXIT_DONE,
    EXIT_REFUSED,
    EXIT_UNSERVED,
    add_key_options,
    duration,
    seconds,
)
from ftstan.config.units import SECOND
from ftstan.ft.health import name as server_name

if TYPE_CHECKING:
    import argparse

    from ftstan.base.states import NodeStatus


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    commands = parser.add_subparsers(
        title="commands", dest="verb", required=True, metavar="<command>"
    )
    show = commands.add_parser(
        "show", help="show fingerprints", description="Show the fingerprints of keys, not the keys."
    )
    rotate = commands.add_parser(
        "rotate",
        help="replace the key; the former one counts for a while",
        description="Have the server that owns the datastore replace its key. No restart.",
    )
    nkey = commands.add_parser(
        "nkey",
        help="make the nkey of a user of NATS",
        description="Make the nkey of a user: write its seed, which is secret, to a new file, and "
        "print its public key, for authorization { users } of the NATS servers.",
    )
    nkey.add_argument("file", metavar="FILE", help="where the seed goes; it must not exist")
    nkey.add_argument("--output", choices=("table", "json"), default="table", help="default: table")
    give_examples(show, "key show --dir /nss/orders", "key show --admin-key stan.key --output json")
    give_examples(rotate, "key rotate --dir /nss/orders", "key rotate host1 --grace 1h --yes")
    give_examples(nkey, "key nkey stan.nk", "key nkey /etc/ftstan/orders.nk --output json")
    for added in (show, rotate):
        contexts.add_options(added)
        add_key_options(added)
        added.add_argument(
            "--output", choices=("table", "json"), default="table", help="default: table"
        )
    rotate.add_argument(
        "server_word",
        nargs="?",
        default="",
        metavar="SERVER",
        help="its name, id or host; default: the one that serves",
    )
    rotate.add_argument(
        "--grace",
        type=_grace,
        default=3600,
        metavar="TIME",
        help="how long the former key counts as well, such as 1h (the default); 0s: no more",
    )
    rotate.add_argument(
        "--timeout",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="how long servers are waited for that may answer (default 1)",
    )
    rotate.add_argument("--yes", action="store_true", help="do not ask on a terminal")


def _grace(text: str) -> int:
    value = duration(text) // SECOND
    if not 0 <= value <= MAX_GRACE_S:
        raise ValueError
    return value


_grace.__name__ = "duration (90s, 15m or 1h30m, at most 720h)"


def run(arguments: argparse.Namespace) -> int:
    """Carry out one sub-command; returns the exit status. Raises ``FtstanError``."""
    if arguments.verb == "nkey":
        return _nkey(arguments)
    contexts.fill(arguments)
    try:
        return _show(arguments) if arguments.verb == "show" else _rotate(arguments)
    except RefusedError as error:
        return complain(error, EXIT_REFUSED)
    except UnservedError as error:
        return complain(error, EXIT_UNSERVED)


def _show(arguments: argparse.Namespace) -> int:
    path = arguments.admin_key
    if not path and arguments.dir:
        path = os.path.join(arguments.dir, KEY_NAME)
    if not path:
        raise UsageError(
            "which key?", hint=f"give --dir the datastore, or --admin-key a copy of its {KEY_NAME}"
        )
    keys = read_keys_at(path)
    if keys.current is None:
        raise StoreError(
            f"{path} does not exist",
            hint="a datastore's first active makes it; check --dir, --admin-key",
        )
    counts = len(keys.accepted(SystemClock().wall_ns())) > 1
    old = fingerprint(keys.old) if keys.old is not None and counts else ""
    if arguments.output == "json":
        print_json(
            {
                "path": path,
                "key": fingerprint(keys.current),
                "old": old,
                "old_until_ns": keys.old_until_ns if old else 0,
            }
        )
        return EXIT_DONE
    say(f"key         {fingerprint(keys.current)}")
    if old:
        say(f"former key  {old}, counts until {time_of(keys.old_until_ns)}")
    return EXIT_DONE


def _nkey(arguments: argparse.Namespace) -> int:
    import nkeys  # noqa: PLC0415  # late: no other command makes keys of NATS

    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    try:
        # Never over another one: the user whose seed it was could not log in any more.
        descriptor = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(bytes(seed) + b"\n")
    except OSError as error:
        raise ConfigError(
            f"cannot write {arguments.file}: {error.strerror}",
            hint="name a file that does not exist, in a directory that does",
        ) from error
    if arguments.output == "json":
        print_json({"path": arguments.file, "public_key": public})
    else:
        say(public)
    return EXIT_DONE


def _rotate(arguments: argparse.Namespace) -> int:
    from ftstan.nats.request import asking  # noqa: PLC0415  # late: show asks nobody

    with asking(arguments.server, link_options(arguments), seconds=arguments.timeout) as asker:
        servers = Servers(asker, arguments.cluster, arguments.timeout)
        server = _owner(servers, arguments)
        confirm(
            arguments,
            f"replace the key of {server_name(server)}: copies of the former one count for "
            f"{arguments.grace} s more",
            destroys=False,
        )
        request = Request(Verb.ROTATE, grace_s=arguments.grace, by=claimed())
        answer = servers.change(arguments, server, request)
    row = answer.rows[0] if answer.rows else {}
    if arguments.output == "json":
        print_json({"server": server.server, **row})
        return EXIT_DONE
    say(f"{server_name(server)}: {answer.note}")
    if row.get("old"):
        say(f"former key counts until {time_of(row['old_until_ns'])}")
    say(f"copies (--admin-key) of the key are replaced by hand, from {KEY_NAME} of the datastore")
    return EXIT_DONE


def _owner(servers: Servers, arguments: argparse.Namespace) -> NodeStatus:
    if arguments.server_word:
        return servers.named(arguments.server_word)
    serving = [
        node for node in servers.serving() if not arguments.group or node.group == arguments.group
    ]
    if len(serving) == 1:
        return serving[0]
    if not serving:
        raise UnservedError(
            f"nobody serves group {arguments.group} of cluster {arguments.cluster}",
            hint="see ftstanctl ft status",
        )
    known = ", ".join(server_name(node) for node in serving)
    raise RefusedError(f"{len(serving)} servers serve: {known}", hint="name one of them")
