"""Every recorded way to spoil a datastore: what is served, what is refused, and that nothing goes
unsaid.

The recipes and the verdicts of the real v0.25.6 server are in
``tests/data/datastores/damage.json``; the classes are those of ``docs/store.md``, damage. Each
store is opened by the real file store under a real epoch, without and with
``-file_truncate_bad_eof``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import RecoveryError
from ftstan.broker.broker import BrokerOptions
from ftstan.stores.file.env import FileStoreOptions
from ftstan.wire.block import MsgBlock
from tests.compat.driver import Driver
from tests.oracle.damage import damaged_tree, recipes
from tests.oracle.gostore import read_tree
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE

if TYPE_CHECKING:
    from ftstan.stores.file.store import FileStore
    from ftstan.stores.interface import ChannelStore
    from tests.oracle.damage import Recipe
    from tests.oracle.goview import GoView

ORDERS = "orders.eu.1"

#: Starts that are refused, as the original refuses them.
REFUSED = {
    "server-size-5",
    "server-size-8",
    "server-torn-payload",
    "server-zeros-16",
    "server-all-zero-record",
    "server-flip-payload",
    "server-flip-crc",
    "server-flip-length",
    "server-version-2",
    "server-version-0",
    "clients-version-7",
}

#: Quarantined at the start.
QUARANTINED = {
    "subs-zeros-then-record",
    "subs-flip-payload-first",
    "subs-flip-payload-middle",
    "subs-type-6-middle",
    "subs-version-2",
    "dat-flip-payload-middle-noidx",
    "dat-flip-payload-first-noidx",
    "dat-flip-crc-middle-noidx",
    "dat-flip-length-middle-noidx",
    "dat-version-2",
    "dat-version-2-noidx",
    "dat-future-version",
    "dat-future-version-noidx",
    "dat-zero-length-middle-noidx",
    "dat-zero-header-middle-noidx",
    "slice1-torn",
    "slice2-torn",
    "slice2-torn-noidx",
    "slice3-flip-payload-middle-noidx",
    "slice-bad-name",
    "slice-other-channel",
    "root-dir-odd-with-messages",
    "root-case-twin",
}

#: Those of them that the truncating option ends: what is torn is cut wherever it is.
ENDED_BY_TRUNCATING = {"slice1-torn", "slice2-torn", "slice2-torn-noidx"}

#: Quarantined when the bad record is met: a start does not read what an index proves.
QUARANTINED_WHEN_READ = {
    "dat-flip-payload-middle",
    "dat-flip-payload-first",
    "dat-flip-crc-middle",
    "dat-zero-header-middle",
    "slice3-flip-payload-middle",
    "v010-dat-flip-middle",
}

#: What is served where it is not everything: (sequences, last sequence) -> recipes.
LESS = {
    ("1-34", 35): {
        "dat-torn-payload",
        "dat-torn-header",
        "dat-header-no-payload",
        "dat-last-record-missing",
        "dat-flip-payload-last",
        "dat-flip-crc-last",
        "dat-flip-length-last",
        "dat-huge-length-last",
        "dat-max-length-last",
        "v010-dat-torn",
    },
    ("1-34", 34): {
        "dat-torn-payload-noidx",
        "dat-torn-header-noidx",
        "dat-header-no-payload-noidx",
        "dat-last-record-missing-noidx",
        "dat-flip-payload-last-noidx",
        "dat-flip-crc-last-noidx",
        "dat-flip-length-last-noidx",
        "dat-huge-length-last-noidx",
        "dat-max-length-last-noidx",
    },
    ("1-32", 35): {"dat-torn-middle"},
    ("1-32", 32): {"dat-torn-middle-noidx"},
    ("1-30", 35): {
        "dat-size-0",
        "dat-size-3",
        "dat-size-4",
        "dat-size-6",
        "dat-size-8",
        "dat-missing",
    },
    ("1-30", 30): {
        "dat-size-0-noidx",
        "dat-size-3-noidx",
        "dat-size-4-noidx",
        "dat-size-6-noidx",
        "dat-size-8-noidx",
        "dat-missing-noidx",
        "slice4-missing",
    },
    ("1-32,34-35", 35): {
        "dat-flip-payload-middle",
        "dat-flip-payload-middle-noidx",
        "dat-flip-crc-middle",
        "dat-flip-crc-middle-noidx",
        "dat-flip-length-middle-noidx",
        "dat-zero-length-middle-noidx",
        "dat-zero-header-middle",
        "dat-zero-header-middle-noidx",
        "dat-gap-noidx",
        "v010-dat-flip-middle",
    },
    ("1-30,32-35", 35): {"dat-flip-payload-first", "dat-flip-payload-first-noidx"},
    ("1-9,11-35", 35): {"slice1-torn"},
    ("1-19,21-35", 35): {"slice2-torn", "slice2-torn-noidx"},
    ("1-10,21-35", 35): {"slice2-dat-missing", "slice2-missing"},
    ("11-35", 35): {"slice1-missing"},
    ("1-24,26-35", 35): {"slice3-flip-payload-middle", "slice3-flip-payload-middle-noidx"},
    # An index names a message more than the data has: its number is not given out.
    ("1-35", 36): {"idx-longer-1"},
    ("1-11", 11): {"killed-dat-torn-idx-behind", "killed-dat-header-idx-behind", "killed-all-torn"},
    ("1-11", 12): {"killed-dat-torn-idx-complete"},
}

#: Nothing on the disk says that these ever held anything.
WITHOUT_A_TRACE = {
    "dat-last-record-missing-noidx",
    "dat-size-4-noidx",
    "dat-missing-noidx",
    "slice4-missing",
    "slice1-missing",
    "clients-size-4",
    "clients-missing",
    "server-clients-missing",
    "clients-add-to-delete",
    "root-only-channels",
}


@dataclass
class Start:
    """One start on a disk, and what it found."""

    disk: SimDisk
    truncating: bool = False

    def __post_init__(self) -> None:
        self.disk.keeps_log = False
        self.clock = ManualClock()
        options = FileStoreOptions(truncate_bad_eof=self.truncating)
        self.store: FileStore = open_file_store(self.disk, self.clock, options)
        found = self.store.recover()
        self.channels: dict[str, ChannelStore] = {c.name.decode(): c for c in found.channels}
        self.clients = {c.client_id.decode() for c in found.clients}
        self.refused = {name.decode(): text for name, text in found.refused.items()}

    def served(self, name: str) -> list[int]:
        """Sequences that a subscriber from the first message receives."""
        channel = self.channels[name]
        out: list[int] = []
        at = channel.first
        while 0 < at <= channel.last:
            block = channel.read(at, 7, 2000)
            if block is None:
                break
            out += [block.sequence(i) for i in range(block.position(at), len(block))]
            at = out[-1] + 1
        return out

    def publish(self, name: str, count: int = 3) -> str:
        """One batch; the error, empty if it was stored."""
        channel = self.channels[name]
        block = MsgBlock()
        for i in range(count):
            block.append(channel.last + 1 + i, name.encode(), b"", b"probe", self.clock.wall_ns())
        channel.append(block)
        failed = self.store.commit()
        return failed[channel.name].text if failed else ""

    def killed(self) -> SimDisk:
        """The disk after a kill -9."""
        return self.disk.crash(process_only=True)


def spoilt(recipe: Recipe) -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(STORE)
    disk.add_tree(STORE, damaged_tree(recipe))
    return disk


@cache
def undamaged(base: str) -> GoView:
    return read_tree(damaged_tree({"base": base, "ops": []}))


def ranges(sequences: list[int]) -> str:
    parts: list[list[int]] = []
    for sequence in sequences:
        if parts and parts[-1][1] == sequence - 1:
            parts[-1][1] = sequence
        else:
            parts.append([sequence, sequence])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def members(text: str) -> set[int]:
    """The reverse of ``ranges``."""
    out: set[int] = set()
    for part in text.split(",") if text else []:
        low, _, high = part.partition("-")
        out |= set(range(int(low), int(high or low) + 1))
    return out


def channel_of(recipe: Recipe) -> str:
    """The channel that a recipe is about."""
    named = {
        "root-dir-odd-with-messages": "odd name [x]",
        "root-case-twin": "Single",
        "slice-other-channel": ORDERS,
    }
    if recipe["name"] in named:
        return named[recipe["name"]]
    found = [op["file"].partition("/")[0] for op in recipe["ops"] if "/" in op["file"]]
    return found[0] if found else "binary" if recipe["base"].endswith("killed.tar.gz") else ORDERS


def is_refused(recipe: Recipe, *, truncating: bool) -> bool:
    return recipe["name"] in REFUSED or (truncating and recipe["name"] == "root-truncate-marker")


def expected(recipe: Recipe) -> dict[str, tuple[str, int]]:
    """What each channel serves, and its last sequence, as ``docs/store.md`` says."""
    view = undamaged(recipe["base"])
    rows = {name.decode(): (ranges(list(c.messages)), c.last) for name, c in view.channels.items()}
    for row, names in LESS.items():
        if recipe["name"] in names:
            rows[channel_of(recipe)] = row
    if recipe["name"] in ("root-dir-odd-with-messages", "root-case-twin"):
        rows[channel_of(recipe)] = ("1", 1)
    if recipe["name"] in ("root-channel-empty", "root-channel-is-file", "root-channel-missing"):
        del rows["orders.eu.2"]
    return rows


ALL = [(recipe, truncating) for recipe in recipes() for truncating in (False, True)]
IDS = [f"{recipe['name']}{'-truncating' if truncating else ''}" for recipe, truncating in ALL]
each = pytest.mark.parametrize(("recipe", "truncating"), ALL, ids=IDS)


@each
def test_each_damage_ends_as_its_class_says(recipe: Recipe, truncating: bool) -> None:
    if is_refused(recipe, truncating=truncating):
        says = recipe["truncating" if truncating else "plain"]["says"].replace("DATASTORE/", "")
        with pytest.raises(RecoveryError) as refused:
            Start(spoilt(recipe), truncating)
        assert refused.value.text == says
        assert refused.value.hint
        return
    start = Start(spoilt(recipe), truncating)
    at_start = recipe["name"] in QUARANTINED - (ENDED_BY_TRUNCATING if truncating else set())
    assert set(start.refused) == ({channel_of(recipe)} if at_start else set())
    served = {
        name: (ranges(start.served(name)), channel.last) for name, channel in start.channels.items()
    }
    assert served == expected(recipe)
    assert start.store.quarantined == (
        [channel_of(recipe)] if at_start or recipe["name"] in QUARANTINED_WHEN_READ else []
    )


@each
def test_no_verdict_is_worse_than_the_originals(recipe: Recipe, truncating: bool) -> None:
    verdict = recipe["truncating" if truncating else "plain"]
    if not verdict["starts"]:
        return
    start = Start(spoilt(recipe), truncating)
    rows = {
        n.decode(): (set(c.messages), c.last) for n, c in undamaged(recipe["base"]).channels.items()
    }
    for name, row in verdict.get("channels", {}).items():
        rows[name] = (members(row["delivered"]), row["last_seq"]) if row else (set(), 0)
    for name, (delivered, last) in rows.items():
        if delivered:
            assert delivered <= set(start.served(name))
        if last:
            assert start.channels[name].last >= last
    clients = verdict.get("clients", [c.decode() for c in undamaged(recipe["base"]).clients])
    assert set(clients) <= start.clients


@each
def test_every_loss_is_said_with_file_and_offset(
    recipe: Recipe, truncating: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    if is_refused(recipe, truncating=truncating) or recipe["name"] in WITHOUT_A_TRACE:
        return
    start = Start(spoilt(recipe), truncating)
    base = undamaged(recipe["base"])
    channel = channel_of(recipe)
    lost = {c.decode() for c in base.clients} - start.clients
    files = ["clients.dat"] if lost else []
    had = base.channels.get(channel.encode())
    if (
        had is not None
        and channel in start.channels
        and set(had.messages) - set(start.served(channel))
    ):
        files.append("msgs.")
    log = capfd.readouterr().err
    for file in files:
        said = [
            line
            for line in log.splitlines()
            if file in line and ("[ERR]" in line or "[WRN]" in line)
        ]
        assert said
        assert any(re.search(r"offset:? \d+|has \d bytes", line) for line in said)


@each
def test_what_is_quarantined_is_not_written_and_the_rest_goes_on(
    recipe: Recipe, truncating: bool
) -> None:
    if is_refused(recipe, truncating=truncating):
        return
    start = Start(spoilt(recipe), truncating)
    channel = channel_of(recipe)
    if channel not in start.channels:
        return
    start.served(channel)
    before = start.disk.tree(f"{STORE}/{channel}")
    last = start.channels[channel].last
    if start.store.quarantined:
        assert (
            start.publish(channel)
            == f'channel "{channel}" is quarantined: run ftstanctl store verify'
        )
        assert start.publish("single") == ""
        start.store.tick(start.clock.wall_ns())
        start.store.close()
        assert start.disk.tree(f"{STORE}/{channel}") == before
    else:
        assert start.publish(channel) == ""
        assert start.served(channel)[-3:] == [last + 1, last + 2, last + 3]


@each
def test_a_third_start_after_two_kills_is_as_well_as_the_first(
    recipe: Recipe, truncating: bool
) -> None:
    if is_refused(recipe, truncating=truncating):
        return
    first = Start(spoilt(recipe), truncating)
    served = {name: first.served(name) for name in first.channels}
    lasts = {name: channel.last for name, channel in first.channels.items()}
    subs = {name: len(channel.recovered_subs()) for name, channel in first.channels.items()}
    second = Start(first.killed())
    published = channel_of(recipe) if channel_of(recipe) in second.channels else ORDERS
    second.served(published)
    more = (
        [] if published in second.store.quarantined else [lasts[published] + i for i in (1, 2, 3)]
    )
    assert bool(second.publish(published)) is not bool(more)
    third = Start(second.killed())
    assert {name: third.served(name) for name in third.channels} == {
        name: rows + (more if name == published else []) for name, rows in served.items()
    }
    assert {name: third.channels[name].last for name in lasts} == {
        name: last + (len(more) if name == published else 0) for name, last in lasts.items()
    }
    assert {name: len(channel.recovered_subs()) for name, channel in third.channels.items()} == subs
    assert third.clients == first.clients


def test_a_subscription_whose_client_is_gone_is_removed() -> None:
    (recipe,) = (r for r in recipes() if r["name"] == "subs-unknown-client-regular")
    disk = spoilt(recipe)
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock), BrokerOptions(), clock)
    driver.run()
    driver.store.close()
    again = Start(disk.sibling())
    ids = {stored.state.sub_id for stored in again.channels["durables"].recovered_subs()}
    view = undamaged(recipe["base"]).channels[b"durables"]
    assert ids == set(view.subs)
