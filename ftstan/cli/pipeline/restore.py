"""``ftstan-pipeline restore``: messages become an offline datastore, with their sequences and
timestamps.

Exit status: 0 restored, 1 messages are missing, damaged or have two contents, 2 wrong words, 3 not
carried out.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, DamageError, StoreError
from ftstan.base.sizes import size_of
from ftstan.cli.pipeline import running, selecting
from ftstan.cli.pipeline.running import EXIT_CLEAN, EXIT_FOUND
from ftstan.cli.pipeline.selecting import as_stored, option_of
from ftstan.cli.store_owner import owning
from ftstan.cli.terminal import complain, print_json, print_table, say
from ftstan.spark.keys import KEY_FILE_OPTION, NO_KEYS, KeySource
from ftstan.spark.places import holds_encrypted
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.tools.restoring import Restoring, find_account
from ftstan.stores.interface import ServerInfo
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

    from ftstan.spark.restore import Plan, RestoreOptions, RestoreReport
    from ftstan.spark.selection import Selection
    from ftstan.stores.file.tools.restoring import Account

_SLICE_BYTES = 64 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    selecting.add_places(parser)
    parser.add_argument(
        "--to",
        required=True,
        metavar="DIR",
        help="the datastore to make: a new or empty directory, or one to go on in",
    )
    parser.add_argument(
        "--cluster",
        required=True,
        metavar="ID",
        help="cluster id of the servers that will serve it",
    )
    selecting.add_messages(parser)
    parser.add_argument(
        "--to-plain",
        action="store_true",
        help="write what keys decrypt as plain payloads; without it, what keys are given for is "
        "encrypted again",
    )
    parser.add_argument(
        "--slice-bytes",
        type=running.size,
        default=_SLICE_BYTES,
        metavar="SIZE",
        help="size of a slice (default 64 MiB)",
    )
    parser.add_argument(
        "--slice-msgs", type=int, default=0, metavar="N", help="messages of a slice (default: any)"
    )
    parser.add_argument(
        "--allow-gaps", action="store_true", help="leave out what is missing or damaged"
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="do not read everything back in the end"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be restored, and write nothing"
    )
    running.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Restore; returns the exit status. Raises ``FtstanError``."""
    selection = selecting.selected(arguments)
    keys = KeySource.of(option_of(selection.options, KEY_FILE_OPTION))
    if arguments.to_plain and not keys:
        raise ConfigError(
            "--to-plain needs the keys that decrypt", hint="add --encryption-key-file FILE"
        )
    is_encrypted = False
    if keys:
        is_encrypted = not arguments.to_plain
    elif any(holds_encrypted(place) for place in selection.paths):
        # Nothing is decrypted: the payloads are kept as they are, and so is the mark.
        is_encrypted = True
        selection = as_stored(selection)
    _look(arguments.to)
    try:
        with running.sparking(arguments) as spark:
            return _restore(
                arguments,
                spark,
                selection,
                keys if is_encrypted else NO_KEYS,
                encrypted=is_encrypted,
            )
    except DamageError as error:
        return complain(error, EXIT_FOUND)


def _restore(
    arguments: argparse.Namespace,
    spark: SparkSession,
    selection: Selection,
    keys: KeySource,
    *,
    encrypted: bool,
) -> int:
    from ftstan.spark.restore import RestoreOptions, account_of, make_plan  # noqa: PLC0415  needs pyspark

    options = RestoreOptions(
        os.path.abspath(arguments.to),
        slice_bytes=arguments.slice_bytes,
        slice_msgs=arguments.slice_msgs,
        allow_gaps=arguments.allow_gaps,
        verify=not arguments.no_verify,
        keys=keys,
    )
    plan = make_plan(spark, selection, options)
    if arguments.dry_run:
        _say_plan(arguments, plan)
        return EXIT_CLEAN
    account = account_of(plan, _look(arguments.to), arguments.to)
    try:
        os.makedirs(options.directory, exist_ok=True)
        info = replace(_info(arguments.cluster), encrypted=encrypted)
        report = _write(arguments, spark, selection, options, account, info=info)
    except OSError as error:
        raise StoreError(
            f"{arguments.to}: {error.strerror or error}",
            hint="check the directory and the storage below it",
        ) from error
    _say(arguments, report)
    return EXIT_CLEAN


def _write(
    arguments: argparse.Namespace,
    spark: SparkSession,
    selection: Selection,
    options: RestoreOptions,
    account: Account,
    *,
    info: ServerInfo,
) -> RestoreReport:
    from ftstan.spark import restore  # noqa: PLC0415  needs pyspark

    with owning(options.directory) as (owner, _):
        crc = records.Crc()
        asking = owner.asking if owner.is_network else None
        env = FileEnv(
            LocalDisk(),
            owner.root,
            SystemClock(),
            FileStoreOptions(),
            owner,
            crc,
            asking,
            path=options.directory,
        )
        with running.metered(arguments, "restoring") as tell:
            return restore.run(
                spark,
                selection,
                options,
                Restoring(env, account),
                info=info,
                progress=tell,
            )


def _look(path: str) -> Account | None:
    """What an earlier restore left there.

    Raises ``StoreError`` if the directory holds anything else.
    """
    disk = LocalDisk()
    try:
        root = disk.open_dir(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}", hint="restore into a directory that is new or empty"
        ) from error
    try:
        return find_account(disk, root, path)
    finally:
        disk.close(root)


def _info(cluster: str) -> ServerInfo:
    subjects = Subjects.for_cluster(cluster)
    return ServerInfo(
        cluster,
        subjects.discovery,
        subjects.publish,
        subjects.subscribe,
        subjects.unsubscribe,
        subjects.close,
        subjects.sub_close,
        subjects.acks_subs,
    )


def _say_plan(arguments: argparse.Namespace, plan: Plan) -> None:
    rows: list[dict[str, Any]] = [
        {"channel": name, "messages": e.messages, "bytes": e.size, "first": e.first, "last": e.last}
        for name, e in plan.channels.items()
    ]
    if arguments.output == "json":
        print_json({"dry_run": True, "steps": len(plan.steps), "channels": rows})
        return
    numbers = ("messages", "bytes", "first", "last")
    print_table(
        ("channel", *numbers),
        [(r["channel"], r["messages"], size_of(r["bytes"]), r["first"], r["last"]) for r in rows],
        right=numbers,
    )
    say("nothing was written")


def _say(arguments: argparse.Namespace, report: RestoreReport) -> None:
    if arguments.output == "json":
        print_json(asdict(report))
        return
    numbers = ("messages", "first", "last")
    rows = [(name, *(row[n] for n in numbers)) for name, row in report.channels.items()]
    print_table(("channel", *numbers), rows, right=numbers)
    say(
        f"{report.messages} messages of {len(report.channels)} channels in {report.slices} slices, "
        f"{size_of(report.size)}: {report.directory}"
    )
    for name, ranges in report.missing.items():
        say(f"missing in {name}: {', '.join(f'{a} to {b}' for a, b in ranges)}")
