"""The options of an audit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What to audit, and how strictly.

    ``channels`` (names) or ``pattern`` (a regular expression for whole names): these only; neither:
    all. ``ledger``: a directory with a ledger to judge as well; with places, its acked messages are
    looked for there too, in ``ledger_channel`` (not needed where the places have one channel).
    ``quiet_seconds``: times without acks are told from this length on. ``strict``: whatever was
    found fails the audit. ``most_findings``: so many are told one by one (all are counted).
    ``reading``: further options of ``stan``, such as ``allowUnconfirmed``.
    """

    channels: tuple[str, ...] = ()
    pattern: str = ""
    ledger: str = ""
    ledger_channel: str = ""
    quiet_seconds: float = 1.0
    strict: bool = False
    most_findings: int = 10_000
    reading: Mapping[str, str] = field(default_factory=dict)
