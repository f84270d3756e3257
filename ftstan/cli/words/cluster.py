"""The words of ``ftstanctl cluster``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.cli import contexts
from ftstan.cli.program import give_examples
from ftstan.cli.words.servers import (
    add_answer_options,
    add_key_options,
    add_watch_options,
    seconds,
)

if TYPE_CHECKING:
    import argparse

_COMMANDS = (
    (
        "status",
        "show each node of a replicated cluster, and whether the cluster is healthy",
        ("cluster status --watch", "cluster status --expect 3 --output json"),
    ),
    (
        "stepdown",
        "have the leader let another node lead, and wait until it does",
        ("cluster stepdown --dir /data/stan", "cluster stepdown --to b --admin-key stan.key --yes"),
    ),
    (
        "add",
        "let a node be one of the cluster (again), for the leader to wait for it",
        ("cluster add d --dir /data/stan", "cluster add d --admin-key stan.key"),
    ),
    (
        "remove",
        "remove a node: nobody waits for it any more, and it cannot lead",
        ("cluster remove c --dir /data/stan", "cluster remove --others --dir /data/stan --yes"),
    ),
    (
        "backup",
        "copy the store of a node into a new directory, while the cluster serves",
        (
            "cluster backup /backup/stan --log-path /data/log",
            "cluster backup /backup/stan --node c --log-path /data/log --output json",
        ),
    ),
    (
        "seed",
        "make the datastore of a stopped server or FT group that of a cluster's first node",
        (
            "cluster seed /data/stan --node-id a --log-path /data/log",
            "cluster seed /backup/stan --node-id a --log-path /data/log --output json",
        ),
    ),
    (
        "leave",
        "make the datastore of the stopped node that led last that of a server without a cluster",
        (
            "cluster leave /data/stan --log-path /data/log",
            "cluster leave /data/stan --log-path /data/log --not-last",
        ),
    ),
)
#: They work on a datastore, and ask nobody.
OFFLINE = ("seed", "leave")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    commands = parser.add_subparsers(
        title="commands", dest="verb", required=True, metavar="<command>"
    )
    for verb, text, examples in _COMMANDS:
        command = commands.add_parser(verb, help=text, description=text)
        give_examples(command, *examples)
        if verb not in OFFLINE:
            contexts.add_options(command, group=False)
        add_answer_options(command, asks=verb not in OFFLINE)
    added = commands.choices
    add_watch_options(added["status"], "nodes")
    added["stepdown"].add_argument(
        "--to", default="", metavar="NODE", help="the node that is to lead: its -cluster_node_id"
    )
    added["stepdown"].add_argument(
        "--wait",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="for another node to lead and serve (default 30)",
    )
    added["add"].add_argument("node", metavar="NODE", help="its -cluster_node_id")
    removed = added["remove"].add_mutually_exclusive_group(required=True)
    removed.add_argument("node", nargs="?", metavar="NODE", help="its -cluster_node_id")
    removed.add_argument(
        "--others",
        action="store_true",
        help="all but the one that leads, before its datastore leaves the cluster",
    )
    added["backup"].add_argument(
        "target", metavar="TARGET", help="a directory that does not exist, or is empty"
    )
    added["backup"].add_argument(
        "--node", default="", metavar="NODE", help="whose store (default: a follower's)"
    )
    added["backup"].add_argument(
        "--log-path",
        default="",
        metavar="DIR",
        help="the -cluster_log_path of a node here, for the login of the log (not with external "
        "NATS servers)",
    )
    for verb in OFFLINE:
        added[verb].add_argument(
            "dir", metavar="DIR", help="the datastore: -dir of the server, which is stopped"
        )
        added[verb].add_argument(
            "--log-path",
            required=True,
            metavar="DIR",
            help="the -cluster_log_path of the node",
        )
    added["seed"].add_argument(
        "--node-id", required=True, metavar="NODE", help="its -cluster_node_id"
    )
    added["leave"].add_argument(
        "--not-last",
        action="store_true",
        help="also if others could lead after it, or it was killed: acknowledged messages may be "
        "lost",
    )
    for verb in ("stepdown", "add", "remove"):
        add_key_options(added[verb])
    for verb in ("stepdown", "remove"):
        added[verb].add_argument("--yes", action="store_true", help="do not ask on a terminal")
