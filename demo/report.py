"""A verdict as a table for people.

It must never decide anything: what is clean is the judge's word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ftstan.drill.judge import DrillVerdict
    from ftstan.drill.rules import Switch

_FAULTS = {"start": "first start", "kill": "kill -9", "stop": "SIGTERM", "switchover": "switchover"}
_RULER = "-" * 72


def switch_line(switch: Switch) -> str:
    """Return one takeover as one line."""
    way = f"{switch.former} -> {switch.node}" if switch.former else f"     {switch.node}"
    fault = _FAULTS.get(switch.fault, switch.fault)
    return (
        f"{fault:<12} {way:<8} active after {switch.active_ms:7.0f} ms   next ack after "
        f"{switch.ack_ms:7.0f} ms"
    )


def _lines_of_switches(verdict: DrillVerdict) -> Iterator[str]:
    """Each takeover, with the time without acks around the fault before it, and below what was
    published and acked around that.
    """
    faults = {outage.epoch: outage for outage in verdict.outages}
    for switch in verdict.switches:
        way = f"{switch.former} -> {switch.node}" if switch.former else f"     {switch.node}"
        fault = _FAULTS.get(switch.fault, switch.fault)
        outage = faults.get(switch.epoch - 1)
        ms = outage.ms if outage is not None else None
        without = f"   without acks {ms:7.0f} ms" if ms is not None else ""
        yield f"{fault:<12} {way:<8} active after {switch.active_ms:7.0f} ms{without}"
        if outage is not None:
            for what, n in (("published", outage.published), ("acked", outage.acked)):
                yield (
                    f"{'':<12} {what:<10}{n.before:>9,} before {n.during:>8,} during "
                    f"{n.after:>9,} after"
                )


def table(verdict: DrillVerdict, about: Sequence[tuple[str, str]] = ()) -> str:
    """Return the whole verdict as lines of text.

    ``about``: where and with what it was played.
    """
    rows = [
        *about,
        ("nodes", ", ".join(verdict.nodes)),
        ("takeovers", str(sum(bool(switch.former) for switch in verdict.switches))),
        *(("", line) for line in _lines_of_switches(verdict)),
        ("", "without acks: from the last ack before service stopped to the first"),
        ("", "one after; a switchover counts from the request that the server got"),
        ("", "before: since service was last back; during: until it is back again"),
        ("elsewhere", f"{verdict.elsewhere_ms:.0f} ms between two acks at most"),
        ("published", f"{verdict.published:,}"),
        ("acked", f"{verdict.acked:,}"),
        (
            "without ack",
            f"{verdict.published - verdict.acked:,}   (no loss: their publisher published again)",
        ),
        ("retried", f"{verdict.retried:,}   (published again under a new id)"),
        ("rate", f"{verdict.rate:,.0f} acks/s while a node served"),
        ("stored", f"{verdict.stored:,}"),
        (
            "stored without ack",
            f"{verdict.stored_without_ack:,}   (allowed: the ack was lost, not the message)",
        ),
        ("durable received", f"{verdict.delivered:,}   (redelivered: {verdict.redelivered:,})"),
        ("readings of the log", str(verdict.readings)),
        ("violations", str(sum(breach.count for breach in verdict.breaches))),
    ]
    lines = [_RULER, *(f"{name:<20}{value}" for name, value in rows)]
    for breach in verdict.breaches:
        lines.append(f"  {breach.rule.value}: {breach.count:,}")
        lines += [f"    {example}" for example in breach.examples]
    return "\n".join([*lines, _RULER])
