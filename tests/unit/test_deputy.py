"""A client cannot have the server speak for it where servers listen, whatever inbox it names."""

from __future__ import annotations

import re

import pytest

from ftstan.broker.broker import BrokerOptions
from ftstan.ft.heartbeat import decode_heartbeat
from ftstan.wire import messages
from tests.compat.driver import Driver, pub_acks
from tests.named import ROOT, wrong_with

SERVERS = [b"_STAN.ft.tc.g", b"_STAN.pub.tc.other", b"_FTSTAN.ft.tc.g", b"_FTSTAN.ctl.tc.server", b"_STAN.close.tc"]


def test_a_delivery_can_be_made_to_read_as_a_heartbeat() -> None:
    # Why it matters: sequence, channel and reply of a message are the type, server and data of a heartbeat.
    forged = messages.encode(messages.MsgProto(sequence=3, subject=b"channel", reply=b"2026-01-01T00:00:00Z"))
    assert decode_heartbeat(forged) is not None


@pytest.mark.parametrize("subject", SERVERS)
def test_a_delivery_never_leaves_to_a_subject_of_the_servers(subject: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    driver = Driver()
    driver.connect()
    driver.subscribe(inbox=subject)
    driver.offer(b"forged")
    out = driver.run()
    assert len(pub_acks(out)) == 1
    assert [message for message in out if message.subject == subject] == []
    assert "is not a subject for clients" in capfd.readouterr().err


@pytest.mark.parametrize("subject", SERVERS)
def test_a_heartbeat_is_never_asked_on_a_subject_of_the_servers(subject: bytes) -> None:
    second = 1_000_000_000
    driver = Driver(options=BrokerOptions(hb_interval=second, hb_timeout=second, hb_fail_count=3))
    request = messages.ConnectRequest(client_id=b"me", heartbeat_inbox=subject, conn_id=b"c", protocol=1)
    driver.call("_STAN.discover.tc", messages.encode(request))
    assert [message for message in driver.wait(10) if message.subject == subject] == []


def test_every_attack_of_the_page_names_a_test_that_runs_or_says_what_to_do() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = page.partition("## What somebody on NATS can do")[2]
    named = re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", table)
    assert len(named) >= 8
    assert [why for test in named if (why := wrong_with(test))] == []
