"""The model calls a broken promise by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.stores.interface import ChannelLimits, ClientInfo, Recovered, StoredSub, SubState
from ftstan.wire.block import MsgBlock
from tests.sim.disk import SimDisk
from tests.sim.history import INFO
from tests.sim.model import ChannelModel, Model, Violation, read_all
from tests.sim.toystore import ToyChannel, ToyStore

if TYPE_CHECKING:
    from ftstan.stores.interface import ChannelStore

SUB = SubState(
    sub_id=1, client_id=b"me", inbox=b"inbox", ack_inbox=b"acks", max_in_flight=1, ack_wait_secs=30
)
CLIENT = ClientInfo(b"me", b"hb")


def encoded(sequence: int, data: bytes) -> bytes:
    block = MsgBlock()
    block.append(sequence, b"foo", b"", data, 1)
    return block.payload(0)


def channel_of(*contents: bytes) -> ToyChannel:
    disk = SimDisk()
    disk.make_dirs("/store")
    channel = ToyStore(disk).create_channel(b"foo", ChannelLimits())
    for sequence, data in enumerate(contents, 1):
        channel.apply(("message", b"foo", sequence, encoded(sequence, data)))
    return channel


def found(*channels: ChannelStore, clients: tuple[ClientInfo, ...] = ()) -> Recovered:
    return Recovered(INFO, list(clients), list(channels))


def model_with(*contents: bytes) -> Model:
    """A model to which these messages of channel foo were offered, and nothing answered."""
    model = Model(info=INFO, channels={b"foo": ChannelModel(b"foo")})
    for sequence, data in enumerate(contents, 1):
        model.channels[b"foo"].offer(sequence, encoded(sequence, data))
    return model


def test_an_unanswered_message_may_be_there_or_not() -> None:
    for there in ((b"a",), (b"a", b"b")):
        model = model_with(b"a", b"b")
        model.channels[b"foo"].fix(1, encoded(1, b"a"))
        assert len(model.check(found(channel_of(*there)))[b"foo"]) == len(there)


def test_an_answered_message_must_be_there() -> None:
    model = model_with(b"a", b"b")
    model.answered(set())
    with pytest.raises(
        Violation, match=r"channel 'foo': \[2\] were acknowledged or delivered and are gone"
    ):
        model.check(found(channel_of(b"a")))
    with pytest.raises(Violation, match="channel 'foo': it is gone"):
        model.check(found())


def test_a_failed_channel_has_nothing_answered() -> None:
    model = model_with(b"a")
    model.answered({b"foo"})
    model.check(found(channel_of()))


def test_one_sequence_has_one_content_for_ever() -> None:
    model = model_with(b"a")
    model.answered(set())
    channel = model.channels[b"foo"]
    channel.offer(1, encoded(1, b"other"))
    with pytest.raises(Violation, match="sequence 1 had"):
        channel.fix(1, encoded(1, b"other"))
    with pytest.raises(Violation, match="sequence 1 had"):
        model.check(found(channel_of(b"other")))


def test_a_message_that_nobody_published_is_an_invention() -> None:
    with pytest.raises(Violation, match="nobody published"):
        model_with(b"a").check(found(channel_of(b"a", b"b")))


@pytest.mark.parametrize(("attribute", "value"), [("count", 3), ("last", 3), ("first", 0)])
def test_counters_must_agree_with_the_messages(attribute: str, value: int) -> None:
    channel = channel_of(b"a", b"b")
    setattr(channel, attribute, value)
    with pytest.raises(Violation):
        read_all(channel)


def test_a_hole_is_noticed() -> None:
    channel = channel_of(b"a", b"b", b"c")
    del channel.messages[2]
    with pytest.raises(Violation, match="3 where 2 should be"):
        read_all(channel)


def test_an_answered_subscription_is_there_in_its_answered_state_or_a_later_one() -> None:
    model = model_with()
    channel = model.channels[b"foo"]
    channel.stage_sub(1, SUB)
    model.check(found(channel_of()))
    channel.stage_sub(1, SUB)
    model.answered(set())
    with pytest.raises(Violation, match="subscription 1: it was answered and is gone"):
        model.check(found(channel_of()))
    changed = replace(SUB, inbox=b"new")
    channel.stage_sub(1, changed)
    for state in (SUB, changed):
        there = channel_of()
        there.apply(("sub", b"foo", state))
        model.check(found(there))
    there.apply(("sub", b"foo", replace(SUB, inbox=b"strange")))
    with pytest.raises(Violation, match="is none of"):
        model.check(found(there))


def test_subscriptions_that_nobody_made_or_with_an_id_to_be_used_again_are_noticed() -> None:
    there = channel_of()
    there.apply(("sub", b"foo", SUB))
    with pytest.raises(Violation, match="nobody made"):
        model_with().check(found(there))
    model = model_with()
    model.channels[b"foo"].stage_sub(1, SUB)
    there.next_sub_id = 1
    with pytest.raises(Violation, match="is in use"):
        model.check(found(there))


@pytest.mark.parametrize(
    ("pending", "last_sent", "says"),
    [
        ({3}, 0, "never sent"),
        ({1, 2}, 2, "acknowledged durably"),
        (set(), 2, "not pending"),
        ({2}, 7, "it names sequence 7"),
        ({2}, 2, ""),
    ],
)
def test_pending_sequences_are_those_sent_and_not_acknowledged(
    pending: set[int], last_sent: int, says: str
) -> None:
    model = model_with(b"a", b"b", b"c")
    channel = model.channels[b"foo"]
    channel.stage_sub(1, SUB)
    model.answered(set())
    sub = channel.subs[1]
    sub.sent |= {1, 2}
    sub.kept_sent |= {1, 2}
    sub.acked |= {1}
    sub.kept_acked |= {1}
    there = channel_of(b"a", b"b", b"c")
    there.subs[1] = StoredSub(replace(SUB, last_sent=last_sent), pending)
    there.next_sub_id = 2
    if not says:
        model.check(found(there))
        return
    with pytest.raises(Violation, match=says):
        model.check(found(there))


def test_clients_and_the_server_record_are_kept() -> None:
    model = model_with()
    model.stage_client(b"me", CLIENT)
    model.check(found())
    model.stage_client(b"me", CLIENT)
    model.answered(set())
    model.check(found(clients=(CLIENT,)))
    with pytest.raises(Violation, match="client b'me': None is none of"):
        model.check(found())
    with pytest.raises(Violation, match="registered twice"):
        model.check(found(clients=(CLIENT, CLIENT)))
    with pytest.raises(Violation, match="server record"):
        model.check(Recovered(None, [CLIENT], []))


def test_a_channel_that_nobody_made_is_noticed() -> None:
    with pytest.raises(Violation, match="nobody made the channels"):
        Model().check(Recovered(None, [], [channel_of()]))
