"""A datastore read again and again while a pair publishes into it, rolls slices away and loses its
active member.

Without Spark: what its tasks do is done here, in one process. Every look is right in itself: no
gap, nothing that a later owner does not have, every record whole; and a slice that goes while it is
read is an error or told.
"""

from __future__ import annotations

import contextlib
import http
import itertools
import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoreError
from ftstan.spark.archive import install_script
from ftstan.spark.keys import NO_KEYS
from ftstan.spark.log import EVERYTHING, Store
from ftstan.spark.options import ReadOptions
from ftstan.spark.places import opened
from ftstan.spark.report import ReadingKind, ReadingReport
from tests.processes import ROOT, until
from tests.spark.streaming import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ftstan.spark.places import Piece
    from tests.processes import Stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

CHANNELS = ("orders", "payments")
SLICE = 50
KEPT = 3 * SLICE
WORDS = ("-mm", str(KEPT), "-file_slice_max_msgs", str(SLICE), "-dedup_window", "100000")
PAUSE_S = 0.01

#: The script is a process for each slice, one after the other.
SPOOLED_S = 300.0
GONE = "the slice went away after the query had been planned"

Messages = dict[str, dict[int, bytes]]


def rows(pieces: Iterable[Piece], report: ReadingReport, *, strict: bool) -> Messages:
    """Channel, sequence and data of everything in the parts.

    Each sequence is there once and whole.
    """
    found: Messages = {}
    for piece in pieces:
        columns = ("channel", "sequence", "data", "crc_ok")
        for batch in piece.read(
            columns, report=report, fail_on_data_loss=strict, refuse_encrypted=False, keys=NO_KEYS
        ):
            for channel, sequence, data, whole in zip(
                *(batch.column(n).to_pylist() for n in columns), strict=True
            ):
                assert whole, (channel, sequence)
                assert sequence not in found.setdefault(channel, {}), (channel, sequence)
                found[channel][sequence] = data
    return found


def gaps(messages: dict[int, bytes]) -> int:
    return sum(b - a > 1 for a, b in itertools.pairwise(sorted(messages)))


@dataclass(slots=True)
class Looker:
    """Looks at a store; remembers whatever it was shown, in whatever look."""

    store: Store
    shown: Messages = field(default_factory=dict)
    whole: int = 0
    lost: int = 0

    def look(self, *, strict: bool) -> None:
        """One plan and its reading, as a query does it."""
        report = ReadingReport()
        try:
            found = rows(self.store.plan(CHANNELS), report, strict=strict)
        except StoreError as error:
            if not strict or GONE not in error.text:
                raise
            self.lost += 1
            return
        losses = [finding for finding in report.findings if finding.kind is not ReadingKind.NOTE]
        assert {finding.kind for finding in losses} <= {ReadingKind.LOSS}, losses
        for channel, messages in found.items():
            mine = sum(finding.channel == channel for finding in losses)
            assert gaps(messages) <= mine, (channel, losses)
            for sequence, data in messages.items():
                assert self.shown.setdefault(channel, {}).setdefault(sequence, data) == data
        self.whole += not losses
        self.lost += len(losses)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Look in both ways, again and again, until the condition holds."""
        ways = itertools.cycle((True, False))

        def looked() -> bool:
            self.look(strict=next(ways))
            return condition()

        until(looked, what)

    def last(self) -> int:
        """The newest sequence that was ever shown of the channel that has got least far."""
        return min(max(self.shown.get(channel, {0: b""})) for channel in CHANNELS)


@contextlib.contextmanager
def published(urls: Sequence[str]) -> Iterator[dict[str, list[bytes]]]:
    """Publish to all channels until the block is left, whoever serves.

    Everything is acknowledged by then.
    """
    stopping = threading.Event()
    sent: dict[str, list[bytes]] = {channel: [] for channel in CHANNELS}

    def payloads(channel: str) -> Iterator[bytes]:
        for number in itertools.count():
            if stopping.is_set():
                return
            sent[channel].append(b"%s %d" % (channel.encode(), number))
            yield sent[channel][-1]

    def work(channel: str) -> None:
        publish(",".join(urls), channel, payloads(channel), PAUSE_S, name=f"publisher-{channel}")

    threads = [threading.Thread(target=work, args=(channel,)) for channel in CHANNELS]
    for thread in threads:
        thread.start()
    try:
        yield sent
    finally:
        stopping.set()
        for thread in threads:
            thread.join(120.0)
    assert not any(thread.is_alive() for thread in threads)


def settled(stage: Stage, sent: dict[str, list[bytes]]) -> bool:
    """Whether everything is confirmed, and no slice will move any more."""
    ends = Store(str(stage.store)).ends(CHANNELS)
    return not list(stage.store.glob("*/*.bak")) and all(
        behind > len(sent[channel]) and behind - first < KEPT + SLICE
        for channel, (first, behind) in ends.items()
    )


def everything(stage: Stage) -> Messages:
    """What the spool and the datastore hold together, when no server is left."""
    found: Messages = {channel: {} for channel in CHANNELS}
    for path in (stage.directory / "spool", stage.store):
        place = opened(ReadOptions.of({"path": str(path)}))
        pieces = place.plan(
            dict.fromkeys(place.channels, EVERYTHING), max_bytes=1 << 27, min_parts=1
        )
        for channel, messages in rows(pieces, ReadingReport(), strict=True).items():
            for sequence, data in messages.items():
                assert found[channel].setdefault(sequence, data) == data
    return found


def test_every_look_at_a_store_whose_slices_roll_and_whose_active_dies_is_whole(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = stage.directory / "archive.sh"
    install_script(str(stage.directory / "spool"), str(script))
    nats = stage.nats()
    a, b = stage.pair_on(nats, *WORDS, "-file_slice_archive_script", str(script))
    looker = Looker(Store(str(stage.store)))
    with published([nats.url]) as sent:
        until(
            lambda: all(stage.store.joinpath(c, "confirmed.bin").exists() for c in CHANNELS),
            "the channels",
        )
        looker.until(
            lambda: looker.last() > KEPT + SLICE and looker.whole >= 10, "slices that rolled"
        )

        # A plan that is read when all its slices have gone.
        old = looker.store.plan(CHANNELS)
        ends = looker.store.ends(CHANNELS)
        looker.until(
            lambda: all(looker.store.ends(CHANNELS)[c][0] >= ends[c][1] for c in CHANNELS),
            "the end of a plan's slices",
        )
        with pytest.raises(StoreError, match=GONE):
            rows(old, ReadingReport(), strict=True)
        report = ReadingReport()
        assert rows(old, report, strict=False) == {}
        assert {
            finding.channel for finding in report.findings if finding.kind is ReadingKind.LOSS
        } == set(CHANNELS)

        planned = looker.store.plan(CHANNELS)
        a.kill()
        assert all(
            gaps(messages) == 0
            for messages in rows(planned, ReadingReport(), strict=False).values()
        )
        looker.until(lambda: b.ft_status == http.HTTPStatus.OK, "a takeover")
        begun = looker.last()
        whole = looker.whole
        looker.until(
            lambda: looker.last() > begun + KEPT and looker.whole >= whole + 10,
            "slices of the next owner",
        )
    until(lambda: settled(stage, sent), "the last slices in the spool", SPOOLED_S)
    b.signal(signal.SIGTERM)
    b.status()
    truth = everything(stage)
    for channel in CHANNELS:
        assert sorted(truth[channel]) == list(range(1, len(sent[channel]) + 1))
        assert set(truth[channel].values()) == set(sent[channel])
        assert looker.shown[channel].items() <= truth[channel].items()
