"""The origin of a dead letter as commands show it (``docs/dead-letters.md``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftstan.wire.origin import parse_origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The columns behind those of a message.
HEADS = ("from", "from sequence", "not acknowledged by", "deliveries")
#: Those of them with numbers.
RIGHT = ("from sequence", "deliveries")


def origin_fields(reply: bytes) -> dict[str, Any] | None:
    """The origin that a reply field tells of; ``None`` for a message that is no dead letter."""
    origin = parse_origin(reply)
    if origin is None:
        return None
    return {
        "channel": _text(origin.channel),
        "sequence": origin.sequence,
        "durable": _text(origin.durable),
        "queue": _text(origin.queue),
        "client": _text(origin.client_id),
        "deliveries": origin.deliveries,
        "first_delivery": origin.first_ns,
        "reply": _text(origin.reply),
    }


def who(fields: dict[str, Any]) -> str:
    """Who did not acknowledge it."""
    for kind in ("durable", "queue", "client"):
        if fields[kind]:
            return f"{kind} {fields[kind]}"
    return "-"


def with_origins(
    heads: Sequence[str], lines: Iterable[Sequence[object]], rows: Sequence[dict[str, Any]]
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """A table of messages with columns for their origins, if one of ``rows`` has one.

    ``lines`` are the cells of ``rows``, which have an ``origin`` if they are dead letters.
    """
    cells = [tuple(line) for line in lines]
    if not any("origin" in row for row in rows):
        return tuple(heads), cells
    full = [(*line, *_cells(row.get("origin"))) for line, row in zip(cells, rows, strict=True)]
    return (*heads, *HEADS), full


def _cells(fields: dict[str, Any] | None) -> tuple[object, ...]:
    if fields is None:
        return ("-",) * len(HEADS)
    return (fields["channel"], fields["sequence"], who(fields), fields["deliveries"])


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
