"""The root's own files at a start: what stands under their names and is no file is found, told and
left alone.

A directory there is most likely a channel that an original server made. No such entry ends a start,
but for the two files without which there is nothing to serve; what would have been kept under the
name is done without.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.base.errors import RecoveryError
from ftstan.base.log import stream as log
from ftstan.base.reserved import is_root_file
from ftstan.stores.file.log.view import show
from ftstan.stores.file.recovery import judging

if TYPE_CHECKING:
    from ftstan.base.disk import Disk
    from ftstan.stores.file.env import FileEnv

_INDISPENSABLE = ("server.dat", "clients.dat")
_CURE = "stop every server of the datastore and move it elsewhere; ftstanctl store verify names it"


def find_occupied(disk: Disk, root: int) -> dict[str, str]:
    """Names of the root that belong to files of ours -> what stands there instead.

    Raises ``OSError``.
    """
    found = {}
    for name, is_dir in sorted(disk.listdir(root)):
        if not is_root_file(name):
            continue
        if is_dir:
            found[name] = "a directory"
            continue
        try:
            if not disk.stat(root, name).is_file:
                found[name] = "no regular file"
        except FileNotFoundError:
            # A running server replaces and removes its files while a tool looks.
            continue
    return found


def clear_root(env: FileEnv) -> None:
    """At a start: find what is in the way, and remove what former owners left unfinished.

    Raises ``RecoveryError`` if nothing can be served, ``OSError`` and ``FencedError``.
    """
    found = find_occupied(env.disk, env.root)
    env.occupied = frozenset(found)
    for name, what in found.items():
        text = (
            f'"{show(os.fsencode(name))}" in the datastore is {what}, where a server keeps a file'
        )
        if name in _INDISPENSABLE:
            raise RecoveryError(text, hint=_CURE)
        log.warning(
            f"{text}: it is left alone, and the server does without; run: ftstanctl store verify"
        )
    judging.remove_temporaries(env, env.root)
