"""What a drill needs of whoever runs the nodes.

``local.py`` and ``remote.py`` are the two there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.drill.scenario import Member, Step
    from ftstan.drill.workload import Access


class Driver(Protocol):
    """Starts and hurts nodes. Methods raise ``DrillError``."""

    @property
    def members(self) -> Sequence[Member]:
        """The nodes, with their monitoring addresses."""
        ...

    @property
    def access(self) -> Access:
        """How clients get in."""
        ...

    async def prepare(self) -> None:
        """Make what the faults need, and start the nodes if this driver owns them."""
        ...

    async def mark(self, nodes: Sequence[str]) -> None:
        """Remember the processes of these nodes, so that ``revive`` can tell a new one."""
        ...

    async def begin(self, step: Step, node: str) -> None:
        """Do a fault to ``node``."""
        ...

    async def finish(self, step: Step, node: str) -> None:
        """End a fault that lasts."""
        ...

    async def switchover(self, within_s: float) -> None:
        """Ask the group to hand over, and wait for a successor; seconds."""
        ...

    async def revive(self, node: str, *, ended: bool) -> None:
        """See that a node runs.

        One that ``ended`` must have gone first, and is started unless its supervisor does.
        """
        ...

    async def forget(self, channels: Sequence[str]) -> None:
        """Remove the channels of a drill that passed, where others use the servers, too."""
        ...

    async def end(self) -> None:
        """Leave nothing behind; never fails."""
        ...

    def last_words(self) -> list[str]:
        """Ends of logs, for a drill that failed."""
        ...
