"""Channels whose files name a number that nothing can follow, or a time still to come: they hurt
nobody else.
"""

from __future__ import annotations

import struct
import zlib

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.broker import BrokerOptions
from ftstan.stores.file.log import records
from ftstan.stores.interface import MAX_NUMBER
from ftstan.wire import messages
from ftstan.wire.block import MsgBlock
from tests.compat.driver import SUBJECTS, Driver, sequences
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE

HIGHEST = (1 << 64) - 1
VERSION = b"\1\0\0\0"


def log_with(sequence: int, timestamp: int = 1_000_000_000) -> bytes:
    """A slice of the original's with one message."""
    block = MsgBlock()
    block.append(sequence, b"foo", b"", b"data", timestamp)
    records.seal(block, records.Crc())
    return VERSION + bytes(memoryview(block))


def subs_with(sub_id: int) -> bytes:
    """A ``subs.dat`` that says of this subscription that it was removed."""
    payload = b"\x08"
    while sub_id > 127:
        payload += bytes([sub_id & 127 | 128])
        sub_id >>= 7
    payload += bytes([sub_id])
    return VERSION + struct.pack("<II", len(payload) | 3 << 24, zlib.crc32(payload)) + payload


def server_on(**files: bytes) -> Driver:
    disk = SimDisk()
    disk.add_tree(STORE, {f"foo/{name.replace('_', '.')}": data for name, data in files.items()})
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock), BrokerOptions(), clock)
    driver.connect()
    return driver


@pytest.mark.parametrize("sequence", [HIGHEST, HIGHEST - 1, MAX_NUMBER + 1])
def test_no_message_is_acknowledged_behind_the_last_sequence(sequence: int) -> None:
    driver = server_on(subs_dat=VERSION, msgs_1_dat=log_with(sequence))
    assert f"name sequence {sequence}" in driver.publish(b"lost")[0].error.decode()
    assert driver.publish(b"kept", channel=b"bar")[0].error == b""


def test_a_subscription_behind_the_last_id_is_refused_and_ends_nobody(
    capfd: pytest.CaptureFixture[str],
) -> None:
    driver = server_on(subs_dat=subs_with(HIGHEST))
    words = f"the channel takes nothing new: its files name subscription id {HIGHEST}"
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=b"foo", inbox=b"in", max_in_flight=1, ack_wait_in_secs=1
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request))
    assert words in messages.parse(messages.SubscriptionResponse, answer or b"").error.decode()
    assert f'channel "foo": {words}' in capfd.readouterr().err
    driver.subscribe(channel=b"bar")
    driver.publish(b"a", channel=b"bar")
    assert sequences(driver.out) == [1]


def test_the_last_numbers_that_a_channel_goes_on_behind() -> None:
    driver = server_on(subs_dat=subs_with(MAX_NUMBER - 1), msgs_1_dat=log_with(MAX_NUMBER))
    assert driver.publish(b"a")[0].error == b""
    driver.subscribe()
    driver.publish(b"b")
    assert sequences(driver.out) == [MAX_NUMBER, MAX_NUMBER + 1, MAX_NUMBER + 2]


def test_a_time_that_is_still_to_come_is_told_once_and_the_channel_serves(
    capfd: pytest.CaptureFixture[str],
) -> None:
    driver = server_on(subs_dat=VERSION, msgs_1_dat=log_with(7, MAX_NUMBER))
    assert driver.publish(b"later")[0].error == b""
    lines = [line for line in capfd.readouterr().err.splitlines() if "days from now" in line]
    assert len(lines) == 1
    assert 'channel "foo": message 7 has the time 2262-04-11 23:47:16Z' in lines[0]
    assert "docs/operate.md" in lines[0]


def test_a_time_of_today_is_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    server_on(
        subs_dat=VERSION, msgs_1_dat=log_with(7, ManualClock().wall_ns() + 3600 * 1_000_000_000)
    )
    assert "days from now" not in capfd.readouterr().err
