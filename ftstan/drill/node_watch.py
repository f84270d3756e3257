"""Every node's monitoring pages, looked at again and again: who serves, who stands by, which epoch
confirms batches.

What a node says of itself is evidence, not truth: it goes into the ledger as said. A node that does
not answer is not waited for; each has a watcher of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ftstan.base.states import NodeState
from ftstan.drill.ledger import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.drill.ledger import Record
    from ftstan.drill.scenario import Member

LAZY_S = 0.25
EAGER_S = 0.01
#: A host that is small, or busy with a takeover, may take seconds; one that is gone refuses, or
#: says nothing at all.
_TIMEOUT_S = 10.0
_SHARE = 0.1
#: Figures are evidence of who owns what: seldom enough for a slow node, often enough for a short
#: epoch.
_LONGEST_ROLE_S = 2.0
_LONGEST_FIGURE_S = 0.5
_EPOCH = re.compile(rb"^ftstan_epoch ([0-9.e+]+)", re.MULTILINE)
_COMMITS = re.compile(rb"^ftstan_commit_seconds_count ([0-9.e+]+)", re.MULTILINE)
_MAX_PAGE = 8 << 20
_NOT_NOW = 503
_WAITING = frozenset({NodeState.STANDBY, NodeState.CLUSTERED})
#: What the pages ask for, if they ask for a token: a secret, so no key of a scenario.
TOKEN_VARIABLE = "FTSTAN_MONITOR_TOKEN"  # noqa: S105  # the variable's name


@dataclass
class Seen:
    """What a node's pages said last.

    ``active_us``: since when it says that it is active; 0 if it does not.

    ``fit``: not false while it says that it stands by and could not take over; an original never
    says so.

    ``figures_us``: when the last complete look at its figures began.
    """

    name: str
    answers: bool = False
    active_us: int = 0
    state: str = ""
    fit: bool = True
    epoch: int = 0
    figures_us: int = 0

    @property
    def active(self) -> bool:
        """Whether it says that it serves."""
        return self.active_us > 0

    @property
    def recorded(self) -> bool:
        """Whether its figures were looked at since it serves: then its epoch is in the ledger, if
        it tells one.
        """
        return self.active and self.figures_us >= self.active_us

    @property
    def standing_by(self) -> bool:
        """Whether it could take over."""
        return self.answers and not self.active and self.state in _WAITING and self.fit

    @property
    def told(self) -> str:
        """How it is, in a word or two."""
        if self.active:
            return "active"
        if not self.answers:
            return "no answer"
        return self.state if self.fit else f"{self.state}, could not take over"


class Watchers:
    """Looks at every member until ``end``.

    ``eager`` makes the looks frequent while a takeover is timed.
    """

    def __init__(
        self,
        members: Sequence[Member],
        write: Callable[[Record], None],
        now_us: Callable[[], int],
        *,
        clustered: bool = False,
    ) -> None:
        self.nodes = {member.name: Seen(member.name) for member in members}
        self.eager = False
        # The page of the original knows groups alone.
        self._page = "/active" if clustered else "/streaming/isFTActive"
        self._members = members
        self._write = write
        self._now_us = now_us
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to look."""
        for member in self._members:
            node = self.nodes[member.name]
            self._tasks += [
                asyncio.create_task(self._roles(member.monitor, node)),
                asyncio.create_task(self._figures(member.monitor, node)),
            ]

    async def end(self) -> None:
        """Stop looking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def active(self) -> Seen | None:
        """The node that serves: of several that say so, the one that has said so for the shortest
        time.
        """
        found = [node for node in self.nodes.values() if node.active]
        return max(found, key=lambda node: node.active_us) if found else None

    async def _roles(self, monitor: str, node: Seen) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            status, _ = await get(f"{monitor}{self._page}")
            node.answers = status > 0
            if status != 200:
                node.active_us = 0
            elif not node.active_us:
                node.active_us = self._now_us()
            await _pause(EAGER_S if self.eager else LAZY_S, loop.time() - asked, _LONGEST_ROLE_S)

    async def _figures(self, monitor: str, node: Seen) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            _, body = await get(f"{monitor}/streaming/serverz")
            state = _state(body)
            node.fit = state not in _WAITING or (await get(f"{monitor}/standby"))[0] != _NOT_NOW
            node.state = state
            asked = self._now_us()
            _, body = await get(f"{monitor}/metrics")
            epoch = _EPOCH.search(body)
            commits = _COMMITS.search(body)
            if epoch and commits:
                node.epoch = int(float(epoch[1]))
                if node.epoch:
                    took = self._now_us() - asked
                    self._write(Owner(asked, node.name, node.epoch, int(float(commits[1])), took))
            node.figures_us = asked
            await _pause(LAZY_S, loop.time() - began, _LONGEST_FIGURE_S)


async def _pause(usual_s: float, took_s: float, longest_s: float) -> None:
    """Between two looks, of which the last one took so long: a slow node is not kept from its work
    by being asked.
    """
    await asyncio.sleep(max(usual_s, min(took_s / _SHARE, longest_s)))


def _state(body: bytes) -> str:
    try:
        page = json.loads(body)
    except ValueError:
        return ""
    return str(page.get("state", "")) if isinstance(page, dict) else ""


def handover_age(answer: tuple[int, bytes]) -> float | None:
    """Seconds since the owner before this node was asked to hand over, as its ``ftz`` page says.

    ``None`` if it does not say: it did not follow such an owner, or it is an original.
    """
    try:
        page = json.loads(answer[1])
    except ValueError:
        return None
    age = page.get("handover_age") if isinstance(page, dict) else None
    return float(age) if isinstance(age, (int, float)) and not isinstance(age, bool) else None


async def get(url: str) -> tuple[int, bytes]:
    """A page: status and body; status 0 when nobody answers within ten seconds."""
    try:
        # Not wait_for: that of Python 3.11 forgets a cancellation that comes together with the
        # answer.
        async with asyncio.timeout(_TIMEOUT_S):
            return await _get(url)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return 0, b""


async def _get(url: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if context else 80)
    reader, writer = await asyncio.open_connection(
        parts.hostname or "", port, ssl=context, limit=_MAX_PAGE
    )
    try:
        token = os.environ.get(TOKEN_VARIABLE, "")
        login = f"Authorization: Bearer {token}\r\n" if token else ""
        asked = f"GET {parts.path} HTTP/1.0\r\nHost: {parts.hostname}\r\n{login}\r\n"
        writer.write(asked.encode())
        await writer.drain()
        answer = await reader.read(_MAX_PAGE)
        while more := await reader.read(_MAX_PAGE):
            answer += more
    finally:
        # Nothing is left to send, and a node that was killed may say so only now: nobody else would
        # ask for that error.
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    return (int(words[1]), body) if len(words) > 1 else (0, b"")
