"""Packages that are built once for a run, and roots of Debian 12 to install them in.

Needs root and the tools.

Both are kept below ``build/packages``: packages by the hash of everything that they are made from.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.packaging.machine import Machine
from tools import packages as building

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.processes import Stage

EPOCH = 1_767_225_600
"""The time of what these packages hold: not that of the commit, so that they last until something
in them changes.
"""
_SUITE = "bookworm"
_HOST = (
    "dbus", "iproute2", "logrotate", "nfs-common", "nftables", "procps", "python3-apt",
    "python3.11-venv",
    "sudo", "systemd", "systemd-sysv",
)  # fmt: skip
_SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")


def require(command: str, package: str) -> str:
    """The path of a tool; without it the test fails with what to install."""
    found = shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        pytest.fail(f"{command} was not found: install the package {package}", pytrace=False)
    return found


@contextmanager
def _alone(name: str) -> Iterator[Path]:
    """A directory below ``build/packages`` that nobody else fills meanwhile."""
    building.WORK.mkdir(parents=True, exist_ok=True)
    with (building.WORK / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield building.WORK / name


def _made(release: str) -> Path:
    with _alone(f"made-{release}-{building.inputs()}") as directory:
        if not directory.exists():
            for old in building.WORK.glob(f"made-{release}-*"):
                # Those of another state of the checkout; a lock stays, for whoever waits for it.
                if old.is_dir():
                    shutil.rmtree(old)
            new = directory.with_suffix(".new")
            building.build(new, building.Release(building.current().version, release), EPOCH)
            new.rename(directory)
    return directory


@pytest.fixture(scope="session")
def packages() -> Path:
    """The directory of what ``make packages`` writes."""
    return _made("1")


@pytest.fixture(scope="session")
def next_packages() -> Path:
    """The same of the release behind it."""
    return _made("2")


def _root(name: str, *words: str) -> Path:
    """The root directory of a Debian 12, made by mmdebstrap with ``words``; nobody writes to it."""
    mmdebstrap = require("mmdebstrap", "mmdebstrap")
    sources = [path for path in _SOURCES if Path(path).exists()][:1]
    with _alone(f"root-{_SUITE}{name}") as root:
        if not root.exists():
            new = root.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            command = [
                mmdebstrap,
                "--quiet",
                "--variant=minbase",
                *words,
                _SUITE,
                str(new),
                *sources,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.fail(f"mmdebstrap: {done.stderr[-2000:]}", pytrace=False)
            new.rename(root)
    return root


@pytest.fixture(scope="session")
def debian() -> Path:
    """A Debian with what the package depends on."""
    return _root("", "--include=python3.11")


@pytest.fixture(scope="session")
def debian_host() -> Path:
    """A Debian that boots, with what Ansible needs on a host and what its roles install."""
    # Nothing that looks for new packages by itself: it would hold the lock that an installation
    # needs.
    quiet = '--customize-hook=chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer'
    return _root("-host", f"--include={','.join(_HOST)}", quiet)


@pytest.fixture
def machine(stage: Stage, debian: Path) -> Callable[[], Machine]:
    """Makes clean machines; gone with the test."""
    made: list[Machine] = []

    def make() -> Machine:
        made.append(Machine(stage, debian, f"machine-{len(made)}"))
        return made[-1]

    return make
