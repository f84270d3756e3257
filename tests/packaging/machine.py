"""A root of Debian in a mount namespace: commands and servers run in it by ``chroot``.

It has no network of its own, and no systemd. What is written there is in memory and gone with the
namespace; what lies below is shared by all machines, and none can change it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.processes import Child, Server, free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.processes import Stage

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_MOUNTS = """\
mount -t tmpfs -o mode=0755 packages "$0" && mkdir "$0/upper" "$0/work" "$0/root" &&
mount -t overlay -o "lowerdir=$1,upperdir=$0/upper,workdir=$0/work" packages "$0/root" &&
mount -t proc proc "$0/root/proc" && mount --rbind /dev "$0/root/dev" && echo mounted >&2 && read -r _
"""  # noqa: E501


class Machine:
    """``root`` is its root directory, as seen from outside."""

    def __init__(self, stage: Stage, lower: Path, name: str, unshared: str = "-m") -> None:
        place = stage.directory / name
        place.mkdir()
        self._stage = stage
        command = ["unshare", unshared, "sh", "-c", _MOUNTS, str(place), str(lower)]
        self._holder = Child(command, stage.directory / f"{name}.log", piped=True)
        stage.adopt(self._holder)
        self._holder.wait_for("mounted")
        self._inside = place / "root"
        self.root = Path(f"/proc/{self._holder.pid}/root{self._inside}")

    def _words(self, *words: str, user: str = "root:root") -> list[str]:
        enter = ["nsenter", "-t", str(self._holder.pid), "-m", "--wd=/"]
        return [*enter, "chroot", f"--userspec={user}", str(self._inside), *words]

    def call(
        self, *words: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return self.run(self._words(*words), environment)

    @staticmethod
    def run(
        words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The same on this side, with the environment that commands have there."""
        variables = {"PATH": _PATH, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"} | dict(
            environment or {}
        )
        return subprocess.run(
            words,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def out(self, *words: str) -> str:
        """What a command prints that must succeed."""
        done = self.call(*words)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def install(self, *packages: Path, environment: Mapping[str, str] | None = None) -> str:
        """Install or upgrade; returns what was said."""
        done = self.try_install(*packages, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def try_install(
        self, *packages: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        for package in packages:
            shutil.copy(package, self.root / "root" / package.name)
        names = [f"/root/{package.name}" for package in packages]
        # Nobody is there to answer: a question of dpkg about a file would fail the installation.
        return self.call("dpkg", "--install", *names, environment=environment)

    def start(self, name: str, *words: str) -> Child:
        """Start a command, which the end of the test ends."""
        return self._stage.run(name, self._words(*words), {"PATH": _PATH, "LC_ALL": "C"})

    def server(self, name: str, *words: str) -> Server:
        """Start the installed server as its user, with flags."""
        port, monitor = free_ports(2)
        command = self._words(
            "/usr/bin/ftstan", *words, "-p", str(port), "-m", str(monitor), user="ftstan:ftstan"
        )
        server = Server(
            command,
            self._stage.directory / f"{name}.log",
            port=port,
            monitor=monitor,
            store=self.root / "var/lib/ftstan/store",
            environment={"PATH": _PATH, "LC_ALL": "C"},
        )
        self._stage.adopt(server)
        return server

    def listing(self, path: str) -> set[str]:
        """Names in a directory of the machine."""
        return {entry.name for entry in (self.root / path.lstrip("/")).iterdir()}
