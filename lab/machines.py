"""The virtual machines: started, reached by ssh, hurt and stopped.

Only processes that the lab started are ended.

Emulated, not accelerated: two of a machine's processors carry three guests, and a guest's Python
takes seconds to start. Guests reach each other on a network of their own, and nothing else; this
host reaches their ssh, NATS and monitoring ports on loopback. A machine's state is a pid file, a
control socket (QMP) and an overlay of the image, so that another run of the lab finds those that
were kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.image import ADDRESSES, digest
from lab.running import run
from lab.stages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lab.image import Image

STATE = ROOT / "build" / "lab"
LEASE_S = 10
"""Lease and grace of the file server, in seconds: what a frozen or dead host costs."""
STORAGE = "nfs"
MEMBERS = ("a", "b")
PORTS = int(os.environ.get("LAB_PORTS", "22700"))
"""Loopback ports: +1..3 ssh, +11..13 NATS, +21..23 monitoring, in the order nfs, a, b.

+0 the guests' network.

``LAB_PORTS`` moves them, for a second lab (``--state``) on one host.
"""

SOCKETS = Path("/run/ftstan-lab")
"""Not below the checkout: a socket's path has 107 bytes at most."""

_DATA_BYTES = 2 << 30
_BOOT_S = 400.0
_POLL_S = 0.5
_MEMORY_MIB = {STORAGE: 512, "a": 1024, "b": 1024}


