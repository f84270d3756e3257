"""What a running bridge tells Prometheus, as a file for the textfile collector of node_exporter.

The file is replaced as a whole: whoever reads it never sees half of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ftstan.base.errors import ConfigError
from ftstan.bridge.mirror import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.bridge.mirror import Mirror
    from ftstan.bridge.wayback import Inlet


class _Named(Protocol):
    @property
    def channel(self) -> str: ...

    @property
    def stream(self) -> str: ...


T = TypeVar("T", bound="_Named")

_MEASURES: Final[tuple[tuple[str, str, str, Callable[[Mirror], int]], ...]] = (
    ("acknowledged_sequence", "gauge", "Last sequence that JetStream has.", lambda m: m.acked),
    (
        "known_sequence",
        "gauge",
        "Last sequence of the channel that the bridge knows of.",
        lambda m: m.known,
    ),
    (
        "lag_messages",
        "gauge",
        "Sequences that the bridge knows of and JetStream does not have.",
        lambda m: m.known - m.acked,
    ),
    ("messages_total", "counter", "Messages that this run has mirrored.", lambda m: m.mirrored),
    (
        "resyncs_total",
        "counter",
        "How often the stream was asked how far it is.",
        lambda m: m.resyncs,
    ),
    (
        "stopped",
        "gauge",
        "1 if the channel cannot go on.",
        lambda m: int(m.stage is Stage.STOPPED),
    ),
)


#: The same of the way back.
_BACK: Final[tuple[tuple[str, str, str, Callable[[Inlet], int]], ...]] = (
    (
        "back_waiting_messages",
        "gauge",
        "Messages of new publishers that the channel does not have yet.",
        lambda i: i.waiting,
    ),
    (
        "back_messages_total",
        "counter",
        "Messages of new publishers that this run has published to the channel.",
        lambda i: i.published,
    ),
    (
        "back_copies_total",
        "counter",
        "Messages that were not published to the channel because a bridge had made them.",
        lambda i: i.copies,
    ),
    (
        "back_stopped",
        "gauge",
        "1 if the way back of the channel cannot go on.",
        lambda i: int(i.error is not None),
    ),
)

#: Every series that a bridge can write.
SERIES: Final = tuple(f"ftstan_bridge_{row[0]}" for row in (*_MEASURES, *_BACK))


def rendered(mirrors: Sequence[Mirror], inlets: Sequence[Inlet] = ()) -> str:
    """The measures of every channel, in the text format of Prometheus."""
    lines = _lines(_MEASURES, mirrors)
    if inlets:
        lines += _lines(_BACK, inlets)
    return "\n".join(lines) + "\n"


def _lines(
    measures: Sequence[tuple[str, str, str, Callable[[T], int]]], channels: Sequence[T]
) -> list[str]:
    lines = []
    for name, kind, text, measure in measures:
        full = f"ftstan_bridge_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        lines += [
            f'{full}{{channel="{_label(m.channel)}",stream="{_label(m.stream)}"}} {measure(m)}'
            for m in channels
        ]
    return lines


def write(path: str, mirrors: Sequence[Mirror], inlets: Sequence[Inlet] = ()) -> None:
    """Replace the file. Raises ``ConfigError``."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(rendered(mirrors, inlets))
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            hint="choose a --metrics-file in a writable directory",
        ) from error


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
