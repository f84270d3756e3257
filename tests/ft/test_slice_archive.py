"""Real servers whose slices go through the archive script that we ship: every message is in the
store or the spool.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.spark.archive import install_script, spool
from ftstan.stores.file.log import records
from tests.ft.client import StanClient
from tests.ft.load import CHANNEL
from tests.processes import READY, ROOT, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Stage

pytestmark = pytest.mark.processes

LIMITS = ("-mm", "20", "-file_slice_max_msgs", "10")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The script, with its spool beside it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = tmp_path / "archive.sh"
    install_script(str(tmp_path / "spool"), str(path))
    return str(path)


def archived(stage: Stage) -> dict[int, bytes]:
    """Sequence and record of every message in the spool.

    One that is there twice must be the same.
    """
    found: dict[int, bytes] = {}
    listing = spool.slices(str(stage.directory / "spool"))
    assert listing.broken == []
    for s in listing.slices:
        with open(s.dat, "rb") as file:
            block, _, why = records.scan_data(
                file.read()[4 : s.manifest.end], CHANNEL, 0, records.Crc()
            )
        assert (why, len(block)) == ("", s.manifest.count)
        for k in range(len(block)):
            payload = block.payload(k)
            assert found.setdefault(block.sequence(k), payload) == payload
    return found


def left_over(stage: Stage) -> list[Path]:
    return [*stage.store.glob("*/*.bak"), *(stage.directory / "spool/incoming").iterdir()]


def test_what_a_pair_was_given_is_in_the_store_or_in_the_spool_after_its_active_was_killed(
    stage: Stage, script: str
) -> None:
    words = (*LIMITS, "-file_slice_archive_script", script)
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url, *words)
    a.wait_until_active()
    b = stage.member("b", "-ns", nats.url, *words)
    b.wait_until_standing_by()
    client = StanClient(nats.port)
    client.connect()
    payloads = {n: b"payload %d" % n for n in range(1, 301)}
    for n in range(1, 151):
        client.publish(CHANNEL, payloads[n])
    a.kill()
    b.wait_until_active()
    for n in range(151, 301):
        client.publish(CHANNEL, payloads[n])
    until(
        lambda: archived(stage).keys() >= set(range(1, 281)), "every removed message in the spool"
    )
    until(lambda: not left_over(stage), "an end of every script")
    found = archived(stage)
    assert all(payloads[n] in record for n, record in found.items())
    rest = client.subscribe(CHANNEL)
    client.nats.pump(lambda: rest.has(20), "the messages that are left")
    assert found.keys() | set(rest.sequences) == payloads.keys()


def test_a_spool_that_refuses_holds_up_no_publish_and_gets_its_slices_later(
    stage: Stage, script: str
) -> None:
    folder = stage.directory / "spool"
    folder.rename(stage.directory / "away")
    server = stage.file_server("server", *LIMITS, "-file_slice_archive_script", script)
    server.wait_for(READY)
    client = StanClient(server.port)
    client.connect()
    for n in range(1, 61):
        client.publish(CHANNEL, b"%d" % n)
    server.wait_for("is its file system mounted?")
    client.publish(CHANNEL, b"61")
    with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
        folder.stat()
    (stage.directory / "away").rename(folder)
    until(lambda: archived(stage).keys() >= set(range(1, 31)), "what had to wait")
