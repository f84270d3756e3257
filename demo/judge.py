"""The demo's view of the judge of drills: the promise alone, without what only a drill writes down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.drill import judge as drills
from ftstan.drill.judge import Verdict
from ftstan.promise import PROMISE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.drill.ledger import Record

__all__ = ["Verdict", "judge"]


def judge(records: Iterable[Record]) -> Verdict:
    """Judge the ledger made of ``records``, in any order, by the rules of ``docs/ledger.md`` (the verdict)."""
    return drills.judge(records, rules=PROMISE)
