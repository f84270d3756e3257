"""The state and the phase of a node, from its start until it serves and after."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.states import NodeState, Phase
from ftstan.config.options import ServerOptions
from ftstan.node.context import Context
from ftstan.node.status import StatusSource

if TYPE_CHECKING:
    from ftstan.base.states import NodeStatus
    from ftstan.node.pipeline import Serving

MEMBER = ServerOptions(store="FILE", dir="/d", ft_group="g")
ALONE = ServerOptions(store="FILE", dir="/d")


class Node(Context):
    """A node that has the parts which its status is made of, and does nothing."""

    def __init__(self, options: ServerOptions, role: NodeState) -> None:
        super().__init__(options)
        parts = cast("Any", self)
        parts.monitor = SimpleNamespace(url="")
        parts.protection = SimpleNamespace(may_beat=True, probe_age=None)
        if options.ft_group:
            standby = SimpleNamespace(paused=False, phase=Phase.LISTENING)
            parts.group = SimpleNamespace(
                standby=standby,
                mixed=False,
                activated=role is NodeState.ACTIVE,
                trouble="",
                warm_lag=None,
                switchover_at_ns=0,
            )
        self.role = role

    def own(self) -> None:
        record = SimpleNamespace(epoch=3, describe=lambda: "", store_id=b"", ft_mixed=False)
        present = SimpleNamespace(epoch=3, ft_mixed=False, record=lambda: record)
        self.owner = cast("Any", SimpleNamespace(present=present, answered_at=None))

    def serve(self, *, connected: bool, ready: bool, served: bool) -> None:
        serving = SimpleNamespace(
            ready=ready, served=served, link=SimpleNamespace(connected=connected)
        )
        self.plane.serving = cast("Serving", serving)

    def now(self) -> NodeStatus:
        return StatusSource(self).now()


def seen(status: NodeStatus) -> tuple[str, str, bool, bool]:
    return status.state, status.phase, status.serving, status.is_ft_active


@pytest.mark.parametrize(
    ("options", "role"), [(MEMBER, NodeState.ACTIVE), (ALONE, NodeState.STANDALONE)]
)
def test_an_owner_is_shown_as_one_only_when_it_has_begun_to_serve(
    options: ServerOptions, role: NodeState
) -> None:
    node = Node(options, role)
    in_group = role is NodeState.ACTIVE
    assert seen(node.now())[::2] == (NodeState.STANDBY, False)
    node.own()
    assert seen(node.now()) == (NodeState.STANDBY, Phase.RECOVERING, False, False)
    assert node.now().owns_store
    assert not node.now().can_take_over
    node.serve(connected=False, ready=False, served=False)
    assert seen(node.now()) == (NodeState.STANDBY, Phase.WAITING_FOR_NATS, False, False)
    node.serve(connected=True, ready=False, served=False)
    assert seen(node.now()) == (NodeState.STANDBY, Phase.RECOVERING, False, False)
    node.serve(connected=True, ready=True, served=True)
    assert seen(node.now()) == (role, Phase.ACTIVE, True, in_group)


def test_an_owner_that_has_served_stays_one_while_nats_is_away() -> None:
    node = Node(MEMBER, NodeState.ACTIVE)
    node.own()
    node.serve(connected=False, ready=False, served=True)
    assert seen(node.now()) == (NodeState.ACTIVE, Phase.WAITING_FOR_NATS, False, False)


def test_a_member_that_owns_nothing_has_the_phase_of_the_machine_that_waits() -> None:
    status = Node(MEMBER, NodeState.STANDBY).now()
    assert seen(status) == (NodeState.STANDBY, Phase.LISTENING, False, False)
    assert status.can_take_over
    assert not status.owns_store


def test_who_stops_is_not_the_active_one_for_load_balancers() -> None:
    node = Node(MEMBER, NodeState.ACTIVE)
    node.own()
    node.serve(connected=True, ready=True, served=True)
    node.stopping.set()
    assert seen(node.now()) == (NodeState.ACTIVE, Phase.STOPPED, False, False)


@pytest.mark.parametrize("role", [NodeState.FAILED, NodeState.SHUTDOWN])
def test_the_end_of_a_node_is_shown_as_it_is(role: NodeState) -> None:
    assert Node(MEMBER, role).now().state is role


def test_a_server_that_cannot_be_asked_yet_is_not_up() -> None:
    node = Node(ALONE, NodeState.STANDALONE)
    node.opens_aside = True
    node.serve(connected=True, ready=True, served=True)
    assert node.is_serving()
    assert not node.is_up
    node.opens_aside = False
    assert node.is_up
