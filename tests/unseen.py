"""A kernel that does not say whose a socket is: ``python -c`` under a filter of system calls.

``sock_diag`` is refused as a unit without ``AF_NETLINK`` in ``RestrictAddressFamilies=`` does it;
the tables of ``/proc`` with every other file, once the program has imported what it needs.
"""

from __future__ import annotations

import ctypes
import errno
import subprocess
import sys
from typing import Final

_ALLOW: Final = 0x7FFF0000
_EACCES: Final = 0x00050000 | errno.EACCES
_AF_NETLINK: Final = 16
_EQUAL: Final = 4


class _Argument(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("other", ctypes.c_uint64),
    )


def blind(*, files: bool = False) -> None:
    """From now on this process gets no socket of the kernel; ``files``: it opens no file either."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ALLOW)))
    first = _Argument(0, _EQUAL, _AF_NETLINK, 0)
    refused = [(b"socket", 1)]
    if files:
        refused += [(b"openat", 0), (b"open", 0)]
    for name, count in refused:
        number = library.seccomp_syscall_resolve_name(name)
        done = library.seccomp_rule_add_array(
            context, ctypes.c_uint32(_EACCES), number, count, ctypes.byref(first)
        )
        if number >= 0 and done != 0:
            raise OSError(f"libseccomp does not take {name!r}")
    if library.seccomp_load(context) != 0:
        raise OSError("libseccomp does not load the filter")


def run(program: str, *arguments: object) -> str:
    """What a program, which is to call ``blind``, writes to both of its streams."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout
