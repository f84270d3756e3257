"""What most of the trouble of one history is about, so that unlikely steps follow each other often
enough.

Each trouble here is a situation, not a history: who meets whom at which call is drawn. Nothing
happens that a group has to be spared: processes stand still, die and wake up, locks are lost, hosts
and file servers go down.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ftstan.ft.ownership import StoreOwner

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.ft.group import Group, Shape
    from tests.sim.ft.nodes import Node

#: What an owner changes names and files with.
_CHANGES = (
    "link",
    "rename",
    "link",
    "rename",
    "unlink",
    "open",
    "pwrite",
    "fsync",
    "fdatasync",
    "listdir",
)
#: What an owner goes back to by its name while it serves.
_SIDE_FILES = ("confirmed.bin", "confirmed.bin", "subs.dat", "dedup.bin")
#: Before which call a claimer dies: the first sync is of the claim, those that follow are of the
#: slots.
_STEPS_OF_A_CLAIM = (("fsync", 1), ("fsync", 1), ("fsync", 1), ("fsync", 0), ("fsync", 2), ("", 1))
#: Calls of a takeover, from the first look to the last channel, of which any may be the last one
#: before a pause.
_LONGEST_TAKEOVER = 90


@dataclass(frozen=True, slots=True)
class Theme:
    """``troubles``: what is drawn from instead of the common faults, in ``share`` of all cases.

    ``length``: turns of a history, as part of those that its shape says: much happens in few.
    ``trusts_names``: how often a host of a network file system answers from memory what it is asked
    about a name.
    """

    troubles: tuple[Callable[[Group], object], ...] = ()
    share: float = 0.0
    length: float = 0.8
    trusts_names: float = 0.3


# ---- who is overtaken, and when it wakes up
# ----------------------------------------------------------------------


def overtaken(group: Group, member: int) -> None:
    """A process stands still and its lock is gone.

    It wakes up at a moment that is bad for whoever follows.
    """
    group.met["fault: pause right before a call"] += 1
    group.sleep(member, group.rng.choice((5.0, 20.0)))
    group.take_lock_from(member)
    wake = group.rng.choice(
        (_wake_in_a_call, _wake_in_a_call, _wake_after_death, _wake_after_recovery, None)
    )
    if wake is not None:
        top = group.ledger.top
        group.when(
            lambda: _follower(group, member, top) is not None, partial(wake, group, member, top)
        )


def _follower(group: Group, member: int, top: int) -> Node | None:
    """Who owns the store now, as far as it knows, since ``member`` began to stand still."""
    node = group.nodes[member]
    if node.ended or not (node.paused or node.stalled):
        return None
    return next(
        (n for n in group.nodes if n.recovered and n.epoch > top and not n.ended and not n.paused),
        None,
    )


def _wake_after_recovery(group: Group, member: int, _top: int) -> None:
    group.met["fault: woken behind a recovery"] += 1
    group.wake(member)


def _wake_in_a_call(group: Group, member: int, top: int) -> None:
    """The follower is in the middle of something.

    It goes on right behind what the former owner does then.
    """
    follower = _follower(group, member, top)
    if follower is None:
        return

    def meet(other: int) -> None:
        group.met["fault: woken within a follower's call"] += 1
        group.sleep(other, group.rng.choice((0.0, 0.0, 0.5)))
        group.wake(member)

    rng = group.rng
    group.stop_at(follower.member, meet, rng.choice(_CHANGES), rng.choice((0, 0, 1, 3)))


def _wake_after_death(group: Group, member: int, top: int, seconds: float = 2.0) -> None:
    """The follower has told somebody something and dies within ``seconds``.

    The former owner moves before the next.
    """
    follower = _follower(group, member, top)
    if follower is None:
        return
    until = group.clock.mono() + seconds
    follower.forget_told()

    def die() -> None:
        group.met["fault: woken behind a follower's death"] += 1
        if not follower.ended:
            group.kill(follower.member)
        group.wake(member)

    group.when(lambda: bool(follower.ended or (follower.told and group.clock.mono() >= until)), die)


def _outlive(group: Group, met: str, then: Callable[[int], None], member: int) -> None:
    """A process stands still and its lock is gone.

    ``then`` comes when a follower has served for some seconds.
    """
    group.met["fault: pause right before a call"] += 1
    group.sleep(member, 30.0)
    group.take_lock_from(member)
    top = group.ledger.top
    seconds = group.rng.choice((0.5, 1.5, 2.5))

    def serve() -> None:
        until = group.clock.mono() + seconds
        follower = _follower(group, member, top)
        if follower is not None:
            follower.forget_told()
            group.when(
                lambda: bool(follower.ended or (follower.told and group.clock.mono() >= until)),
                go_on,
            )

    def go_on() -> None:
        if _follower(group, member, top) is not None:
            group.met[met] += 1
            then(member)

    group.when(lambda: _follower(group, member, top) is not None, serve)


def _undisturbed(group: Group) -> Node | None:
    """Whoever serves, if nobody stands still."""
    return None if any(node.paused or node.stop_before for node in group.nodes) else group.serving()


def _silence(group: Group, owner: Node) -> None:
    """Nobody reaches for the store of an owner that is heard."""
    group.sleep(owner.member, group.rng.choice((3.0, 6.0, 12.0)))


# ---- troubles
# --------------------------------------------------------------------------------------------------


def former_owner(group: Group) -> None:
    """The owner is about to stand still in the middle of something, and somebody else takes
    over.
    """
    owner = group.serving()
    if owner is not None:
        group.stop_at(
            owner.member,
            partial(overtaken, group),
            group.rng.choice(_CHANGES),
            group.rng.choice((0, 0, 1, 4)),
        )


def late_upkeep(group: Group) -> None:
    """The owner stands still right before it goes back to a side file, and its follower has done so
    meanwhile.
    """
    owner = _undisturbed(group)
    if owner is not None:
        rng = group.rng
        then = partial(_outlive, group, "fault: woken behind a follower's upkeep", group.wake)
        group.stop_at(owner.member, then, "", rng.choice((0, 1, 3)), name=rng.choice(_SIDE_FILES))


def late_script(group: Group) -> None:
    """The owner stands still right before it starts an archive script, and somebody else takes
    over.
    """
    owner = _undisturbed(group)
    if owner is not None:
        met = "fault: a script started behind a follower"
        then = group.rng.choice(
            (partial(overtaken, group), partial(_outlive, group, met, group.wake))
        )
        group.stop_at(owner.member, then, "script", group.rng.choice((0, 0, 1)))


def late_pages(group: Group) -> None:
    """The owner stands still with pages that it has not synced.

    They arrive behind a recovery, and the group stops.
    """
    owner = _undisturbed(group)
    if owner is None:
        return
    rng = group.rng

    def arrive(member: int) -> None:
        rng.choice((group.wake, group.land_all))(member)
        until = group.clock.mono() + rng.choice((0.2, 1.0))
        group.when(lambda: group.clock.mono() >= until, group.stop_group)

    then = partial(_outlive, group, "fault: pages of an owner behind a recovery", arrive)
    group.stop_at(
        owner.member,
        then,
        rng.choice(("fdatasync", "fdatasync", "fsync")),
        rng.choice((0, 0, 1, 2)),
    )


def torn_batch(group: Group) -> None:
    """The owner's host freezes between two pages of a batch.

    It goes on behind a recovery, and that owner dies.
    """
    owner = _undisturbed(group)
    if owner is None:
        return
    rng = group.rng

    def freeze(member: int) -> None:
        group.met["fault: frozen between two pages"] += 1
        group.sleep(member, 30.0)
        group.take_lock_from(member)
        top = group.ledger.top
        group.when(lambda: _follower(group, member, top) is not None, partial(go_on, member, top))

    def go_on(member: int, top: int) -> None:
        follower = _follower(group, member, top)
        group.wake(member)
        if follower is not None and rng.random() < 0.7:
            group.met["fault: killed behind a torn batch"] += 1
            group.kill(follower.member)

    group.stop_at(owner.member, freeze, "page")


def late_claimer(group: Group) -> None:
    """The lock goes, whoever takes over stands still anywhere in its takeover, and a third one
    comes.
    """
    owner = group.serving()
    if owner is None:
        return
    group.take_lock_from(owner.member)
    _silence(group, owner)
    for node in group.nodes:
        if node is not owner and not node.ended and not node.paused:
            call, skip = group.rng.choice(
                (("", _LONGEST_TAKEOVER), ("listdir", 8), ("unlink", 3), ("rename", 3))
            )
            group.stop_at(node.member, partial(overtaken, group), call, group.rng.randint(0, skip))


def dying_claimers(group: Group) -> None:
    """A number is claimed already.

    Whoever takes the next one dies between two steps, the owner lives.
    """
    owner = next(
        (n for n in group.nodes if n.epoch and n.epoch == group.ledger.top and not n.ended), None
    )
    if owner is None:
        return
    if group.rng.random() < 0.5:
        group.leave_claim()
    if not owner.paused:
        _silence(group, owner)
    group.claimers_die(*group.rng.choice(_STEPS_OF_A_CLAIM))


def late_record(group: Group) -> None:
    """Whoever takes over stands still between its claim and its record, and two others come to own
    the store.

    The first of those stands still as well, and both wake up behind the second.
    """
    owner = _undisturbed(group)
    if owner is None:
        return
    rng = group.rng
    if rng.random() < 0.5:
        _silence(group, owner)
        group.take_lock_from(owner.member)
    else:
        group.kill(owner.member)

    def claimed(claimer: int) -> None:
        for node in group.nodes:
            node.stop_before = None
        _outlive(group, "fault: a record late behind a recovery", follow, claimer)

    def follow(claimer: int) -> None:
        top = group.nodes[claimer].began_above
        first = _follower(group, claimer, top)
        if first is None:
            return
        for member in (claimer, first.member):
            group.sleep(member, 30.0)
        group.take_lock_from(first.member)
        late = group.nodes[claimer]

        def arrive() -> None:
            group.met["fault: a record late behind two recoveries"] += 1
            for node in rng.choice(((late, first), (late, first), (first, late))):
                if not node.ended:
                    group.wake(node.member)

        group.when(lambda: _follower(group, first.member, first.epoch) is not None, arrive)

    for node in group.nodes:
        if node is not owner and not node.ended and not node.epoch:
            group.stop_at(node.member, claimed, "pwrite", rng.choice((0, 0, 0, 1)))


def raising_owner(group: Group) -> None:
    """The owner goes on to a higher epoch, and stands still within that while somebody takes over,
    or dies.
    """
    owner = group.serving()
    if owner is None or owner.product.owner is None or group.shape.mixed:
        return
    product = owner.product.owner
    assert isinstance(product, StoreOwner)
    rng = group.rng
    if rng.random() < 0.3:
        group.leave_claim()
    if rng.random() < 0.6:
        group.switch_mixed(owner, on=product.present is not None and not product.mixed)
    then = partial(overtaken, group) if rng.random() < 0.8 else group.die_now
    group.stop_at(
        owner.member, then, "", rng.randint(0, 25), within=lambda: product.raises % 2 == 1
    )


def broken_hand_over(group: Group) -> None:
    """The owner leaves, its successor's storage is slow, and for a moment somebody else has the
    store.
    """
    owner = group.serving()
    if owner is None:
        return
    group.met["fault: switchover"] += 1
    owner.switchover()
    top = group.ledger.top

    def wait() -> None:
        chosen = next((n for n in group.nodes if n.name == owner.successor), None)
        if chosen is not None and not chosen.ended:
            group.met["fault: slow storage of a chosen successor"] += 1
            member = chosen.member
            chosen.stalled_until = chosen.clock.mono() + group.rng.choice((4.0, 8.0))
            for _ in range(group.rng.choice((0, 4))):
                # The owner is quick: it names what it has answered while the other one still waits
                # for that.
                owner.spend(400)
                group.hub.flow()
                chosen.wake()
            group.when(
                lambda: _follower(group, member, top) is not None,
                partial(_wake_after_death, group, member, top, group.rng.choice((0.1, 0.5, 2.0))),
            )

    group.when(lambda: bool(owner.successor), wait)


_TORN = Theme((torn_batch,), 0.8, 1.0)
_DYING_CLAIMERS = Theme((dying_claimers,), 0.8)
#: Little else goes wrong, or nobody is an owner for long enough.
_LATE = Theme((late_upkeep, late_pages), 0.9, 1.0, 0.9)
#: Slices are removed all the time, and few of them at the moment that matters.
_SCRIPTS = Theme((late_script,), 0.9, 1.5)
#: Three have to take the store, one after the other.
_LATE_RECORDS = Theme((late_record,), 0.9, 1.5)
THEMES = (
    Theme(length=1.0),
    Theme((former_owner,), 0.5),
    Theme((late_claimer,), 0.5),
    _DYING_CLAIMERS,
    Theme((raising_owner,), 0.5),
    Theme((broken_hand_over,), 0.4),
)


def theme_of(seed: int, shape: Shape) -> Theme:
    """The theme of the history ``seed``.

    Only on a network file system does a dead host lose what others live on.
    """
    if shape.options.slice_archive_script and random.Random(f"scripts {seed}").random() < 0.4:
        return _SCRIPTS
    if shape.members > 2 and random.Random(f"behind two {seed}").random() < 0.06:
        return _LATE_RECORDS
    rng = random.Random(f"theme {seed}")
    if shape.large and rng.random() < 0.7:
        return _TORN
    theme = rng.choice((*THEMES, _DYING_CLAIMERS) if shape.network else THEMES)
    return _LATE if theme in THEMES[:2] and rng.random() < 0.4 else theme
