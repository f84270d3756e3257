"""The group that ``ftstanctl ft`` asks: its members, over NATS."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import UsageError
from ftstan.cli import contexts
from ftstan.cli.admin_client import BUSY_S, Asked, UnservedError
from ftstan.cli.connecting import link_options
from ftstan.ft.health import find_active, judge
from ftstan.ft.subjects import group_subject, question_subject

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from ftstan.base.states import NodeStatus

_AGAIN_S = 1.0
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Group(Asked):
    """The group that is asked."""

    name: str

    def expected(self, number: int) -> list[NodeStatus]:
        """The same, but asks again until so many have answered: one may only just have started."""
        deadline = time.monotonic() + self.timeout
        while True:
            left = deadline - time.monotonic()
            members = self.members(min(left, _AGAIN_S), lambda found: len(found) >= number)
            if len(members) >= number or left <= _AGAIN_S:
                return members
            time.sleep(_PAUSE_S)

    def members(
        self,
        seconds: float | None = None,
        enough: Callable[[list[NodeStatus]], bool] = lambda _: False,
        complete: Callable[[list[NodeStatus]], bool] = lambda _: False,
    ) -> list[NodeStatus]:
        """Every member that answers, by name; sooner as ``who`` says."""
        return self.who(group_subject(self.cluster, self.name), seconds, enough, complete)

    def members_with(self, wanted: Callable[[NodeStatus], bool]) -> list[NodeStatus]:
        """Every member; if none of them is ``wanted``, whoever answers a second, longer question:
        hosts may be busy.
        """
        members = self.members()
        if not any(map(wanted, members)):
            members = self.members(BUSY_S, lambda found: any(map(wanted, found)))
        return members

    def others(self) -> str:
        """Which groups of the cluster there are, in words; empty if none of its servers answers."""
        found = self.who(question_subject(self.cluster))
        groups = sorted({node.group for node in found if node.group})
        if groups:
            return f"cluster {self.cluster} has the groups: {', '.join(groups)}"
        return f"cluster {self.cluster} has servers, and no group" if found else ""

    def active(self) -> tuple[NodeStatus, list[NodeStatus]]:
        """The member that serves, and all members. Raises ``UnservedError``."""
        members = self.members_with(lambda node: node.owns_store)
        active = find_active(members)
        if active is None:
            problem = judge(members).problems[0]
            if not members and (others := self.others()):
                problem = f"{problem}; {others}"
            raise UnservedError(
                f"group {self.name} of cluster {self.cluster}: {problem}",
                hint="see ftstanctl ft status; check --server, --cluster and --group",
            )
        return active, members


def with_group(arguments: argparse.Namespace, work: Callable[[Group], int]) -> int:
    """Let ``work`` ask the group that ``arguments`` name. Raises ``ConfigError``, ``NatsError``."""
    if not arguments.group:
        hints = ("give --group the members' -ft_group", contexts.unreadable())
        raise UsageError("which group?", hint="; ".join(filter(None, hints)))

    # Late, here and below: words and help need no client of NATS, and no store.
    from ftstan.nats.request import asking  # noqa: PLC0415

    with asking(arguments.server, link_options(arguments), seconds=arguments.timeout) as asker:
        return work(Group(asker, arguments.cluster, arguments.timeout, arguments.group))
