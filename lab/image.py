"""The machines' disk: a Debian root by mmdebstrap, packages of Debian only, and an ext4 image of
it. Needs root.

The root is made again when its packages change, the image when the root, the key or the files of
``guest/`` do. What differs between machines is on the kernel's command line, so they share one
image; each writes to an overlay of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.running import run

if TYPE_CHECKING:
    from collections.abc import Callable

SUITE = "bookworm"
ADDRESSES = {"nfs": "10.77.0.1", "a": "10.77.0.2", "b": "10.77.0.3"}
"""The machines: the file server, and the two hosts of the pair."""

_GUEST = Path(__file__).parent / "guest"
_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "udev", "kmod", "iproute2", "iputils-ping", "nftables",
    "openssh-server",
    "nfs-kernel-server", "nfs-common", "python3", "python3-apt", "sudo", "procps",
    "initramfs-tools", "logrotate",
    "linux-image-cloud-amd64", "ca-certificates", "curl",
)  # fmt: skip
_UNUSED = ("usr/share/man/*", "usr/share/locale/*", "usr/share/doc/*")
#: What the kernel needs to find its disk; a list of its own keeps the initial file system small,
#: and boots quick.
_MODULES = "virtio_pci\nvirtio_blk\nvirtio_net\next4\nvirtio_console\n"
#: Timers that would work at night, consoles that nobody looks at, NFSv3 and Kerberos. systemd
#: starts them nowhere.
_MASKED = (
    "rpcbind.service", "rpcbind.socket", "rpc-statd.service", "rpc-gssd.service",
    "rpc-svcgssd.service",
    "auth-rpcgss-module.service", "nfs-blkmap.service", "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "dpkg-db-backup.timer",
    "getty@tty1.service",
    "systemd-timesyncd.service", "systemd-networkd.service", "networking.service", "man-db.timer",
    "logrotate.timer",
)  # fmt: skip
_TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "qemu-img": "qemu-utils",
    "qemu-system-x86_64": "qemu-system-x86",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "scp": "openssh-client",
}
_DISK_BYTES = 4 << 30
_SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")


@dataclass(frozen=True, slots=True)
class Image:
    """What a machine boots: ``disk`` is never written to. ``made_from`` names its contents."""

    disk: Path
    kernel: Path
    initrd: Path
    key: Path
    made_from: str


def check_tools() -> None:
    """Raises ``LabError`` that names what is missing, with the line that installs it."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = sorted(
        {package for tool, package in _TOOLS.items() if shutil.which(tool, path=path) is None}
    )
    if missing:
        raise LabError(
            f"the lab needs {', '.join(missing)}",
            hint=f"apt-get install --no-install-recommends {' '.join(missing)}",
        )
    if os.geteuid() != 0:
        raise LabError(
            "the lab runs as root: it makes a root file system with other users' files",
            hint="sudo make lab",
        )


def make(state: Path, say: Callable[[str], None]) -> Image:
    """The image below ``state``, made if it is not there as it should be. Raises ``LabError``."""
    check_tools()
    state.mkdir(parents=True, exist_ok=True)
    key = state / "key"
    if not key.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(key)])
    root_from = digest(SUITE, *_PACKAGES, *_UNUSED, _MODULES)
    root = state / "root.tar"
    if _mark(root) != root_from:
        say("a Debian root from packages, about a minute")
        _make_root(root)
        _set_mark(root, root_from)
    files = [path.read_text(encoding="utf-8") for path in sorted(_GUEST.iterdir())]
    made_from = digest(
        root_from, key.with_suffix(".pub").read_text(encoding="utf-8"), *_MASKED, *files
    )
    disk = state / "disk.qcow2"
    if _mark(disk) != made_from:
        say("the image of the machines")
        _make_disk(root, disk, key)
        _set_mark(disk, made_from)
    return found(state)


def found(state: Path) -> Image:
    """The image that was made below ``state``."""
    disk = state / "disk.qcow2"
    return Image(disk, state / "vmlinuz", state / "initrd.img", state / "key", _mark(disk))


def digest(*texts: str) -> str:
    """A short name for exactly these texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _mark(path: Path) -> str:
    """What the file was made from; empty if it is not there, or not complete."""
    mark = path.with_name(f"{path.name}.from")
    return mark.read_text(encoding="utf-8") if mark.exists() and path.exists() else ""


def _set_mark(path: Path, made_from: str) -> None:
    path.with_name(f"{path.name}.from").write_text(made_from, encoding="utf-8")


def _make_root(root: Path) -> None:
    sources = [path for path in _SOURCES if Path(path).exists()][:1]
    modules = root.with_name("modules")
    modules.write_text(_MODULES, encoding="utf-8")
    shell = (
        'd="$1/etc/initramfs-tools"; mkdir -p "$d/conf.d"; printf '
        '"MODULES=list\\nCOMPRESS=zstd\\n" > "$d/conf.d/lab"; '
    )
    shell += f'cp "{modules}" "$d/modules"'
    taken = (
        f'cp -L "$1"/boot/vmlinuz-* "{root.parent}/vmlinuz"; cp -L "$1"/boot/initrd.img-* '
        f'"{root.parent}/initrd.img"'
    )
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    words += [
        '--aptopt=Apt::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude=/{path}" for path in _UNUSED),
    ]
    words += [f"--essential-hook={shell}", f"--customize-hook={taken}", SUITE, str(root), *sources]
    run(words, "mmdebstrap", limit_s=900)


def _make_disk(root: Path, disk: Path, key: Path) -> None:
    with tempfile.TemporaryDirectory(dir=disk.parent, prefix="image-") as stage:
        tree = Path(stage) / "tree"
        raw = Path(stage) / "raw"
        tree.mkdir()
        run(["tar", "-C", str(tree), "--numeric-owner", "-xpf", str(root)])
        _furnish(tree, key.with_suffix(".pub"))
        with raw.open("wb") as file:
            file.truncate(_DISK_BYTES)
        run(
            [
                "mkfs.ext4",
                "-q",
                "-F",
                "-L",
                "root",
                "-E",
                "lazy_itable_init=1",
                "-d",
                str(tree),
                str(raw),
            ]
        )
        run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(disk)])


def _furnish(tree: Path, public_key: Path) -> None:
    etc = tree / "etc"
    units = tree / "etc/systemd/system"
    hosts = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    _write(etc / "hosts", f"127.0.0.1 localhost\n{hosts}")
    _write(etc / "hostname", "lab\n")
    _write(etc / "machine-id", "")
    _write(etc / "fstab", "/dev/vda / ext4 defaults,noatime 0 0\n")
    _write(tree / "root/.ssh/authorized_keys", public_key.read_text(encoding="utf-8"))
    (tree / "root/.ssh").chmod(0o700)
    _write(
        etc / "ssh/sshd_config.d/lab.conf",
        "PermitRootLogin prohibit-password\nUseDNS no\nGSSAPIAuthentication no\n",
    )
    _write(tree / "usr/local/sbin/lab-init", (_GUEST / "lab-init").read_text(encoding="utf-8"))
    (tree / "usr/local/sbin/lab-init").chmod(0o755)
    _write(units / "lab-init.service", (_GUEST / "lab-init.service").read_text(encoding="utf-8"))
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "lab-init.service").symlink_to("/etc/systemd/system/lab-init.service")
    server = "[Unit]\nConditionKernelCommandLine=lab.role=storage\nAfter=lab-init.service\n"
    _write(units / "nfs-server.service.d/lab.conf", server)
    for name in _MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
