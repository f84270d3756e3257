"""Histories of groups of every shape, and how often each fault, late write and refusal was met in
them.

``REQUIRED`` names what a fair number of histories must have met at least once; a name that stays at
zero means that they prove nothing about it. Run as a module (``make soak-ft``) it goes on until it
is stopped or a promise is broken.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

from tests.sim import census
from tests.sim.ft.group import run_history
from tests.sim.ft.shapes import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_FAULTS = (
    "pause",
    "pause right before a call",
    "freeze",
    "machine paused with its clocks",
    "process killed",
    "host killed",
    "claimer killed right before a call",
    "claim left behind",
    "power cut",
    "power cut right before a call",
    "storage restarted",
    "slow storage",
    "EIO",
    "ENOSPC",
    "failed sync",
    "lost reply of open",
    "lost reply of link",
    "lock file unlinked",
    "lock lost",
    "generous lock service",
    "NATS cut",
    "forged heartbeat",
    "clean stop asked for",
    "switchover",
    "mixed group switched",
    "woken behind a recovery",
    "woken within a follower's call",
    "woken behind a follower's death",
    "woken behind a follower's upkeep",
    "pages of an owner behind a recovery",
    "frozen between two pages",
    "killed behind a torn batch",
    "a record late behind a recovery",
    "a record late behind two recoveries",
    "slow storage of a chosen successor",
    "a script started behind a follower",
    "the whole group stopped",
    "an original server serves",
    "an original server crashes",
)
_ENDS = ("killed", "stopped", "fenced", "failed")
_ZOMBIES = ("pwrite", "fsync", "fdatasync", "link", "rename", "unlink")
REQUIRED = (
    *(f"fault: {name}" for name in _FAULTS),
    *(f"ended: {name}" for name in _ENDS),
    *(f"zombie {name}" for name in _ZOMBIES),
    "two lock holders",
    "refused confirms",
    "activations lost",
    "answers after a successor's recovery",
    "late pages of former owners",
    "late pages of dead hosts",
    "late pages over files of the log",
    "pages written back",
    "stale reads",
    "stale sizes",
    "reads past a stale memory",
    "writes-interrupted",
    "data-torn",
    "data-reordered",
    "data-apart",
    "names-lost",
    "links-refused",
    "torn ends read around",
    "channels opened later",
    "clean stops read by an original",
    "deletions",
    "purges",
    "slices archived",
    "slices archived late",
    "archives judged",
    "acked messages",
    "acknowledgements kept",
    "publishes repeated",
    "publishes refused",
    "self-raises",
    "self-raises over a leftover claim",
    "stores taken without the lock",
    "hand-overs with publishes kept",
    "lost reply of open",
    "lost reply of link",
    "sync-dropped",
)


def run(seeds: Iterable[int]) -> Counter[str]:
    """The histories of ``seeds``. Raises ``Violation``."""
    met: Counter[str] = Counter()
    for seed in seeds:
        met += run_history(seed, shape_of(seed))
    return met


def table(met: Counter[str]) -> str:
    """How often each was met."""
    return census.table(met, REQUIRED)


if __name__ == "__main__":
    sys.exit(census.soak("groups", lambda seed: run([seed]), REQUIRED))
