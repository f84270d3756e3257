"""Links of ours show no login to another account that has the port of the NATS server."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import SystemClock
from ftstan.config.options import LinkOptions
from ftstan.front.listener import LOOPBACK, free_port
from ftstan.nats.link import Link
from ftstan.nats.peer import StrangerError
from ftstan.nats.pyclient import LinkClient
from ftstan.nats.url import parse_url
from tests.stranger import Stranger

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

OWN = LinkOptions(user="us", password="hunter2", of_child=True)


def link_to(port: int, options: LinkOptions) -> Link:
    return Link([f"nats://{LOOPBACK}:{port}"], name="x", clock=SystemClock(), options=options)


async def open_client(port: int) -> None:
    client = LinkClient(parse_url(f"nats://{LOOPBACK}:{port}"), OWN, "x")
    try:
        await client.open(connect_timeout=20)
    except Exception as error:
        raise client.explain(client.error or error) from error
    finally:
        await client.discard()


def test_a_stranger_is_shown_no_login(tmp_path: Path) -> None:
    port = free_port()
    with Stranger(tmp_path, port) as stranger:
        with pytest.raises(StrangerError, match="another account's"):
            link_to(port, OWN).connect(20)
        stranger.wait_for(b"over\n")
        with pytest.raises(StrangerError, match="another account's"):
            asyncio.run(open_client(port))
        stranger.wait_for(b"over\nover\n")
        assert stranger.told == b"listening\nover\nover\n"


def test_the_nats_server_of_others_is_theirs(tmp_path: Path) -> None:
    port = free_port()
    with Stranger(tmp_path, port) as theirs:
        link = link_to(port, LinkOptions(user="us", password="hunter2"))
        link.connect(20)
        theirs.wait_for(b"hunter2")
        link.close()


def test_a_nats_server_of_our_account_is_shown_the_login(tmp_path: Path) -> None:
    port = free_port()
    with Stranger(tmp_path, port, uid=-1) as ours:
        link = link_to(port, OWN)
        link.connect(20)
        link.close()
        ours.wait_for(b"over\n")
        asyncio.run(open_client(port))
        ours.wait_for(b"over\n")
        assert ours.told.count(b"hunter2") == 2


def test_where_the_kernel_does_not_tell_all_goes_on_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("ftstan.front.peer.is_ours", lambda _: None)
    monkeypatch.setattr("ftstan.nats.peer._unseen", count())
    monkeypatch.setattr("ftstan.nats.peer.log.warning", told.append)
    port = free_port()
    with Stranger(tmp_path, port, uid=-1) as ours:
        link = link_to(port, OWN)
        link.connect(20)
        link.close()
        ours.wait_for(b"over\n")
        asyncio.run(open_client(port))
        ours.wait_for(b"over\n")
        assert ours.told.count(b"hunter2") == 2
    (line,) = told
    assert "does not tell which account" in line
