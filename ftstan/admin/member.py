"""What administrators can ask of one member, as its ``service.AdminService`` sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ftstan.admin.keys import Keys
    from ftstan.admin.protocol import Answer, EpochEntry, Request
    from ftstan.base.states import NodeStatus


class Member(Protocol):
    """What can be asked of a member.

    What changes something raises ``RefusedError`` when it will not.
    """

    async def status(self) -> NodeStatus:
        """Itself. Never waits for storage longer than a moment."""
        ...

    async def history(self, count: int) -> tuple[EpochEntry, ...]:
        """The newest epochs of the datastore. Raises ``StoreError``."""
        ...

    async def switchover(self, to: str) -> None:
        """Stop serving in favour of the standby ``to`` (server id), or of any."""
        ...

    async def plan_switchover(self, to: str, at_ns: int) -> None:
        """Do so at ``at_ns`` (Unix nanoseconds); 0 or less: not any more."""
        ...

    async def pause(self, by: str) -> None:
        """Do not take over until ``resume``; ``by``: who asks."""
        ...

    async def resume(self) -> None:
        """Take over again when it is time."""
        ...

    async def set_mixed(self, *, on: bool) -> None:
        """Record whether original servers may be members."""
        ...

    async def administer(self, request: Request) -> Answer:
        """Carry out what ``Verb.administers``. Raises ``RefusedError`` and ``StoreError``."""
        ...

    async def read_keys(self) -> Keys:
        """Read the group's keys from storage. Raises ``StoreError``."""
        ...
