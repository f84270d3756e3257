"""The program as a wheel installs it.

A checkout that is installed to be edited is found by a hook of its own, which Python loads first
and asks for every module: a start takes half as long again as that of a user.
"""

from __future__ import annotations

import compileall
import os
import shutil
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

import ftstan

_COMMANDS: Final = {"ftstan": "ftstan.cli.server", "ftstanctl": "ftstan.cli.ctl"}
#: What a wheel leaves out.
_SOURCES: Final = shutil.ignore_patterns("__pycache__", "*.pyx", "*.pxd", "*.c", "*.h", "csrc")
_SCRIPT: Final = """\
#!{python}
import sys
from {module} import main
if __name__ == "__main__":
    sys.exit(main())
"""


def install(directory: str) -> Path:
    """Make an environment of its own below ``directory``, with this program, and what it needs from
    the environment that runs us; returns the directory of its commands.
    """
    root = Path(directory) / "installed"
    venv.create(root, symlinks=True)
    python = root / "bin" / "python"
    paths = {"base": str(root), "platbase": str(root)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    shutil.copytree(Path(ftstan.__file__).parent, site / "ftstan", ignore=_SOURCES)
    # A line that is a path is no hook.
    needed = sysconfig.get_path("purelib")
    (site / "needed.pth").write_text(f"{needed}\n", encoding="utf-8")
    compileall.compile_dir(site, quiet=1)
    for name, module in _COMMANDS.items():
        command = root / "bin" / name
        command.write_text(_SCRIPT.format(python=python, module=module), encoding="utf-8")
        os.chmod(command, 0o755)
    return root / "bin"


def checkout() -> Path:
    """Where the commands of the environment that runs us are."""
    return Path(sys.executable).parent
