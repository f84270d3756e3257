"""What a heartbeat may bring about: it can be forged, so the rules that refuse one are here.

Anybody who may publish on the group's subject can send a heartbeat, and one that is true can be
late, or come from a process that has just woken up. Pure functions; ``active.py`` and
``standby.py`` act on them, ``identity.py`` knows the group's datastore.

- It never stops an active server. At most that one asks storage (``Sender.SUCCESSOR``,
  ``Sender.ORIGINAL``), and storage decides.
- It keeps a standby waiting only if it names the group's datastore and an epoch that is not older
  than one that was heard before. Without an epoch it does so in a mixed group only, or while our
  own directory cannot be read: original servers send none, and so does whoever forges one.
- It never makes a group mixed (``mixed.py``).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.ft.heartbeat import Heartbeat


class Sender(enum.Enum):
    """Who sent a heartbeat, as far as the server that serves can tell."""

    UNREADABLE = enum.auto()
    """Its activation time is damaged."""
    STRANGER = enum.auto()
    """It serves another datastore under our group's name."""
    SUCCESSOR = enum.auto()
    """It has a higher epoch of our datastore than we do."""
    FORMER = enum.auto()
    """Its epoch of our datastore is ours or a lower one: it does not know that it was replaced."""
    ORIGINAL = enum.auto()
    """It names no epoch."""


def sender(beat: Heartbeat, own: Heartbeat) -> Sender:
    """Who sent ``beat``, for the active server that sends ``own``; not for our own echo."""
    if beat.time_error:
        return Sender.UNREADABLE
    if not beat.is_ours:
        return Sender.ORIGINAL
    if beat.store_id != own.store_id:
        return Sender.STRANGER
    return Sender.SUCCESSOR if beat.epoch > own.epoch else Sender.FORMER


def says_something(beat: Heartbeat, server_id: str) -> bool:
    """Whether the standby ``server_id`` heeds ``beat`` at all: not its echo, nor a damaged one."""
    return beat.server_id != server_id and not beat.time_error


def original_counts(*, mixed: bool, store_id: bytes | None) -> bool:
    """Whether a heartbeat without an epoch keeps a standby waiting.

    ``store_id``: what its directory shows, ``None`` if it cannot be read.
    """
    return mixed or store_id is None


def owner_counts(beat: Heartbeat, newest: int) -> bool:
    """Whether an owner of our datastore keeps a standby waiting; ``newest`` epoch that it heard.

    A former owner that does not know it yet must not keep the group waiting.
    """
    return beat.epoch >= newest
