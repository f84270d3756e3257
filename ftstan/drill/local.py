"""The local driver: a whole group on this host, made for one drill and gone behind it.

supervisord runs it (``ftstan/supervised``): one NATS server, the nodes on one datastore, a
forwarder between each node and NATS where a scenario cuts them apart, and the listener that writes
down why nodes ended. Storage faults need a file system that can be hurt: it is mounted in a
namespace of supervisord's own, so that it goes with it; that takes root.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from ftstan.client import NatsLogin
from ftstan.drill import commands
from ftstan.drill.errors import DrillError
from ftstan.drill.ports import LOOPBACK, free_ports
from ftstan.drill.processes import Child
from ftstan.drill.scenario import Member
from ftstan.drill.workload import Access
from ftstan.nats.binary import binary_path
from ftstan.supervised.policy import LISTENER_EVENTS, NODE_POLICY, section
from ftstan.supervised.rpc import SupervisorError, call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.drill.scenario import Scenario, Step

#: By which the next drill knows a database that a former one has used.
CLUSTER = "ftstan-drill"
GROUP = "drill"

#: Not where the demo and the benchmarks take their ports from: a port is free until its server
#: starts.
FIRST_PORT = 8_000
_LOCK_NAME = ".rootdir.lck"
_FILLER = ".ftstan-drill-filler"
_START_S = 30.0
_END_S = 90.0
_GONE_S = 60.0
_VOLUME_MIB = 64
_LAST_LINES = 15
_STALL_S = 0.3
_BREATH_S = 0.1
#: Of the drill's NATS server: it keeps what comes for a node that is paused, so that the fault is
#: the pause alone.
_NATS_SETTINGS = "max_pending: 512MB\nwrite_deadline: 30s\n"
_DOWN = frozenset({"EXITED", "STOPPED", "FATAL"})
_SIGNALS = {"kill": "KILL", "stop": "TERM", "pause": "STOP"}


class LocalGroup:
    """A driver (``driver.py``) for one drill; ``directory`` is the run's, made already."""

    def __init__(self, scenario: Scenario, directory: str) -> None:
        self._scenario = scenario
        self._directory = directory
        self._store = os.path.join(directory, "store")
        self._logs = os.path.join(directory, "logs")
        self._supervisord: Child | None = None
        self._sockets = ""
        self._pids: dict[str, int] = {}
        self._storage_fault: asyncio.Task[str] | None = None
        names = [member.name for member in scenario.members]
        nats, *ports = free_ports(1 + 2 * len(names), FIRST_PORT)
        self._nats = nats
        monitors = ports[: len(names)]
        self._proxies = dict(zip(names, ports[len(names) :], strict=True))
        self.members: Sequence[Member] = tuple(
            Member(name, f"http://{LOOPBACK}:{port}")
            for name, port in zip(names, monitors, strict=True)
        )

    @property
    def access(self) -> Access:
        """How clients get in."""
        url = f"nats://{LOOPBACK}:{self._nats}"
        environment = {
            "FTSTAN_SERVERS": url,
            "FTSTAN_CLUSTER_ID": CLUSTER,
            "FTSTAN_GROUP": GROUP,
            # Nobody's contexts, with logins for other servers.
            "XDG_CONFIG_HOME": self._directory,
        }
        return Access((url,), CLUSTER, GROUP, NatsLogin(), environment, ("--dir", self._seen))

    @property
    def socket(self) -> str:
        """Where supervisord listens, once it was started."""
        return os.path.join(self._sockets, "s")

    @property
    def _seen(self) -> str:
        """The datastore as this process sees it."""
        if not self._scenario.needs_volume or self._supervisord is None:
            return self._store
        return f"/proc/{self._supervisord.pid}/root{self._store}"

    async def prepare(self) -> None:
        """Start supervisord, which starts everything."""
        self._require_tools()
        # From this thread, which lives as long as the process: supervisord is told when it ends.
        self._supervisord = self._start_supervisord()
        await self._wait_for_supervisord()

    async def mark(self, nodes: Sequence[str]) -> None:
        """Remember which processes these are, for ``revive``."""
        for node in nodes:
            self._pids[node] = await self._pid(node)

    async def begin(self, step: Step, node: str) -> None:
        """Do a fault."""
        match step.kind:
            case "kill" | "stop" | "pause":
                await self._signal(node, _SIGNALS[step.kind])
            case "kill-nats":
                await self._signal("nats", "KILL")
            case "partition":
                await self._signal(f"proxy-{node}", "STOP")
            case "unlink-lock":
                os.unlink(os.path.join(self._seen, _LOCK_NAME))
            case "fill-disk":
                await asyncio.to_thread(_fill, os.path.join(self._seen, _FILLER))
            case "freeze-storage" | "slow-storage":
                self._storage_fault = asyncio.create_task(self._stall(step))

    async def finish(self, step: Step, node: str) -> None:
        """End a fault that lasts."""
        match step.kind:
            case "pause":
                with contextlib.suppress(SupervisorError):  # it may have been ended meanwhile
                    await self._signal(node, "CONT")
            case "partition":
                await self._signal(f"proxy-{node}", "CONT")
            case "fill-disk":
                os.unlink(os.path.join(self._seen, _FILLER))
            case "freeze-storage" | "slow-storage":
                assert self._storage_fault is not None
                await self._storage_fault

    async def switchover(self, within_s: float) -> None:
        """Ask the group to hand over."""
        await commands.switchover(self.access, within_s)

    async def revive(self, node: str, *, ended: bool) -> None:
        """Wait until supervisord has started a node again that has ``ended``, or start one that it
        leaves alone.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + _GONE_S
        while True:
            info = await self._ask("getProcessInfo", node)
            if info["statename"] in _DOWN:
                # supervisord may be about to start it itself: the next look tells.
                with contextlib.suppress(SupervisorError):
                    await self._ask("startProcess", node, False)
            if info["statename"] == "RUNNING" and (
                not ended or info["pid"] != self._pids.get(node)
            ):
                return
            if loop.time() > end:
                raise DrillError(
                    f"node {node} did not end within {_GONE_S:g} s", hint=f"see {self._log(node)}"
                )
            await asyncio.sleep(0.05)

    async def forget(self, channels: Sequence[str]) -> None:
        """Nothing: the whole datastore is this drill's."""

    async def end(self) -> None:
        """Thaw, stop everything, and wait for it."""
        if self._storage_fault is not None:
            await asyncio.wait([self._storage_fault])
        for member in self.members:
            for name in (member.name, f"proxy-{member.name}"):
                with contextlib.suppress(DrillError, SupervisorError):
                    await self._signal(name, "CONT")
        if self._supervisord is not None:
            await asyncio.to_thread(self._supervisord.stop, _END_S)
        if self._sockets:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def last_words(self) -> list[str]:
        """The end of each node's log, and of the listener's."""
        lines: list[str] = []
        for name in (*(member.name for member in self.members), "supervisord", "ends"):
            with (
                contextlib.suppress(OSError),
                open(self._log(name), encoding="utf-8", errors="replace") as file,
            ):
                lines += [f"--- {name}", *file.read().splitlines()[-_LAST_LINES:]]
        return lines

    # ---- what runs

    def _log(self, name: str) -> str:
        return os.path.join(self._logs, f"{name}.log")

    def _configuration(self) -> str:
        """The file of supervisord. Its own places first, then one program for each process."""
        log = self._log("supervisord")
        pid = os.path.join(self._sockets, "pid")
        head = (
            f"[unix_http_server]\nfile={self.socket}\n"
            f"[supervisord]\nnodaemon=true\nlogfile={log}\npidfile={pid}\nchildlogdir={self._logs}\nminfds=1024\n"
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n"
        )
        listener = [sys.executable, "-m", "ftstan.supervised.listener", "--log", self._log("ends")]
        parts = [head, *self._around()]
        parts += [self._program(member) for member in self.members]
        parts.append(section("eventlistener:ends", listener, {"events": LISTENER_EVENTS}))
        return "\n".join(parts)

    def _around(self) -> list[str]:
        """What runs beside the nodes."""
        settings = os.path.join(self._directory, "nats.conf")
        with open(settings, "w", encoding="utf-8") as file:
            file.write(_NATS_SETTINGS)
        nats = [binary_path(), "-c", settings, "-a", LOOPBACK, "-p", str(self._nats)]
        values = self._values("nats", autorestart="true", startsecs="0")
        parts = [section("program:nats", nats, values)]
        if self._scenario.needs_partition:
            parts += [self._proxy(name, port) for name, port in self._proxies.items()]
        return parts

    def _program(self, member: Member) -> str:
        words = [sys.executable, "-m", "ftstan.cli.server", "-cid", CLUSTER]
        words += [*self._stored(member.name), *self._mode(member)]
        words += ["-m", member.monitor.rpartition(":")[2]]
        words += ["-a", LOOPBACK, *self._scenario.options]
        return section(f"program:{member.name}", words, self._values(member.name, **NODE_POLICY))

    def _stored(self, node: str) -> list[str]:
        """Where the data of a node are."""
        del node
        return ["-store", "file", "-dir", self._store]

    def _mode(self, member: Member) -> list[str]:
        """What makes a node a member."""
        port = self._proxies[member.name] if self._scenario.needs_partition else self._nats
        words = ["-ft_group", GROUP, "-ft_member", member.name]
        return [*words, "-ns", f"nats://{LOOPBACK}:{port}"]

    def _proxy(self, name: str, port: int) -> str:
        words = [sys.executable, "-m", "ftstan.drill.proxy", str(port), str(self._nats)]
        return section(
            f"program:proxy-{name}",
            words,
            self._values(f"proxy-{name}", autorestart="true", startsecs="0"),
        )

    def _values(self, name: str, **more: str) -> dict[str, str]:
        return {"redirect_stderr": "true", "stdout_logfile": self._log(name), **more}

    def _environment(self) -> dict[str, str] | None:
        """That of everything that runs, if it is not ours."""
        return None

    # ---- supervisord

    def _start_supervisord(self) -> Child:
        for path in (self._store, self._logs):
            os.mkdir(path)
        # The path of a Unix socket may have 107 bytes; that of a run can be longer.
        self._sockets = tempfile.mkdtemp(prefix="ftstan-drill-")
        configuration = os.path.join(self._directory, "supervisord.conf")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(self._configuration())
        words = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", configuration]
        # supervisord is told when this process ends, and asks its own children to.
        words = ["setpriv", "--pdeathsig", "TERM", *self._in_volume(words)]
        log = os.path.join(self._logs, "supervisord.out")
        return Child(words, log, self._environment(), session=True)

    async def _ask(self, method: str, *arguments: object) -> Any:
        return await asyncio.to_thread(call, self.socket, method, *arguments)

    async def _signal(self, name: str, what: str) -> None:
        await self._ask("signalProcess", name, what)

    async def _pid(self, name: str) -> int:
        return int((await self._ask("getProcessInfo", name))["pid"])

    async def _wait_for_supervisord(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _START_S
        while True:
            try:
                await self._ask("getState")
            except SupervisorError as error:
                ended = self._supervisord is None or not self._supervisord.running
                if ended or loop.time() > end:
                    log = os.path.join(self._logs, "supervisord.out")
                    raise DrillError(
                        f"supervisord did not start: {_last_line(log)}", hint=f"see {log}"
                    ) from error
                await asyncio.sleep(0.05)
            else:
                return

    # ---- tools and file systems

    def _require_tools(self) -> None:
        needed = {"setpriv": "util-linux"}
        if self._scenario.needs_volume:
            needed |= {
                "unshare": "util-linux",
                "nsenter": "util-linux",
                "fsfreeze": "util-linux",
                "mkfs.ext4": "e2fsprogs",
            }
            if os.geteuid() != 0:
                raise DrillError(
                    "faults of storage need a file system of their own, and mounting one needs "
                    "root",
                    hint="run the drill as root, or leave fill-disk, slow-storage and "
                    "freeze-storage out",
                )
        for tool, package in needed.items():
            if shutil.which(tool) is None:
                raise DrillError(f"{tool} was not found", hint=f"install the package {package}")
        try:
            import supervisor.supervisord  # type: ignore[import-untyped]  # noqa: F401, PLC0415
        except ImportError as error:
            raise DrillError(
                "supervisord was not found", hint="pip install 'ftstan[drill]'"
            ) from error

    def _in_volume(self, words: Sequence[str]) -> list[str]:
        """``words``, behind a small ext4 that only they see."""
        if not self._scenario.needs_volume:
            return list(words)
        image = os.path.join(self._directory, "volume")
        with open(image, "wb") as file:
            file.truncate((self._scenario.volume_mib or _VOLUME_MIB) << 20)
        script = 'mkfs.ext4 -q -F "$0" && mount -o loop "$0" "$1" && shift && exec "$@"'
        return ["unshare", "-m", "sh", "-c", script, image, self._store, *words]

    async def _stall(self, step: Step) -> str:
        """Freeze and thaw by itself: whatever becomes of this process, nothing stays frozen."""
        assert self._supervisord is not None
        frozen = step.for_s
        thawed = 0.0
        times = 1
        if step.kind == "slow-storage":
            frozen = _STALL_S
            thawed = _BREATH_S
            times = max(1, round(step.for_s / (_STALL_S + _BREATH_S)))
        turn = f'fsfreeze -f "$0" && sleep {frozen:g}; fsfreeze -u "$0"; sleep {thawed:g}'
        script = f"n=0; while [ $n -lt {times} ]; do {turn}; n=$((n + 1)); done"
        enter = ["nsenter", "-t", str(self._supervisord.pid), "-m"]
        return await commands.run([*enter, "sh", "-c", script, self._store], step.kind)


def _fill(path: str) -> None:
    """Take every block that is left."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def _last_line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return (file.read().strip().splitlines() or [""])[-1]
    return ""
