"""A member of an FT group that keeps the original's rules, as a process of its own
(``docs/compat/ft.md``).

``python -m tests.oracle.gopeer --dir D --nats URL --cluster C --group G`` stands by until no
message has come on the FT subject for about 1.25 s, tries the lock the way v0.25.6 does, and,
active, beats every second or so, dies when somebody claims an older activation, and serves connects
and publishes on the same files (``goserving``, ``gowriter``). It is the second opinion on groups
with members of both kinds: it must never import ``ftstan`` nor know anything of its epochs, files
or subjects.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import signal
import string
import sys
import time
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
from nats.errors import Error as NatsError
from nats.errors import NoServersError

from tests.oracle.goheartbeat import BadTime, Instant, decode_time, heartbeat, read_heartbeat
from tests.oracle.golock import GoLock, LockError
from tests.oracle.golog import Rarely, log, panic
from tests.oracle.goserving import Serving
from tests.oracle.goview import GoRefuses
from tests.oracle.gowriter import GoWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.client import Client
    from nats.aio.msg import Msg

HEARTBEAT_S = 1.0
MISSED_S = 1.25
EXIT_CLEAN = 0
EXIT_FAILED = 1
EXIT_TERMINATED = 143
CONNECTIONS = ("send", "general", "acks", "ft", "hb")


class _Woken(Enum):
    """Why a wait ended."""

    MESSAGE = auto()
    TIMEOUT = auto()
    QUIT = auto()


class _Subject:
    """Messages of the FT subject, handed to whoever waits at that moment; nobody waits: dropped."""

    def __init__(self, quit_: asyncio.Future[int]) -> None:
        self._quit = quit_
        self._waiter: asyncio.Future[bytes] | None = None

    async def receive(self, msg: Msg) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(msg.data)

    async def wait(self, seconds: float) -> tuple[_Woken, bytes]:
        self._waiter = asyncio.get_running_loop().create_future()
        either: set[asyncio.Future[Any]] = {self._quit, self._waiter}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        waiter = self._waiter
        self._waiter = None
        if self._quit.done():
            return _Woken.QUIT, b""
        return (_Woken.MESSAGE, waiter.result()) if waiter.done() else (_Woken.TIMEOUT, b"")


class GoPeer:
    """One process of the group, from its start to its end."""

    def __init__(self, root: Path, url: str, cluster: str, group: str, slice_msgs: int) -> None:
        self._root = root
        self._url = url
        self._cluster = cluster
        self._slice_msgs = slice_msgs
        self._ft_subject = f"_STAN.ft.{cluster}.{group}"
        self._server_id = "".join(
            secrets.choice(string.digits + string.ascii_letters) for _ in range(22)
        )
        self._heartbeat_s = _drawn(HEARTBEAT_S)
        self._missed_s = _drawn(MISSED_S)
        self._lock = GoLock(root)
        self._links: dict[str, Client] = {}
        self._quit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._subject = _Subject(self._quit)
        self._store: GoWriter | None = None
        self._serving: Serving | None = None

    async def run(self) -> int:
        """The exit status."""
        log("INF", f"Starting nats-streaming-server[{self._cluster}] version 0.25.6")
        log("INF", f"ServerID: {self._server_id}")
        self._root.mkdir(mode=0o777, parents=True, exist_ok=True)
        # Before the lock, in a standby too.
        (self._root / ".truncate.lck").unlink(missing_ok=True)
        try:
            await self._connect()
        except (NoServersError, OSError):
            log("FTL", "Failed to start: nats: no servers available for connection")
            return EXIT_FAILED
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop_with, EXIT_CLEAN)
        loop.add_signal_handler(signal.SIGTERM, self._stop_with, EXIT_TERMINATED)
        log("INF", "Starting in standby mode")
        if await self._stand_by():
            beating = asyncio.create_task(self._beat(Instant.now()))
            try:
                await self._activate()
            except GoRefuses as refusal:
                log("FTL", refusal.text)
                return EXIT_FAILED
            await self._quit
            await beating
        status = await self._quit
        log("INF", "Shutting down.")
        await self._close()
        return status

    def _stop_with(self, status: int) -> None:
        if not self._quit.done():
            self._quit.set_result(status)

    async def _connect(self) -> None:
        for suffix in CONNECTIONS:
            self._links[suffix] = await nats.connect(
                self._url,
                name=f"_NSS-{self._cluster}-{suffix}",
                max_reconnect_attempts=1,
                reconnect_time_wait=0.25,
                pending_size=0,
                error_cb=_quiet,
            )
            # From now on for ever: only the first connect gives up.
            self._links[suffix].options["max_reconnect_attempts"] = -1
        link = self._links["ft"]
        await link.subscribe(
            self._ft_subject,
            cb=self._subject.receive,
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
        await link.flush()

    # Standby

    async def _stand_by(self) -> bool:
        """True once the lock is held, false when told to stop."""
        notice = Rarely()
        while True:
            woken, _ = await self._subject.wait(self._missed_s)
            if woken is _Woken.QUIT:
                return False
            if woken is _Woken.MESSAGE:
                continue
            try:
                if self._lock.attempt():
                    return True
            except LockError as error:
                fault = f"ft: fatal error getting the store lock: {error}"
                log("ERR", f"ft: error attempting to get the store lock: {fault}")
            else:
                notice.log(
                    "INF", "ft: unable to get store lock at this time, going back to standby"
                )

    # Active

    async def _beat(self, activation: Instant) -> None:
        """Heartbeats, and what is heard of others' while this server is active."""
        payload = heartbeat(self._server_id.encode(), activation, time.localtime().tm_gmtoff)
        unsent = Rarely()
        due = True
        while True:
            if due:
                try:
                    await self._links["ft"].publish(self._ft_subject, payload)
                except NatsError as error:
                    unsent.log("ERR", f"Unable to send FT heartbeat: {error}")
            woken, data = await self._subject.wait(self._heartbeat_s)
            if woken is _Woken.QUIT:
                return
            due = woken is _Woken.TIMEOUT or self._answers(data, activation)

    def _answers(self, data: bytes, mine: Instant) -> bool:
        """Whether a message on the FT subject is answered with a heartbeat at once.

        Dies of an older activation.
        """
        peer = read_heartbeat(data)
        if peer is None or peer[0] == self._server_id.encode():
            return False
        name = f'ft: serverID "{peer[0].decode("utf-8", "replace")}" claims to be active'
        try:
            theirs = decode_time(peer[1])
        except BadTime as error:
            log("ERR", f"Error decoding activation time: {error}")
            return True
        if theirs < mine:
            panic(f"{name}, aborting")
        log("ERR", name)
        return True

    async def _activate(self) -> None:
        log("INF", "Server is active")
        log("INF", "Recovering the state...")
        store = await asyncio.to_thread(
            GoWriter, self._root, self._cluster.encode(), self._slice_msgs
        )
        self._store = store
        for warning in store.warnings:
            log("WRN", warning)
        log(
            "INF",
            f"Recovered {len(store.channels)} channel(s)"
            if store.recovered
            else "No recovered state",
        )
        self._serving = Serving(store, self._links["general"], self._links["send"])
        await self._serving.start()
        log("INF", "Message store is FILE")
        log("INF", f"Store location: {self._root}")
        log("INF", "Streaming Server is ready")

    async def _close(self) -> None:
        if self._serving is not None:
            await self._serving.stop()
        if self._store is not None:
            self._store.close()
        self._lock.release()
        for link in self._links.values():
            with contextlib.suppress(NatsError):
                await link.close()


def _drawn(nominal: float) -> float:
    return nominal + random.choice((-1, 1)) * random.random() * nominal / 10


async def _quiet(_: Exception) -> None:
    pass


async def _run(options: argparse.Namespace) -> int:
    return await GoPeer(
        Path(options.dir), options.nats, options.cluster, options.group, options.slice_max_msgs
    ).run()


def main(words: Sequence[str]) -> int:
    """Run one member; the exit status."""
    parser = argparse.ArgumentParser(prog="gopeer")
    for name in ("dir", "nats", "cluster", "group"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--slice-max-msgs", type=int, default=0)
    return asyncio.run(_run(parser.parse_args(words)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
