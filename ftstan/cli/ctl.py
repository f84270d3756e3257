"""``ftstanctl``: the operator's command.

Each sub-command is a module of its own, which is loaded when its name is the first word; this one
reads the words.

Whatever goes wrong ends as one line and its hint, never as a traceback.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import TYPE_CHECKING

from ftstan.cli.program import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    INTERRUPTED,
    WRONG_WORDS,
    Command,
    Entry,
    Program,
    completing,
    filled,
    refusing,
)
from ftstan.cli.terminal import print_json, say
from ftstan.cli.wordorder import SUBSCRIPTION_VERBS
from ftstan.version import COMPATIBLE_VERSION, __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


def version(arguments: argparse.Namespace) -> int:
    """Print which ftstan this is and which release it stands in for."""
    if arguments.output == "json":
        print_json({"version": __version__, "compatible_version": COMPATIBLE_VERSION})
    else:
        say(f"ftstan {__version__}, compatible with nats-streaming-server {COMPATIBLE_VERSION}")
    return EXIT_OK


def _version_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", choices=("text", "json"), default="text", help="default: text")


def _run(module: str) -> Callable[[argparse.Namespace], int]:
    """The work of a command, loaded when its words have been read."""

    def run(arguments: argparse.Namespace) -> int:
        work: Callable[[argparse.Namespace], int]
        work = importlib.import_module(f"ftstan.cli.{module}").run
        return work(arguments)

    return run


def _admin(noun: str) -> Command:
    from ftstan.cli.words import admin, servers  # noqa: PLC0415

    return Command(
        _run("admin"),
        {
            servers.EXIT_DONE: "done",
            servers.EXIT_REFUSED: "refused; the reason is on standard error",
            servers.EXIT_UNSERVED: "nobody serves",
            servers.EXIT_CANNOT_ASK: "could not be asked or carried out",
            EXIT_USAGE: WRONG_WORDS,
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        admin.configure(noun),
        failed=servers.EXIT_CANNOT_ASK,
    )


def _key() -> Command:
    from ftstan.cli import key  # noqa: PLC0415
    from ftstan.cli.words import servers  # noqa: PLC0415

    return Command(
        key.run,
        {
            servers.EXIT_DONE: "done",
            servers.EXIT_REFUSED: "refused; the reason is on standard error",
            servers.EXIT_UNSERVED: "nobody serves",
            servers.EXIT_CANNOT_ASK: "could not be read, asked or carried out",
            EXIT_USAGE: WRONG_WORDS,
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        key.configure,
        failed=servers.EXIT_CANNOT_ASK,
    )


def _version() -> Command:
    return Command(
        version,
        {EXIT_OK: "done", EXIT_USAGE: WRONG_WORDS},
        _version_words,
    )


def _store() -> Command:
    from ftstan.cli.words import store  # noqa: PLC0415

    return Command(
        filled(_run("store")),
        {
            store.EXIT_CLEAN: "done; what was read is clean",
            store.EXIT_DAMAGE: "damage was found, and is still there",
            store.EXIT_FAILED: "could not be carried out",
            EXIT_USAGE: WRONG_WORDS,
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        store.configure,
        failed=store.EXIT_FAILED,
    )


def _check_store() -> Command:
    from ftstan.cli.words import check_store  # noqa: PLC0415

    return Command(
        _run("check_store"),
        {
            check_store.EXIT_SUITABLE: "suitable; --phase format and attack: done",
            check_store.EXIT_LIMITED: "suitable with limits",
            check_store.EXIT_UNSUITABLE: "unsuitable",
            check_store.EXIT_CANNOT_TELL: "could not be found out",
            EXIT_USAGE: WRONG_WORDS,
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        check_store.configure,
        failed=check_store.EXIT_CANNOT_TELL,
    )


def _ft() -> Command:
    from ftstan.cli.words import ft, servers  # noqa: PLC0415

    return Command(
        _run("ft"),
        {
            servers.EXIT_DONE: "done; status: one member serves, and a standby could take over",
            servers.EXIT_REFUSED: "refused, and nothing has changed; status: degraded",
            servers.EXIT_UNSERVED: "nobody serves",
            servers.EXIT_CANNOT_ASK: "could not be asked or carried out",
            EXIT_USAGE: WRONG_WORDS,
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        ft.configure,
        failed=servers.EXIT_CANNOT_ASK,
    )


def _cluster() -> Command:
    from ftstan.cli.words import cluster, servers  # noqa: PLC0415

    return Command(
        _run("cluster"),
        {
            servers.EXIT_DONE: "done; status: one node leads, and all others follow",
            servers.EXIT_REFUSED: "refused, and nothing has changed; status: degraded",
            servers.EXIT_UNSERVED: "nobody leads",
            servers.EXIT_CANNOT_ASK: "could not be asked or carried out",
            EXIT_USAGE: WRONG_WORDS,
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        cluster.configure,
        failed=servers.EXIT_CANNOT_ASK,
    )


def _pub() -> Command:
    from ftstan.cli.words import client, pub  # noqa: PLC0415

    return Command(
        filled(_run("pub")),
        {
            client.EXIT_DONE: "every message is stored",
            client.EXIT_NOT_ALL: "one was refused, or is not known to be stored",
            EXIT_USAGE: WRONG_WORDS,
            client.EXIT_CANNOT_ASK: "no connection",
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        pub.configure,
        failed=client.EXIT_CANNOT_ASK,
    )


def _sub() -> Command:
    from ftstan.cli.words import client, sub  # noqa: PLC0415

    return Command(
        filled(_run("sub")),
        {
            client.EXIT_DONE: "--count messages came; or without a count, none came "
            "within --timeout",
            client.EXIT_NOT_ALL: "fewer than --count came in time",
            EXIT_USAGE: WRONG_WORDS,
            client.EXIT_CANNOT_ASK: "no connection, refused, or the session was lost for good",
            EXIT_INTERRUPTED: f"{INTERRUPTED}; the subscription is closed",
        },
        sub.configure,
        failed=client.EXIT_CANNOT_ASK,
    )


def _bench() -> Command:
    from ftstan.cli.words import bench, client  # noqa: PLC0415

    return Command(
        filled(_run("bench")),
        {
            client.EXIT_DONE: "everything was stored and delivered",
            client.EXIT_NOT_ALL: "a message was refused, or did not come in time",
            EXIT_USAGE: WRONG_WORDS,
            client.EXIT_CANNOT_ASK: "no connection, a client was refused, or a connection was lost",
            EXIT_INTERRUPTED: f"{INTERRUPTED}; the sessions are closed",
        },
        bench.configure,
        failed=client.EXIT_CANNOT_ASK,
    )


def _bridge() -> Command:
    from ftstan.cli.words import bridge  # noqa: PLC0415

    return Command(
        filled(_run("bridge")),
        {
            bridge.EXIT_DONE: "done",
            bridge.EXIT_STOPPED: "a channel was stopped, is not level, or differs",
            EXIT_USAGE: WRONG_WORDS,
            bridge.EXIT_CANNOT: "could not be carried out; nothing was written",
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        bridge.configure,
        failed=bridge.EXIT_CANNOT,
    )


def _drill() -> Command:
    from ftstan.cli.words import drill  # noqa: PLC0415

    return Command(
        refusing(_run("drill")),
        {
            drill.EXIT_PASSED: "every promise was kept",
            drill.EXIT_FAILED: "one was broken, or what the scenario expects did not happen",
            EXIT_USAGE: "wrong words, or a wrong scenario",
            drill.EXIT_CANNOT: "it could not be carried out",
            EXIT_INTERRUPTED: f"{INTERRUPTED}; nothing is left running",
        },
        drill.configure,
        failed=drill.EXIT_CANNOT,
    )


def _context() -> Command:
    from ftstan.cli import context  # noqa: PLC0415

    return Command(
        context.run,
        {
            EXIT_OK: "done",
            EXIT_ERROR: "no such context, or it cannot be read or written",
            EXIT_USAGE: WRONG_WORDS,
        },
        context.configure,
    )


def _systemd_dropin() -> Command:
    from ftstan.cli import dropin  # noqa: PLC0415

    return Command(
        dropin.run,
        {
            EXIT_OK: "done, or nothing to do",
            EXIT_ERROR: "could not be read or written",
            EXIT_USAGE: WRONG_WORDS,
        },
        dropin.configure,
    )


def _explain() -> Command:
    from ftstan.cli import explain  # noqa: PLC0415

    return Command(
        explain.run,
        {
            EXIT_OK: "done",
            EXIT_ERROR: "no such code",
            EXIT_USAGE: WRONG_WORDS,
        },
        explain.configure,
    )


COMMANDS = {
    "version": Entry(
        "print which ftstan this is and which release it stands in for",
        _version,
        ("version", "version --output json"),
    ),
    "explain": Entry(
        "say what to do about a code at the end of a log line",
        _explain,
        ("explain FTS-2104", "explain 'ft: epoch 7 was superseded by another'"),
    ),
    "store": Entry(
        "look at a datastore, repair it, hand it over",
        _store,
        ("store ls /nss/orders", "store verify /nss/orders --channel orders"),
    ),
    "check-store": Entry(
        "find out whether a directory can carry a group's datastore",
        _check_store,
        ("check-store /nss", "check-store /nss --peer --output json"),
    ),
    "ft": Entry(
        "look at a fault-tolerant group and steer it",
        _ft,
        ("ft status --group orders", "ft history --group orders --count 5"),
    ),
    "cluster": Entry(
        "look at a replicated cluster and steer it",
        _cluster,
        ("cluster status", "cluster stepdown --to b --dir /data/stan"),
    ),
    "pub": Entry(
        "publish messages",
        _pub,
        ("pub orders 'first message'", "pub orders --lines --server nats://host1:4222"),
    ),
    "sub": Entry(
        "print the messages of a channel",
        _sub,
        ("sub orders --first --count 10", "sub orders --durable audit --client-id auditor"),
    ),
    "bench": Entry(
        "measure how fast messages are stored and delivered",
        _bench,
        ("bench load --pub 1 --count 10000", "bench load --pub 2 --sub 2 --size 512"),
    ),
    "bridge": Entry(
        "mirror channels into JetStream streams while the server serves",
        _bridge,
        ("bridge run --channel orders --dir /nss/orders", "bridge status --output json"),
    ),
    "drill": Entry(
        "rehearse failures of a group under load, and judge what came of them",
        _drill,
        ("drill --judge run1", "drill --judge run1 --output json"),
    ),
    "channel": Entry(
        "list channels and their readers, make and delete them",
        partial(_admin, "channel"),
        ("channel report", "channel purge orders --keep 1000 --yes"),
    ),
    "client": Entry(
        "list clients, close them",
        partial(_admin, "client"),
        ("client ls", "client info auditor --output json"),
    ),
    "subscription": Entry(
        "list subscriptions: sub ls, sub info and sub report for short",
        partial(_admin, "subscription"),
        ("subscription report", "subscription ls --channel orders"),
    ),
    "server": Entry(
        "list servers, have them reload or leave",
        partial(_admin, "server"),
        ("server ls", "server reload host2 --dir /nss/orders"),
    ),
    "context": Entry(
        "name servers, logins and datastores",
        _context,
        ("context add prod --server nats://host1:4222 --cluster orders --select", "context ls"),
    ),
    "key": Entry(
        "show and replace the key that changes are sealed with; make nkeys of users",
        _key,
        ("key show --dir /nss/orders", "key rotate --grace 1h"),
    ),
    "systemd-dropin": Entry(
        "let the service's unit reach a datastore, spool or log elsewhere",
        _systemd_dropin,
        ("systemd-dropin", "systemd-dropin --unit ftstan@orders.service --write"),
    ),
    "completion": completing(lambda: PROGRAM),
}

PROGRAM: Program = Program(
    "ftstanctl", "Look at ftstan servers and their datastores, and steer them.", COMMANDS
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the words ``argv`` (default: those of the process) and return its exit
    status.
    """
    return PROGRAM.run(in_full(sys.argv[1:] if argv is None else argv))


def bridge(argv: Sequence[str] | None = None) -> int:
    """``ftstan-bridge``: ``ftstanctl bridge`` under a name of its own."""
    return main(["bridge", *(sys.argv[1:] if argv is None else argv)])


def in_full(words: Sequence[str]) -> list[str]:
    """The words with the short form of a command written out."""
    if len(words) > 1 and words[0] == "sub" and words[1] in SUBSCRIPTION_VERBS:
        # A channel of such a name is read with: ftstanctl sub -- ls.
        return ["subscription", *words[1:]]
    return list(words)


if __name__ == "__main__":
    sys.exit(main())
