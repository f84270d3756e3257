"""A real GlusterFS volume of one brick on the hub of a network, mounted over FUSE on each host.

Its daemons, their files and the mounts are in the namespaces that the test made, and go with them.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.ft.network import HUB
from tests.processes import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ft.network import Network
    from tests.processes import Child, Stage

_NAME = "shared"
#: Where GlusterFS wants to write.
_OWN = ("/var/lib/glusterd", "/var/log/glusterfs", "/run/gluster")
#: Of the management daemon, and of bricks.
PORTS = ("24007", "49152-60999")

#: What a group asks of a volume (docs/ft.md, Mounts).
ON = ("client.strict-locks", "performance.strict-o-direct")
OFF = (
    "performance.write-behind",
    "performance.quick-read",
    "performance.io-cache",
    "performance.read-ahead",
    "performance.open-behind",
    "performance.stat-prefetch",
    "network.remote-dio",
)
#: So that the volume gives up a host in seconds, and not in the minutes that are the default.
_QUICK = {
    "network.ping-timeout": "5",
    "server.tcp-user-timeout": "5",
    "server.keepalive-time": "2",
    "server.keepalive-interval": "1",
    "server.keepalive-count": "3",
}


class Volume:
    """The volume. ``settings``: options of it, by name, besides those that make it quick."""

    def __init__(
        self, stage: Stage, network: Network, hosts: list[str], settings: dict[str, str]
    ) -> None:
        for tool in ("glusterd", "glusterfs", "gluster"):
            if shutil.which(tool) is None:
                pytest.fail(
                    f"the command {tool} is missing: apt-get install glusterfs-server",
                    pytrace=False,
                )
        self._stage = stage
        self._network = network
        self.path: Path = stage.directory / "shared"
        """Where it is mounted, on every host."""
        self.path.mkdir()
        brick = stage.directory / "brick"
        brick.mkdir()
        self._give_directories("hub")
        # A brick needs extended attributes of the trusted namespace.
        network.run("hub", "mount", "-t", "tmpfs", "none", str(brick))
        stage.run("glusterd", [*network.enter("hub"), "glusterd", "-N"])
        until(self._answers, "the management daemon")
        self._gluster("volume", "create", _NAME, f"{HUB}:{brick}", "force")
        for name, value in {**_QUICK, **settings}.items():
            self._gluster("volume", "set", _NAME, name, value)
        self._gluster("volume", "start", _NAME)
        self.clients = {host: self._mount(host) for host in hosts}
        """The processes that have the volume mounted, by host."""

    def _give_directories(self, host: str) -> None:
        for path in _OWN:
            self._network.run(host, "mkdir", "-p", path)
            self._network.run(host, "mount", "-t", "tmpfs", "none", path)

    def _answers(self) -> bool:
        try:
            self._gluster("volume", "list")
        except AssertionError:
            return False
        return True

    def _gluster(self, *words: str) -> str:
        return self._network.run("hub", "gluster", "--mode=script", *words)

    def _mount(self, host: str) -> Child:
        self._give_directories(host)
        words = ["glusterfs", "-N", f"--volfile-server={HUB}", f"--volfile-id={_NAME}"]
        child = self._stage.run(
            f"mount-{host}", [*self._network.enter(host), *words, str(self.path)]
        )
        until(lambda: "fuse.glusterfs" in self._mounts(host), f"the mount of {host}")
        return child

    def _mounts(self, host: str) -> str:
        return self._network.run(host, "cat", "/proc/self/mountinfo")

    def close(self) -> None:
        """End the brick, which the management daemon leaves behind."""
        self._gluster("volume", "stop", _NAME, "force")
