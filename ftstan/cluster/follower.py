"""A node that follows: it finds the log, fills its store from it, and wants to lead when the leader
is silent.

Runs on the data plane's thread, in turns that block for a moment at most. The order of a turn is
what keeps a healthy leader: everything that waits is read before silence is judged, a node that was
away or busy listens anew, and an entry of the log counts as a sign of life.

============  =====================================================================================
stage         what it does
============  =====================================================================================
``FORMING``   looks for the stream; makes it, if this node may found the cluster
``VERIFYING``  looks whether the log still has what this node has read of it
``COPYING``   fetches the store of another node, because the log begins behind its own, or channels
              of it are damaged
``FOLLOWING``  reads, applies, listens
``LEADING``   nothing: the node serves
============  =====================================================================================
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import FencedError, NatsError
from ftstan.base.log import stream as log
from ftstan.base.ratelimit import RateLimit
from ftstan.cluster.beats import Report, decode_report, report
from ftstan.cluster.copying import Copy, CopyError
from ftstan.cluster.entry import Position, follow
from ftstan.cluster.log import LogLostError, PurgedError
from ftstan.cluster.members import belongs
from ftstan.cluster.names import question_subject
from ftstan.cluster.replica import BehindError, HoleError
from ftstan.cluster.silence import Silence
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from ftstan.base.clock import Clock
    from ftstan.cluster.entry import Entry
    from ftstan.cluster.log import ReplicatedLog
    from ftstan.cluster.replica import Replica
    from ftstan.cluster.time import LeaderClock
    from ftstan.nats.jetstream import Answer

#: How often the log is read without a word from the leader.
_POLL_S: Final = 0.5
#: Before the next look at a copy of the stream that is behind the leader's word.
_BEHIND_S: Final = 0.02
_CONNECT_AGAIN_S: Final = 0.25
_FORM_AGAIN_S: Final = 0.5
_ASK_S: Final = 0.15
#: All founders must answer, on machines that are busy with their start.
_FOUND_S: Final = 1.0
_STAND_S: Final = 3.0
_CHECKPOINT_S: Final = 10.0
_TICK_S: Final = 1.0
#: Attempts of a node that may not found the cluster, half a second apart.
_JOINS: Final = 120
#: How long a log may lack what this node has read, while copies of it catch up.
_VERIFY_S: Final = 10.0
_HINT: Final = "see docs/clustering.md, A log that lost entries"
REMOVED: Final = "this node was removed from the cluster"
TWICE: Final = 'another server runs with the node id "{node}", too'


class Stage(enum.Enum):
    """What a node does with the log."""

    FORMING = "looking for the log"
    VERIFYING = "checking the log"
    COPYING = "copying the store of another node"
    FOLLOWING = "following"
    LEADING = "leading"


class Follower:
    """``elected()`` is called on this thread when this node leads from now on.

    ``time``: by which messages of the local store expire. ``founders``: ids of the nodes that found
    the cluster together, this one among them; empty for a node that only joins one.
    """

    def __init__(
        self,
        rlog: ReplicatedLog,
        replica: Replica,
        clock: Clock,
        rng: random.Random,
        *,
        cluster_id: str,
        node_id: str,
        founders: tuple[str, ...],
        elected: Callable[[], None],
        time: LeaderClock,
    ) -> None:
        self._log = rlog
        self._js = rlog.js
        self._replica = replica
        self._clock = clock
        self._question = question_subject(cluster_id)
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._founders = founders
        self._elected = elected
        self._time = time
        self._life = Nuid().next()
        self._silence = Silence(rng, clock.mono())
        self.stage = Stage.FORMING
        self.trouble = ""
        """Why this node does not follow, for people."""
        self._told = RateLimit()
        self._lost = RateLimit()
        self._target = 0
        self._next_read = 0.0
        self._next_connect = 0.0
        self._next_step = 0.0
        self._verify_by = 0.0
        self._next_tick = 0.0
        self._next_checkpoint = clock.mono() + _CHECKPOINT_S
        self._joins = 0
        self._holed = -1
        """Behind which entry a message was missing last."""
        self._more = False
        self._copy: Copy | None = None
        self._broke: set[str] = set()
        """Nodes whose copy broke off, since one of them was asked again last."""

    # ---- a station of the data plane
    # ----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The link's descriptor; -1 while there is none."""
        return -1 if self.stage is Stage.LEADING else self._js.link.fileno()

    @property
    def pending(self) -> bool:
        """Whether bytes wait of which ``poll`` says nothing."""
        return self.stage is not Stage.LEADING and self._js.link.pending

    def timeout(self) -> float:
        """Seconds until work is due even if nothing arrives."""
        if self.stage is Stage.LEADING:
            return 3600.0
        now = self._clock.mono()
        seconds = 0.0 if self._more else self._until_due(now)
        self._silence.look_at(now + seconds)
        return seconds

    def _until_due(self, now: float) -> float:
        due = min(self._next_tick, self._next_step)
        if self.stage is Stage.FOLLOWING:
            due = min(self._next_tick, self._next_read, self._silence.due)
        if self._copy is not None:
            due = now
        if not self._js.connected:
            due = self._next_connect
        return min(max(due - now, 0.0), _TICK_S)

    def turn(self, *, readable: bool) -> None:
        """Do what is due.

        Raises ``LogLostError`` and ``BehindError``: this node must not go on.
        """
        del readable
        if self.stage is Stage.LEADING:
            return
        now = self._clock.mono()
        self._silence.turn(now)
        try:
            if not self._js.connected:
                if now < self._next_connect:
                    return
                self._next_connect = now + _CONNECT_AGAIN_S
                self._log.connect()
                self._silence.heard(self._clock.mono())
            self._js.drain()
            match self.stage:
                case Stage.FORMING if now >= self._next_step:
                    self._next_step = now + _FORM_AGAIN_S
                    self._form()
                case Stage.VERIFYING if now >= self._next_step:
                    self._next_step = now + _FORM_AGAIN_S
                    self._verify(now)
                case Stage.COPYING if self._copy is not None or now >= self._next_step:
                    self._next_step = now + _FORM_AGAIN_S
                    self._fetch()
                case Stage.FOLLOWING:
                    self._follow(now)
        except PurgedError as error:
            self._begin_copy(error)
        except NatsError as error:
            # Who cannot hear must not judge.
            self._silence.heard(self._clock.mono())
            self._next_read = self._clock.mono() + _BEHIND_S
            self._more = False
            if self._lost.allow(now):
                log.warning(f"cluster: {error.text}")

    # ---- hearing
    # ----------------------------------------------------------------------------------------------

    def hear(self, data: bytes) -> None:
        """Take a beat of the leader."""
        beat = decode_report(data)
        at = self._log.at
        if beat is None or self._is_own(beat) or not beat.leads:
            return
        if self.stage is not Stage.FOLLOWING:
            return
        now = self._clock.mono()
        if beat.node == self._node_id:
            self._silence.heard(now)
            self._tell(TWICE.format(node=self._node_id))
            return
        if beat.incarnation != at.incarnation.hex():
            self._silence.heard(now)
            self._tell(f"node {beat.node} leads with another log than this node has read")
            return
        if beat.epoch < at.epoch:
            return
        if beat.leaves:
            self._target = max(self._target, beat.sequence)
            if beat.to in ("", self._node_id):
                self._silence.leaves(now)
            else:
                self._silence.yields(now)
            return
        self._silence.heard(now)
        self._time.hear(beat.time)
        self._target = max(self._target, beat.sequence)
        self._replica.hear(beat.sequence)

    def _is_own(self, said: Report) -> bool:
        return said.node == self._node_id and said.life in ("", self._life)

    def _tell(self, trouble: str) -> None:
        self.trouble = trouble
        if self._told.allow(self._clock.mono()):
            log.error(f"cluster: {trouble}; this node does not lead ({_HINT})")

    # ---- forming
    # ----------------------------------------------------------------------------------------------

    def _form(self) -> None:
        known = self._replica.at
        incarnation = self._log.find()
        if incarnation is None:
            if known.incarnation and not self._replica.seeds:
                raise LogLostError(
                    "the stream of this cluster is gone, and this node has data of it: somebody "
                    "deleted it",
                    hint=_HINT,
                )
            self._found()
            return
        if known.incarnation and known.incarnation != incarnation:
            if self._replica.seeds:
                raise LogLostError(
                    "this cluster has a log already, which was not made from this datastore",
                    hint="seed a cluster before its nodes are started, with empty directories on "
                    "all of them but one",
                )
            raise LogLostError(
                "the stream of this cluster was deleted and made again by somebody: it is not the "
                "log that this node has read",
                hint=_HINT,
            )
        at = known if known.incarnation else Position(incarnation)
        self._log.begin(at)
        self._replica.start_at(at, self._replica.seen)
        if not known.incarnation or self._replica.seeds:
            self._replica.seeds = False
            # From now on this node is one of this log's, and would not found another one.
            self._replica.checkpoint()
        self._check_again()

    def _found(self) -> None:
        """Make the stream, if this node may and nobody has data already."""
        if not self._founders:
            self._joins += 1
            if self._joins >= _JOINS:
                raise LogLostError(
                    f"failed to join Raft group {self._cluster_id}",
                    hint="start the nodes that found the cluster, with -cluster_peers",
                )
            return
        # One that founds alone hears its own answer, too: it waits for everybody's.
        most = len(self._founders) if len(self._founders) > 1 else 1 << 30
        reports = self._ask_others(_FOUND_S, most)
        for said in reports:
            if said.node == self._node_id:
                self._tell(TWICE.format(node=said.node))
                return
            if said.seeds and not self._replica.seeds:
                self.trouble = f"node {said.node} makes the log from its datastore"
                return
            if said.incarnation:
                self._tell(f"there is no log, and node {said.node} has data of one")
                return
        fresh = {said.node for said in reports} | {self._node_id}
        # All of them: one that is away may have data, and two emptied disks must not found a log
        # without it.
        if not fresh >= set(self._founders):
            return
        self._log.make(self._replica.at if self._replica.seeds else None)

    def _ask_others(self, seconds: float = _ASK_S, most: int = 1 << 30) -> list[Report]:
        """What other nodes say within so many seconds; ``most`` answers are enough."""
        answers: list[Answer] = self._js.ask(
            self._question, b"", seconds, lambda came: len(came) >= most
        )
        said = [decode_report(answer.payload) for answer in answers if not answer.status]
        return [one for one in said if one is not None and not self._is_own(one)]

    def _verify(self, now: float) -> None:
        if self._log.check():
            if self._replica.unsound:
                # The log has everything from its beginning.
                self._replica.empty(Position(self._log.at.incarnation), self._replica.seen)
            self.trouble = ""
            self.stage = Stage.FOLLOWING
            self._silence.heard(self._clock.mono())
            self._next_read = 0.0
            self._look_for_damage()
            return
        if now >= self._verify_by:
            self._tell(
                f"the log ends before entry {self._log.at.sequence}, which this node has read: it "
                "has lost entries that were acknowledged"
            )

    # ---- copying
    # ----------------------------------------------------------------------------------------------

    def _begin_copy(self, error: PurgedError) -> None:
        # What this node has stays until another one is there to be copied.
        log.warning(f"cluster: {error.text}: the store of another node is copied")
        self._want_copy(error.text)

    def _look_for_damage(self) -> None:
        """Copy what cannot be read here: a node that lacks messages must not lead."""
        damaged = sorted(self._replica.damaged)
        if not damaged:
            return
        names = ", ".join(f'"{name.decode("utf-8", "backslashreplace")}"' for name in damaged[:3])
        more = f" and {len(damaged) - 3} more" if damaged[3:] else ""
        text = f"channel {names}{more} is damaged on this node"
        log.error(f"cluster: {text}: it is copied from another one")
        self._want_copy(text)

    def _want_copy(self, trouble: str) -> None:
        self.stage = Stage.COPYING
        self.trouble = trouble
        self._copy = None
        self._more = False
        self._next_step = 0.0

    def _fetch(self) -> None:
        if self._copy is None:
            first = self._log.bounds().first
            if first <= self._log.at.sequence + 1 and not self._replica.damaged:
                # Somebody has put back what was missing.
                self._check_again()
                return
            node = self._choose(first)
            if not node:
                self._tell(f"{self.trouble.partition('; ')[0]}; no node answers that has it all")
                return
            log.info(f"cluster: copying the store of node {node}")
            self._copy = Copy(self._js, self._replica, self._cluster_id, node)
        copy = self._copy
        try:
            at = self._copied(copy)
        except CopyError as error:
            self._copy = None
            self._broke.add(copy.node)
            log.warning(f"cluster: the copy broke off: {error.text}")
            return
        except NatsError:
            self._copy = None
            raise
        if at is None:
            return
        self._copy = None
        self._broke.clear()
        log.info(
            f"cluster: the store of node {copy.node} was copied up to entry {at.sequence}, "
            f"{copy.messages} messages of it anew"
        )
        self._log.begin(at)
        self._check_again()

    def _check_again(self) -> None:
        self.stage = Stage.VERIFYING
        self._verify_by = self._clock.mono() + _VERIFY_S
        self._next_step = 0.0

    def _copied(self, copy: Copy) -> Position | None:
        try:
            return copy.step()
        finally:
            if self._replica.at.sequence < self._log.at.sequence:
                # From here on the store holds nothing for certain.
                self._log.begin(self._replica.at)

    def _choose(self, first: int) -> str:
        """A node whose store goes on where the log begins: rather none whose copy has just broken
        off, nor one of which messages were lost, nor the one that leads.
        """
        incarnation = self._log.at.incarnation.hex()
        complete = [
            said
            for said in self._ask_others()
            if said.incarnation == incarnation and said.sequence + 1 >= first and said.sequence
        ]
        if not complete:
            return ""
        broke = self._broke
        node = min(
            complete,
            key=lambda said: (said.node in broke, said.lacks, said.leads, -said.sequence),
        ).node
        if node in broke:
            # All of them: in turn from here on.
            broke.clear()
        return node

    # ---- following
    # ----------------------------------------------------------------------------------------------

    def _follow(self, now: float) -> None:
        if self._more or now >= self._next_read or self._target > self._log.at.sequence:
            self._read()
            if self._more or self.stage is not Stage.FOLLOWING:
                return
        now = self._clock.mono()
        if now >= self._next_tick:
            self._next_tick = now + _TICK_S
            self._upkeep(now)
            if self.stage is not Stage.FOLLOWING:
                return
        if self._silence.is_long(self._clock.mono()):
            self._js.drain()
            if self._silence.is_long(self._clock.mono()):
                self._stand()

    def _read(self) -> bool:
        """Read and apply some entries; whether there were any."""
        read = self._log.read()
        self._apply(read.entries)
        now = self._clock.mono()
        self._more = bool(read.entries) and self.stage is Stage.FOLLOWING
        self._next_read = now + _POLL_S
        if read.entries:
            self._silence.heard(now)
            if self._more and self._log.at.leader != self._node_id:
                # Whoever leads, this node follows; unless it is one with the same id.
                self.trouble = ""
        elif self._target > self._log.at.sequence:
            # This copy of the stream is behind: look again soon, not at once.
            self._next_read = now + _BEHIND_S
            self._target = 0
        return self._more

    def _apply(self, entries: list[tuple[Entry, Position]]) -> None:
        try:
            for entry, at in entries:
                self._replica.take(entry, at)
        except HoleError as error:
            if self._holed == self._log.at.sequence:
                # It was filled anew, and is as before: the log itself has the hole.
                raise LogLostError(error.text) from error
            self._holed = self._log.at.sequence
            log.error(f"cluster: {error.text}: it is thrown away, and filled again from the log")
            self._replica.doubt()
            self._log.begin(self._replica.at)
            self._check_again()
        except BehindError:
            if not self._replica.damaged:
                raise
            # Refused for that reason, whole or in part: the copy begins at another position.
            self._log.begin(self._replica.at)
            self._look_for_damage()

    def _upkeep(self, now: float) -> None:
        self._replica.store.tick(self._time.wall_ns())
        if now >= self._next_checkpoint and not self._replica.is_recorded:
            self._replica.checkpoint()
            self._next_checkpoint = self._clock.mono() + _CHECKPOINT_S
        self._look_for_damage()

    # ---- standing
    # ----------------------------------------------------------------------------------------------

    def _stand(self) -> None:
        """The leader is silent: lead, unless somebody says or shows otherwise."""
        replica = self._replica
        if not belongs(replica.nodes, self._node_id):
            # Not kept as trouble: it may be added again at any time.
            self._silence.heard(self._clock.mono())
            if self._told.allow(self._clock.mono()):
                log.warning(f"cluster: {REMOVED}: it follows, and does not lead")
            return
        reports = self._ask_others()
        while self._read():
            # Somebody still appends, or this node had not read to the end: it may be removed by it.
            if not self._silence.is_long(self._clock.mono()):
                return
        self._silence.heard(self._clock.mono())
        self._look_for_damage()
        if self.stage is not Stage.FOLLOWING:
            return
        at = self._log.at
        furthest = replica.seen
        who = "this node has heard of"
        for said in reports:
            if said.node == self._node_id:
                self._tell(TWICE.format(node=said.node))
                return
            if not said.incarnation:
                continue
            if said.incarnation != at.incarnation.hex():
                self._tell(f"node {said.node} has data of another log")
                return
            if said.leads and said.epoch >= at.epoch:
                return
            if said.sequence == at.sequence and said.crc != at.crc:
                self._tell(f"node {said.node} has read other entries than this node")
                return
            if said.seen > furthest:
                furthest = said.seen
                who = f"node {said.node} knows of"
        if at.sequence < furthest:
            self._tell(f"the log ends with entry {at.sequence}, and {who} entry {furthest}")
            return
        self.trouble = ""
        self._append_leader_record()

    def _append_leader_record(self) -> None:
        record = self._log.leader_record(self._node_id)
        before = self._log.at
        end = self._clock.mono() + _STAND_S
        while self._clock.mono() < end:
            try:
                if self._log.attempt(record):
                    break
            except FencedError:
                # Another node was faster, or the leader goes on.
                self._silence.heard(self._clock.mono())
                self._next_read = 0.0
                return
        else:
            self._silence.heard(self._clock.mono())
            return
        entry, at = follow(record, before.sequence + 1, before)
        self._replica.take(entry, at)
        self.stage = Stage.LEADING
        self._more = False
        self._replica.follows = False
        self._elected()

    def report(self) -> Report:
        """How far this node is; any thread may ask."""
        stage = self.stage
        # Before it has found the stream: a node with data must not be taken for one without.
        at = self._log.at if self._log.at.incarnation else self._replica.at
        said = report(
            *(self._node_id, at, self._replica.seen),
            leads=stage is Stage.LEADING,
        )
        trouble = self.trouble
        if not trouble and stage not in (Stage.FOLLOWING, Stage.LEADING):
            trouble = stage.value
        # Entries must not go because of a node that may lack a channel of what it has stored.
        is_sound = stage in (Stage.FOLLOWING, Stage.LEADING)
        stored = self._replica.stored if is_sound else 0
        seeds = self._replica.seeds
        lacks = bool(self._replica.lacking)
        said = replace(said, trouble=trouble, life=self._life, stored=stored)
        return replace(said, seeds=seeds, lacks=lacks)
