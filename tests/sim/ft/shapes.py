"""Kinds of groups that the histories run: options, limits and storage that together reach every
path of a takeover.
"""

from __future__ import annotations

from dataclasses import replace

from tests.sim.ft.group import Shape
from tests.sim.variants import CAREFUL, SMALL, TIGHT

LOCAL = Shape()
NETWORK = Shape(network=True)
SMALL_SLICES = Shape(network=True, options=SMALL.options)
LIMITS = Shape(options=TIGHT.options, limits=TIGHT.shape.limits, deletes=True)
NETWORK_LIMITS = replace(LIMITS, network=True)
CAREFULLY = Shape(options=CAREFUL.options, hard_links=False, deletes=True, channels=3)
MIXED = Shape(options=replace(SMALL.options, sync_index=True), mixed=True)
REPEATS = Shape(dedup=1000, channels=1)
NETWORK_REPEATS = replace(REPEATS, network=True, steal_after=3)
RAISING = Shape(options=SMALL.options, numbers=3, channels=1, steal_after=2)
FAILING = Shape(options=SMALL.options, failing=True, deletes=True)
NETWORK_FAILING = replace(FAILING, network=True, dedup=1000)
#: Kinds that have a script for what the limits remove: those of three members.
ARCHIVING = (LIMITS, NETWORK_LIMITS)
_SCRIPT = replace(LIMITS.options, slice_archive_script="script")
#: Where batches are larger than a page of a host's memory.
TORN = replace(NETWORK, large=True)
#: Kinds of which groups of four open no channel before they must.
LATER = (SMALL_SLICES, NETWORK_LIMITS, NETWORK_REPEATS, NETWORK_FAILING)
SHAPES = (
    LOCAL,
    NETWORK,
    SMALL_SLICES,
    LIMITS,
    NETWORK_LIMITS,
    CAREFULLY,
    MIXED,
    REPEATS,
    NETWORK_REPEATS,
    RAISING,
    FAILING,
    NETWORK_FAILING,
)


def shape_of(seed: int) -> Shape:
    """The shape of the history ``seed``: two to four members of each kind in turn."""
    kind = SHAPES[seed % len(SHAPES)]
    members = 2 + seed // len(SHAPES) % 3
    # Three: one that stands still, its successor, and who comes after that.
    kind = TORN if kind is NETWORK and members == 3 else kind
    kind = replace(kind, options=_SCRIPT) if kind in ARCHIVING and members == 3 else kind
    return replace(kind, members=members, later=members == 4 and kind in LATER)
