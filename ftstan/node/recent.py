"""What a node remembers of the last hour for its dashboard: rates, and since when its group is
as it is.

A ring of a few hundred points, one each ten seconds, on the control loop. The message path does
nothing for it: counters are read that are kept anyway, and channels are counted only while there
are few. Nothing is written down: another process begins anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ftstan.base.states import NodeState
from ftstan.cluster import health as cluster_health
from ftstan.ft.health import GroupVerdict, Health, judge, name
from ftstan.node.peers import SILENT_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.base.states import NodeStatus
    from ftstan.broker.views import CensusRow, Counters
    from ftstan.ft.digest import Member
    from ftstan.node.cluster_peers import SeenNode
    from ftstan.node.context import Context
    from ftstan.node.pipeline import Serving

STEP_S: Final = 10.0
_POINTS: Final = 360
#: A look at more channels than these would be felt by clients, if barely.
_COUNTED_CHANNELS: Final = 1000
_MILLI: Final = 1_000_000


class Point(NamedTuple):
    """Rates over the step that ended at ``t_ms`` (Unix milliseconds), and messages without ack.

    Messages a second in and out, the mean commit in milliseconds; ``None``: not known.
    """

    t_ms: int
    published: float
    delivered: float
    commit_ms: float | None
    pending: int | None


@dataclass(frozen=True, slots=True)
class _Counted:
    of: Serving
    at: float
    published: int
    delivered: int
    commits: int
    commit_s: float


class Counts(Protocol):
    """Who counts channels (``pages.Pages``)."""

    async def census(self) -> tuple[Counters, list[CensusRow]]:
        """Recent counters and figures of all channels."""
        ...


class Recent:
    """The last hour of ``node``."""

    def __init__(self, node: Context, counts: Counts) -> None:
        self._node = node
        self._counts = counts
        self._points: deque[Point] = deque(maxlen=_POINTS)
        self._last: _Counted | None = None
        self._health: Health | None = None
        self.quarantined = 0
        """Channels that are, as of the last look at all of them."""
        self._since_ms = 0

    async def keep(self) -> None:
        """Take a point each step, and look how the group is, until cancelled."""
        while True:
            await self.take()
            await asyncio.sleep(STEP_S)

    def points(self, since_ms: int = 0) -> list[Point]:
        """The points behind ``since_ms``, oldest first."""
        return [point for point in self._points if point.t_ms > since_ms]

    async def take(self) -> None:
        """One step: a point if this node served throughout, and a look at the group."""
        self.judged(self._node.status.now())
        now = self._counted()
        last = self._last
        self._last = now
        if now is None or last is None or last.of is not now.of or now.at <= last.at:
            return
        pending = None
        if len(now.of.broker.channels) <= _COUNTED_CHANNELS:
            _, rows = await self._counts.census()
            pending = sum(row.pending for row in rows)
        seconds = now.at - last.at
        commits = now.commits - last.commits
        self._points.append(
            Point(
                self._node.clock.wall_ns() // _MILLI,
                round((now.published - last.published) / seconds, 1),
                round((now.delivered - last.delivered) / seconds, 1),
                round((now.commit_s - last.commit_s) / commits * 1e3, 3) if commits else None,
                pending,
            )
        )

    def _counted(self) -> _Counted | None:
        serving = self._node.plane.serving
        if serving is None:
            return None
        broker = serving.broker
        commits = serving.commits
        return _Counted(
            serving,
            self._node.clock.mono(),
            broker.in_msgs,
            broker.out_msgs,
            commits.cumulative()[-1] if commits is not None else 0,
            commits.sum if commits is not None else 0.0,
        )

    def judged(self, status: NodeStatus) -> dict[str, object]:
        """How the group is, as this node sees it, and since when it has seen it so."""
        group = self._node.group
        cluster = self._node.cluster
        if cluster is not None:
            cluster.peers.look()
            return self._told(status, *_judged_cluster(status, cluster.peers.known(status)))
        members = group.peers.members if group is not None else ()
        found = group_verdict(members) if group is not None else _alone(status)
        present = sum(member.silent_s <= SILENT_S for member in members)
        return self._told(status, found, len(members), present)

    def _told(
        self, status: NodeStatus, found: GroupVerdict, expected: int, present: int
    ) -> dict[str, object]:
        if found.health is not Health.UNSERVED:
            found = _with_problems(found, self._troubles(status))
        if found.health is not self._health:
            self._health = found.health
            self._since_ms = self._node.clock.wall_ns() // _MILLI
        return {
            "health": found.health.name.lower(),
            "problems": list(found.problems),
            "since_ms": self._since_ms,
            "expected": expected or 1,
            "present": present or 1,
        }

    def _troubles(self, status: NodeStatus) -> list[str]:
        """What is wrong at this node although it may serve."""
        found = []
        if status.storage_late:
            found.append("storage is late: no heartbeat is sent until it answers")
        if self.quarantined:
            verb = "s are" if self.quarantined > 1 else " is"
            found.append(f"{self.quarantined} channel{verb} quarantined")
        room = self._node.protection.room
        if room is not None and room.free_bytes * 20 < room.total_bytes:
            found.append(
                f"the datastore's file system has {room.free_bytes * 100 // room.total_bytes} % "
                "left"
            )
        return found


def group_verdict(members: Sequence[Member]) -> GroupVerdict:
    """``ftstan.ft.health.judge`` on those that answer, and a line for each that does not."""
    present = [member for member in members if member.silent_s <= SILENT_S]
    absent = [member for member in members if member.silent_s > SILENT_S]
    found = judge(present)
    return _with_problems(found, [f"{name(member)} does not answer" for member in absent])


def _judged_cluster(status: NodeStatus, nodes: Sequence[SeenNode]) -> tuple[GroupVerdict, int, int]:
    """The verdict, how many nodes there should be, and how many are."""
    present = [node.status for node in nodes if node.silent_s <= SILENT_S]
    members = cluster_health.members(present)
    if len(present) < 2:
        # Nobody was asked yet, or nobody answers: this node says what it knows.
        return cluster_health.judge_alone(status), len(members), 1
    return cluster_health.judge(present), max(len(members), len(present)), len(present)


def _alone(status: NodeStatus) -> GroupVerdict:
    if status.clustering is not None:
        return cluster_health.judge_alone(status)
    if status.serving and status.state == NodeState.STANDALONE:
        return GroupVerdict(Health.HEALTHY, ())
    return GroupVerdict(Health.UNSERVED, (f"this server is {status.activity}",))


def _with_problems(found: GroupVerdict, more: list[str]) -> GroupVerdict:
    if not more:
        return found
    return GroupVerdict(max(found.health, Health.DEGRADED), (*found.problems, *more))
