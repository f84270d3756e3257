"""The archive script: what the server starts for every slice that its limits remove.

``-file_slice_archive_script`` names a program that gets three arguments: channel, data file, index
file. This is that program, either behind a wrapper that ``install_script`` writes, or as
``ftstan-archive-slice`` with the spool in ``FTSTAN_ARCHIVE_SPOOL``. It prints one line and ends
with 0 when the slice is durable in the spool, with 1 when nothing has changed (the server tries
again), with 2 when it was called wrongly. It never needs Spark, and never talks to the server.
"""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

from ftstan.base.errors import FtstanError
from ftstan.spark.archive import spool as spools
from ftstan.spark.installed import packaged

SPOOL_VARIABLE = "FTSTAN_ARCHIVE_SPOOL"

_WRAPPER = """\
#!/bin/sh
# Archive script of ftstan: moves each slice that the limits remove into the spool {shown}
# Server option: -file_slice_archive_script PATH_OF_THIS_FILE
exec {command} "$@"
"""


#: What a server starts, and what an operator does with a slice that was left behind.
_EXAMPLES = """\
examples:
  FTSTAN_ARCHIVE_SPOOL=/nss/spool ftstan -c stan.conf -file_slice_archive_script \
/usr/bin/ftstan-archive-slice
  ftstan-archive-slice --spool /nss/spool orders /nss/orders/orders/msgs.7.dat.bak \
/nss/orders/orders/msgs.7.idx.bak

exit status: 0: it is durable in the spool; 1: nothing has changed; 2: wrong words
"""


def parser() -> ArgumentParser:
    """The arguments: options of the wrapper, then the three of the server."""
    made = ArgumentParser(
        prog="ftstan-archive-slice",
        description="Move a slice that the server has removed into a spool, where the archive "
        "job finds it.",
        formatter_class=RawDescriptionHelpFormatter,
        epilog=_EXAMPLES,
    )
    made.add_argument(
        "--spool",
        default=os.environ.get(SPOOL_VARIABLE, ""),
        metavar="DIR",
        help=f"the spool (default: ${SPOOL_VARIABLE})",
    )
    made.add_argument(
        "--copy", action="store_true", help="copy the files even where they could be linked"
    )
    made.add_argument(
        "--crc-poly",
        type=lambda text: int(text, 0),
        default=spools.POLYNOMIAL,
        metavar="N",
        help="checksum polynomial of the store (default 0xEDB88320)",
    )
    made.add_argument("channel", metavar="CHANNEL")
    made.add_argument("dat", metavar="DAT", help="PATH/msgs.N.dat.bak")
    made.add_argument("idx", metavar="IDX", help="PATH/msgs.N.idx.bak")
    return made


def main(words: list[str] | None = None) -> int:
    """Take one slice; returns the exit status."""
    arguments = parser().parse_args(words)
    if not arguments.spool:
        print(f"no spool is named: set {SPOOL_VARIABLE} or give --spool DIR")
        return 2
    try:
        taken = spools.take(
            arguments.spool,
            arguments.channel,
            arguments.dat,
            arguments.idx,
            polynomial=arguments.crc_poly,
            copy=arguments.copy,
        )
    except FtstanError as error:
        print(f"{error}; {error.hint}")
        return 1
    print(_line(arguments.dat, taken))
    return 0


def _line(dat: str, taken: spools.Taken) -> str:
    if taken.manifest is None:
        return f"{dat} is not there any more: another call has taken it"
    m = taken.manifest
    did = "was there already" if taken.again else "taken"
    text = f"{did}: {taken.path}, {m.count} messages {m.first}..{m.last}, {m.size} bytes"
    if taken.others:
        text += f"; {taken.others} slice(s) of this number with other bytes are kept beside it"
    if m.problem:
        text += f"; {m.problem}"
    return text


def install_script(
    spool: str, path: str = "", *, copy: bool = False, polynomial: int = spools.POLYNOMIAL
) -> str:
    """Make the spool if there is none, and return the text of a script for
    ``-file_slice_archive_script``.

    With ``path`` it is also written there, executable. Raises ``ArchiveError``.
    """
    spool = os.path.abspath(spool)
    spools.create(spool)
    # -P: a file in the server's working directory must not be taken for a module. A package's
    # interpreter goes with its version, the command stays.
    run = (
        ["/usr/bin/ftstan-archive-slice"]
        if packaged()
        else [sys.executable, "-P", "-m", "ftstan.spark.archive.script"]
    )
    words = [*run, "--spool", spool]
    words += ["--copy"] if copy else []
    words += ["--crc-poly", hex(polynomial)] if polynomial != spools.POLYNOMIAL else []
    text = _WRAPPER.format(shown=spool.replace("\n", "?"), command=shlex.join([*words, "--"]))
    if path:
        try:
            temporary = f"{path}.tmp"
            spools.write_durably(temporary, text)
            os.chmod(temporary, 0o755)  # noqa: S103  # the server's user runs it, whoever wrote it
            os.replace(temporary, path)
        except OSError as error:
            raise spools.ArchiveError(
                f"archive script {path} cannot be written: {error.strerror}",
                hint="check the path and who may write there",
            ) from error
    return text


if __name__ == "__main__":
    sys.exit(main())
