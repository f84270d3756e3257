"""What the names in a datastore tell before anybody owns it: used once in the life of a store, at
its first epoch.

Reads names only, never contents: before the epoch record is durable nothing that is read may be
believed (``docs/ft.md``), but a slice that is named exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.disk import Disk

CONFIRMED_NAME = "confirmed.bin"
FOREIGN = "lost+found"
"""The file system's own, for root alone: there is no channel in it."""
SERVER_NAME = "server.dat"
_SLICE = re.compile(r"msgs\.([0-9]{1,18})\.(?:dat|idx)")
HIGHEST_COUNTED = 1 << 31
"""What is numbered higher was made by no server in turn: an epoch above it would take gigabytes of
epoch file.
"""


@dataclass(frozen=True, slots=True)
class Survey:
    """``highest_slice``: over all channels, 0 if there is none; nothing above ``HIGHEST_COUNTED``.

    ``confirmed``: channels that an epoch has written to. ``has_server``: somebody served from here,
    perhaps an original server.
    """

    highest_slice: int
    confirmed: tuple[str, ...]
    has_server: bool


def _nobody_asks() -> None:
    """Storage has answered."""


def survey_store(disk: Disk, root_fd: int, answered: Callable[[], None] = _nobody_asks) -> Survey:
    """Look at the names in the root and in every channel's directory.

    ``answered`` is called for each of them: it may take minutes. ``OSError`` passes through.
    """
    highest = 0
    confirmed = []
    has_server = False
    for name, is_dir in sorted(disk.listdir(root_fd)):
        if not is_dir:
            has_server |= name == SERVER_NAME
            continue
        try:
            channel_fd = disk.open_dir_at(root_fd, name)
        except PermissionError:
            if name != FOREIGN:
                raise
            continue
        try:
            inside = [entry for entry, _ in disk.listdir(channel_fd)]
        finally:
            disk.close(channel_fd)
        answered()
        numbers = [int(found[1]) for found in map(_SLICE.fullmatch, inside) if found]
        highest = max([highest, *(number for number in numbers if number <= HIGHEST_COUNTED)])
        if CONFIRMED_NAME in inside:
            confirmed.append(name)
    return Survey(highest_slice=highest, confirmed=tuple(confirmed), has_server=has_server)
