"""The driver of a cluster's node on the control thread: it starts the follower, serves when it is
elected, beats while it leads, and answers how far it is.

Beats come from here and not from the data plane, so that a leader that recovers is heard, too. They
stop when the data plane has waited too long for the log or for storage: somebody else may do
better.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from ftstan.base import log
from ftstan.base.errors import (
    FencedError,
    FtstanError,
    NatsError,
    RefusedError,
    StoppedError,
    StoreError,
)
from ftstan.base.states import Clustering, ClusterRole, NodeState
from ftstan.cluster.access import ClusterAccess
from ftstan.cluster.beats import decode_report
from ftstan.cluster.follower import REMOVED, Stage
from ftstan.cluster.log import LogLostError
from ftstan.cluster.members import OTHERS
from ftstan.cluster.names import beat_subject, copy_subject, question_subject
from ftstan.config.limits import Limits
from ftstan.nats import tasks
from ftstan.nats.clustered import has_own_account, jetstream_options, log_login

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.cluster.follower import Follower
    from ftstan.cluster.replica import Replica
    from ftstan.cluster.steward import Steward
    from ftstan.config.options import LinkOptions, StoreLimits
    from ftstan.nats.link import Link
    from ftstan.node.cluster_peers import ClusterPeers
    from ftstan.node.context import Context
    from ftstan.stores.interface import StoreAccess

_BEAT_S: Final = 0.1
_LOOK_S: Final = 2.0
#: A leader whose batch has waited for so long is silent, or for so long if copies of the log elect:
#: another node could append as little, and a change of leaders would come on top.
_QUIET_AFTER_S: Final = 3.0
_QUIET_UNLED_S: Final = 12.0
#: How long other nodes have to say that they follow, before this one steps down.
_ASK_S: Final = 0.5
PREVIEW: Final = "cluster: clustering is a preview in this version, see docs/clustering.md"
SHARED: Final = (
    "cluster: the log shares an account with other users: deny clients $JS.> and _FTSTAN.> "
    "(docs/clustering.md)"
)
_WITHIN_S: Final = 10.0
#: How long a leader that stops waits for the next one.
_FOLLOWED_S: Final = 2.0
_WHO_LEADS: Final = "ask the leader: ftstanctl cluster status names it"
_NODE_ID: Final = re.compile(r"[^\s.*>]{1,255}")
UNSYNCED: Final = (
    "cluster: -cluster_sync=false: a power cut of a majority can lose acknowledged messages"
)


def membership_subject(cluster_id: str, verb: str) -> str:
    """Where the original's leaders are asked to ``add`` or ``remove`` a node."""
    return f"_STAN.raft.{cluster_id}.node.{verb}"


class Life(Protocol):
    """What a leader does with its store."""

    async def serve(self) -> None:
        """Recover and open the server. Raises ``FtstanError``."""
        ...


