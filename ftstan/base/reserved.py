"""Names that no new channel may have: those of the files that stand beside the channels'
directories in a datastore.

The one list of them. A channel is a directory of the root, so that whoever may publish chooses what
such a directory is called: one where a server looks for a file of its own would break the next
start. The same names are refused on every kind of store. A channel of an original server that has
one of them is served where nothing of ours needs the name.
"""

from __future__ import annotations

import re

#: Files of the root with one name each; the others are numbered (``_NUMBERED``).
ROOT_FILES = frozenset(
    {
        ".rootdir.lck",
        ".truncate.lck",
        "admin.key",
        "ckpt.bin",
        "clients.dat",
        "dedup.bin",
        "ft.epoch",
        "ft.moves",
        "ft.watch",
        "restore.json",
        "server.dat",
    }
)
#: What a node of a cluster puts into its datastore: the word of its last checkpoint, and its id.
CLUSTER_MARK = "cluster.mark"
CLUSTER_ID = "cluster.id"
#: In a channel's directory: sequences that a repair found lost, so that nobody takes the hole for a
#: new loss.
REPAIRED = "repaired.json"
_NUMBERED = re.compile(r"ft\.(claim|deleting)\.|tmp\.|cut\.[0-9]+\.|admin\.key\.new")
#: More than there is today: what a later release, or an original server, puts there is likely to be
#: called so, too. ``lost+found`` is the file system's, ``.nfs`` and other names with a dot in front
#: belong to NFS and its servers.
_RESERVED = re.compile(
    r"\.|ft\.|tmp\.|cut\.[0-9]+\.|admin\.key|restore\.json\Z|lost\+found\Z|.*\.(bin|dat)\Z|(clients|server)\.dat"
    r"|cluster\.(mark|id)(\.new)?\Z",
    re.DOTALL,
)

RESERVED_HINT = (
    "reserved for files of servers: ft.*, tmp.*, cut.N.*, admin.key*, *.dat, *.bin, "
    "restore.json, lost+found, cluster.mark, cluster.id"
)


def is_reserved(name: bytes) -> bool:
    """Whether no new channel may have this name, in whatever case it is written: some file systems
    ignore that.
    """
    return _RESERVED.match(name.decode("utf-8", "surrogateescape").casefold()) is not None


def is_root_file(name: str) -> bool:
    """Whether a server of ours keeps a file of this name in the root, or may look for one."""
    return name in ROOT_FILES or _NUMBERED.match(name) is not None
