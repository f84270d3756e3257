"""Which C library the compiled files of a tree need, and whether each distribution that we name has
it.

Reads dynamic symbols with ``objdump``; static programs, as nats-server, need none.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: The version of glibc of each distribution that the packages are for; the first is the one that
#: they are built on.
DISTRIBUTIONS = {
    "Debian 12": (2, 36),
    "Red Hat Enterprise Linux 9, Rocky 9, Alma 9": (2, 34),
    "Amazon Linux 2023": (2, 34),
    "Fedora 41": (2, 40),
}

_SYMBOL = re.compile(r"GLIBC_(\d+)\.(\d+)")
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class Need:
    """The highest symbol version that a tree needs, and a file that needs it."""

    version: tuple[int, int]
    path: str

    @property
    def text(self) -> str:
        """As people write it."""
        return ".".join(map(str, self.version))


def highest(tree: Path) -> Need:
    """Look at every compiled file below ``tree``."""
    found = Need((2, 0), "nothing")
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            if file.read(4) != _ELF:
                continue
        done = subprocess.run(
            ["objdump", "-T", str(path)], capture_output=True, text=True, check=False
        )
        versions = [(int(a), int(b)) for a, b in _SYMBOL.findall(done.stdout)]
        if versions and max(versions) > found.version:
            found = Need(max(versions), str(path.relative_to(tree)))
    return found


def compare(need: Need) -> str:
    """Print the comparison.

    Returns what is wrong, empty if every distribution has what is needed.
    """
    print(f"highest symbol: GLIBC_{need.text} ({need.path})")
    lacking = []
    for name, version in DISTRIBUTIONS.items():
        enough = version >= need.version
        print(f"  {name}: glibc {version[0]}.{version[1]}, {'enough' if enough else 'TOO OLD'}")
        if not enough:
            lacking.append(name)
    return (
        f"{need.path} needs glibc {need.text}, newer than {', '.join(lacking)} has"
        if lacking
        else ""
    )
