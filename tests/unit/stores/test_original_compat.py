"""A group that becomes mixed while it is served: its channels are made fit for an original server
in rounds.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from ftstan.config.limits import Limits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from tests.filenode import NO_LIMITS, FileNode, Owner
from tests.oracle.gostore import read_tree
from tests.sim.disk import SimDisk
from tests.unit.stores.test_foreign_writes import original_stores
from tests.unit.stores.test_slices import fresh

if TYPE_CHECKING:
    from ftstan.base.clock import ManualClock

#: What each storage call takes, as on a file server.
CALL_S = 0.0005
#: Storage calls that publishers may have to wait for in one tick: those of a round and of its last
#: step.
MOST_CALLS = 48
NAMES = [b"c%02d" % i for i in range(30)]
BEGUN = "ft: mixed group: making 30 channels fit for an original server"
DONE = "ft: mixed group: an original server can follow now: 30 channels are fit for it"


class Served:
    """A store that is served behind a killed owner, which still writes late, on storage that takes
    its time.
    """

    def __init__(
        self, names: list[bytes], messages: int = 2, *, owner: Owner | None = None
    ) -> None:
        self.names = names
        self.messages = messages
        first = FileNode(fresh(), options=FileStoreOptions(slice_max_msgs=2))
        for name in names:
            for i in range(1, messages + 1):
                first.put(b"%d" % i, channel=name)
        first.tick()
        assert isinstance(first.disk, SimDisk)
        self.disk = first.disk.crash(process_only=True)
        self.node = FileNode(
            self.disk, owner=owner or Owner(2), options=first.options, clock=first.clock
        )
        for name in names:
            self.node.put(b"by the second", channel=name)
        self.node.tick()
        for name in names:
            # Behind our seal, and an original would read it.
            original_stores(
                self.disk.sibling(), messages // 2, messages + 1, b"late", channel=name.decode()
            )
        self.disk.on_call = lambda *_: self.clock.advance(CALL_S)

    @property
    def clock(self) -> ManualClock:
        return self.node.clock

    def is_fit(self) -> bool:
        return self.node.store.original_compat.fit_for(self.node.owner.epoch)

    def seen(self, name: bytes) -> list[bytes]:
        """What an original server would deliver."""
        messages = read_tree(self.disk.tree("/store")).channels[name].messages
        return [messages[n].data for n in sorted(messages)]

    def misread(self) -> set[bytes]:
        """Channels of which an original server would deliver something else than is there."""
        right = [*(b"%d" % i for i in range(1, self.messages + 1)), b"by the second"]
        return {
            name
            for name in self.names
            if name in self.node.channels and self.seen(name)[: len(right)] != right
        }

    def tick(self) -> tuple[int, bool]:
        """One tick: its storage calls, and whether another one is wanted at once."""
        before = self.disk.calls
        more = self.node.store.tick(self.clock.wall_ns())
        return self.disk.calls - before, more

    def rounds(self) -> list[int]:
        """Tick until none is wanted at once; the storage calls of each."""
        counts = []
        more = True
        while more:
            count, more = self.tick()
            counts.append(count)
        return counts


@pytest.mark.slow
def test_many_channels_are_made_fit_in_rounds_that_publishers_do_not_notice(
    capfd: pytest.CaptureFixture[str],
) -> None:
    served = Served(NAMES)
    assert served.misread() == set(NAMES)
    served.node.owner.mixed = True
    count, more = served.tick()
    assert (more, served.is_fit()) == (True, False)
    counts = [count]
    while more:
        assert bool(served.misread()) <= (not served.is_fit())
        assert served.node.put(b"meanwhile", channel=NAMES[len(counts) % 30]) == {}
        count, more = served.tick()
        counts.append(count)
    assert max(counts) <= MOST_CALLS
    assert (served.misread(), served.is_fit()) == (set(), True)
    lines = capfd.readouterr().err
    assert (lines.count(BEGUN), lines.count(DONE)) == (1, 1)
    served.rounds()
    assert served.is_fit()
    assert "ft: mixed group" not in capfd.readouterr().err


def test_a_channel_with_many_slices_is_more_than_one_round() -> None:
    served = Served([b"long"], messages=400)
    served.node.owner.mixed = True
    counts = served.rounds()
    assert len(counts) > 10
    assert max(counts) <= MOST_CALLS
    assert (served.misread(), served.is_fit()) == (set(), True)


def test_the_work_of_a_second_is_done_once_a_second_beside_the_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(NAMES)
    served.node.owner.mixed = True
    served.tick()
    looked: list[float] = []
    run = served.node.store._upkeep.run

    def look() -> None:
        looked.append(served.clock.mono())
        run()

    monkeypatch.setattr(served.node.store._upkeep, "run", look)
    began = served.clock.mono()
    more = True
    while more:
        served.node.put(b"meanwhile", channel=NAMES[0])
        more = served.tick()[1]
    assert len(looked) <= 1 + (served.clock.mono() - began)


def test_channels_that_are_not_open_yet_keep_a_store_from_being_called_fit() -> None:
    served = Served([b"a", b"b"])
    served.disk.on_call = None
    disk = served.disk.crash(process_only=True)
    owner = Owner(3)
    store = FileStore(
        disk,
        disk.open_dir("/store"),
        owner,
        served.clock,
        served.node.options,
        limits=Limits.same(NO_LIMITS),
        parallel_sync=False,
        most_at_once=0,
    )
    assert store.recover().later == [b"a", b"b"]
    owner.mixed = True
    served.disk = disk
    for name in (b"a", b"b"):
        assert not store.tick(served.clock.wall_ns())
        assert not store.original_compat.fit_for(3)
        store.open_channel(name)
        assert served.seen(name) == [b"1", b"2", b"by the second"]
    store.tick(served.clock.wall_ns())
    assert store.original_compat.fit_for(3)


def test_what_storage_refuses_keeps_a_store_from_being_called_fit_until_it_is_done(
    capfd: pytest.CaptureFixture[str],
) -> None:
    served = Served([b"a", b"b"])
    served.node.owner.mixed = True
    served.disk.fail_next("ftruncate", errno.EROFS)
    served.rounds()
    assert not served.is_fit()
    assert 'channel "a": could not be made ready for an original server' in capfd.readouterr().err
    served.node.tick(10)
    assert not served.is_fit()
    served.clock.advance(30)
    served.rounds()
    assert (served.misread(), served.is_fit()) == (set(), True)


@pytest.mark.parametrize(
    ("name", "words"),
    [("clients.dat", "clients.dat"), ("msgs.1.idx", 'channel "a"'), ("", 'channel "a"')],
    ids=["of clients", "an index", "a sync"],
)
def test_without_space_for_one_file_the_server_serves_on_and_the_store_is_not_called_fit(
    name: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    served = Served([b"a", b"b"])
    served.node.owner.mixed = True
    full = [True]

    def hook(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        served.clock.advance(CALL_S)
        makes = call == "open" and any(str(a).endswith(f".{name}") for a in arguments)
        if full[0] and (makes if name else call == "fdatasync"):
            raise OSError(errno.ENOSPC, "No space left on device")

    served.disk.on_call = hook
    for _ in range(5):
        served.rounds()
        served.clock.advance(1)
    assert not served.is_fit()
    said = capfd.readouterr().err
    refused = f"{words}: could not be made ready for an original server: No space left on device"
    assert said.count(refused) == 1
    # Without a sync nothing is acknowledged.
    assert (served.node.put(b"served on", channel=b"b") == {}) is bool(name)
    full[0] = False
    served.clock.advance(31)
    served.rounds()
    assert (served.misread(), served.is_fit()) == (set(), True)


def test_a_quarantined_channel_is_left_as_it_is_and_not_counted() -> None:
    served = Served([b"a", b"b"])
    served.disk.on_call = None
    tree = served.disk.tree("/store")
    damaged = fresh()
    damaged.add_tree("/store", tree | {"b/subs.dat": b"\7\0\0\0"})
    before = damaged.tree("/store")["b/subs.dat"]
    owner = Owner(3, mixed=True)
    node = FileNode(damaged, owner=owner, options=served.node.options, clock=served.clock)
    assert node.store.quarantined == ["b"]
    assert node.store.original_compat.fit_for(3)
    assert damaged.tree("/store")["b/subs.dat"] == before


def test_a_store_that_was_opened_with_a_refusal_is_not_called_fit() -> None:
    served = Served([b"a"])
    served.disk.on_call = None
    served.disk = served.disk.crash(process_only=True)
    # The late bytes of the first owner are cut when it is opened.
    served.disk.fail_next("ftruncate", errno.EROFS)
    owner = Owner(3, mixed=True)
    served.node = FileNode(
        served.disk, owner=owner, options=served.node.options, clock=served.clock
    )
    assert not served.is_fit()
    served.clock.advance(31)
    served.rounds()
    assert (served.misread(), served.is_fit()) == (set(), True)


def test_a_store_that_is_opened_in_a_mixed_group_is_fit_at_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    served = Served([b"a"])
    served.disk = served.disk.crash(process_only=True)
    capfd.readouterr()
    owner = Owner(3, mixed=True)
    served.node = FileNode(
        served.disk, owner=owner, options=served.node.options, clock=served.clock
    )
    assert (served.misread(), served.is_fit()) == (set(), True)
    served.rounds()
    assert served.is_fit()
    assert "ft: mixed group" not in capfd.readouterr().err


def test_a_channel_that_is_deleted_and_made_again_between_two_rounds_is_left_alone() -> None:
    served = Served([b"long"], messages=400)
    served.node.owner.mixed = True
    served.tick()
    served.node.store.delete_channel(b"long")
    del served.node.channels[b"long"]
    assert served.node.put(b"new", channel=b"long") == {}
    served.rounds()
    assert served.is_fit()
    assert served.seen(b"long") == [b"new"]


def test_off_and_on_again_between_two_looks_begins_anew() -> None:
    served = Served([b"a"])
    owner = served.node.owner
    owner.mixed = True
    owner.epoch += 1
    served.rounds()
    assert served.is_fit()
    # An owner goes on to the next epoch when its numbers are used up: still mixed.
    owner.epoch += 1
    assert served.is_fit()
    served.rounds()
    assert served.is_fit()
    # Twice at once is off, and on again.
    owner.epoch += 2
    assert not served.is_fit()
    served.rounds()
    assert served.is_fit()


def test_a_group_that_is_not_mixed_any_more_is_not_called_fit() -> None:
    served = Served([b"a"])
    served.node.owner.mixed = True
    served.rounds()
    assert served.is_fit()
    served.node.owner.mixed = False
    served.node.owner.epoch += 1
    served.rounds()
    assert not served.is_fit()
