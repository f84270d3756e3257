"""``ftstanctl store purge``: what it says, what a server of ours and an original find behind it."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.cli import ctl
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import purging
from tests.datastores import SECOND, messages_of, serve, serving
from tests.oracle.gostore import read_store

if TYPE_CHECKING:
    from pathlib import Path

NAME = b"orders"
COUNT = 18


@pytest.fixture
def begin() -> int:
    """When the first message was stored (Unix ns)."""
    return (time.time_ns() // SECOND - 100) * SECOND


@pytest.fixture
def store(tmp_path: Path, begin: int) -> Path:
    """Slices of four, a message a second, a durable that has not acknowledged 3 and 15; killed."""
    path = tmp_path / "store"
    path.mkdir()
    clock = ManualClock(begin)
    node = serve(path, clock, options=FileStoreOptions(slice_max_msgs=4))
    node.subscribe(NAME, 1)
    for i in range(1, COUNT + 1):
        node.publish(NAME, b"payload %d" % i)
        clock.advance(1)
    node.deliver(NAME, 1, sent=(3, 15))
    node.publish(b"other", b"stays")
    node.die()
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = ctl.main(["store", "purge", *words])
    said = capsys.readouterr()
    return status, said.out, said.err


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    status, out, err = run(capsys, *words, "--output", "json")
    assert status == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def files(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file()}


def iso(ns: int) -> str:
    return dt.datetime.fromtimestamp(ns / 1e9, dt.UTC).isoformat()


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ((), 18), (("--keep", "18"), 0), (("--keep", "5"), 13), (("--up-to", "6"), 6),
        (("--up-to", "99"), 18), (("--before", "7"), 6), (("--before", "1"), 0),
        (("--before", "2099-01-01T00:00Z"), 18), (("--before", "1999-01-01"), 0),
    ],
)  # fmt: skip
def test_what_a_dry_run_names_goes_and_both_servers_find_the_rest(
    store: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], last: int
) -> None:
    before = files(store)
    dry = report(capsys, str(store), "orders", *words, "--dry-run")
    assert files(store) == before
    assert (dry["purged"], dry["left"], dry["next"]) == (last, COUNT - last, COUNT + 1)
    assert (dry["first"], dry["last"]) == ((1, last) if last else (0, 0))
    assert dry["unacknowledged"] == (last >= 3) + (last >= 15)
    done = report(capsys, str(store), "orders", *words, "--yes")
    assert done == dry | {"dry_run": False}
    left = list(range(last + 1, COUNT + 1))
    go = read_store(store).channels
    # An original takes the last sequence from a message: of a channel without any, the newest.
    assert sorted(go[NAME].messages) == (left or [COUNT])
    assert len(go[NAME].subs) == 1
    assert len(go[b"other"].messages) == 1
    with serving(store) as node:
        assert sorted(messages_of(node, NAME)) == left
        assert len(node.channel(NAME).recovered_subs()) == 1
        assert node.publish(NAME, b"next") == [COUNT + 1]
        assert len(messages_of(node, b"other")) == 1


def test_a_time_keeps_the_first_message_that_was_stored_then_and_all_behind_it(
    store: Path, begin: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(store), "orders", "--before", iso(begin + 9 * SECOND))
    dry = report(capsys, *words, "--dry-run")
    assert (dry["purged"], dry["last"]) == (9, 9)
    assert (dry["first_timestamp"], dry["last_timestamp"]) == (begin, begin + 8 * SECOND)
    assert report(capsys, *words, "--yes")["purged"] == 9
    # Again: nothing is in front of it any more.
    assert report(capsys, *words)["purged"] == 0
    with serving(store) as node:
        assert min(messages_of(node, NAME)) == 10


def test_people_are_told_what_would_go_and_what_went(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, str(store), "orders", "--keep", "8", "--dry-run")
    assert status == 0
    assert "channel orders: 10 messages (sequences 1 to 10, " in out
    assert "would go, 8 are left, the next one gets sequence 19" in out
    assert "1 deliveries of them are not acknowledged" in out
    assert err == "nothing was changed\n"
    status, out, _ = run(capsys, str(store), "orders", "--keep", "8", "--yes")
    assert status == 0
    assert out == (
        "channel orders: purged 10 messages, 8 are left, the next one gets sequence 19\n"
    )
    assert "nothing to purge" in run(capsys, str(store), "orders", "--keep", "8", "--dry-run")[1]


def test_nothing_goes_without_a_word(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(store)
    status, _, err = run(capsys, str(store), "orders")
    assert status == 2
    assert "not done without a word: purge 18 messages" in err
    assert "--yes" in err
    assert files(store) == before


def test_a_store_that_is_served_is_looked_at_and_not_purged(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(store) as node:
        assert report(capsys, str(store), "orders", "--dry-run")["purged"] == COUNT
        status, _, err = run(capsys, str(store), "orders", "--yes")
        assert status == 2
        assert "is in use" in err
        assert len(messages_of(node, NAME)) == COUNT
        node.publish(NAME, b"still ours")


def test_wrong_words_and_wrong_stores_cost_one_line_and_no_epoch(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    before = files(store)
    for words, told, wanted in (
        ((str(store), "nobody", "--yes"), 'has no channel "nobody"', 64),
        ((str(empty), "orders", "--yes"), "holds no datastore", 2),
        ((str(store), "orders", "--before", "noon"), "invalid sequence or time value", 64),
        ((str(store), "orders", "--before", "0"), "invalid sequence or time value", 64),
        ((str(store), "orders", "--before", "0001-01-01"), "invalid sequence or time value", 64),
        ((str(store), "orders", "--before", "9999-12-31"), "invalid sequence or time value", 64),
        ((str(store), "orders", "--keep", "1", "--up-to", "2"), "not allowed with", 64),
    ):
        status, _, err = run(capsys, *words)
        assert (told in err, status) == (True, wanted), err
        assert "Traceback" not in err
    assert files(store) == before
    assert not list(empty.iterdir())


def test_the_copy_of_a_cluster_is_left_to_the_cluster(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "cluster.mark").write_text("{}")
    for words in (("--yes",), ("--dry-run",)):
        status, _, err = run(capsys, str(store), "orders", *words)
        assert status == 2
        assert "one node's copy of a cluster's" in err


def test_a_damaged_channel_is_refused_and_what_it_holds_stays(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = store / "orders/msgs.2.dat"
    index = store / "orders/msgs.2.idx"
    data.write_bytes(data.read_bytes().replace(b"payload 6", b"PAYLOAD 6"))
    index.write_bytes(index.read_bytes()[:4])
    status, _, err = run(capsys, str(store), "orders", "--keep", "2", "--yes")
    assert status == 2
    assert "quarantine" in err
    assert b"payload 5" in data.read_bytes()


def test_a_purge_that_storage_cut_short_is_told_and_finished_by_the_next_one(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        for name in ("_shrink", "_remove"):
            patched.setattr(purging, name, refused)
        status, _, err = run(capsys, str(store), "orders", "--keep", "2", "--yes")
    assert status == 2
    assert "was purged, and the messages are still in its files" in err
    assert len(read_store(store).channels[NAME].messages) > 2
    with serving(store) as node:
        assert sorted(messages_of(node, NAME)) == [17, 18]
        node.die()
    assert report(capsys, str(store), "orders", "--keep", "2")["purged"] == 0
    assert sorted(read_store(store).channels[NAME].messages) == [17, 18]
