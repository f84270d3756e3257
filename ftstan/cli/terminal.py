"""What operators see of ``ftstanctl``: tables, JSON, progress bars.

Decides nothing about the store.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import io
import json
import math
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from ftstan.base.codes import with_code
from ftstan.cli.origins import origin_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ftstan.base.errors import FtstanError

_WIDTH = 1000
"""Of tables: more than the longest line."""
#: Spaces at the end of a line, and among them the ends of styles that are kept.
_FILL = re.compile(r" *((?:\x1b\[0m)?) *$")

#: What the server calls a login or an address, and what these commands call it.
_FLAGS = tuple(
    (re.compile(rf"(?<![\w-]){theirs}(?![\w-])"), ours)
    for theirs, ours in (
        ("-ns", "--server"),
        ("-user", "--user"),
        ("-pass", "--pass"),
        ("-auth", "--auth"),
        ("nkey_seed_file or credentials", "--nkey or --creds"),
        ("nkey_seed_file", "--nkey"),
        ("credentials names", "--creds names"),
        ("user of this server", "user of this command"),
        (r"-secure, -tls_client_\* and tls://", "--tls... and tls://"),
        ("-?tls_client_cacert( or client_ca)?", "--tlsca"),
        ("as server_name", "with --tlsname"),
        ("tls_hostname", "--tlsname"),
        ("cafile of the SSLContext in tls", "--tlsca"),
        ("-?tls_client_cert", "--tlscert"),
        ("-?tls_client_key", "--tlskey"),
    )
)


def complain(error: FtstanError, status: int) -> int:
    """What went wrong and what to do, on standard error; returns ``status``.

    The line has its code, as in the log.
    """
    say(with_code(str(error)), file=sys.stderr)
    if error.hint:
        say(f"hint: {own_flags(error.hint)}", file=sys.stderr)
    return status


def own_flags(hint: str) -> str:
    """A hint of the server's with the flags of these commands in it."""
    for theirs, ours in _FLAGS:
        hint = theirs.sub(ours, hint)
    return hint


def say(*lines: str, file: TextIO | None = None) -> None:
    """Lines for people, on standard output unless ``file`` is another: what somebody else chose is
    harmless in them.
    """
    out = sys.stdout if file is None else file
    for line in lines or ("",):
        out.write(visible(line) + "\n")
    out.flush()


def print_json(value: object) -> None:
    """One line of JSON; bytes that are no UTF-8 come as escaped surrogates."""
    sys.stdout.write(json.dumps(value) + "\n")


class Styled(NamedTuple):
    """A cell of a table with its style on a terminal, in rich's words."""

    text: str
    style: str

    def __str__(self) -> str:
        return self.text


def say_styled(line: str, style: str) -> None:
    """A line that has a style on a terminal."""
    if not sys.stdout.isatty():
        say(line)
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    sys.stdout.flush()
    Console(highlight=False).print(Text(visible(line), style=style))


def print_table(
    heads: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """Columns under upper-case heads; those named in ``right`` are numbers.

    No cell is cut or broken: where lines are longer than a terminal, it breaks them itself.
    """
    # Late, as below: most of what commands say is no table.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, show_edge=False)
    for head in heads:
        table.add_column(head.upper(), justify="right" if head in right else "left", no_wrap=True)
    for row in rows:
        # Text, not markup: a channel may be called "[red]".
        table.add_row(
            *(
                Text(visible(str(cell)), style=cell.style if isinstance(cell, Styled) else "")
                for cell in row
            )
        )
    text = io.StringIO()
    terminal = sys.stdout.isatty()
    console = Console(file=text, width=_WIDTH, highlight=False, force_terminal=terminal)
    console.print(table)
    for line in text.getvalue().splitlines():
        # Columns are filled up with spaces; the last one's are nobody's, and would begin a line.
        sys.stdout.write(_FILL.sub(r"\1", line) + "\n")
    sys.stdout.flush()


class Status:
    """A line on standard error that is renewed while the block runs; only if that is a terminal."""

    def __init__(self, *, shown: bool) -> None:
        from rich.console import Console  # noqa: PLC0415

        self._shown = shown
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("") if shown and self._console.is_terminal else None

    def __enter__(self) -> None:
        if self._status is not None:
            self._status.start()

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


@contextlib.contextmanager
def progress(
    label: str, total: int, *, shown: bool, counted: bool = False
) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that the yielded function moves on.

    Nothing unless that is a terminal.

    It shows bytes, or with ``counted`` plain numbers.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = MofNCompleteColumn() if counted else DownloadColumn(binary_units=True)
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda size: bar.update(task, advance=size)


def message_row(
    channel: str, sequence: int, timestamp: int, *, subject: bytes, reply: bytes, data: bytes
) -> dict[str, Any]:
    """What is shown of a message; ``timestamp`` in nanoseconds."""
    origin = origin_fields(reply)
    return {
        "kind": "message",
        "channel": channel,
        "sequence": sequence,
        "timestamp": timestamp,
        "subject": text_of(subject),
        "reply": text_of(reply),
        "size": len(data),
        "data": base64.b64encode(data).decode(),
        **({} if origin is None else {"origin": origin}),
    }


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a record, bytes as text."""
    fields = ((name, getattr(value, name)) for name in value.__slots__)
    return {name: text_of(field) if isinstance(field, bytes) else field for name, field in fields}


def text_of(data: bytes) -> str:
    """Bytes of the wire as text, without loss."""
    return data.decode("utf-8", "surrogateescape")


def time_of(ns: int) -> str:
    """Nanoseconds since the Unix epoch as UTC; ``-`` for none."""
    if not ns:
        return "-"
    return dt.datetime.fromtimestamp(ns // 1_000_000_000, tz=dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(seconds: float | None) -> str:
    """How long ago something was, in the two largest units; ``-``: not known."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s ago"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min {whole % 60} s ago"
    hours = minutes // 60
    if hours < 24:
        return f"{hours} h {minutes % 60} min ago"
    return f"{hours // 24} d {hours % 24} h ago"


def visible(text: str) -> str:
    """Text whose control characters and undecodable bytes are escapes: a name must not steer the
    terminal.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
