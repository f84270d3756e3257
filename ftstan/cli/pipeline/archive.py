"""``ftstan-pipeline archive`` and ``archive-script``: removed slices become files that anybody can
read.

Exit status: 0 everything that waited is archived, 1 something was left out or came with two
contents, 2 wrong words, 3 not carried out.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ftstan.base.sizes import size_of
from ftstan.cli.pipeline import running, selecting
from ftstan.cli.pipeline.running import EXIT_CLEAN
from ftstan.cli.terminal import print_json, say, visible
from ftstan.cli.words.client import number
from ftstan.spark import archive
from ftstan.spark.archive.report import FORMATS, PAYLOADS, ArchiveOptions

if TYPE_CHECKING:
    import argparse

    from ftstan.spark.archive import ArchiveReport

_DEFAULT = ArchiveOptions()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words of ``archive``."""
    parser.add_argument("spool", metavar="SPOOL", help="where the archive script puts slices")
    parser.add_argument(
        "table", metavar="ARCHIVE", help="the directory of the archive; made if it is not there"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="", help="of a new archive (default: delta)"
    )
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="NAME",
        help="this channel only; may be repeated",
    )
    # Not "cluster": that would be filled with the one that is connected to.
    parser.add_argument(
        "--cluster",
        dest="of_cluster",
        default=_DEFAULT.cluster,
        metavar="ID",
        help="whose slices, where a spool holds those of several",
    )
    parser.add_argument(
        "--file-size",
        type=running.size,
        default=_DEFAULT.target_file_bytes,
        metavar="SIZE",
        help=f"size of a file (default {size_of(_DEFAULT.target_file_bytes)})",
    )
    parser.add_argument(
        "--batch-size",
        type=running.size,
        default=_DEFAULT.batch_bytes,
        metavar="SIZE",
        help=f"bytes of slices that become one commit (default {size_of(_DEFAULT.batch_bytes)})",
    )
    parser.add_argument(
        "--compression-level",
        type=number,
        default=_DEFAULT.compression_level,
        metavar="N",
        help=f"of zstd (default {_DEFAULT.compression_level})",
    )
    parser.add_argument(
        "--partitions",
        type=number,
        default=0,
        metavar="N",
        help="parallel tasks of a batch (default: Spark's)",
    )
    parser.add_argument(
        "--payloads",
        choices=PAYLOADS,
        default="",
        help="what a new archive holds: payloads as clients sent them (default), or as they are "
        "stored",
    )
    selecting.add_keys(parser)
    parser.add_argument("--keep-slices", action="store_true", help="leave the slices in the spool")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be archived, and change nothing"
    )
    running.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Archive what waits; returns the exit status. Raises ``FtstanError``."""
    options = ArchiveOptions(
        format=arguments.format,
        target_file_bytes=arguments.file_size,
        batch_bytes=arguments.batch_size,
        channels=tuple(arguments.channel),
        cluster=arguments.of_cluster,
        keep_slices=arguments.keep_slices,
        dry_run=arguments.dry_run,
        compression_level=arguments.compression_level,
        partitions=arguments.partitions,
        payloads=arguments.payloads,
        key_file=arguments.encryption_key_file,
    )
    with (
        running.sparking(arguments, arguments.spool) as spark,
        running.metered(arguments, "archiving") as tell,
    ):
        report = archive.run(spark, arguments.spool, arguments.table, options, tell)
    _say(arguments, report)
    return report.status


def _say(arguments: argparse.Namespace, report: ArchiveReport) -> None:
    if arguments.output == "json":
        print_json(report.to_dict())
        return
    did = "would be archived" if report.dry_run else "archived"
    say(
        f"{report.slices} slices, {report.messages} messages {did}: {report.table} "
        f"({report.format})"
    )
    if report.files:
        say(f"{report.files} files, {size_of(report.bytes)}, {report.commits} commits")
    if report.duplicates:
        say(f"{report.duplicates} messages came more than once, with the same bytes")
    for note in report.notes:
        say(f"note: {note}")
    for failed in report.failed:
        say(f"left in the spool: {visible(failed.path)}: {failed.why}", file=sys.stderr)
    for conflict in report.conflicts:
        say(
            f"two contents: channel {visible(conflict.channel)}, {conflict.sequences} sequences "
            f"from {conflict.first} "
            f"to {conflict.last}",
            file=sys.stderr,
        )


# ---- the script
# --------------------------------------------------------------------------------------------------


def configure_script(parser: argparse.ArgumentParser) -> None:
    """Add the words of ``archive-script``."""
    parser.add_argument(
        "--spool", required=True, metavar="DIR", help="where slices go; made if it is not there"
    )
    parser.add_argument(
        "--write", default="", metavar="FILE", help="write the script there, executable"
    )
    parser.add_argument(
        "--copy", action="store_true", help="copy slices even where they could be linked"
    )
    parser.add_argument(
        "--crc-poly",
        type=lambda text: int(text, 0),
        default=0xEDB88320,
        metavar="N",
        help="the server's -file_crc_poly, if it is set",
    )
    running.add_output(parser)


def script(arguments: argparse.Namespace) -> int:
    """Print or write the script; returns the exit status. Raises ``ArchiveError``."""
    text = archive.install_script(
        arguments.spool, arguments.write, copy=arguments.copy, polynomial=arguments.crc_poly
    )
    if arguments.output == "json":
        print_json({"spool": arguments.spool, "path": arguments.write, "script": text})
    elif arguments.write:
        say(f"give it to the server: -file_slice_archive_script {arguments.write}")
    else:
        sys.stdout.write(text)
    return EXIT_CLEAN
