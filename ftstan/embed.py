"""A server inside somebody's program: start it, wait until it serves, stop it, from plain threads
or from asyncio.

Each server has a thread of its own for its control loop. That thread starts the children
(``nats-server``) and ends after the last of them, since the kernel's parent-death signal follows
the thread that forked. Several servers in one process know nothing of each other. A server here
installs no signal handler, changes neither the log nor the limits of the process, and never ends
it: one that is fenced, or whose storage fails, closes its link and its storage for good, calls
``on_fenced``, and is over. ``docs/embedding.md`` has examples.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Self

from ftstan.base import log
from ftstan.base.disk import ShuttableDisk
from ftstan.base.errors import EndedError, FencedError, FtstanError, NatsError, StoppedError
from ftstan.base.states import NodeState
from ftstan.config.encryption_keys import check_encryption, check_switch
from ftstan.config.options import (
    ChannelLimits,
    EncryptionOptions,
    FileOptions,
    FtOptions,
    LinkOptions,
    LogOptions,
    MonitorOptions,
    NatsOptions,
    ServerOptions,
    ServerTlsOptions,
    StoreLimits,
)
from ftstan.config.validation import check_before_logging, check_start
from ftstan.nats import tasks
from ftstan.nats.routes import check_routes
from ftstan.nats.url import parse_urls
from ftstan.node.context import EXIT_FENCED
from ftstan.node.node import Node
from ftstan.node.process_exit import say
from ftstan.stores import registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ftstan.base.disk import Disk

__all__ = [
    "ChannelLimits",
    "EncryptionOptions",
    "FileOptions",
    "FtOptions",
    "LinkOptions",
    "LogOptions",
    "MonitorOptions",
    "NatsOptions",
    "ServerOptions",
    "ServerTlsOptions",
    "StanServer",
    "StoreLimits",
    "run_server",
    "run_server_with",
]

_LAST_WORDS_S = 1.0
_CANCEL_AGAIN_S = 10.0
_PLANE_STOP_S = 5.0
#: A thread that hangs in storage is left alone after so long; whatever it does later is refused.
_PLANE_ENDED_S = 1.0


def run_server(cluster_id: str = "test-cluster") -> StanServer:
    """Start a server with default options (memory store, clients on port 4222) and return it when
    it serves.

    Raises ``FtstanError`` when it cannot start.
    """
    return run_server_with(ServerOptions(cluster_id=cluster_id))


def run_server_with(
    options: ServerOptions | None = None,
    nats_options: NatsOptions | None = None,
    *,
    on_fenced: Callable[[FtstanError], None] | None = None,
) -> StanServer:
    """Start a server and return it when it serves, or stands by.

    ``nats_options``, if given, take the place of ``options.nats``. ``on_fenced``: see
    ``StanServer``. Raises ``FtstanError`` when it cannot start; nothing of it is left then.
    """
    options = options or ServerOptions()
    if nats_options is not None:
        options = replace(options, nats=nats_options)
    server = StanServer(options, on_fenced=on_fenced)
    server.start()
    return server


class StanServer:
    """One server. Every method may be called from any thread.

    Those of asyncio's ``async with`` do not block a loop.

    ``on_fenced(error)`` is called once, on the server's own thread, when it ended by itself at
    once: its datastore belongs to another server (``FencedError``), or its storage or NATS failed
    it. It is over then, and ``wait`` returns 75; the program may start a new ``StanServer`` as a
    standby, also in ``on_fenced`` itself, which may call every method of either. What it raises is
    told in the log. A server is started once.
    """

    def __init__(
        self, options: ServerOptions, *, on_fenced: Callable[[FtstanError], None] | None = None
    ) -> None:
        """Start nothing yet."""
        self.options = options
        self._on_fenced = on_fenced
        self._thread = threading.Thread(
            target=self._run, name=f"ftstan {options.cluster_id}", daemon=True
        )
        self._first = threading.Lock()
        self._ready = threading.Event()
        """It serves, stands by, or is over."""
        self._over = threading.Event()
        self._error: FtstanError | None = None
        self._fenced: FtstanError | None = None
        self._status = 0
        self._disk = ShuttableDisk()
        self._node: Node | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cut: asyncio.Event | None = None

    # ---- start, stop
    # ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and return when it serves, or stands by.

        Raises ``FtstanError``; nothing of it is left then.
        """
        options = self.options
        check_before_logging(options)
        check_switch(options.encryption)
        check_encryption(options.encryption, os.environ)
        check_start(options, registry.names(options.store))
        for warning in check_routes(options):
            log.stream.warning(warning, code="FTS-1199")
        if options.nats_servers:
            parse_urls(",".join(options.nats_servers))
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._over.wait()
            raise self._error

    def stop(self) -> int:
        """Stop cleanly and wait for the end; returns what ``wait`` does.

        Harmless when it is over already.
        """
        loop = self._loop
        node = self._node
        if loop is not None and node is not None:
            with contextlib.suppress(RuntimeError):
                # The loop is closed: it is over.
                loop.call_soon_threadsafe(node.request_stop, 0)
        if self._thread.ident is None:
            return 0
        return self.wait() or 0

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end: 0 after ``stop``, 75 when it ended by itself.

        ``None`` after ``timeout`` seconds.

        1 if it ended because another partition turned out to serve one of its channels
        (``docs/partitioning.md``). Raises the ``FtstanError`` that ended a server that was serving.
        """
        if not self._over.wait(timeout):
            return None
        if threading.current_thread() is not self._thread:
            # ``on_fenced`` may ask, too: it runs on that thread, when everything else is over.
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._status

    def set_limits(self, limits: StoreLimits) -> list[str]:
        """Other limits from now on, also for a standby that serves later.

        Returns lines that say what changed.

        Waits some seconds for storage. Raises ``ConfigError``: nothing has changed; ``StoreError``:
        they hold as soon as storage answers; ``NatsError`` unless it runs.
        """
        loop = self._loop
        node = self._node
        if not self.is_running or loop is None or node is None:
            raise NatsError("this server does not run", hint="start it first")
        return asyncio.run_coroutine_threadsafe(node.member.set_limits(limits), loop).result()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    # ---- views
    # ----------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it was started and is not over."""
        return self._ready.is_set() and not self._over.is_set()

    @property
    def is_serving(self) -> bool:
        """Whether clients are answered now: false for a standby."""
        return self.is_running and self._node is not None and self._node.is_serving()

    @property
    def state(self) -> str:
        """``STANDALONE``, ``FT_STANDBY``, ``FT_ACTIVE``, ``FAILED`` or ``SHUTDOWN``."""
        return str(
            self._node.status.now().state
            if self.is_running and self._node is not None
            else NodeState.SHUTDOWN
        )

    @property
    def client_url(self) -> str:
        """The NATS URL for clients, without credentials. Raises ``NatsError`` unless it runs."""
        if not self.is_running or self._node is None:
            raise NatsError("this server does not run", hint="start it first")
        return self._node.client_url

    # ---- host of the node
    # ----------------------------------------------------------------------------------------

    owns_process = False

    def disk(self) -> Disk:
        """Storage calls that can be shut."""
        return self._disk

    def started(self) -> None:
        """The node serves, or stands by."""
        self._ready.set()

    def over(self, status: int) -> None:
        """The program goes on."""

    def end(self, why: str, status: int) -> NoReturn:
        """End the node: from here on nothing more is sent or written.

        Any thread of the node may call it.
        """
        error = FencedError(why)
        if self._first.acquire(blocking=False):
            self._disk.shut()
            node = self._node
            loop = self._loop
            cut = self._cut
            assert node is not None
            assert loop is not None
            assert cut is not None
            if node.link is not None:
                node.link.cut()
            self._fenced = error
            self._status = status
            say(partial(log.stream.fatal, code="FTS-2199"), why, _LAST_WORDS_S)
            loop.call_soon_threadsafe(cut.set)
        raise EndedError(why)

    def pause_and_end(self, why: str, status: int, seconds: int) -> NoReturn:
        """The same; ``seconds`` are for whoever starts it again, which is the program here."""
        del seconds
        self.end(why, status)

    # ---- its thread
    # ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except (EndedError, StoppedError):
            pass
        except FencedError as error:
            log.stream.fatal(error.text, code="FTS-2199")
            self._fenced = error
            self._status = EXIT_FENCED
        except FtstanError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001  # the program gets it as an error of ours, in one line
            self._error = FtstanError(f"{type(error).__name__}: {error}", hint="please report this")
        finally:
            if self._fenced is not None and not self._ready.is_set():
                self._error = self._fenced
            self._over.set()
            self._ready.set()
        if self._fenced is not None and self._on_fenced is not None:
            try:
                self._on_fenced(self._fenced)
            except Exception as error:  # noqa: BLE001  # the program's own code, on a thread that it does not see
                log.stream.error(f"on_fenced failed: {type(error).__name__}: {error}")

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._cut = asyncio.Event()
        node = self._node = Node(self.options, host=self)
        self._loop.set_exception_handler(tasks.loop_errors(node.die))
        life = tasks.waited(node.main(), "life")
        cut = tasks.waited(self._cut.wait(), "cut")
        try:
            await asyncio.wait([life, cut], return_when=asyncio.FIRST_COMPLETED)
            if life.done() and self._fenced is None:
                self._status = life.result()
            else:
                with contextlib.suppress(EndedError):
                    await tasks.end(life, _CANCEL_AGAIN_S)
        finally:
            cut.cancel()
            await self._end_plane(node)

    async def _end_plane(self, node: Node) -> None:
        node.protection.disown()

        def release() -> None:
            node.plane.stop(None)
            node.close()
            node.plane.close()

        # A thread, because the data plane may hang in storage: its files and its lock are given
        # back when it returns.
        thread = threading.Thread(target=release, name="release", daemon=True)
        thread.start()
        await asyncio.to_thread(
            thread.join, _PLANE_ENDED_S if self._fenced is not None else _PLANE_STOP_S
        )
