"""``python -m lab.hurt WHAT NAME``: one thing done to one machine, for the commands of a drill's
scenario.

Returns at once: a machine that starts or is reset boots afterwards. ``wait`` waits until it can be
logged in to.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ftstan.base.errors import FtstanError
from lab import image
from lab.image import ADDRESSES
from lab.machines import STATE, Machine, Machines

_DEEDS = {
    "freeze": Machine.freeze,
    "thaw": Machine.thaw,
    "kill": Machine.kill,
    "start": Machine.start,
    "reset": Machine.reset,
    "unplug": Machine.unplug,
    "plug": Machine.plug,
    "set-clock": Machine.set_clock,
    "wait": Machine.wait,
}


def main() -> int:
    """Do it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.hurt", description="Do one thing to machines of the lab."
    )
    parser.add_argument("deed", choices=_DEEDS)
    parser.add_argument("name", nargs="+", choices=(*ADDRESSES,))
    parser.add_argument(
        "--state", type=Path, default=STATE, metavar="DIR", help="default: build/lab"
    )
    arguments = parser.parse_args()
    state: Path = arguments.state.resolve()
    try:
        machines = Machines.of(image.found(state), state)
        for name in arguments.name:
            _DEEDS[arguments.deed](machines[name])
    except FtstanError as error:
        print(f"lab.hurt: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
