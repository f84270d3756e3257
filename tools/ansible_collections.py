"""Puts what our collection needs from others below ``build/ansible``: from the package ``ansible``,
without Galaxy.

Its wheel holds every community collection; only these two are unpacked.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_TARGET = Path("build/ansible")
_WANTED = (
    "ansible_collections/ansible/posix/",
    "ansible_collections/community/general/plugins/connection/",
)
_AND = (
    "ansible_collections/community/general/MANIFEST.json",
    "ansible_collections/community/general/meta/runtime.yml",
)


def main() -> None:
    """Download, and unpack."""
    with tempfile.TemporaryDirectory() as directory:
        words = [
            "download",
            "-q",
            "--disable-pip-version-check",
            "--no-deps",
            "-d",
            directory,
            "ansible>=12,<13",
        ]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        (wheel,) = Path(directory).glob("ansible-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                _TARGET,
                [name for name in archive.namelist() if name.startswith(_WANTED) or name in _AND],
            )
    (_TARGET / ".ready").touch()


if __name__ == "__main__":
    main()
