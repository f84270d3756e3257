"""Runs a command under the system calls that a systemd unit allows: ``python -m tests.ft.filtered
UNIT COMMAND ...``.

Reads ``SystemCallFilter=`` as systemd does (first an allow list, then taken away and added), asks
``systemd-analyze`` what its sets hold, and hands the result to libseccomp. What is not allowed
fails with EPERM, as the unit says.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

_ALLOW = 0x7FFF0000
_EPERM = 0x00050000 | errno.EPERM


def _members(name: str) -> set[str]:
    if not name.startswith("@"):
        return {name}
    done = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], check=True, capture_output=True, text=True
    )
    words = [line.strip() for line in done.stdout.splitlines()[1:]]
    return set().union(*(_members(word) for word in words if word and not word.startswith("#")))


def allowed(unit: str) -> set[str]:
    """Names of the system calls that the text of a unit allows."""
    calls = _members("@default")
    for line in unit.splitlines():
        key, _, value = line.partition("=")
        if key == "SystemCallFilter":
            named: set[str] = set().union(*map(_members, value.removeprefix("~").split()))
            calls = calls - named if value.startswith("~") else calls | named
    return calls


def restrict(calls: set[str]) -> None:
    """Allow this process and its children nothing but ``calls``."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_EPERM)))
    for name in sorted(calls):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if (
            number >= 0
            and library.seccomp_rule_add(context, ctypes.c_uint32(_ALLOW), number, 0) != 0
        ):
            raise OSError(f"libseccomp does not take {name}")
    if library.seccomp_load(context) != 0:
        raise OSError("libseccomp does not load the filter")


if __name__ == "__main__":
    restrict(allowed(Path(sys.argv[1]).read_text(encoding="utf-8")))
    os.execvp(sys.argv[2], sys.argv[2:])
