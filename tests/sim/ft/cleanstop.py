"""What a clean stop leaves survives the power, and an original server that comes next finds all of
it.

The second opinion on a group's files: the reader of ``tests/oracle`` shares no code with the
product, trusts indexes as the original does, and is given the volume as a power cut directly behind
the stop leaves it.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from tests.oracle.gostore import GoRefuses, read_tree
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.ft.ledger import published
from tests.sim.model import ChannelModel, Violation

if TYPE_CHECKING:
    from tests.oracle.goview import GoChannel, GoView, Tree
    from tests.sim.ft.group import Group
    from tests.sim.ft.ledger import Generation


def judge_clean_stop(group: Group) -> None:
    """Raise ``Violation`` where v0.25.6 would refuse the store, change a file, or miss what
    somebody was told.

    Also where it would find something else in the data than in the indexes, which it makes anew
    from the data if one is lost (``docs/compat/filestore.md``).
    """
    # Draws of its own: the history goes on as if nobody had looked.
    rng = Random(f"stop {group.seed} {group.ledger.top}")
    disk = SimDisk(group.volume, Counter())
    trees = [disk.tree("/")]
    survived = disk.crash(rng, rng.choice(tuple(CrashMode))).tree("/")
    trees += [survived] if survived != trees[0] else []
    for tree in trees:
        view = _read(tree)
        if view.tree != tree:
            changed = sorted(
                n for n in tree.keys() | view.tree.keys() if tree.get(n) != view.tree.get(n)
            )
            raise Violation(f"an original server would repair {changed} behind a clean stop")
        for name, life in group.ledger.generations.items():
            _judge(life, view.channels.get(name), group.clock.wall_ns())
        if tree is trees[0]:
            _judge_indexes(tree, view)
    group.met["clean stops read by an original"] += 1


def _judge_indexes(tree: Tree, view: GoView) -> None:
    anew = _read({name: data for name, data in tree.items() if not name.endswith(".idx")})
    for name, seen in view.channels.items():
        if (seen.msgs, seen.messages) != (anew.channels[name].msgs, anew.channels[name].messages):
            raise Violation(
                f"channel {name!r}: an index does not say what its data holds behind a clean stop"
            )


def _read(tree: Tree) -> GoView:
    try:
        return read_tree(tree)
    except GoRefuses as refusal:
        raise Violation(
            f"an original server refuses what a clean stop left: {refusal.text}"
        ) from refusal


def _judge(life: Generation, seen: GoChannel | None, now_ns: int) -> None:
    model = life.model
    found = {s: m.data for s, m in seen.messages.items()} if seen is not None else {}
    last = seen.last if seen is not None else 0
    if seen is not None and seen.msgs != len(found):
        raise Violation(
            f"{model}: an original server counts {seen.msgs} messages behind a clean stop, of "
            f"{len(found)}"
        )
    first = min(found, default=last + 1)
    promised = {s: p for s, p in model.fixed.items() if s > life.purging or s >= first}
    if wrong := [s for s, p in promised.items() if s in found and found[s] != published(p)]:
        raise Violation(
            f"{model}: an original server finds another content of {wrong} behind a clean stop"
        )
    view = ChannelModel(model.name, model.limits, model.stamps, fixed=promised)
    if missing := view.missing(dict.fromkeys(found, b""), last, now_ns):
        raise Violation(f"{model}: an original server does not find {missing} behind a clean stop")
