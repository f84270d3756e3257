"""The judge of store histories, where limits took messages: which of them a limit explains, and
which it does not.
"""

from __future__ import annotations

import pytest

from ftstan.stores.interface import ChannelLimits
from tests.sim.model import OVERHEAD, ChannelModel

SIZE = 1000


def payload(sequence: int) -> bytes:
    return b"%d:" % sequence + b"x" * (SIZE - OVERHEAD - 2)


def model_of(answered: range, offered: range) -> ChannelModel:
    """A channel that may hold four messages of ``SIZE`` bytes: some were answered, and more were
    staged.
    """
    model = ChannelModel(b"foo", ChannelLimits(max_msgs=0, max_bytes=4 * SIZE))
    for sequence in offered:
        model.offer(sequence, payload(sequence))
    for sequence in answered:
        model.fix(sequence, payload(sequence))
    return model


@pytest.mark.parametrize(
    "answered", [range(1, 9), range(1, 4)], ids=["all answered", "the newest were left over"]
)
def test_what_was_taken_for_larger_messages_behind_it_is_no_loss(answered: range) -> None:
    model = model_of(answered, range(1, 9))
    assert model.missing({s: payload(s) for s in range(5, 9)}, 8, 0) == []


def test_a_message_for_which_there_was_room_is_a_loss() -> None:
    model = model_of(range(1, 9), range(1, 9))
    assert model.missing({s: payload(s) for s in range(6, 9)}, 8, 0) == [5]


def test_a_sequence_that_nobody_published_takes_no_room() -> None:
    model = model_of(range(1, 4), range(1, 4))
    assert model.missing({}, 3, 0) == [1, 2, 3]
    assert model.missing({s: payload(s) for s in (1, 2)}, 3, 0) == [3]
