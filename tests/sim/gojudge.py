"""After a clean stop the original server must find the same store: the oracle's view against the
model's.

To be given to the histories as ``judge``; it says nothing about stores that were not stopped
cleanly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.oracle.goproto import decode
from tests.oracle.gostore import GoRefuses, read_tree
from tests.oracle.goview import MESSAGE_FIELDS, GoMessage
from tests.sim.history import STORE
from tests.sim.model import ChannelModel, Model, Violation

if TYPE_CHECKING:
    from tests.oracle.goview import GoChannel, GoSub
    from tests.sim.disk import SimDisk


def go_judge(disk: SimDisk, model: Model) -> None:
    """Raise ``Violation`` where v0.25.6 would refuse the store, change a file, or see anything else
    than the model.
    """
    tree = disk.tree(STORE)
    try:
        view = read_tree(tree, root=STORE)
    except GoRefuses as refusal:
        raise Violation(f"the original server refuses the store: {refusal.text}") from refusal
    if view.tree != tree:
        changed = sorted(
            n for n in tree.keys() | view.tree.keys() if tree.get(n) != view.tree.get(n)
        )
        raise Violation(f"the original server would repair {changed}")
    expected = sorted(model.live_clients())
    if sorted(view.clients) != expected:
        raise Violation(
            f"the original server sees the clients {sorted(view.clients)}, not {expected}"
        )
    for name, channel in model.channels.items():
        seen = view.channels.get(name)
        if seen is not None:
            _compare(channel, seen)
        elif channel.fixed or channel.live_subs():
            raise Violation(f"{channel}: the original server does not see it")


def _compare(channel: ChannelModel, seen: GoChannel) -> None:
    messages = {sequence: _message(payload) for sequence, payload in channel.fixed.items()}
    if not messages and channel.gone:
        # The format remembers the last sequence by its message, and by nothing else.
        messages = {max(channel.gone): _message(channel.gone[max(channel.gone)])}
    purged = max(channel.purged, channel.purging)
    if not channel.fixed and max(channel.gone, default=0) < seen.last <= purged:
        # A refused batch left it in the log, nobody saw it, and a purge took it, which may have
        # come true without an answer: it remembers the last sequence as well.
        left = seen.messages[seen.last]
        if left in map(_message, channel.offered.get(seen.last, ())):
            messages = {seen.last: left}
    if seen.messages != messages:
        wrong = sorted(
            s
            for s in messages.keys() | seen.messages.keys()
            if messages.get(s) != seen.messages.get(s)
        )
        raise Violation(f"{channel}: the original server delivers something else at {wrong}")
    bounds = (len(messages), min(messages, default=0), max(messages, default=0))
    if (seen.msgs, seen.first, seen.last) != bounds:
        raise Violation(
            f"{channel}: the original server counts {(seen.msgs, seen.first, seen.last)}, not "
            f"{bounds}"
        )
    live = channel.live_subs()
    if seen.subs.keys() != live.keys():
        raise Violation(
            f"{channel}: the original server sees subscriptions {sorted(seen.subs)}, not "
            f"{sorted(live)}"
        )
    for sub_id, state in live.items():
        sub = seen.subs[sub_id]
        ours = (state.client_id, state.inbox, state.ack_inbox, state.durable_name, state.is_closed)
        if _identity(sub) != ours:
            raise Violation(f"{channel}: the original server sees {_identity(sub)}, not {ours}")
        if sub.pending != channel.subs[sub_id].pending:
            pending = sorted(channel.subs[sub_id].pending)
            raise Violation(
                f"{channel}: subscription {sub_id} has {sorted(sub.pending)} pending, not {pending}"
            )


def _identity(sub: GoSub) -> tuple[bytes, bytes, bytes, bytes, bool]:
    return sub.client_id, sub.inbox, sub.ack_inbox, sub.durable_name, sub.is_closed


def _message(payload: bytes) -> GoMessage:
    v = decode(payload, MESSAGE_FIELDS)
    return GoMessage(v.num(1), v.num(5), v.blob(2), v.blob(3), v.blob(4))
