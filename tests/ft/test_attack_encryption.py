"""A running encrypted server looked at from all sides: its pages, its child, its files, its log."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.cli import ctl
from tests.ft.test_encryption import PAYLOADS, SECRET, files_of, key_file, started, stopped

if TYPE_CHECKING:
    from tests.processes import Stage

pytestmark = pytest.mark.processes

PAGES = [
    "/varz",
    "/connz",
    "/subsz?subs=1",
    "/routez",
    "/accountz",
    "/stacksz",
    "/metrics",
    "/streaming/serverz",
    "/streaming/storez",
    "/streaming/clientsz?subs=1",
    "/streaming/channelsz?subs=1",
    "/streaming/channelsz?channel=foo&subs=1",
    "/streaming/ftz",
    "/livez",
    "/readyz",
]


def test_a_running_server_shows_neither_key_nor_payload_and_nobody_rekeys_its_store(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NATS_STREAMING_ENCRYPTION_KEY", "sesame-of-the-environment")
    conf = stage.directory / "conf"
    conf.write_text("streaming { encryption_key: sesame-of-the-file, sd: true, sv: true }\n")
    server, client = started(stage, "first", "-c", str(conf), "-D", "-encrypt")
    client.publish(b"foo", *PAYLOADS)
    assert list(client.read_to(b"foo", len(PAYLOADS)).values()) == PAYLOADS

    for page in PAGES:
        _, body = server.get(page)
        assert b"sesame" not in body, page
        assert SECRET not in body, page
    listed = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    assert listed
    for child in listed:
        for name in ("environ", "cmdline"):
            assert b"sesame" not in Path(f"/proc/{child}/{name}").read_bytes(), name

    os.kill(server.pid, signal.SIGHUP)
    conf.write_text("streaming { encryption_key: sesame-changed, sd: true, sv: true }\n")
    os.kill(server.pid, signal.SIGHUP)
    server.wait_for("without a restart")
    client.publish(b"foo", SECRET)

    keys = key_file(stage, "ring", "x", "y")
    before = {path: path.read_bytes() for path in server.store.rglob("msgs.*")}
    assert ctl.main(["store", "rekey", str(server.store), "--encryption-key-file", keys]) != 0
    assert "is in use by" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in server.store.rglob("msgs.*")} == before

    assert "sesame" not in "\n".join(server.lines())
    assert SECRET.decode() not in "\n".join(server.lines())
    stopped(server, client)
    for path in files_of(stage):
        assert SECRET not in path.read_bytes(), path
        assert path == conf or b"sesame" not in path.read_bytes(), path
