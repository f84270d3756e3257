"""The result of a drill for programs: JSON, and JUnit XML for whatever runs drills as tests.

Pure.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from ftstan.drill.result import Result, Spread


def as_dict(result: Result) -> dict[str, object]:
    """The result for ``--output json``. Names of fields are kept from release to release."""
    verdict = result.verdict
    return {
        "name": result.name,
        "passed": result.passed,
        "began_us": result.began_us,
        "ended_us": result.ended_us,
        "directory": result.directory,
        "setting": asdict(result.setting) if result.setting is not None else None,
        "nodes": list(verdict.nodes),
        "published": verdict.published,
        "acked": verdict.acked,
        "retried": verdict.retried,
        "stored": verdict.stored,
        "stored_without_ack": verdict.stored_without_ack,
        "delivered": verdict.delivered,
        "redelivered": verdict.redelivered,
        "readings": verdict.readings,
        "rate": round(verdict.rate, 1),
        "takeovers": [
            {
                "epoch": x.epoch,
                "fault": x.fault,
                "former": x.former,
                "node": x.node,
                "active_ms": x.active_ms,
                "ack_ms": x.ack_ms,
            }
            for x in verdict.switches
            if x.former
        ],
        "outages": [
            {
                "t": x.t,
                "fault": x.fault,
                "node": x.node,
                "epoch": x.epoch,
                "ms": x.ms,
                "published": x.published._asdict(),
                "acked": x.acked._asdict(),
            }
            for x in verdict.outages
        ],
        "elsewhere_ms": verdict.elsewhere_ms,
        "unavailability_ms": [_spread(x) for x in result.spreads],
        "breaches": [
            {
                "rule": x.rule.name.lower(),
                "text": x.rule.value,
                "count": x.count,
                "examples": list(x.examples),
            }
            for x in verdict.breaches
        ],
        "failures": list(result.failures),
    }


def _spread(x: Spread) -> dict[str, object]:
    return {
        "fault": x.fault,
        "count": x.count,
        "min": x.least,
        "median": x.median,
        "p99": x.p99,
        "max": x.most,
    }


def junit(result: Result) -> str:
    """A test suite: one case for each fault, one for the promise, one for each expectation that was
    not met.
    """
    verdict = result.verdict
    failed = (
        bool(verdict.breaches) + len(result.failures) + sum(x.ms is None for x in verdict.outages)
    )
    suite = ET.Element(
        "testsuite",
        name=f"drill {result.name}",
        tests=str(1 + len(verdict.outages) + len(result.failures)),
        failures=str(failed),
        errors="0",
        time=f"{(result.ended_us - result.began_us) / 1e6:.3f}",
    )
    promise = _case(suite, result, "nothing that was acknowledged is lost, changed or doubled", 0.0)
    if verdict.breaches:
        lines = [f"{x.rule.value}: {x.count}: {'; '.join(x.examples)}" for x in verdict.breaches]
        ET.SubElement(promise, "failure", message=lines[0]).text = "\n".join(lines)
    for number, outage in enumerate(verdict.outages, 1):
        name = f"{number}. {outage.fault} of {outage.node}"
        case = _case(suite, result, name, (outage.ms or 0.0) / 1e3)
        if outage.ms is None:
            ET.SubElement(case, "failure", message="no ack came any more")
    for failure in result.failures:
        ET.SubElement(_case(suite, result, failure, 0.0), "failure", message=failure)
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, result: Result, name: str, seconds: float) -> ET.Element:
    return ET.SubElement(
        suite, "testcase", classname=f"drill.{result.name}", name=name, time=f"{seconds:.3f}"
    )
