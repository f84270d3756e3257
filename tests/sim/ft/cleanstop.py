"""What a clean stop leaves survives the power, and an original server that comes next finds all of it.

The second opinion on a group's files: the reader of ``tests/oracle`` shares no code with the product, trusts indexes as
the original does, and is given the volume as a power cut directly behind the stop leaves it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.oracle.gostore import GoRefuses, read_tree
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.model import ChannelModel, Violation

if TYPE_CHECKING:
    from tests.sim.ft.group import Group
    from tests.sim.ft.ledger import Generation


def judge_clean_stop(group: Group) -> None:
    """Raise ``Violation`` where v0.25.6 would refuse the store, change a file, or miss what somebody was told."""
    rng = group.rng
    tree = SimDisk(group.volume, Counter()).crash(rng, rng.choice(tuple(CrashMode))).tree("/")
    try:
        view = read_tree(tree)
    except GoRefuses as refusal:
        raise Violation(f"an original server refuses what a clean stop left: {refusal.text}") from refusal
    if view.tree != tree:
        changed = sorted(n for n in tree.keys() | view.tree.keys() if tree.get(n) != view.tree.get(n))
        raise Violation(f"an original server would repair {changed} behind a clean stop")
    for name, life in group.ledger.generations.items():
        seen = view.channels.get(name)
        found = dict.fromkeys(seen.messages, b"") if seen is not None else {}
        _judge(life, found, seen.last if seen is not None else 0, group.clock.wall_ns())
    group.met["clean stops read by an original"] += 1


def _judge(life: Generation, found: dict[int, bytes], last: int, now_ns: int) -> None:
    model = life.model
    first = min(found, default=last + 1)
    promised = {s: p for s, p in model.fixed.items() if s > life.purging or s >= first}
    view = ChannelModel(model.name, model.limits, model.stamps, fixed=promised)
    if missing := view.missing(found, last, now_ns):
        raise Violation(f"{model}: an original server does not find {missing} behind a clean stop")
