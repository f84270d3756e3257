"""The independent judge of a group: what was promised to anybody, by whichever node, and what each
later owner found.

- *acked means*: in every later owner's log, same sequence, same bytes (limits aside, which take
  from the front);
- *one (channel, sequence), one content*, over all that was ever delivered or acknowledged by
  anybody;
- a request that was answered (a subscription, a client, a deletion) holds for every later owner;
- no two activations have one number, and numbers only grow.

An owner's answer may come late, after its successor has recovered: then the successor must have
found it all the same. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.wire.pb import stan_pb2 as pb
from tests.sim.model import UNLIMITED, ChannelModel, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ftstan.stores.interface import ChannelLimits


@dataclass(slots=True)
class Requests:
    """Things that are made and removed by request: ``key`` is unique for ever, ``values`` what is
    stored.

    ``made`` and ``removed``: under which epoch that was answered first; ``leaving``: removals asked
    for, not answered. What was asked for and not answered stays open: until an owner has replaced
    the file, a former owner's record may still arrive in it, or go with the power, and nobody was
    told anything. ``all_may_leave``: an operator asked for the end of all of them.
    """

    what: str
    values: dict[bytes, object] = field(default_factory=dict)
    made: dict[bytes, int] = field(default_factory=dict)
    removed: dict[bytes, int] = field(default_factory=dict)
    leaving: set[bytes] = field(default_factory=set)
    all_may_leave: bool = False

    def judge(self, found: dict[bytes, object], epoch: int) -> None:
        """Compare with what the owner of ``epoch`` recovered."""
        for key, value in found.items():
            if self.values.get(key) != value:
                raise Violation(f"{self.what} {key!r}: {value} was never asked for")
            if self.removed.get(key, epoch) < epoch:
                raise Violation(
                    f"{self.what} {key!r}: gone under epoch {self.removed[key]}, back under {epoch}"
                )
        for key, by in self.made.items():
            if (
                by < epoch
                and key not in found
                and self._stays(key)
                and self.removed.get(key, epoch) >= epoch
            ):
                raise Violation(
                    f"{self.what} {key!r}: answered under epoch {by}, gone under {epoch}"
                )

    def _stays(self, key: bytes) -> bool:
        return key not in self.leaving and not self.all_may_leave

    def answer(self, made: Iterable[bytes], removed: Iterable[bytes], epoch: int) -> None:
        """The confirmed owner of ``epoch`` has answered."""
        for key in made:
            self.made.setdefault(key, epoch)
        for key in removed:
            self.removed[key] = min(epoch, self.removed.get(key, epoch))
            self.leaving.discard(key)

    def judge_late(
        self,
        found: dict[bytes, object],
        made: Iterable[bytes],
        removed: Iterable[bytes],
        epochs: tuple[int, int],
    ) -> None:
        """The owner of ``epochs[0]`` answers now.

        That of ``epochs[1]`` had recovered ``found`` before.
        """
        for key in made:
            if (
                key not in found
                and self._stays(key)
                and self.removed.get(key, epochs[1]) >= epochs[1]
            ):
                raise Violation(
                    f"{self.what} {key!r}: answered under epoch {epochs[0]}, gone under {epochs[1]}"
                )
        for key in removed:
            if key in found:
                raise Violation(
                    f"{self.what} {key!r}: removed under epoch {epochs[0]}, back under {epochs[1]}"
                )


@dataclass(slots=True)
class Generation:
    """One life of a channel, between its creation and its deletion.

    ``by``: epoch that first fixed each sequence.

    ``sent``: (subscription, sequence) pairs that any owner delivered. ``kept``: those whose
    acknowledgement an owner took and had a whole round of its upkeep for, and under which epoch.
    ``purging`` and ``purged``: up to where a purge was asked for, and answered, by the owner of
    which epoch. ``shown``: how far readers beside the owner of which epoch were told that they may
    read.
    """

    model: ChannelModel
    by: dict[int, int] = field(default_factory=dict)
    subs: Requests = field(default_factory=lambda: Requests("subscription"))
    sent: set[tuple[bytes, int]] = field(default_factory=set)
    kept: dict[tuple[bytes, int], int] = field(default_factory=dict)
    purging: int = 0
    purged: int = 0
    purged_by: int = 0
    shown: int = 0
    shown_by: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """A client's acknowledgement on its way: of what the owner of ``epoch`` delivered to
    ``inbox``.
    """

    life: Generation
    inbox: bytes
    sequence: int
    epoch: int

    def __hash__(self) -> int:
        return hash((id(self.life), self.inbox, self.sequence, self.epoch))

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(slots=True)
class Found:
    """What one owner recovered of one channel at ``now_ns``.

    ``pending``: (subscription, sequence), not acked.
    """

    messages: dict[int, bytes]
    last: int
    now_ns: int
    subs: dict[bytes, object]
    pending: set[tuple[bytes, int]]
    sent_to: dict[bytes, int] = field(default_factory=dict)


@dataclass(slots=True)
class Recovery:
    """What one owner recovered, when it was confirmed afterwards.

    ``lives``: the generation of each channel.

    ``waiting``: channels that it has named and not read yet.
    """

    epoch: int
    channels: dict[bytes, Found]
    clients: dict[bytes, object]
    lives: dict[bytes, Generation] = field(default_factory=dict)
    waiting: set[bytes] = field(default_factory=set)


class Ledger:
    """All promises of one group."""

    def __init__(self, limits: ChannelLimits = UNLIMITED) -> None:
        self.limits = limits
        self.generations: dict[bytes, Generation] = {}
        self.clients = Requests("client")
        self.dying: set[bytes] = set()
        self.recoveries: list[Recovery] = []
        self.epochs: list[int] = []
        self.top = 0
        """The highest epoch that anybody took."""
        self.acked = 0
        self.kept = 0
        self.late_answers = 0
        self.placed: dict[bytes, list[tuple[Generation, int, bytes, object]]] = {}
        """Where each publish was stored by which process: life, sequence, stored bytes, process."""
        self.asked_subs: dict[bytes, object] = {}
        """What was asked for, by inbox: all channels share it."""
        self.once: set[bytes] = set()
        """Publishes that must not be in a log twice."""

    # ---- owners
    # ----------------------------------------------------------------------------------------------

    def took(self, epoch: int, began_above: int) -> None:
        """An activation has its number; ``began_above``: ``top`` when it began to look for one."""
        if epoch in self.epochs:
            raise Violation(f"epoch {epoch} was taken twice")
        if epoch <= began_above:
            raise Violation(f"epoch {epoch} was taken after {began_above}")
        self.epochs.append(epoch)
        self.top = max(self.top, epoch)

    def recovered(self, recovery: Recovery) -> None:
        """An owner read the store and was confirmed after that: judge what it found."""
        epoch = recovery.epoch
        if epoch < self.top:
            # Superseded since that confirm: it has told nobody anything yet, and nobody will ask
            # it.
            return
        for name in sorted(self.dying - recovery.channels.keys() - recovery.waiting):
            # Asked for and not answered: it went as a whole.
            self.generations.pop(name, None)
        self.dying.clear()
        for name in recovery.channels:
            if name not in self.generations:
                raise Violation(
                    f"channel {name!r}: under epoch {epoch} it is there, and nobody made it"
                )
        for name, generation in self.generations.items():
            if name in recovery.channels or name in recovery.waiting:
                recovery.lives[name] = generation
            if name not in recovery.waiting:
                self._judge_channel(name, generation, recovery)
        self.clients.judge(recovery.clients, epoch)
        self.recoveries.append(recovery)
        for name in recovery.channels:
            self._fix_all(name, recovery)

    def opened(self, recovery: Recovery, name: bytes, found: Found | None) -> None:
        """An owner read a channel that it had left for later, and was confirmed after that.

        ``None``: none is there.
        """
        if recovery.epoch < self.top:
            return
        recovery.waiting.discard(name)
        generation = recovery.lives.get(name)
        if found is not None:
            if generation is None or self.generations.get(name) is not generation:
                raise Violation(
                    f"channel {name!r}: under epoch {recovery.epoch} it is there, and nobody "
                    "made it"
                )
            recovery.channels[name] = found
        if generation is not None:
            self._judge_channel(name, generation, recovery)
        if found is not None:
            self._fix_all(name, recovery)

    def _fix_all(self, name: bytes, recovery: Recovery) -> None:
        for sequence, payload in recovery.channels[name].messages.items():
            self.fix(recovery.lives[name], sequence, payload, recovery.epoch)

    def _judge_channel(self, name: bytes, generation: Generation, recovery: Recovery) -> None:
        epoch = recovery.epoch
        promised = {s: p for s, p in generation.model.fixed.items() if generation.by[s] < epoch}
        found = recovery.channels.get(name)
        if found is None:
            if promised or any(by < epoch for by in generation.subs.made.values()):
                raise Violation(f"channel {name!r}: it is gone under epoch {epoch}")
            return
        promised = {
            s: p for s, p in promised.items() if s > generation.purging or s >= found_first(found)
        }
        self._judge_messages(generation, found, promised, epoch)
        self._judge_repeats(generation, found, epoch)
        self._judge_shown(generation, generation.shown, generation.shown_by, found, epoch)
        if generation.purged_by < epoch and (
            back := [s for s in found.messages if s <= generation.purged]
        ):
            raise Violation(
                f"channel {name!r}: {back} were purged, and are back under epoch {epoch}"
            )
        self._judge_kept(generation, found, epoch)
        generation.subs.judge(found.subs, epoch)
        if strangers := found.pending - generation.sent:
            raise Violation(
                f"channel {name!r}: {sorted(strangers)} were never sent, and are pending under "
                f"{epoch}"
            )
        if beyond := sorted(s for _, s in found.pending if s > found.last):
            raise Violation(
                f"channel {name!r}: {beyond} are pending under {epoch}, the log ends at "
                f"{found.last}"
            )

    def _judge_repeats(self, generation: Generation, found: Found, epoch: int) -> None:
        seen: dict[bytes, int] = {}
        for sequence, payload in sorted(found.messages.items()):
            publish = published(payload)
            if publish in seen and publish in self.once and not self._was_left_late(publish):
                where = f"as {seen[publish]} and as {sequence}, seen under {epoch}"
                raise Violation(f"{generation.model}: {publish[:40]!r} was stored {where}")
            seen[publish] = sequence

    def _was_left_late(self, publish: bytes) -> bool:
        """Whether a former owner that lived on may have stored it behind its successor's back.

        It was told to nobody then. If that successor dies before it has written anything, it is
        part of the log, and what it would be known by was replaced: a repeat is stored as well
        (``docs/store.md``).
        """
        return any(getattr(by, "superseded", False) for _, _, _, by in self.placed.get(publish, ()))

    @staticmethod
    def _judge_shown(
        generation: Generation, sequence: int, by: int, found: Found, epoch: int
    ) -> None:
        if by < epoch and found.last < sequence:
            what = f"readers were shown {sequence} under epoch {by}"
            raise Violation(f"{generation.model}: {what}, it ends at {found.last} under {epoch}")

    @staticmethod
    def _judge_kept(generation: Generation, found: Found, epoch: int) -> None:
        for (inbox, sequence), by in generation.kept.items():
            if by >= epoch or inbox not in found.subs:
                continue
            if (inbox, sequence) in found.pending or found.sent_to.get(inbox, 0) < sequence:
                what = f"the ack of {sequence} to {inbox!r}"
                raise Violation(
                    f"{generation.model}: {what} was kept under epoch {by}, and is gone under "
                    f"{epoch}"
                )

    @staticmethod
    def _judge_messages(
        generation: Generation, found: Found, promised: dict[int, bytes], epoch: int
    ) -> None:
        model = generation.model
        view = ChannelModel(model.name, model.limits, model.stamps, fixed=promised)
        if missing := view.missing(found.messages, found.last, found.now_ns):
            raise Violation(
                f"{model}: {missing} were acked or delivered and are gone under epoch {epoch}"
            )
        for sequence, payload in found.messages.items():
            if payload not in model.offered.get(sequence, ()):
                raise Violation(f"{model}: nobody published {payload!r} as sequence {sequence}")
            if promised.get(sequence, payload) != payload:
                raise Violation(
                    f"{model}: {sequence} had {promised[sequence]!r}, {payload!r} under epoch "
                    f"{epoch}"
                )

    def place(
        self, generation: Generation, publish: bytes, sequence: int, payload: bytes, by: object
    ) -> None:
        """An owner is about to store that publish there."""
        self.placed.setdefault(publish, []).append((generation, sequence, payload, by))

    def told(self, publish: bytes, by: object, epoch: int) -> None:
        """A publisher was told by that process, the owner of ``epoch``, that its message is
        stored.
        """
        places = self.placed.get(publish, [])
        mine = [p for p in places if p[3] is by] or [
            p for p in places if p[0].model.fixed.get(p[1]) == p[2]
        ]
        if not mine:
            raise Violation(
                f"{publish[:40]!r} was acknowledged under epoch {epoch}, and nobody has stored it"
            )
        generation, sequence, payload, _ = mine[-1]
        self.ack(generation, sequence, payload, epoch)

    def keep(self, taken: object, epoch: int) -> None:
        """An acknowledgement was taken by the owner of ``epoch``, and a round of its upkeep lies
        behind it.
        """
        assert isinstance(taken, Taken)
        if taken.epoch == epoch:
            self.kept += 1
            taken.life.kept.setdefault((taken.inbox, taken.sequence), epoch)

    # ---- promises
    # ----------------------------------------------------------------------------------------------

    def generation(self, name: bytes) -> Generation:
        """The present life of a channel; it begins with the first call."""
        if name not in self.generations:
            subs = Requests("subscription", values=self.asked_subs)
            self.generations[name] = Generation(ChannelModel(name, self.limits), subs=subs)
        return self.generations[name]

    def offer(self, generation: Generation, sequence: int, payload: bytes, timestamp: int) -> None:
        """Somebody is about to store a message."""
        generation.model.offer(sequence, payload, timestamp)
        generation.model.staged.clear()

    def fix(self, generation: Generation, sequence: int, payload: bytes, epoch: int) -> None:
        """A content was acknowledged or delivered by the confirmed owner of ``epoch``."""
        generation.model.fix(sequence, payload)
        generation.by[sequence] = min(epoch, generation.by.get(sequence, epoch))

    def ack(self, generation: Generation, sequence: int, payload: bytes, epoch: int) -> None:
        """A publisher was told.

        Whoever recovered under a higher epoch before that must have found it.
        """
        self.acked += 1
        self.deliver(generation, sequence, payload, epoch)

    def deliver(self, generation: Generation, sequence: int, payload: bytes, epoch: int) -> None:
        """A subscriber got a message, or a publisher was told: every later owner must have found
        it.
        """
        self.fix(generation, sequence, payload, epoch)
        for later in self._later(generation, epoch):
            found = later.channels[generation.model.name]
            if sequence > generation.purging or sequence >= found_first(found):
                self._judge_messages(generation, found, {sequence: payload}, later.epoch)

    def show(self, generation: Generation, sequence: int, epoch: int) -> None:
        """Readers of the live store were told by the owner of ``epoch`` that all up to ``sequence``
        stays.
        """
        for later in self.recoveries:
            if (
                later.lives.get(generation.model.name) is generation
                and generation.model.name in later.channels
            ):
                self._judge_shown(
                    generation, sequence, epoch, later.channels[generation.model.name], later.epoch
                )
        if sequence > generation.shown:
            generation.shown = sequence
            generation.shown_by = epoch

    def answer_subs(
        self, generation: Generation, made: set[bytes], removed: set[bytes], epoch: int
    ) -> None:
        """Subscribers were told."""
        generation.subs.answer(made, removed, epoch)
        for later in self._later(generation, epoch):
            found = later.channels[generation.model.name].subs
            generation.subs.judge_late(found, made, removed, (epoch, later.epoch))

    def answer_clients(self, made: set[bytes], removed: set[bytes], epoch: int) -> None:
        """Clients were told."""
        self.clients.answer(made, removed, epoch)
        for later in self.recoveries:
            if later.epoch > epoch:
                self.late_answers += 1
                self.clients.judge_late(later.clients, made, removed, (epoch, later.epoch))

    def _later(self, generation: Generation, epoch: int) -> Iterator[Recovery]:
        """Owners that had recovered before an answer of ``epoch`` came.

        The channel must have been among it.
        """
        name = generation.model.name
        for later in self.recoveries:
            if later.epoch > epoch:
                self.late_answers += 1
                if later.lives.get(name) is generation:
                    # Of one that waits it is judged when it is read.
                    if name in later.channels:
                        yield later
                elif self.generations.get(name) is generation:
                    raise Violation(
                        f"{generation.model}: answered under {epoch}, it was not there under "
                        f"{later.epoch}"
                    )

    def deleting(self, name: bytes, epoch: int) -> None:
        """The deletion of a channel was asked for; a former owner cannot have it any more."""
        if name in self.generations:
            # Its subscriptions end first, and stay ended if the channel is not deleted after all.
            self.generations[name].subs.all_may_leave = True
        if epoch == self.top:
            self.dying.add(name)

    def stays(self, name: bytes, epoch: int) -> None:
        """The deletion was refused before anything had changed."""
        if epoch == self.top:
            self.dying.discard(name)

    def deleted(self, generation: Generation, epoch: int) -> None:
        """It was answered."""
        name = generation.model.name
        for later in self.recoveries:
            if later.epoch > epoch and later.lives.get(name) is generation:
                raise Violation(
                    f"{generation.model}: deleted under epoch {epoch}, there under {later.epoch}"
                )
        if self.generations.get(name) is generation:
            del self.generations[name]
        self.dying.discard(name)


def found_first(found: Found) -> int:
    """The first sequence that is there; behind the last one where nothing is."""
    return min(found.messages, default=found.last + 1)


def published(payload: bytes) -> bytes:
    """What the publisher wrote, in the stored bytes of a message."""
    return pb.MsgProto.FromString(payload).data
