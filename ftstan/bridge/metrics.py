"""What a running bridge tells Prometheus, as a file for the textfile collector of node_exporter.

The file is replaced as a whole: whoever reads it never sees half of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError
from ftstan.bridge.mirror import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.bridge.mirror import Mirror

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


def rendered(mirrors: Sequence[Mirror]) -> str:
    """The measures of every channel, in the text format of Prometheus."""
    lines = []
    for name, kind, text, measure in _MEASURES:
        full = f"ftstan_bridge_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        lines += [
            f'{full}{{channel="{_label(m.channel)}",stream="{_label(m.stream)}"}} {measure(m)}'
            for m in mirrors
        ]
    return "\n".join(lines) + "\n"


def write(path: str, mirrors: Sequence[Mirror]) -> None:
    """Replace the file. Raises ``ConfigError``."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(rendered(mirrors))
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            hint="choose a --metrics-file in a writable directory",
        ) from error


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
