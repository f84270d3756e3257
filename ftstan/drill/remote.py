"""The remote driver: nodes that somebody else runs, hurt through shell commands of the scenario
(ssh, ansible ad hoc).

A command is a template: words in braces are the node's variables, and ``{seconds}``, ``{cluster}``,
``{group}``. It runs on this host, through ``sh -c``, and must end with status 0. Whatever began and
was not ended when a drill breaks off is ended.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ftstan.drill import commands
from ftstan.drill.errors import DrillError
from ftstan.drill.node_watch import TOKEN_VARIABLE, get
from ftstan.drill.scenario import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.drill.scenario import Member, Scenario, Step
    from ftstan.drill.workload import Access

_UNAUTHORIZED = 401


class RemoteGroup:
    """A driver (``driver.py``) for nodes that run already."""

    def __init__(self, scenario: Scenario, access: Access) -> None:
        self._scenario = scenario
        self._members = {member.name: member for member in scenario.members}
        self._under_way: list[tuple[Step, str]] = []
        self.access = access

    @property
    def members(self) -> Sequence[Member]:
        """The nodes of the scenario."""
        return self._scenario.members

    async def prepare(self) -> None:
        """See that every node answers: a drill on half a group proves the wrong thing."""
        said = {
            member.name: (await get(f"{member.monitor}/streaming/serverz"))[0]
            for member in self.members
        }
        shut = [name for name, status in said.items() if status == _UNAUTHORIZED]
        if shut:
            raise DrillError(
                f"the monitoring pages of {', '.join(shut)} ask for a token, or refuse ours",
                hint=f"give the servers' monitor_token in {TOKEN_VARIABLE}",
            )
        silent = [name for name, status in said.items() if not status]
        if silent:
            raise DrillError(
                f"no answer from the monitoring pages of {', '.join(silent)}",
                hint="check nodes[].monitor in the scenario, and that every node runs before a "
                "drill",
            )

    async def mark(self, nodes: Sequence[str]) -> None:
        """Nothing: whoever starts these nodes again knows them."""

    async def begin(self, step: Step, node: str) -> None:
        """Run the command that does it."""
        if len(COMMANDS[step.kind]) > 1 and step.kind != "rolling-restart":
            self._under_way.append((step, node))
        await self._run(COMMANDS[step.kind][0], step, node)

    async def finish(self, step: Step, node: str) -> None:
        """Run the command that ends it."""
        await self._run(COMMANDS[step.kind][1], step, node)
        self._under_way.remove((step, node))

    async def switchover(self, within_s: float) -> None:
        """Ask the group to hand over."""
        verb = commands.STEP_DOWN if self._scenario.clustered else commands.SWITCHOVER
        await commands.switchover(self.access, within_s, verb)

    async def revive(self, node: str, *, ended: bool) -> None:
        """Run ``start`` where the scenario has it; without one the node's supervisor starts it."""
        if ended and "start" in self._scenario.commands:
            await commands.run(self._words("start", node, 0.0), f"start of {node}")

    async def forget(self, channels: Sequence[str]) -> None:
        """Delete them with everything in them."""
        for channel in channels:
            await commands.ftstanctl(self.access, "channel", "delete", channel, "--yes", "--force")

    async def end(self) -> None:
        """End what was begun."""
        for step, node in list(self._under_way):
            with contextlib.suppress(DrillError):
                await self.finish(step, node)

    def last_words(self) -> list[str]:
        """Logs are where the nodes are."""
        return []

    async def _run(self, name: str, step: Step, node: str) -> None:
        within_s = max(commands.TIMEOUT_S, step.within_s)
        await commands.run(
            self._words(name, node, step.for_s), f"{name} of {node}", within_s=within_s
        )

    def _words(self, name: str, node: str, seconds: float) -> list[str]:
        template = self._scenario.commands[name]
        words = {
            **self._members[node].words,
            "seconds": f"{seconds:g}",
            "cluster": self._scenario.cluster,
            "group": self._scenario.group,
        }
        try:
            return ["sh", "-c", template.format_map(words)]
        except (KeyError, ValueError, IndexError) as error:
            raise DrillError(
                f'command "{name}" for {node}: {error} is no variable of it',
                hint="give the node that key in nodes or in the inventory; a brace itself is "
                "written twice",
            ) from error
