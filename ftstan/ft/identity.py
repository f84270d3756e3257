"""Does our directory show the datastore that the group serves?

A pure judgement of ids, part of the standby.

A member whose share is not mounted, or was emptied or swapped under it, sees another datastore than
its group, or none. It must not become active: it would serve an empty store and acknowledge into
it. So the id that our directory shows has to be the one that the group's owner names in its
heartbeats; and where nobody has been heard yet, the one that it has shown before.

Original servers name none. While one of them is active, the directory must at least show that
somebody has served.

Once an owner of our own datastore was heard, a heartbeat that names another one is a stranger's,
and stops nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.ft.heartbeat import Heartbeat


class GroupStore:
    """What is known of both.

    Ids are 16 bytes; empty: no ftstan server ever owned what is there; ``None``: unknown.
    """

    def __init__(self, own: bytes | None = None) -> None:
        self._own: bytes | None = None
        self._known = b""
        self._group: bytes | None = None
        self._group_server = ""
        self._proven = False
        self._served = True
        self._original = ""
        if own is not None:
            self.seen(own)

    @property
    def own(self) -> bytes | None:
        """The store id that our directory showed last."""
        return self._own

    @property
    def is_proven(self) -> bool:
        """Whether an owner has named the datastore that our directory shows."""
        return self._proven

    @property
    def is_wrong(self) -> bool:
        """Whether our directory does not show the group's datastore."""
        if self._own is None or self._proven:
            return False
        if self.must_be_served and not self._served:
            return True
        return self.expected not in {None, self._own}

    @property
    def expected(self) -> bytes | None:
        """The only id under which this node may become active.

        ``None`` while nothing is known of the group.
        """
        if self._proven:
            return self._own
        if self._group is not None:
            return self._group
        return self._known or None

    def heard(self, beat: Heartbeat) -> bool:
        """Take an owner's word; returns whether it is ours.

        If not, our directory should be looked at again.
        """
        if self._own and beat.store_id == self._own:
            self._group = beat.store_id
            self._group_server = beat.server_id
            self._proven = True
            return True
        if not self._proven:
            self._group = beat.store_id
            self._group_server = beat.server_id
        return False

    @property
    def must_be_served(self) -> bool:
        """Whether an original server was active in the group: then somebody has served from its
        directory.
        """
        return bool(self._original)

    def heard_original(self, server_id: str) -> None:
        """An original server sent the heartbeat of an active."""
        self._original = server_id

    def seen(self, store_id: bytes, *, served: bool = True) -> bool:
        """Take what our directory shows; returns whether the id has changed.

        ``served``: as in ``StoreSeen``.
        """
        self._served = served
        changed = store_id != self._own
        if changed:
            # What an owner of our datastore said stays true (``_group``), whatever the directory
            # shows now.
            self._own = store_id
            self._proven = False
        self._known = self._known or store_id
        if store_id and store_id == self._group:
            self._proven = True
        return changed

    def complaint(self) -> str:
        """The line for an operator while ``is_wrong``."""
        shown = (
            f"shows {self._own.hex()}"
            if self._own
            else "shows none (missing, empty, or without ft.epoch)"
        )
        if self._group is not None:
            named = (
                f'serverID "{self._group_server}" is active in this group on the datastore '
                f"{self._group.hex()}"
            )
        elif self._original and not self._served:
            named = f'serverID "{self._original}" of an original server is active in this group'
        else:
            named = f"this server stood by for the datastore {self._known.hex()}"
        return (
            f"ft: not the group's datastore: {named}, but the directory of this server {shown}: "
            "it will not become "
            "active; check that the group's storage is mounted here"
        )


def stranger_line(beat: Heartbeat) -> str:
    """The log line about an owner of another datastore."""
    return (
        f'ft: serverID "{beat.server_id}" is active in this group on another datastore '
        f"({beat.store_id.hex()}): all members must share one"
    )
