"""Where one node hears operators: a connection to NATS, their questions and requests, and the
answers.

A member of a group hears them on the connection of its group; a server that stands alone has one
for this, which decides nothing and which nobody waits for. Lives on the control thread
(``docs/admin.md``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from ftstan.admin.keys import ensure_key
from ftstan.admin.protocol import is_who
from ftstan.admin.service import AdminService
from ftstan.admin.signing import Recipient
from ftstan.base import log
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import NatsError, StoreError
from ftstan.ft.subjects import control_subject, question_subject
from ftstan.nats import tasks
from ftstan.nats.control import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ftstan.config.options import LinkOptions
    from ftstan.node.context import Context

#: Questions that are answered at one time.
_MAX_ANSWERS = 32
_LAST_WORDS_S = 1.0


class AdminListener:
    """Listens for the requests of administrators to one node."""

    def __init__(self, node: Context) -> None:
        self._node = node
        self._service = AdminService(
            node.member, Recipient(node.options.cluster_id, node.server_id), node.clock
        )
        self._control: Control | None = None
        self._own: Control | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, control: Control) -> None:
        """Listen on this connection."""
        self._control = control
        cluster = self._node.options.cluster_id
        await control.serve(control_subject(cluster, self._node.server_id), self._on_request)
        await control.serve(question_subject(cluster), self.on_question)

    async def open_own(self) -> None:
        """Listen on a connection of our own."""
        node = self._node
        await self.make_key()
        self._own = Control(
            node.nats_urls, cluster_id=node.options.cluster_id, options=node.presented, role="ctl"
        )
        await self.open(self._own)
        await self._own.start()

    async def hear(
        self,
        subject: str,
        answer: Callable[[bytes], Coroutine[None, None, bytes]],
        is_ours: Callable[[], bool],
    ) -> None:
        """Answer what anybody asks on ``subject``, while ``is_ours()``."""
        assert self._control is not None

        def on_request(data: bytes, reply: str) -> None:
            if is_ours():
                self._reply_later(lambda: answer(data), reply)

        await self._control.serve(subject, on_request)

    async def make_key(self) -> None:
        """Make the file of ``-admin_key`` if it is missing."""
        if self._node.options.admin_key:
            await self._node.call(self._ensure_key)

    def _ensure_key(self) -> None:
        """Make the key of a server without a datastore, if there is none."""
        folder, name = os.path.split(os.path.abspath(self._node.options.admin_key))
        disk = LocalDisk()
        try:
            directory = disk.open_dir(folder)
        except OSError as error:
            log.stream.warning(
                f"{self._node.options.admin_key} cannot be made: {error.strerror or error}"
            )
            return
        try:
            ensure_key(disk, directory, lambda: None, name=name)
        except StoreError as error:
            log.stream.warning(f"{error.text}; {error.hint}")
        finally:
            disk.close(directory)

    async def ask(self, question: bytes, seconds: float) -> list[bytes]:
        """What all servers of the cluster answer within so many seconds. Raises ``NatsError``."""
        if self._control is None:
            return []
        subject = question_subject(self._node.options.cluster_id)
        return await self._control.ask(subject, question, seconds)

    def renew(self, options: LinkOptions) -> None:
        """Present ``options`` to NATS from the next connection on."""
        if self._own is not None:
            self._own.renew(options)

    async def close(self) -> None:
        """Say what is being said, and hear nobody any more."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_WORDS_S)
        for task in self._tasks:
            task.cancel()
        if self._own is not None:
            await self._own.close()

    # ---- questions
    # ----------------------------------------------------------------------------------------------

    def on_question(self, data: bytes, reply: str) -> None:
        """Answer a request for this server's status; ignore others."""
        if is_who(data):
            self._reply_later(self._service.who, reply)

    def _on_request(self, data: bytes, reply: str) -> None:
        self._reply_later(lambda: self._service.answer(data), reply)

    def _reply_later(self, make: Callable[[], Coroutine[None, None, bytes]], reply: str) -> None:
        if len(self._tasks) >= _MAX_ANSWERS:
            # A flood of questions: whoever asked in earnest will ask again.
            return
        task = tasks.aside(self._reply(make, reply), "answer to an operator")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, make: Callable[[], Coroutine[None, None, bytes]], reply: str) -> None:
        payload = await make()
        assert self._control is not None
        with contextlib.suppress(NatsError):
            await self._control.publish(reply, payload)
