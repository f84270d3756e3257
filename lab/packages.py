"""The packages that the lab installs: of this tree, in two releases, so that there is something to
upgrade to.

They stay as long as the machines: a stage that is run alone, after a change of the tree, finds what
was installed.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from lab.running import run
from lab.stages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from lab.lab import Lab


def package(lab: Lab, release: str = "1") -> Path:
    """The Debian package of a release, built unless these machines have it. Raises ``LabError``."""
    directory = lab.machines.place / f"packages-{release}"
    if not directory.exists():
        lab.say(f"  building release {release}")
        new = directory.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        words = [sys.executable, "-m", "tools.packages", "--output", str(new), "--release", release]
        run(words, "make packages", limit_s=1200.0, cwd=ROOT)
        new.rename(directory)
    (found,) = directory.glob("ftstan_*.deb")
    return found
