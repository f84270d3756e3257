"""What a member refuses when operators ask it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.disk import Space
from ftstan.base.errors import RefusedError
from ftstan.base.states import NodeState
from ftstan.node.handover_buffer import BufferedPublishes
from ftstan.node.member import NodeMember
from ftstan.node.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_member_that_has_the_lock_and_is_not_active_yet_is_not_paused() -> None:
    paused: list[str] = []
    standby = SimpleNamespace(state=NodeState.ACTIVE)
    group = SimpleNamespace(standby=standby, pause=lambda: paused.append("paused"))
    node = SimpleNamespace(role=NodeState.STANDBY, group=group)
    member = NodeMember(cast("Any", node), cast("Any", None), cast("Any", None))
    with pytest.raises(RefusedError, match="is taking over"):
        asyncio.run(member.pause("me"))
    assert paused == []


@pytest.mark.parametrize("leaves", [False, True])
def test_an_owner_that_hands_over_takes_no_epoch_that_its_successor_does_not_expect(
    *, leaves: bool
) -> None:
    recorded: list[bool] = []

    async def call(work: Callable[[], None]) -> None:
        work()

    owner = SimpleNamespace(
        present=object(), has_directory=True, set_mixed=lambda *, on: recorded.append(on)
    )
    group = SimpleNamespace(leaves=leaves, note_epoch=lambda: None)
    node = SimpleNamespace(is_ft_active=lambda: True, owner=owner, group=group, call=call)
    member = NodeMember(cast("Any", node), cast("Any", None), cast("Any", None))
    with pytest.raises(RefusedError, match="hands over") if leaves else nullcontext():
        asyncio.run(member.set_mixed(on=False))
    assert recorded == ([] if leaves else [False])


@pytest.mark.parametrize(
    ("free", "total"), [(0, 1 << 40), (1 << 19, 1 << 40), (1 << 30, 1 << 40), (0, 0)]
)
@pytest.mark.parametrize("planned", [False, True])
def test_on_a_full_disk_an_owner_does_not_hand_over(
    *, free: int, total: int, planned: bool
) -> None:
    """Nobody could record the next epoch, and the group would have no owner."""
    done: list[str] = []

    async def switchover(to: str) -> None:
        done.append(to)

    group = SimpleNamespace(switchover=switchover, plan_switchover=lambda to, _: done.append(to))
    node = SimpleNamespace(
        role=NodeState.ACTIVE,
        group=group,
        stopping=SimpleNamespace(is_set=lambda: False),
        is_serving=lambda: True,
        server_id="me",
        clock=SimpleNamespace(wall_ns=lambda: 5),
        protection=SimpleNamespace(room=Space(free, total, 0, 0)),
    )
    member = NodeMember(cast("Any", node), cast("Any", None), cast("Any", None))
    asked = member.plan_switchover("b", 9) if planned else member.switchover("b")
    is_refused = free < 1 << 20 and total > 0
    with pytest.raises(RefusedError, match=f"{free} bytes left") if is_refused else nullcontext():
        asyncio.run(asked)
    assert done == ([] if is_refused else ["b"])


def test_publishes_that_were_kept_are_counted_when_the_server_does_not_open(
    capfd: pytest.CaptureFixture[str],
) -> None:
    kept = BufferedPublishes(b"MSG p.c 7 2\r\nab\r\n" * 2, {}, pongs=1, rows=((b"p.>", 7),))

    class Partitioning:
        async def __aenter__(self) -> None: ...
        async def __aexit__(self, *_: object) -> None: ...
        async def settled(self) -> None:
            raise RefusedError("another partition has it")

    async def recovered(_work: object) -> None: ...

    async def ahead() -> BufferedPublishes:
        return kept

    node = SimpleNamespace(
        _no_more=SimpleNamespace(is_set=lambda: False),
        _access=None,
        _recover=None,
        protection=SimpleNamespace(own=lambda _: None),
        note_epoch=lambda: None,
        partitioning=Partitioning(),
        call=recovered,
        link=SimpleNamespace(max_payload=1 << 20),
        unbridged=0,
    )
    node._tell_unused = lambda *args: Node._tell_unused(cast("Any", node), *args)
    with pytest.raises(RefusedError):
        asyncio.run(Node.serve(cast("Any", node), ahead))
    assert node.unbridged == 2
    assert (
        "2 publishes that arrived during a hand-over are not answered: another partition has "
        in (capfd.readouterr().err)
    )
