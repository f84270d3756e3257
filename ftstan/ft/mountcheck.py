"""Is the datastore mounted in a way that a group can live with?

Judged before anything of it is touched.

The lock of a group and what its members read of each other are as good as the mount. Ways to mount
that make the lock a private matter of each host, let it be lost or regained in silence, or answer a
member's question from its own memory **refuse** a member of a group, each under a name that
``-ft_allow`` can set aside (``docs/ft.md``, Mounts). File systems that nobody has tried, every FUSE
but Gluster among them, are only **warned** about. A standalone server is warned of all.

What the mount table cannot tell, an ``async`` export above all, stays the operator's to know.

Pure: the texts of the kernel come in, findings go out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.options import MountRisk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ftstan.ft.mounts import Mount

_NFS = frozenset({"nfs", "nfs4"})
_GLUSTER = "fuse.glusterfs"
#: What Lustre, GFS2 and CIFS call it.
_PRIVATE_LOCKS = frozenset({"localflock", "localflocks", "nobrl"})
#: Shared file systems whose behaviour is known well enough to say nothing.
_KNOWN_SHARED = frozenset({*_NFS, "ceph", _GLUSTER})
_YES = frozenset({"y", "1"})

_LOCKS_ARE_PRIVATE = "locks that are taken here are not seen by other hosts"


@dataclass(frozen=True, slots=True)
class MountFinding:
    """Something about the mount.

    ``risk`` is ``None`` for what is only told; ``text`` says what can go wrong.
    """

    risk: MountRisk | None
    text: str
    hint: str


def examine(mount: Mount, recover_lost_locks: str = "") -> list[MountFinding]:
    """Everything that speaks against the mount.

    ``recover_lost_locks``: what the module parameter's file says.
    """
    return [
        *_nfs(mount, recover_lost_locks),
        *_private_locks(mount),
        *_gluster(mount),
        *_untried(mount),
    ]


def check_mount(
    mount: Mount,
    path: str,
    *,
    in_group: bool,
    allow: Collection[str] = (),
    recover_lost_locks: str = "",
) -> list[str]:
    """Refuse a mount that a group cannot live with.

    Returns the lines that a server has to warn with.

    Raises ``ConfigError`` with every risk that was not allowed, for a member of a group; nothing
    has been touched.
    """
    warnings = []
    refused = []
    for finding in examine(mount, recover_lost_locks):
        if in_group and finding.risk is not None and finding.risk not in allow:
            refused.append(finding)
            continue
        accepted = (
            f" (accepted by -ft_allow {finding.risk})"
            if finding.risk is not None and in_group
            else ""
        )
        warnings.append(f"{_place(mount, path)}: {finding.text}{accepted}; {finding.hint}")
    if mount.is_network and MountRisk.DIRECT_IO in allow:
        warnings.append(
            f"{_place(mount, path)}: who owns the datastore is read through this host's cache "
            "(-ft_allow "
            f"{MountRisk.DIRECT_IO}): a former owner may not notice that it was replaced"
        )
    if not refused:
        return warnings
    names = ",".join(dict.fromkeys(str(finding.risk) for finding in refused))
    raise ConfigError(
        f"ft: {_place(mount, path)}: "
        + "; ".join(f"{finding.text} [{finding.risk}]" for finding in refused),
        hint="; ".join(dict.fromkeys(finding.hint for finding in refused))
        + f"; who knows better starts with -ft_allow {names}",
    )


def _place(mount: Mount, path: str) -> str:
    return f"datastore {path} on {mount.fstype} {mount.source} mounted at {mount.point}"


def _nfs(mount: Mount, recover_lost_locks: str) -> Iterator[MountFinding]:
    if mount.fstype not in _NFS:
        return
    if "nolock" in mount.options:
        text = f"it is mounted nolock: {_LOCKS_ARE_PRIVATE}"
        yield MountFinding(
            MountRisk.NOLOCK, text, "mount it without nolock, with vers=4.1 or newer"
        )
    if mount.fstype == "nfs" and not any(option.startswith("vers=4") for option in mount.options):
        text = (
            "it is NFS version 3 or older: the lock of a host that died can stay until that host "
            "is back, and one that "
            "was lost is not noticed"
        )
        yield MountFinding(MountRisk.NFS3, text, "mount it with vers=4.1 or newer")
    soft = sorted(mount.options & {"soft", "softerr"})
    if soft:
        text = f"it is mounted {soft[0]}: a busy file server turns into failed and half-done writes"
        yield MountFinding(MountRisk.SOFT, text, "mount it with hard")
    if "nocto" in mount.options:
        text = (
            "it is mounted nocto: a member that takes over would read what its host remembers of "
            "the files"
        )
        yield MountFinding(MountRisk.NOCTO, text, "mount it without nocto")
    if recover_lost_locks.strip().lower() in _YES:
        text = (
            "the nfs module has recover_lost_locks on: a host that lost its lock takes it again "
            "in silence, and writes "
            "on into the files of its successor"
        )
        hint = (
            "set options nfs recover_lost_locks=0 in /etc/modprobe.d and in "
            "/sys/module/nfs/parameters"
        )
        yield MountFinding(MountRisk.RECOVER_LOST_LOCKS, text, hint)


def _private_locks(mount: Mount) -> Iterator[MountFinding]:
    said = sorted(
        option
        for option in mount.options
        if option in _PRIVATE_LOCKS
        or (option.startswith("local_lock=") and option != "local_lock=none")
    )
    if said:
        text = f"it is mounted {said[0]}: {_LOCKS_ARE_PRIVATE}"
        yield MountFinding(MountRisk.LOCAL_LOCK, text, f"mount it without {said[0]}")


def _gluster(mount: Mount) -> Iterator[MountFinding]:
    if mount.fstype != _GLUSTER:
        return
    # Caches and strict locks are options of the volume: no mount table shows them.
    text = (
        "it is Gluster: a client that was cut off loses its lock and goes on writing, and caches "
        "answer for the "
        "volume, unless the volume is set up for it"
    )
    hint = (
        "set client.strict-locks and performance.strict-o-direct on, and performance.write-behind, "
        "performance.quick-read, performance.io-cache, performance.read-ahead, "
        "performance.open-behind, "
        "performance.stat-prefetch and network.remote-dio off with gluster volume set"
    )
    yield MountFinding(MountRisk.GLUSTER, text, hint)


def _untried(mount: Mount) -> Iterator[MountFinding]:
    if not mount.is_network or mount.fstype in _KNOWN_SHARED:
        return
    what = (
        "a FUSE file system"
        if mount.fstype.startswith("fuse")
        else f"the file system {mount.fstype}"
    )
    text = (
        f"nobody has tried a group on {what}: whether its locks and caches keep two hosts apart "
        "is not known"
    )
    yield MountFinding(
        None,
        text,
        "use one of those listed in docs/ft.md, or try a failover with both hosts under load",
    )
