"""``ftstanctl``: the operator's command. Each sub-command is a module of its own; this one reads the words.

Whatever goes wrong ends as one line and its hint, never as a traceback.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ftstan.cli import (
    admin,
    admin_client,
    bench,
    check_store,
    client_options,
    context,
    drill,
    dropin,
    ft,
    pub,
    store,
    sub,
)
from ftstan.cli.program import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    INTERRUPTED,
    WRONG_WORDS,
    Command,
    Program,
    completing,
    filled,
    refusing,
)
from ftstan.cli.terminal import print_json, say
from ftstan.version import COMPATIBLE_VERSION, __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def version(arguments: argparse.Namespace) -> int:
    """Print which ftstan this is and which release it stands in for."""
    if arguments.output == "json":
        print_json({"version": __version__, "compatible_version": COMPATIBLE_VERSION})
    else:
        say(f"ftstan {__version__}, compatible with nats-streaming-server {COMPATIBLE_VERSION}")
    return EXIT_OK


def _version_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", choices=("text", "json"), default="text", help="default: text")


def _admin(text: str, noun: str) -> Command:
    return Command(
        text,
        admin.run,
        {
            admin_client.EXIT_DONE: "done",
            admin_client.EXIT_REFUSED: "refused; the reason is on standard error",
            admin_client.EXIT_UNSERVED: "nobody serves",
            admin_client.EXIT_CANNOT_ASK: "could not be asked or carried out, or wrong words",
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        admin.configure(noun),
        failed=admin_client.EXIT_CANNOT_ASK,
        usage=admin_client.EXIT_CANNOT_ASK,
    )


COMMANDS = {
    "version": Command(
        "print which ftstan this is and which release it stands in for",
        version,
        {EXIT_OK: "done", EXIT_USAGE: WRONG_WORDS},
        _version_words,
    ),
    "store": Command(
        "look at a datastore, repair it, hand it over",
        filled(store.run),
        {
            store.EXIT_CLEAN: "done; what was read is clean",
            store.EXIT_DAMAGE: "damage was found, and is still there",
            store.EXIT_FAILED: "could not be carried out, or wrong words",
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        store.configure,
        failed=store.EXIT_FAILED,
    ),
    "check-store": Command(
        "find out whether a directory can carry a group's datastore",
        check_store.run,
        {
            check_store.EXIT_SUITABLE: "suitable; --phase format and attack: done",
            check_store.EXIT_LIMITED: "suitable with limits",
            check_store.EXIT_UNSUITABLE: "unsuitable",
            check_store.EXIT_CANNOT_TELL: "could not be found out, or wrong words",
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        check_store.configure,
        failed=check_store.EXIT_CANNOT_TELL,
        # 2 says that the storage is unsuitable: a script with a wrong word must not believe that.
        usage=check_store.EXIT_CANNOT_TELL,
    ),
    "ft": Command(
        "look at a fault-tolerant group and steer it",
        ft.run,
        {
            admin_client.EXIT_DONE: "done; status: one member serves, and a standby could take over",
            admin_client.EXIT_REFUSED: "refused, and nothing has changed; status: degraded",
            admin_client.EXIT_UNSERVED: "nobody serves",
            admin_client.EXIT_CANNOT_ASK: "could not be asked or carried out, or wrong words",
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        ft.configure,
        failed=admin_client.EXIT_CANNOT_ASK,
        # 2 says that nobody serves: a script with a wrong word must not believe that.
        usage=admin_client.EXIT_CANNOT_ASK,
    ),
    "pub": Command(
        "publish messages",
        filled(pub.run),
        {
            client_options.EXIT_DONE: "every message is stored",
            client_options.EXIT_NOT_ALL: "one was refused, or is not known to be stored",
            EXIT_USAGE: WRONG_WORDS,
            client_options.EXIT_CANNOT_ASK: "no connection",
            EXIT_INTERRUPTED: INTERRUPTED,
        },
        pub.configure,
        failed=client_options.EXIT_CANNOT_ASK,
    ),
    "sub": Command(
        "print the messages of a channel",
        filled(sub.run),
        {
            client_options.EXIT_DONE: "--count messages came; or without a count, none came within --timeout",
            client_options.EXIT_NOT_ALL: "fewer than --count came in time",
            EXIT_USAGE: WRONG_WORDS,
            client_options.EXIT_CANNOT_ASK: "no connection, refused, or the session was lost for good",
            EXIT_INTERRUPTED: f"{INTERRUPTED}; the subscription is closed",
        },
        sub.configure,
        failed=client_options.EXIT_CANNOT_ASK,
    ),
    "bench": Command(
        "measure how fast messages are stored and delivered",
        filled(bench.run),
        {
            client_options.EXIT_DONE: "everything was stored and delivered",
            client_options.EXIT_NOT_ALL: "a message was refused, or did not come in time",
            EXIT_USAGE: WRONG_WORDS,
            client_options.EXIT_CANNOT_ASK: "no connection, a client was refused, or a connection was lost",
            EXIT_INTERRUPTED: f"{INTERRUPTED}; the sessions are closed",
        },
        bench.configure,
        failed=client_options.EXIT_CANNOT_ASK,
    ),
    "drill": Command(
        "rehearse failures of a group under load, and judge what came of them",
        refusing(drill.run),
        {
            drill.EXIT_PASSED: "every promise was kept",
            drill.EXIT_FAILED: "one was broken, or what the scenario expects did not happen",
            drill.EXIT_USAGE: "wrong words, or a wrong scenario",
            drill.EXIT_CANNOT: "it could not be carried out",
            EXIT_INTERRUPTED: f"{INTERRUPTED}; nothing is left running",
        },
        drill.configure,
        failed=drill.EXIT_CANNOT,
    ),
    "channel": _admin("list channels, make and delete them", "channel"),
    "client": _admin("list clients, close them", "client"),
    "subscription": _admin("list subscriptions: sub ls and sub info for short", "subscription"),
    "server": _admin("list servers, have them reload or leave", "server"),
    "context": Command(
        "name servers, logins and datastores",
        context.run,
        {EXIT_OK: "done", EXIT_ERROR: "no such context, or it cannot be read or written", EXIT_USAGE: WRONG_WORDS},
        context.configure,
    ),
    "systemd-dropin": Command(
        "let the service's unit reach a datastore, spool or log elsewhere",
        dropin.run,
        {EXIT_OK: "done, or nothing to do", EXIT_ERROR: "could not be read or written", EXIT_USAGE: WRONG_WORDS},
        dropin.configure,
    ),
    "completion": completing(lambda: PROGRAM),
}

PROGRAM: Program = Program("ftstanctl", "Look at ftstan servers and their datastores, and steer them.", COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the words ``argv`` (default: those of the process) and return its exit status."""
    return PROGRAM.run(in_full(sys.argv[1:] if argv is None else argv))


def in_full(words: Sequence[str]) -> list[str]:
    """The words with the short form of a command written out."""
    if list(words[:2]) in (["sub", "ls"], ["sub", "info"]):
        # A channel of such a name is read with: ftstanctl sub -- ls.
        return ["subscription", *words[1:]]
    return list(words)


if __name__ == "__main__":
    sys.exit(main())
