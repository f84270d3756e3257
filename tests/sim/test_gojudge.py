"""The judge after a clean stop accepts what the original wrote and notices each difference from
it.
"""

from __future__ import annotations

import pytest

from ftstan.base.clock import ManualClock
from ftstan.stores.interface import ChannelLimits, ClientInfo, SubState
from ftstan.wire.block import MsgBlock
from tests.oracle.damage import archived_tree
from tests.oracle.gostore import read_tree
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.gojudge import go_judge
from tests.sim.history import INFO, STORE
from tests.sim.model import ChannelModel, Model, Violation

BASE = "v0.25.6/clean.tar.gz"


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.add_tree(STORE, archived_tree(BASE))
    return made


@pytest.fixture
def model() -> Model:
    """What the original's own store says was promised."""
    view = read_tree(archived_tree(BASE))
    made = Model()
    for client in view.clients.values():
        made.clients[client.client_id] = [ClientInfo(client.client_id, client.hb_inbox)]
    for name, channel in view.channels.items():
        kept = made.channels[name] = ChannelModel(name)
        for sequence, m in channel.messages.items():
            block = MsgBlock()
            block.append(sequence, m.subject, m.reply, m.data, m.timestamp)
            kept.fix(sequence, block.payload(0))
        for sub in channel.subs.values():
            state = SubState(
                sub_id=sub.sub_id,
                client_id=sub.client_id,
                inbox=sub.inbox,
                ack_inbox=sub.ack_inbox,
                durable_name=sub.durable_name,
                is_closed=sub.is_closed,
            )
            kept.stage_sub(sub.sub_id, state)
            kept.subs[sub.sub_id].pending = set(sub.pending)
    return made


def rewrite(disk: SimDisk, name: str, data: bytes) -> SimDisk:
    changed = SimDisk()
    changed.add_tree(STORE, {**disk.tree(STORE), name: data})
    return changed


def content(disk: SimDisk, name: str) -> bytes:
    data = disk.tree(STORE)[name]
    assert data is not None
    return data


def test_a_store_of_the_original_itself_is_accepted(disk: SimDisk, model: Model) -> None:
    go_judge(disk, model)


def test_data_ahead_of_the_index_are_noticed(disk: SimDisk, model: Model) -> None:
    name = "orders.eu.1/msgs.4.idx"
    with pytest.raises(Violation, match=r"orders.eu.1.*delivers something else at \[35\]"):
        go_judge(rewrite(disk, name, content(disk, name)[:-32]), model)


def test_a_file_that_would_be_repaired_is_noticed(disk: SimDisk, model: Model) -> None:
    name = "orders.eu.1/msgs.4.idx"
    with pytest.raises(Violation, match=r"would repair.*msgs.4.idx"):
        go_judge(rewrite(disk, name, content(disk, name)[:-5]), model)


def test_a_store_that_would_be_refused_is_noticed(disk: SimDisk, model: Model) -> None:
    name = "orders.eu.1/subs.dat"
    with pytest.raises(Violation, match=r"refuses the store.*unexpected EOF"):
        go_judge(rewrite(disk, name, content(disk, name)[:-1]), model)


def test_messages_stored_twice_are_noticed(disk: SimDisk, model: Model) -> None:
    twice = rewrite(disk, "single/msgs.7.dat", content(disk, "single/msgs.1.dat"))
    twice = rewrite(twice, "single/msgs.7.idx", content(disk, "single/msgs.1.idx"))
    with pytest.raises(Violation, match=r"single.*counts \(2, 1, 1\), not \(1, 1, 1\)"):
        go_judge(twice, model)


def test_a_lost_acknowledgement_is_noticed(disk: SimDisk, model: Model) -> None:
    model.channels[b"durables"].subs[1].pending.discard(6)
    with pytest.raises(Violation, match=r"subscription 1 has .* pending"):
        go_judge(disk, model)


def test_missing_clients_subscriptions_and_channels_are_noticed(
    disk: SimDisk, model: Model
) -> None:
    model.clients[b"new"] = [ClientInfo(b"new", b"hb")]
    with pytest.raises(Violation, match="sees the clients"):
        go_judge(disk, model)
    del model.clients[b"new"]
    model.channels[b"durables"].stage_sub(77, SubState(sub_id=77, client_id=b"me"))
    with pytest.raises(Violation, match="sees subscriptions"):
        go_judge(disk, model)
    del model.channels[b"durables"].subs[77]
    model.channels[b"absent"] = ChannelModel(b"absent", fixed={1: b""})
    with pytest.raises(Violation, match="does not see it"):
        go_judge(disk, model)


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("offered", [True, False])
def test_a_message_refused_and_purged_may_stand_for_the_last_sequence_if_it_was_published(
    *, offered: bool, answered: bool
) -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    store = open_file_store(disk, ManualClock())
    store.recover()
    store.set_server_info(INFO)
    log = store.create_channel(b"foo", ChannelLimits())
    block = MsgBlock()
    block.append(1, b"foo", b"", b"x", 7)
    payload = block.payload(0)
    log.append(block)
    store.commit()
    log.purge(1)
    store.close()
    # The model was never told that it is there: its batch was refused when the next slice could not
    # be opened.
    model = Model()
    channel = model.channels[b"foo"] = ChannelModel(b"foo")
    if offered:
        channel.offer(1, payload)
    channel.ask_purge(1)
    if answered:
        channel.answer_purge(1)
    if offered:
        go_judge(disk, model)
    else:
        with pytest.raises(Violation, match=r"delivers something else at \[1\]"):
            go_judge(disk, model)
