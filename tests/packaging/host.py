"""A host of Debian 12: a machine that boots its own systemd, on a network that the test made.

systemd is the real one, first process of a namespace, with control groups below one that the test
made. What it lacks is a kernel of its own: it has no modules, no NFS, and this machine's clock.
What was written stays over a reboot.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.packaging.machine import Machine
from tests.processes import Child, children, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.processes import Stage

_ANSWERS = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).status)"
_NETWORK = (
    "ip link add hosts type bridge && ip link set hosts up && ip link set lo up && echo made >&2 "
    "&& read -r _"
)
# $0: the root, $1: the host's name, then pairs of a directory outside and one inside. The settings
# of this machine's kernel are not the host's to change.
_BOOT = """\
set -eu
root=$0 name=$1
mkdir -p "$root.booted"
mount --bind "$root" "$root.booted"
cd "$root.booted"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for directory in dev run; do mount -t tmpfs -o mode=0755 tmpfs "$directory"; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
for device in null zero full random urandom tty; do
    : > "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${stream%:*}" "dev/${stream#*:}"; done
while shift && [ $# -gt 0 ]; do
    mkdir -p "./$2"
    mount --bind "$1" "./$2"
    shift
done
hostname "$name"
mkdir run/former
pivot_root . run/former
umount -l /run/former
rmdir /run/former
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd < /dev/null
"""  # noqa: E501


class Network:
    """A bridge in a network namespace of its own. ``hosts``: those that are its ports, by name."""

    def __init__(self, stage: Stage) -> None:
        self._holder = Child(
            ["unshare", "-n", "sh", "-c", _NETWORK], stage.directory / "network.log", piped=True
        )
        stage.adopt(self._holder)
        self._holder.wait_for("made")
        self.hosts: dict[str, Host] = {}

    def plug(self, host: Host, holder: int) -> None:
        """Give a host's network, which is that of ``holder``, its interface, and all hosts its
        name.
        """
        bridge, inside = (
            ["nsenter", "-t", str(pid), "-n", "ip"] for pid in (self._holder.pid, holder)
        )
        for words in (
            [
                *bridge,
                "link",
                "add",
                host.name,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                str(holder),
            ],
            [*bridge, "link", "set", host.name, "master", "hosts", "up"],
            [*inside, "address", "add", f"{host.address}/24", "dev", "eth0"],
            [*inside, "link", "set", "eth0", "up"],
            [*inside, "link", "set", "lo", "up"],
        ):
            host.run(words)
        self.hosts[host.name] = host
        names = "".join(f"{one.address} {one.name}\n" for one in self.hosts.values())
        for one in self.hosts.values():
            (one.root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{names}", encoding="utf-8")


class Host(Machine):
    """``mounts``: directories of this machine that it has, by their paths there.

    It is booted, and up.
    """

    def __init__(
        self,
        stage: Stage,
        lower: Path,
        name: str,
        network: Network,
        mounts: Sequence[tuple[Path, str]] = (),
    ) -> None:
        super().__init__(stage, lower, name, unshared="-mn")
        self.name = name
        self.address = f"10.99.0.{len(network.hosts) + 1}"
        self._mounts = [str(word) for pair in mounts for word in pair]
        self._boot: _Boot | None = None
        (self.root / "etc/hostname").write_text(f"{name}\n", encoding="utf-8")
        network.plug(self, self._holder.pid)
        #: Runs a command on the host: for Ansible, in place of chroot, with a root that it does not
        #: need.
        self.enter = stage.directory / f"{name}.enter"
        self.enter.touch(0o755)
        self.boot()

    def boot(self) -> None:
        """Start it and wait until it is up."""
        self.start_boot()
        self.wait_until_up()

    def start_boot(self) -> None:
        """The same without the wait."""
        if self._boot is not None:
            self._boot.end()
        enter = ["nsenter", "-t", str(self._holder.pid), "-m", "-n"]
        unshare = [
            "unshare",
            "-m",
            "--pid",
            "--uts",
            "--ipc",
            "--cgroup",
            "--fork",
            "--kill-child=KILL",
        ]
        words = [*enter, *unshare, "sh", "-c", _BOOT, str(self._inside), self.name, *self._mounts]
        self._boot = _Boot(
            words,
            self._stage.directory / f"{self.name}.boot.log",
            f"ftstan-{os.getpid()}-{self.name}",
        )
        self._stage.adopt(self._boot)

    def wait_until_reached(self) -> None:
        """Wait until commands reach its systemd."""
        boot = self._boot
        assert boot is not None
        until(lambda: boot.is_systemd, f"systemd on {self.name}\n{boot.tail()}")
        until(
            lambda: self.call("test", "-S", "/run/systemd/private").returncode == 0,
            f"{self.name} to be up",
        )

    def wait_until_up(self) -> None:
        """Wait until systemd has started what it starts at boot."""
        self.wait_until_reached()
        state = self.call("systemctl", "is-system-running", "--wait").stdout.strip()
        assert state in {"running", "degraded"}, f"{self.name} is {state}"
        program = "\n".join(["#!/bin/sh", "shift", f'exec {" ".join(self._words())} "$@"', ""])
        self.enter.write_text(program, encoding="utf-8")

    def lose_power(self) -> None:
        """Every process of it ends at once; what was written stays."""
        assert self._boot is not None
        self._boot.end()

    def _words(self, *words: str, user: str = "root:root") -> list[str]:
        assert self._boot is not None
        enter = [
            "nsenter",
            "-t",
            str(self._boot.init),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-C",
            "-r",
            "-w",
        ]
        return [
            *enter,
            *([] if user == "root:root" else ["chroot", f"--userspec={user}", "/"]),
            *words,
        ]

    def unit(self, name: str, key: str) -> str:
        """A property of a unit, as ``systemctl show`` tells it."""
        return self.out("systemctl", "show", "--value", f"--property={key}", name).strip()

    def journal(self, unit: str) -> str:
        """What a unit has written since the host is up."""
        return self.out("journalctl", "--no-pager", "--output=cat", f"--unit={unit}")

    def wait_for(self, unit: str, key: str, value: str) -> None:
        """Wait until a property of a unit holds ``value``."""
        until(
            lambda: value in self.unit(unit, key),
            f"{key} of {unit} on {self.name} to say {value!r}",
        )

    def answers(self, url: str) -> bool:
        """Whether a page is there, asked on the host."""
        return self.call("python3", "-c", _ANSWERS, url).returncode == 0


class _Boot(Child):
    """From its start to its end; its control group goes with it."""

    def __init__(self, words: Sequence[str], log: Path, name: str) -> None:
        mounts = [
            line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        ]
        found = next((Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2"), None)
        assert found is not None, (
            "no file system cgroup2 is mounted, which systemd needs on the hosts of this test"
        )
        self._group = found / name
        self._group.mkdir()
        super().__init__(
            ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(self._group), *words], log
        )

    @property
    def init(self) -> int:
        """Its first process; 0 while there is none."""
        below = children(self.pid) if self.running else []
        return below[0] if below else 0

    @property
    def is_systemd(self) -> bool:
        """Whether it is past what comes before systemd, in directories that are not the host's."""
        assert self.running, self.tail()
        with contextlib.suppress(FileNotFoundError):
            return Path(f"/proc/{self.init}/comm").read_text(encoding="utf-8") == "systemd\n"
        return False

    def end(self) -> None:
        super().end()
        for directory, _, _ in os.walk(self._group, topdown=False):
            until(partial(_removed, directory), f"the end of {directory}")


def _removed(directory: str) -> bool:
    with contextlib.suppress(OSError):
        os.rmdir(directory)
    return not os.path.exists(directory)
