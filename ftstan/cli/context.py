"""``ftstanctl context``: named servers and logins (``docs/ftstanctl.md``)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import UsageError
from ftstan.cli import contexts
from ftstan.cli.contexts import CONTEXT_VARIABLE, SETTINGS, Context
from ftstan.cli.program import give_examples
from ftstan.cli.terminal import print_json, print_table, say

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    commands = parser.add_subparsers(
        title="commands", dest="verb", required=True, metavar="<command>"
    )
    add = commands.add_parser(
        "add",
        help="make a context, or make one anew",
        description="make a context, or make one anew",
    )
    add.add_argument("name", metavar="NAME")
    for setting in SETTINGS:
        add.add_argument(
            *setting.flags,
            dest=setting.name,
            default="",
            metavar=setting.metavar,
            help=setting.text,
        )
    add.add_argument("--select", action="store_true", help="and use it from now on")
    commands.add_parser(
        "ls", help="list them, without secrets", description="list them, without secrets"
    )
    select = commands.add_parser(
        "select", help="use one from now on", description="use one from now on"
    )
    select.add_argument("name", metavar="NAME", nargs="?", default="", help="none: use no context")
    remove = commands.add_parser("rm", help="remove one", description="remove one")
    remove.add_argument("name", metavar="NAME")
    give_examples(
        add,
        "context add prod --server nats://host1:4222 --cluster orders --select",
        "context add prod --server tls://host1:4222 --creds prod.creds --dir /nss/orders",
    )
    give_examples(commands.choices["ls"], "context ls", "context ls --output json")
    give_examples(select, "context select prod", "context select")
    give_examples(remove, "context rm prod", "context rm prod --output json")
    for verb, parser_of_verb in commands.choices.items():
        shapes = ("table", "json", *(("names",) if verb == "ls" else ()))
        parser_of_verb.add_argument(
            "--output", choices=shapes, default="table", help="default: table"
        )


#: Settings that are paths.
_PATHS = ("dir", "credentials", "nkey_seed_file", "client_ca", "client_cert", "client_key")


def run(arguments: argparse.Namespace) -> int:
    """Carry out one sub-command; returns the exit status. Raises ``ConfigError``."""
    match arguments.verb:
        case "add":
            context = Context(
                **{setting.name: getattr(arguments, setting.name) for setting in SETTINGS}
            )
            # It is used from wherever the operator stands then.
            context = replace(context, **{name: _whole(getattr(context, name)) for name in _PATHS})
            if context == Context():
                raise UsageError(
                    f"context {arguments.name!r} would say nothing",
                    hint="give at least --server; see --help",
                )
            contexts.save(arguments.name, context)
            if arguments.select:
                contexts.select(arguments.name)
        case "select":
            contexts.select(arguments.name)
        case "rm":
            contexts.remove(arguments.name)
        case _ if arguments.output == "names":
            for name in contexts.names():
                say(name)
            return 0
        case _:
            _list(as_json=arguments.output == "json")
            return 0
    if arguments.output == "json":
        print_json(
            {"name": arguments.name, "selected": contexts.selected() == arguments.name != ""}
        )
    return 0


def _whole(path: str) -> str:
    """The path from the root; as it is where the home directory or a variable stands first."""
    return os.path.abspath(path) if path and path[0] not in "~$" else path


def _list(*, as_json: bool) -> None:
    now = os.environ.get(CONTEXT_VARIABLE, "") or contexts.selected()
    found = [(name, contexts.load(name).shown()) for name in contexts.names()]
    if as_json:
        print_json([{"name": name, "selected": name == now, **said} for name, said in found])
        return
    rows = [
        (
            "*" if name == now else "",
            name,
            said.pop("server", ""),
            said.pop("cluster", ""),
            _rest(said),
        )
        for name, said in found
    ]
    print_table(("", "name", "server", "cluster", "more"), rows)


def _rest(said: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in said.items())