class ClusterNode:
    """One node. ``urls``: where its connections go. ``peers``: what is known of the others."""

    def __init__(
        self,
        node: Context,
        life: Life,
        access: StoreAccess,
        urls: Sequence[str],
        peers: ClusterPeers,
    ) -> None:
        self.peers = peers
        assert isinstance(access, ClusterAccess)
        self._node = node
        self._life = life
        self._access = access
        self._urls = urls
        self._loop = asyncio.get_running_loop()
        self._follower: Follower | None = None
        self._tasks: list[asyncio.Task[None]] = []
        options = node.options
        self._control = node.control_class(
            urls, cluster_id=options.cluster_id, options=self._presented(), role="raft"
        )
        self._beats = beat_subject(options.cluster_id)
        self._question = question_subject(options.cluster_id)
        self._steward: Steward | None = None
        self._successor = ""
        """The node that is to lead after this one."""
        self._farewell: asyncio.Task[None] | None = None
        access.on_left = self._on_left
        self._followed = asyncio.Event()
        """Another node leads, while this one stops."""

    @property
    def node_id(self) -> str:
        """The id of this node."""
        return self._access.node_id

    @property
    def leads(self) -> bool:
        """Whether it leads, or is about to."""
        return self._follower is not None and self._follower.stage is Stage.LEADING

    @property
    def role(self) -> str:
        """As monitoring shows it."""
        if self._node.stopping.is_set():
            return ClusterRole.SHUTDOWN
        if self.leads:
            return ClusterRole.LEADER
        follows = self._follower is not None and self._follower.stage is Stage.FOLLOWING
        return ClusterRole.FOLLOWER if follows else ClusterRole.CANDIDATE

    @property
    def followed(self) -> Replica | None:
        """What there is to see of a node that follows; ``None`` for others."""
        follows = self._follower is not None and self._follower.stage is not Stage.LEADING
        return self._access.replica if follows else None

    @property
    def clustering(self) -> Clustering | None:
        """How far it is with the log, ``None`` before it has recovered."""
        follower = self._follower
        if follower is None:
            return None
        said = follower.report()
        trouble = said.trouble
        if not trouble and self._access.is_removed(self.node_id):
            trouble = REMOVED
        return Clustering(
            stage=follower.stage.value,
            leader=self._access.leader,
            read=said.sequence,
            stored=said.stored,
            seen=said.seen,
            trouble=trouble,
            members=self._access.members,
            copies=self._steward.copies if self._steward is not None else 0,
            epoch=said.epoch,
        )

    async def start(self) -> None:
        """Follow. Returns when the local store is recovered; the rest comes by itself.

        Raises ``FtstanError``.
        """
        node = self._node
        options = node.options
        log.stream.warning(PREVIEW)
        if not options.cluster.sync:
            log.stream.warning(UNSYNCED)
        if not has_own_account(options):
            log.stream.warning(SHARED)
        node.role = NodeState.CLUSTERED
        link = self._new_link("raft_log")
        await self._control.serve(self._question, self._on_question)
        await self._control.serve(
            copy_subject(options.cluster_id, self.node_id), self._on_copy_request
        )
        await self._control.start()
        log.stream.info("Recovering the state...")
        follower = self._follower = await node.call(
            lambda: self._access.follow(link, node.random_class(), self._elected)
        )
        log.stream.info(f"Cluster Node ID : {self.node_id}")
        log.stream.info(f"Cluster Log Path: {self._access.log_path}")
        peers = [peer for peer in options.cluster.peers if peer]
        if peers:
            log.stream.info("Cluster known peers:")
        for number, peer in enumerate(peers, 1):
            log.stream.info(f'   peer {number}: "{peer}"')
        await node.call(lambda: self._follow(follower))

    def _follow(self, follower: Follower) -> None:
        # A reload may have come while it recovered.
        self.set_limits(self._node.options.limits)
        self._node.plane.follower = follower

    def set_limits(self, limits: StoreLimits) -> None:
        """Other limits of the local store, on the data plane's thread."""
        if self._access.replica is not None:
            self._access.replica.set_limits(Limits(limits))

    def _elected(self) -> None:
        """On the data plane's thread: this node leads."""
        self._node.plane.follower = None
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._tasks.append(tasks.spawn(self._beat(), "beats", self._node.fail))
        self._tasks.append(tasks.spawn(self._lead(), "leader", self._node.fail))
        self._tasks.append(tasks.spawn(self._look_after(), "steward", self._node.fail))

    async def _lead(self) -> None:
        log.stream.info("server became leader, performing leader promotion actions")
        try:
            await self._life.serve()
        except StoppedError:
            return
        except FtstanError as error:
            log.stream.error(f"Error on leadership acquired: {error.text}")
            raise
        log.stream.info("finished leader promotion actions")

    async def _look_after(self) -> None:
        """See to it that the log is there, and led by another server, for as long as we lead."""
        node = self._node
        assert self._follower is not None
        link = self._new_link("raft_admin")
        steward = self._steward = self._access.steward(link, self._server_name())
        try:
            while not node.stopping.is_set():
                incarnation = self._follower.report().incarnation
                await asyncio.to_thread(steward.look, bytes.fromhex(incarnation))
                await asyncio.sleep(_LOOK_S)
        except LogLostError as error:
            node.die(error.text)
        finally:
            await asyncio.to_thread(steward.close)

    def _server_name(self) -> str:
        """Of the NATS server that lives and dies with this node; empty if there is none."""
        told = jetstream_options(self._node.options)
        return told.server_name if self._node.child is not None else ""

    def _new_link(self, role: str) -> Link:
        node = self._node
        return node.link_class(
            self._urls,
            name=f"_NSS-{node.options.cluster_id}-{role}",
            options=self._presented(),
            clock=node.clock,
        )

    def _presented(self) -> LinkOptions:
        """The login for the log."""
        user, password = log_login(self._node.options)
        if not user:
            return self._node.presented
        return replace(
            self._node.presented,
            user=user,
            password=password,
            token="",
            nkey_seed_file="",
            credentials="",
        )

    # ---- what others hear
    # ----------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            if self._is_well():
                await self._say(leaves=False)
            await asyncio.sleep(_BEAT_S)

    def _is_well(self) -> bool:
        serving = self._node.plane.serving
        since = serving.batch_since if serving is not None else None
        patience = _QUIET_UNLED_S if self._access.is_log_leaderless else _QUIET_AFTER_S
        late = since is not None and self._node.clock.mono() - since > patience
        return self._node.protection.may_beat and not late

    async def _say(self, *, leaves: bool) -> None:
        assert self._follower is not None
        to = self._successor if leaves else ""
        beat = replace(self._follower.report(), leaves=leaves, to=to)
        beat = replace(beat, time=self._node.clock.wall_ns())
        with contextlib.suppress(NatsError):
            await self._control.publish(self._beats, beat.encode())

    def _on_question(self, _data: bytes, reply: str) -> None:
        if self._follower is not None:
            self._tasks.append(tasks.spawn(self._answer(reply), "answer", self._node.fail))
            self._tasks = [task for task in self._tasks if not task.done()]

    def _on_copy_request(self, data: bytes, reply: str) -> None:
        if self._access.source is not None and not self._node.stopping.is_set():
            self._tasks.append(tasks.spawn(self._give(data, reply), "copy", self._node.fail))
            self._tasks = [task for task in self._tasks if not task.done()]

    async def _give(self, data: bytes, reply: str) -> None:
        source = self._access.source
        assert source is not None
        answer = await self._node.call(lambda: source.answer(data))
        with contextlib.suppress(NatsError):
            await self._control.publish(reply, answer)

    async def _answer(self, reply: str) -> None:
        assert self._follower is not None
        said = self._follower.report()
        if self._node.stopping.is_set() or not self._is_well():
            # Nobody should hold back for it.
            said = replace(said, leads=False)
        with contextlib.suppress(NatsError):
            await self._control.publish(reply, said.encode())

    # ---- what operators ask for
    # ----------------------------------------------------------------------------------------------

    async def step_down(self, to: str) -> str:
        """Let another node lead, ``to`` if it is not empty; returns which are ready for it.

        Ends this process with status 75: whoever starts it again makes it a follower. Raises
        ``RefusedError``: this node leads on.
        """
        self._check_leads()
        if to == self.node_id:
            raise RefusedError(
                f"node {to} leads already", hint="name another node, or none for any"
            )
        ready = await self._ready()
        if not ready:
            raise RefusedError(
                "no other node follows", hint="start one, and see ftstanctl cluster status"
            )
        if to and to not in ready:
            raise RefusedError(f"node {to} does not follow", hint=f"these do: {', '.join(ready)}")
        # Others may have asked meanwhile.
        self._check_leads()
        self._successor = to
        self._node.request_step_down(to)
        return to or ", ".join(ready)

    async def _ready(self) -> list[str]:
        """Ids of the nodes that could lead in place of this one."""
        assert self._follower is not None
        incarnation = self._follower.report().incarnation
        answers = await self._control.ask(self._question, b"", _ASK_S)
        reports = [said for answer in answers if (said := decode_report(answer)) is not None]
        return sorted(
            said.node
            for said in reports
            if said.incarnation == incarnation
            and said.node != self.node_id
            and not (said.trouble or self._access.is_removed(said.node))
        )

    def _check_leads(self) -> None:
        if self._node.stopping.is_set():
            raise RefusedError("this node is stopping already", hint=_WHO_LEADS)
        if not (self.leads and self._node.is_serving()):
            raise RefusedError("node is not the leader", hint=_WHO_LEADS)

    async def change_node(self, node: str, *, is_in: bool) -> None:
        """Add a node to the cluster, or remove it; this node ends if it is the one.

        ``OTHERS`` removes all nodes but this one, and those that nobody has heard of.

        Raises ``RefusedError`` and ``StoreError``.
        """
        self._check_leads()
        if not (_NODE_ID.fullmatch(node) or (node == OTHERS and not is_in)):
            raise RefusedError("invalid node ID", hint="no blanks, and none of . * >")
        if not is_in and node != OTHERS:
            await self._check_removable(node)
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self._node.call(lambda: self._access.change_node(node, is_in=is_in))
        except FencedError as error:
            self._node.fenced(error)
        except TimeoutError:
            raise StoreError(
                f"no majority has confirmed it within {_WITHIN_S:g} s: it may still be carried out",
                hint="see ftstanctl cluster status for who answers",
            ) from None
        if node == OTHERS:
            log.stream.info(f'Removed all nodes but "{self.node_id}"')
            return
        log.stream.info(f'{"Added" if is_in else "Removed"} node "{node}"')
        if node == self.node_id and not is_in:
            self._node.request_step_down("", status=0)

    async def _check_removable(self, node: str) -> None:
        """Raises ``RefusedError`` if nobody could lead without ``node``."""
        if not set(self._access.members) - {node}:
            raise RefusedError(
                f"node {node} is the last one of the cluster", hint="add another node first"
            )
        if node != self.node_id:
            return
        if not await self._ready():
            raise RefusedError(
                f"node {node} leads, and no other node follows",
                hint="start one, and see ftstanctl cluster status",
            )
        # Others may have asked meanwhile.
        self._check_leads()

    async def add(self, data: bytes) -> bytes:
        """Answer a request to add a node, in the original's words."""
        return await self._answer_change(data, is_in=True)

    async def remove(self, data: bytes) -> bytes:
        """Answer a request to remove a node, in the original's words."""
        return await self._answer_change(data, is_in=False)

    async def _answer_change(self, data: bytes, *, is_in: bool) -> bytes:
        node = data.decode("utf-8", "backslashreplace")
        if not is_in and node not in self._access.members:
            # Nobody is left of that name, as was asked: the original says so, too.
            return b"+OK"
        shown = json.dumps(node, ensure_ascii=False)
        try:
            await self.change_node(node, is_in=is_in)
        except FtstanError as error:
            if is_in:
                log.stream.error(f"Error adding node {shown}: {error.text}")
            else:
                log.stream.error(f"Error removing node {shown}: {error.text}")
            what = "adding" if is_in else "removing"
            return f"-ERR {what} node {shown}: {error.text}".encode()
        return b"+OK"

    # ---- stopping
    # ----------------------------------------------------------------------------------------------

    async def stopping(self) -> None:
        """Serve no more in a moment: beats end."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    async def stopped(self) -> None:
        """The store is closed: wait for the next leader, or note that there will be none."""
        if not self.leads:
            return
        if self._access.is_alone:
            self._access.note_last()
        else:
            await self._let_follow()
        if self._node.hands_over:
            log.stream.info("finished leader stepdown actions")

    def _on_left(self) -> None:
        """On the data plane's thread."""
        self._loop.call_soon_threadsafe(self._take_leave)

    def _take_leave(self) -> None:
        """Nothing more is appended: let another node lead, while this one closes its store."""
        if self._farewell is None and not self._access.is_alone:
            self._farewell = tasks.spawn(self._say_farewell(), "farewell", self._node.fail)

    async def _say_farewell(self) -> None:
        with contextlib.suppress(NatsError):
            await self._control.subscribe(self._beats, self._on_beat)
            await self._say(leaves=True)

    async def _let_follow(self) -> None:
        self._take_leave()
        with contextlib.suppress(TimeoutError):
            # Until then our NATS server stays: the next leader may be reading the log through it,
            # and would wait for an answer that does not come.
            async with asyncio.timeout(_FOLLOWED_S):
                await self._followed.wait()

    def _on_beat(self, _subject: str, data: bytes) -> None:
        said = decode_report(data)
        if said is not None and said.leads and said.node != self.node_id:
            self._followed.set()

    async def close(self) -> None:
        """End the connection."""
        for task in [*self._tasks, *([self._farewell] if self._farewell is not None else [])]:
            task.cancel()
        await self._control.close()
