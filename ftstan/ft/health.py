"""What the answers of a group's members mean: is it healthy, and who could take over?

Pure functions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ftstan.base.errors import RefusedError
from ftstan.base.states import NodeState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.base.states import NodeStatus


class Judged(Protocol):
    """What a verdict needs of a member: a ``NodeStatus``, or what an owner tells of one."""

    @property
    def server(self) -> str:
        """Its server id."""
        ...

    @property
    def called(self) -> str:
        """What operators call it."""
        ...

    @property
    def phase(self) -> str:
        """What it is doing."""
        ...

    @property
    def serving(self) -> bool:
        """Whether it answers clients."""
        ...

    @property
    def owns_store(self) -> bool:
        """Whether it is the one that serves, or will when it has recovered."""
        ...

    @property
    def can_take_over(self) -> bool:
        """Whether it is a standby that nothing holds back."""
        ...

    @property
    def store_id(self) -> str:
        """Its datastore's id; empty if nobody says."""
        ...


class Health(enum.IntEnum):
    """How well a group is. The values are the exit statuses of ``ftstanctl ft status``."""

    HEALTHY = 0
    DEGRADED = 1
    UNSERVED = 2


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """``problems``: one line each, the gravest first."""

    health: Health
    problems: tuple[str, ...]


def judge(nodes: Sequence[Judged], expect: int = 0) -> GroupVerdict:
    """Judge a group by the members that answered.

    ``expect``: how many there should be, 0 if nobody says.
    """
    owners = [node for node in nodes if node.owns_store]
    serving = [node for node in owners if node.serving]
    problems: list[str] = []
    if not nodes:
        problems.append("no member answered")
    elif not serving:
        problems.append(
            "nobody serves" + "".join(f"; {name(node)} is {node.phase}" for node in owners)
        )
    if len(serving) > 1:
        problems.append(
            f"{len(serving)} members say that they serve: {', '.join(name(n) for n in serving)}"
        )
    standbys = [node for node in nodes if node.can_take_over]
    if serving and not standbys:
        problems.append("no standby could take over")
    problems += [
        f"{name(node)} is {node.phase}"
        for node in nodes
        if node not in owners and node not in standbys
    ]
    ids = sorted({node.store_id for node in nodes if node.store_id})
    if len(ids) > 1:
        problems.append(
            f"members have different datastores: {', '.join(store[:8] for store in ids)}"
        )
    if nodes and len(nodes) < expect:
        problems.append(f"{len(nodes)} of {expect} members answered")
    if not serving:
        return GroupVerdict(Health.UNSERVED, tuple(problems))
    return GroupVerdict(Health.DEGRADED if problems else Health.HEALTHY, tuple(problems))


def silent_holder(nodes: Sequence[NodeStatus]) -> str:
    """Who took the datastore last, as the members know, if that one is none of them; else empty.

    It is frozen, or has ended without a successor.
    """
    newest = max(nodes, key=lambda node: node.holder_epoch, default=None)
    if newest is None or not newest.holder_epoch:
        return ""
    if any(node.owns_store and node.epoch == newest.holder_epoch for node in nodes):
        return ""
    return newest.holder


def find_active(nodes: Sequence[NodeStatus]) -> NodeStatus | None:
    """The member that serves; of several, the one with the highest epoch."""
    return max(
        (n for n in nodes if n.is_ft_active),
        key=lambda n: n.epoch,
        default=None,
    )


def find_node(nodes: Sequence[NodeStatus], word: str) -> NodeStatus:
    """The member that ``word`` names: its name, its server id or the beginning of it, or its host.

    Raises ``RefusedError``.
    """
    found = [n for n in nodes if word and n.name == word]
    found = found or [n for n in nodes if n.server == word]
    found = found or [n for n in nodes if word and n.server.startswith(word)]
    found = found or [n for n in nodes if n.host == word]
    if len(found) == 1:
        return found[0]
    known = ", ".join(name(node) for node in nodes) or "nobody"
    if found:
        raise RefusedError(
            f'"{word}" means {len(found)} members: {", ".join(_in_full(n) for n in found)}',
            hint="name one by enough of its server id",
        )
    raise RefusedError(f'no member "{word}" answered', hint=f"these did: {known}")


def find_successor(nodes: Sequence[NodeStatus], active: NodeStatus, word: str) -> NodeStatus | None:
    """Who is to follow ``active``: the standby that ``word`` names, ``None`` (any) without a word.

    Raises ``RefusedError``: nobody could, or not that one.
    """
    if not word:
        if not any(node.can_take_over for node in nodes):
            raise RefusedError(
                "no standby could take over",
                hint="see ftstanctl ft status; start or resume a standby",
            )
        return None
    target = find_node(nodes, word)
    if target.server == active.server:
        raise RefusedError(
            f"{name(target)} is the active one already", hint="name a standby, or none for any"
        )
    if target.paused:
        raise RefusedError(
            f"{name(target)} is paused",
            hint=f"run ftstanctl ft resume {target.name or target.server} first",
        )
    if not target.can_take_over:
        raise RefusedError(
            f"{name(target)} cannot take over: it is {target.phase}",
            hint="see docs/ft.md for its state",
        )
    return target


def find_standby(nodes: Sequence[NodeStatus], word: str) -> NodeStatus:
    """The member that is to be paused or resumed; without a word the only standby.

    Raises ``RefusedError``.
    """
    if word:
        return find_node(nodes, word)
    standbys = [n for n in nodes if n.state == NodeState.STANDBY and not n.owns_store]
    if len(standbys) != 1:
        raise RefusedError(
            f"{len(standbys)} standbys answered: name one",
            hint=f"these answered: {', '.join(name(node) for node in standbys) or 'no standby'}",
        )
    return standbys[0]


def name(node: Judged) -> str:
    """A member's name as operators see it."""
    return node.called


def _in_full(node: NodeStatus) -> str:
    return f"{name(node)} (server {node.server})"
