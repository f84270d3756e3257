"""A node's status in one line, and whether it could take over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftstan.base.states import NodeState, NodeStatus, Phase, Recovery
from tests.unit.admin.test_protocol import STATUS

ACTIVE = replace(STATUS, state=NodeState.ACTIVE, phase=Phase.ACTIVE, serving=True, epoch=3)
RECOVERING = replace(ACTIVE, state=NodeState.STANDBY, phase=Phase.RECOVERING, serving=False)
ALONE = replace(ACTIVE, state=NodeState.STANDALONE, group="")


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (STATUS, "FT_STANDBY: listening for the active server"),
        (
            replace(STATUS, phase=Phase.BACKING_OFF, trouble="no space left"),
            "FT_STANDBY: backing off after no space left",
        ),
        (RECOVERING, "FT_STANDBY: recovering, epoch 3"),
        (
            replace(RECOVERING, recovery=Recovery(3, 7)),
            "FT_STANDBY: recovering (3 of 7 channels), epoch 3",
        ),
        (ACTIVE, "FT_ACTIVE: serving, epoch 3"),
        (replace(ACTIVE, storage_late=True), "FT_ACTIVE: waiting for storage, epoch 3"),
        (ALONE, "STANDALONE: serving"),
        (
            replace(RECOVERING, group="", recovery=Recovery(0, 7)),
            "recovering (0 of 7 channels)",
        ),
        (
            replace(ALONE, serving=False, state=NodeState.SHUTDOWN, phase=Phase.STOPPED),
            "SHUTDOWN: stopped",
        ),
    ],
)
def test_the_line_says_state_activity_and_the_epoch_of_a_group(
    status: NodeStatus, line: str
) -> None:
    assert status.line == line


@pytest.mark.parametrize("phase", Phase)
def test_only_a_standby_that_waits_or_tries_can_take_over(phase: Phase) -> None:
    could = phase in {Phase.LISTENING, Phase.TRYING}
    assert replace(STATUS, phase=phase).can_take_over is could
    assert not replace(STATUS, state=NodeState.ACTIVE, phase=phase).can_take_over
