"""``ftstan-pipeline``: the commands, and what their exit statuses mean."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ftstan.cli.pipeline import archive, audit, query, read, replay, restore
from ftstan.cli.pipeline.running import EXIT_CLEAN, EXIT_FAILED, EXIT_FOUND
from ftstan.cli.program import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    INTERRUPTED,
    WRONG_WORDS,
    Command,
    Entry,
    Program,
    completing,
    filled,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

_NOT_DONE = "could not be carried out"


def _command(
    text: str,
    run: Callable[[argparse.Namespace], int],
    configure: Callable[[argparse.ArgumentParser], None],
    *,
    examples: tuple[str, str],
    done: str,
    found: str = "",
) -> Entry:
    """A command with the exit statuses that all of them have.

    ``found``: what 1 means, if it can be.
    """
    statuses = {EXIT_CLEAN: done} | ({EXIT_FOUND: found} if found else {})
    statuses |= {EXIT_USAGE: WRONG_WORDS, EXIT_FAILED: _NOT_DONE, EXIT_INTERRUPTED: INTERRUPTED}
    return Entry(
        text,
        lambda: Command(filled(run), statuses, configure, failed=EXIT_FAILED),
        examples,
    )


COMMANDS = {
    "read": _command(
        "show, count or export messages",
        read.run,
        read.configure,
        examples=(
            "read /nss/orders --count",
            "read /nss/orders --channel orders --since 36h --limit 5",
        ),
        done="done",
    ),
    "archive": _command(
        "archive the slices in a spool",
        archive.run,
        archive.configure,
        examples=(
            "archive /srv/spool /srv/archive",
            "archive /srv/spool /srv/archive --channel orders --dry-run",
        ),
        done="everything that waited is archived",
        found="a slice was left out, or a sequence came with two contents",
    ),
    "archive-script": _command(
        "print or write the script that gives slices to a spool",
        archive.script,
        archive.configure_script,
        examples=(
            "archive-script --spool /srv/spool",
            "archive-script --spool /srv/spool --write /srv/archive-slice",
        ),
        done="done",
    ),
    "audit": _command(
        "check that everything is there, once and undamaged",
        audit.run,
        audit.configure,
        examples=(
            "audit /nss/orders --html /srv/audit.html",
            "audit /nss/orders /srv/archive --strict",
        ),
        done="clean",
        found="something is wrong",
    ),
    "judge": _command(
        "judge the ledger of a demo or a drill",
        audit.judge,
        audit.configure_judge,
        examples=("judge demo/out/run1/ledger", "judge demo/out/run1/ledger --output json"),
        done="clean",
        found="a promise was broken",
    ),
    "query": _command(
        "ask a question that has a name, or SQL",
        query.run,
        query.configure,
        examples=(
            "query rate /nss/orders --bucket '5 minutes'",
            "query 'SELECT channel, max(size) FROM messages GROUP BY channel' /nss/orders",
        ),
        done="answered",
    ),
    "replay": _command(
        "publish messages again, to a running server",
        replay.run,
        replay.configure,
        examples=(
            "replay /nss/orders --channel orders --prefix again. --dry-run",
            "replay /srv/archive --same-channels --rate 2000 --checkpoint /srv/replay.json",
        ),
        done="everything is stored",
        found="a message was not stored, is damaged, or has two contents",
    ),
    "restore": _command(
        "make an offline datastore of messages, as they were",
        restore.run,
        restore.configure,
        examples=(
            "restore /nss/orders --to /srv/restored --cluster orders",
            "restore /srv/archive /srv/spool --to /srv/restored --cluster orders --dry-run",
        ),
        done="restored, and read back",
        found="messages are missing, damaged, or have two contents",
    ),
    "completion": completing(lambda: PROGRAM),
}

PROGRAM: Program = Program(
    "ftstan-pipeline",
    "The message log as data: look at it, archive it, audit it, bring it back. Runs on Spark.",
    COMMANDS,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the words ``argv`` (default: those of the process) and return its exit
    status.
    """
    return PROGRAM.run(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