class Machine:
    """One of them. ``place`` is the directory of its overlay, ``sockets`` that of its pid file and
    sockets.
    """

    def __init__(self, name: str, image: Image, place: Path, sockets: Path) -> None:
        number = list(ADDRESSES).index(name) + 1
        self.name = name
        self.address = ADDRESSES[name]
        self.ssh_port = PORTS + number
        self.nats_port = PORTS + 10 + number
        self.monitor_port = PORTS + 20 + number
        self._number = number
        self._image = image
        self._overlay = place / f"{name}.qcow2"
        self._data = place / "data.raw"
        self._console = place / f"{name}.console"
        self._sockets = sockets

    # ---- the process
    # ----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Its emulator's process, if it runs."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._file("pid").read_text(encoding="ascii"))
            # A number can have been given to somebody else since.
            if f"lab-{self.name}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def start(self) -> None:
        """Start it on the disk that it had, or on a new one; returns before it has booted.

        Raises ``LabError``.
        """
        if self.pid is not None:
            return
        if not self._overlay.exists():
            backing = ["-b", str(self._image.disk), "-F", "qcow2"]
            run(["qemu-img", "create", "-q", "-f", "qcow2", *backing, str(self._overlay)])
        if self.name == STORAGE and not self._data.exists():
            with self._data.open("wb") as file:
                file.truncate(_DATA_BYTES)
        run(self._command(), f"qemu of {self.name}")

    def _command(self) -> list[str]:
        role = "storage" if self.name == STORAGE else "member"
        kernel = (
            "root=/dev/vda rw console=ttyS0 quiet mitigations=off panic=5 "
            f"systemd.hostname={self.name} "
            f"systemd.machine_id={self._number:032x} systemd.show_status=0 net.ifnames=0 "
            f"lab.role={role} lab.address={self.address} lab.lease={LEASE_S}"
        )
        reached = {self.ssh_port: 22, self.nats_port: 4222, self.monitor_port: 8222}
        forwards = "".join(
            f",hostfwd=tcp:127.0.0.1:{here}-10.0.2.15:{there}" for here, there in reached.items()
        )
        lan = f"socket,id=lan,mcast=230.77.0.1:{PORTS},localaddr=127.0.0.1"
        mac = f"52:54:00:77:00:0{self._number}"
        words = [
            "qemu-system-x86_64",
            "-name",
            f"lab-{self.name}",
            "-machine",
            "q35",
            "-cpu",
            "max",
            "-smp",
            "1",
        ]
        words += ["-accel", "tcg,tb-size=256", "-m", str(_MEMORY_MIB[self.name])]
        words += ["-nodefaults", "-no-user-config", "-display", "none"]
        words += [
            "-kernel",
            str(self._image.kernel),
            "-initrd",
            str(self._image.initrd),
            "-append",
            kernel,
        ]
        words += ["-drive", f"file={self._overlay},if=virtio,format=qcow2,discard=unmap"]
        if self.name == STORAGE:
            words += ["-drive", f"file={self._data},if=virtio,format=raw,discard=unmap"]
        words += [
            "-netdev",
            lan,
            "-device",
            f"virtio-net-pci,netdev=lan,mac={mac},romfile=,id=lan-card",
        ]
        words += ["-netdev", f"user,id=ctl,restrict=on{forwards}"]
        words += [
            "-device",
            f"virtio-net-pci,netdev=ctl,mac={mac.replace(':77:', ':55:')},romfile=",
        ]
        words += ["-device", "virtio-rng-pci", "-chardev", f"file,id=con,path={self._console}"]
        words += ["-serial", "chardev:con", "-qmp", f"unix:{self._file('qmp')},server=on,wait=off"]
        return [*words, "-pidfile", str(self._file("pid")), "-daemonize"]

    def kill(self) -> None:
        """End it at once, as a power failure does; what it had not written is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End its emulator; the guest is not asked."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self.hang_up()
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)
            until(lambda: self.pid is None, f"the end of {self.name}", 30.0)

    # ---- inside
    # ----------------------------------------------------------------------------------------------

    def ssh_options(self) -> list[str]:
        """Options of ssh and scp, without the port."""
        options = {
            "IdentityFile": str(self._image.key),
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "ConnectTimeout": "15",
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "6",
            "ControlMaster": "auto",
            "ControlPersist": "600",
            "ControlPath": str(self._sockets / "%p.ssh"),
        }
        return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]

    def ssh_words(self, command: str) -> list[str]:
        """The command line that runs a shell command there as root."""
        return ["ssh", *self.ssh_options(), "-p", str(self.ssh_port), "root@127.0.0.1", command]

    def ssh(self, command: str, *, limit_s: float = 120.0, given: str | None = None) -> str:
        """Run a shell command as root; returns what it printed. Raises ``LabError`` if it fails."""
        return run(
            self.ssh_words(command), f"{self.name}: {command[:60]}", limit_s=limit_s, given=given
        )

    def popen(self, command: str) -> subprocess.Popen[str]:
        """Start a shell command as root; its output, both streams, is to be read."""
        return subprocess.Popen(
            self.ssh_words(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def push(self, here: Path, there: str) -> None:
        """Copy a file there. Raises ``LabError``."""
        words = [
            "scp",
            "-q",
            *self.ssh_options(),
            "-P",
            str(self.ssh_port),
            str(here),
            f"root@127.0.0.1:{there}",
        ]
        run(words, f"scp to {self.name}")

    def answers(self) -> bool:
        """Whether it can be logged in to now."""
        with contextlib.suppress(LabError):
            self.ssh("true", limit_s=20.0)
            return True
        self.hang_up()
        return False

    def wait(self) -> float:
        """Wait until it can be logged in to; returns the seconds. Raises ``LabError``."""
        return until(self.answers, f"a login on {self.name}", _BOOT_S)

    def hang_up(self) -> None:
        """Close the connection that commands share: a machine that was killed or booted again has
        forgotten it.
        """
        words = [
            "ssh",
            *self.ssh_options(),
            "-p",
            str(self.ssh_port),
            "-O",
            "exit",
            "root@127.0.0.1",
        ]
        with contextlib.suppress(LabError):
            run(words, "ssh", limit_s=10.0)

    def boot_id(self) -> str:
        """Changes with every boot."""
        return self.ssh("cat /proc/sys/kernel/random/boot_id").strip()

    # ---- what is done to it
    # ------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop its processors: nothing runs there any more, and nobody is told.

        Its clocks stand still.
        """
        self.qmp("stop")

    def thaw(self) -> None:
        """Let it go on as if nothing had been.

        Its clock of the day is behind then, as on any hypervisor.
        """
        self.qmp("cont")

    def reset(self) -> None:
        """Press its button: it boots again, and what it had not written is gone."""
        self.hang_up()
        self.qmp("system_reset")

    def unplug(self) -> None:
        """Pull the cable to the other guests."""
        self.qmp("set_link", name="lan-card", up=False)

    def plug(self) -> None:
        """Put it in again."""
        self.qmp("set_link", name="lan-card", up=True)

    def set_clock(self) -> None:
        """Give it the time of this host, as NTP does: one that was frozen is behind."""
        self.ssh(f"date -s @{time.time():.3f}")

    def qmp(self, command: str, **arguments: object) -> object:
        """Say a word to its emulator; returns the answer. Raises ``LabError``."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(30.0)
                connection.connect(str(self._file("qmp")))
                with connection.makefile("rw", encoding="utf-8") as lines:
                    lines.readline()
                    answer: object = None
                    for name, words in (("qmp_capabilities", {}), (command, arguments)):
                        lines.write(json.dumps({"execute": name, "arguments": words}) + "\n")
                        lines.flush()
                        answer = _answer(lines)
                    return answer
        except (OSError, ValueError) as error:
            raise LabError(
                f"{self.name}: {command}: {error}", hint="does the machine run?"
            ) from error

    def _file(self, kind: str) -> Path:
        return self._sockets / f"{self.name}.{kind}"


def _answer(lines: Iterator[str]) -> object:
    """The next line that is no event."""
    for line in lines:
        said = json.loads(line)
        if "error" in said:
            raise ValueError(said["error"].get("desc"))
        if "return" in said:
            return said["return"]
    raise ValueError("the emulator hung up")


def until(happened: Callable[[], bool], what: str, limit_s: float) -> float:
    """Wait for something that people call ``what``; returns the seconds it took.

    Raises ``LabError``.
    """
    began = time.monotonic()
    while not happened():
        if time.monotonic() - began > limit_s:
            raise LabError(f"{what} did not come within {limit_s:g} s")
        time.sleep(_POLL_S)
    return time.monotonic() - began


@dataclass(frozen=True, slots=True)
class Machines:
    """All of them, by name."""

    place: Path
    by_name: dict[str, Machine]

    @classmethod
    def of(cls, image: Image, state: Path) -> Machines:
        """Those whose disks are below ``state``."""
        place = state / "machines"
        sockets = SOCKETS / digest(str(state.resolve()))
        for directory in (place, sockets):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(place, {name: Machine(name, image, place, sockets) for name in ADDRESSES})

    def __getitem__(self, name: str) -> Machine:
        return self.by_name[name]

    @property
    def storage(self) -> Machine:
        """The file server."""
        return self.by_name[STORAGE]

    @property
    def members(self) -> list[Machine]:
        """The two hosts of the pair."""
        return [self.by_name[name] for name in MEMBERS]

    def start(self, names: Sequence[str] = (*ADDRESSES,)) -> float:
        """Start those that do not run, and wait until all of these can be logged in to.

        Returns the seconds.
        """
        began = time.monotonic()
        for name in names:
            self.by_name[name].start()
        for name in names:
            self.by_name[name].wait()
        return time.monotonic() - began

    def stop(self) -> None:
        """End all of them: the members first, so that none waits for its file server."""
        for machine in reversed(self.by_name.values()):
            machine.stop()

    def forget(self) -> None:
        """End them, and throw their disks away, and the packages that they had."""
        self.stop()
        shutil.rmtree(self.place)
        self.place.mkdir(mode=0o700)
