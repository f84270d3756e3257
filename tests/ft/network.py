"""Hosts in network namespaces that the test made: a hub in the middle, and cables that can be cut
in each direction.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from ftstan.nats.binary import binary_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Child, Stage

HUB = "10.77.0.1"
NATS_PORT = 4222
NATS_URL = f"nats://{HUB}:{NATS_PORT}"
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


class Network:
    """A hub with a nats-server, and a namespace for each of ``hosts``, all in one network
    10.77.0.0/24.
    """

    def __init__(self, stage: Stage, hosts: list[str], *, mounts: bool = False) -> None:
        """``mounts``: each host has a table of mounts of its own, too."""
        for tool in ("ip", "nft", "nsenter", "unshare"):
            if shutil.which(tool) is None or os.geteuid() != 0:
                pytest.fail(
                    f"network namespaces need root and the command {tool}: "
                    "tools/system_packages.sh",
                    pytrace=False,
                )
        self._stage = stage
        self._spaces = ["--net", "--mount"] if mounts else ["--net"]
        self._holders: dict[str, Child] = {}
        hub = self._namespace("hub")
        self._inside(
            "hub",
            "ip link add br0 type bridge",
            f"ip addr add {HUB}/24 dev br0",
            "ip link set br0 up",
        )
        for number, host in enumerate(hosts, 2):
            holder = self._namespace(host)
            self._inside(
                "hub",
                f"ip link add name cable-{host} type veth peer name eth0 netns {holder.pid}",
                f"ip link set cable-{host} master br0 up",
            )
            self._inside(host, f"ip addr add 10.77.0.{number}/24 dev eth0", "ip link set eth0 up")
        self.addresses = {host: f"10.77.0.{number}" for number, host in enumerate(hosts, 2)}
        assert hub.running

    def _namespace(self, name: str) -> Child:
        # Not exec: the shell is the child that the stage ends, and the namespace goes with its last
        # process.
        script = "ip link set lo up && echo made && exec sleep 3600"
        words = ["unshare", *self._spaces, "sh", "-c", script]
        holder = self._holders[name] = self._stage.run(f"net-{name}", words)
        holder.wait_for("made")
        return holder

    def enter(self, host: str) -> list[str]:
        """The words before a command that shall run on ``host``."""
        return ["nsenter", "-t", str(self._holders[host].pid), *self._spaces]

    def run(self, host: str, *words: str) -> str:
        """Run a command on ``host``, and return what it prints."""
        done = subprocess.run(
            [*self.enter(host), *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{host}: {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def _inside(self, host: str, *commands: str) -> None:
        for command in commands:
            subprocess.run([*self.enter(host), *command.split(" ")], check=True)

    @contextlib.contextmanager
    def on(self, host: str) -> Iterator[None]:
        """Sockets that are made meanwhile are made on ``host``, and stay there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/proc/{self._holders[host].pid}/ns/net", os.O_RDONLY)
        try:
            _enter(there)
            yield
        finally:
            _enter(home)
            os.close(home)
            os.close(there)

    def nats(self) -> Child:
        """Start the hub's nats-server."""
        words = [
            *self.enter("hub"),
            binary_path(),
            "-a",
            "0.0.0.0",
            "-p",
            str(NATS_PORT),
        ]  # in a namespace
        server = self._stage.run("nats", words)
        server.wait_for("Server is ready")
        return server

    def cut(self, host: str, *, hears: bool = False, speaks: bool = False) -> None:
        """Drop what ``host`` sends (unless it ``speaks``) and what it would get (unless it
        ``hears``).
        """
        rules = []
        if not speaks:
            rules += [
                "add chain inet cut out { type filter hook output priority 0; }",
                'add rule inet cut out oif "eth0" drop',
            ]
        if not hears:
            rules += [
                "add chain inet cut in { type filter hook input priority 0; }",
                'add rule inet cut in iif "eth0" drop',
            ]
        for rule in ["add table inet cut", *rules]:
            subprocess.run([*self.enter(host), "nft", rule], check=True)

    def cut_port(self, host: str, *ports: str) -> None:
        """Drop what goes between ``host`` and the ports of the hub (or ranges of them)."""
        rules = ["add chain inet cut out { type filter hook output priority 0; }"]
        rules += [f"add rule inet cut out tcp dport {port} drop" for port in ports]
        for rule in ["add table inet cut", *rules]:
            subprocess.run([*self.enter(host), "nft", rule], check=True)

    def heal(self, host: str) -> None:
        """Take the cut back."""
        self._inside(host, "nft delete table inet cut")


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
