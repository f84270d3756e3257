"""The stages of the lab, in their order. The first ones make what all others need."""

from __future__ import annotations

from lab import drills, pages, upgrade
from lab.boot import boot
from lab.check_store import check_store
from lab.install import again, install, look, look_again
from lab.leftovers import leftovers
from lab.stages import Stage
from lab.units import units

PRODUCT = ("ansible", "lab/guest", "lab/image.py", "lab/lab.py")
"""What every result depends on, besides the packages."""

_INSTALL = ("lab/install.py", "lab/playbooks.py")
STAGES = (
    Stage(
        "look",
        "site.yml --check on bare hosts says what it would do, does nothing",
        look,
        _INSTALL,
        vital=True,
    ),
    Stage("install", "site.yml makes a pair of two bare hosts", install, _INSTALL, vital=True),
    Stage("again", "site.yml once more changes nothing", again, _INSTALL),
    Stage("look-again", "site.yml --check announces nothing", look_again, _INSTALL),
    Stage(
        "check-store",
        "ftstanctl check-store on each host and on both",
        check_store,
        ("lab/check_store.py",),
    ),
    Stage(
        "units",
        "the service under systemd: ready, fed, confined, archiving",
        units,
        ("lab/units.py",),
    ),
    Stage(
        "leftovers",
        "files that are removed while they are open, on NFS",
        leftovers,
        ("lab/leftovers.py",),
    ),
    Stage("boot", "both hosts boot at once, the file server comes late", boot, ("lab/boot.py",)),
    *drills.stages(),
    pages.STAGE,
    upgrade.STAGE,
)
