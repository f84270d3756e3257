"""What arrives and cannot be carried out: counted, and told in one line for each kind of request,
at a falling rate.

Clients get their error on the wire, or silence; the line is for the operator who wonders who sends
such things (``docs/compat/protocol.md``, malformed requests). What it holds of a request is
bounded, whatever was sent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ftstan.base.log import stream as log
from ftstan.base.ratelimit import RateLimit

_SHOWN = 64
"""Characters of a client id, which may be anything, that are shown."""


@dataclass(slots=True)
class _Kind:
    total: int = 0
    since: int = 0
    client_id: bytes = b""
    reason: str = ""
    limit: RateLimit = field(default_factory=RateLimit)


class Malformed:
    """Counts of malformed messages, by kind of request. There are as many kinds as subjects."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self.refused: Counter[str] = Counter()
        """Well-formed publishes that were refused, by reason: their senders know why, and no line
        tells of them.
        """

    def note(self, kind: str, client_id: bytes, reason: str) -> None:
        """Count one; ``client_id`` is empty if nobody knows whose it is."""
        row = self._kinds.setdefault(kind, _Kind())
        if row.since == 0:
            row.client_id = client_id[:_SHOWN]
            row.reason = reason
        row.total += 1
        row.since += 1

    def tell(self, now: float) -> None:
        """Write what is due at ``now`` seconds: to be called once a second, so no line comes more
        often.
        """
        for kind, row in self._kinds.items():
            if row.since and row.limit.allow(now):
                whose = f"client {quoted(row.client_id)}" if row.client_id else "client unknown"
                log.warning(
                    f"malformed {kind}: {row.since} since the last such line, the first one: "
                    f"{whose}: {row.reason}"
                )
                row.since = 0

    @property
    def totals(self) -> dict[str, int]:
        """How many of each kind since the start."""
        return {kind: row.total for kind, row in self._kinds.items()}


def quoted(name: bytes) -> str:
    """A name in double quotes as the original prints it."""
    text = name.decode("utf-8", "surrogateescape")
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = []
    for ch in text:
        code = ord(ch)
        if ch in '"\\':
            out.append("\\" + ch)
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif ch.isprintable():
            out.append(ch)
        else:
            out.append({"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(ch, f"\\x{code:02x}"))
    return '"' + "".join(out) + '"'
