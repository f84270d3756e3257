"""Values that are taken, as the original takes them, and that nobody can want: one warning each."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from ftstan.config.units import format_duration

if TYPE_CHECKING:
    from ftstan.config.options import ServerOptions


def unwise(options: ServerOptions) -> list[str]:
    """What to warn of, in the order of the options; a start and ``-check_config`` show it."""
    warnings = []
    if options.hb_interval <= 0:
        warnings.append(
            f"hb_interval is {format_duration(options.hb_interval)}: clients are asked again as soon as they answered"
        )
    if options.hb_timeout <= 0:
        warnings.append(
            f"hb_timeout is {format_duration(options.hb_timeout)}: no client can answer a heartbeat in time, so all of "
            "them will be closed"
        )
    if options.hb_fail_count < 0:
        warnings.append(f"hb_fail_count is {options.hb_fail_count}: one failed heartbeat closes a client, as with 0")
    script = options.file.slice_archive_script
    if script and shutil.which(script) is None:
        why = "may not be run by this user" if os.path.exists(script) else "is not there"
        warnings.append(f"file_slice_archive_script {script!r} {why}: slices will be set aside and not archived")
    return warnings
