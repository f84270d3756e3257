"""Storage that changes under a running server, and the operator's archive script, with real
processes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from ftstan.nats.link import ConnectionLostError
from tests.ft.client import StanClient
from tests.processes import READY, ROOT, Child, until

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

CHANNEL = b"orders"


def connected(server: Server) -> StanClient:
    client = StanClient(server.port)
    client.connect()
    return client


class TestFailedDisk:
    """The file system gives up while a server uses it: ext4 answers everything that writes with EIO
    or EROFS.
    """

    def mounted(self, stage: Stage) -> Child:
        """A small ext4 on the datastore's directory.

        Each line on standard input takes it one step further.
        """
        stage.store.mkdir()
        image = stage.directory / "image"
        with image.open("wb") as file:
            file.truncate(32 << 20)
        words = """
            mkfs.ext4 -q "$1" && mount -o loop "$1" "$0" && echo mounted
            read -r _ && mount -o remount,abort "$0" && echo failed
            read -r _ && umount "$0" && mount -o loop "$1" "$0" && echo repaired
            read -r _
        """
        command = ["unshare", "-m", "sh", "-c", f"{{ {words} }} >&2", str(stage.store), str(image)]
        holder = Child(command, stage.directory / "holder.log", piped=True)
        stage.adopt(holder)
        holder.wait_for("mounted")
        return holder

    def start(self, stage: Stage, holder: Child, name: str) -> Server:
        server = stage.file_server(
            name, wrap=["nsenter", "-t", str(holder.pid), "-m", f"--wd={ROOT}"]
        )
        server.wait_for(READY)
        return server

    def step(self, holder: Child, expected: str) -> None:
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        holder.wait_for(expected)

    def test_the_server_ends_with_75_and_the_next_one_has_every_acked_message(
        self, stage: Stage
    ) -> None:
        holder = self.mounted(stage)
        server = self.start(stage, holder, "server")
        client = connected(server)
        client.publish(CHANNEL, *(b"%d" % n for n in range(50)))
        client.publish(b"other", b"x")
        self.step(holder, "failed")

        client.offer(CHANNEL, b"lost")
        with contextlib.suppress(ConnectionLostError):  # it may have ended already
            client.offer(b"other", b"lost")
        assert server.status() == 75
        (line,) = [line for line in server.lines() if line.startswith("[FTL]")]
        assert line.endswith("(exit in 5s)")

        self.step(holder, "repaired")
        later = self.start(stage, holder, "later")
        client.move(later.port)
        assert client.ping() == ""
        contents = client.read_all(CHANNEL)
        assert {n: contents[n] for n in range(1, 51)} == {n + 1: b"%d" % n for n in range(50)}


def test_the_archive_script_gets_what_the_limits_removed(stage: Stage) -> None:
    script = stage.directory / "archive.sh"
    kept = stage.directory / "kept"
    kept.mkdir()
    script.write_text(f'#!/bin/sh\nset -e\nmv "$2" "$3" {kept}/\necho archived "$1"\n')
    script.chmod(0o755)
    words = ["-mm", "4", "-file_slice_max_msgs", "2", "-file_slice_archive_script", str(script)]
    server = stage.file_server("server", *words)
    server.wait_for(READY)
    client = connected(server)
    for n in range(10):
        client.publish(CHANNEL, b"%d" % n)
    until(lambda: len(list(kept.iterdir())) == 6, "three slices in the archive")
    assert sorted(p.name for p in kept.iterdir() if p.name.endswith(".dat.bak")) == [
        f"msgs.{n}.dat.bak" for n in (1, 2, 3)
    ]
    server.wait_for(
        f"Output of archive script for {CHANNEL.decode()} ({stage.store}/orders/msgs.1.dat.bak and "
    )
    left = client.subscribe(CHANNEL)
    client.nats.pump(lambda: left.has(4), "the messages that are left")
    assert left.sequences == [7, 8, 9, 10]


def test_every_option_of_the_file_store_is_taken_by_a_server_that_serves(stage: Stage) -> None:
    options = {
        "compact_enabled": "true",
        "compact_frag": "40",
        "compact_interval": "1",
        "compact_min_size": "0",
        "buffer_size": "1024",
        "crc": "true",
        "crc_poly": "2197175160",
        "sync": "true",
        "auto_sync": "10s",
        "slice_max_msgs": "3",
        "slice_max_bytes": "1KB",
        "slice_max_age": "1h",
        "fds_limit": "20",
        "parallel_recovery": "2",
        "read_buffer_size": "64",
        "sync_index": "true",
        "sync_subs": "true",
    }
    words = [f"-file_{name}={value}" for name, value in options.items()]
    payloads = {n: b"%d" % n for n in range(1, 41)}
    server = stage.file_server("first", *words)
    server.wait_for(READY)
    client = connected(server)
    durable = client.subscribe(CHANNEL, durable=b"d", max_in_flight=4)
    client.publish(CHANNEL, *payloads.values())
    client.nats.pump(lambda: durable.has(40), "every message")
    server.kill()
    server = stage.file_server("second", *words)
    server.wait_for(READY)
    client.move(server.port)
    assert client.ping() == ""
    assert client.read_to(CHANNEL, 40) == payloads
