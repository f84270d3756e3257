"""A token where others can read it: the command line of ``nats-server`` has its bcrypt hash, which
it accepts instead.

A token beside a ``users`` array cannot stand in its file, and every user of a host sees command
lines.
"""

from __future__ import annotations

import re
from typing import Final

from ftstan.base.errors import NatsError

_LIBRARIES: Final = ("libcrypt.so.1", "libcrypt.so.2")
#: The hash is computed at every connection that shows the token: 2 to the power of this rounds,
#: some milliseconds.
_COST: Final = 8
_LETTERS: Final = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_HASH: Final = re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}")
#: What bcrypt looks at.
_LONGEST: Final = 72


def hashed(token: str) -> str:
    """The bcrypt hash of ``token``; one that is a hash already stays.

    Raises ``NatsError`` if there can be none.
    """
    if _HASH.fullmatch(token):
        return token
    data = token.encode("utf-8", "surrogateescape")
    if len(data) > _LONGEST or b"\0" in data:
        raise NatsError(
            f"a token of -auth beside a users array may have {_LONGEST} bytes at most",
            hint="take a shorter one, or make it a password of the users array",
        )
    import secrets  # noqa: PLC0415  # late, as below

    # The last of the 22 letters holds two bits only.
    salt = "".join(secrets.choice(_LETTERS) for _ in range(21)) + secrets.choice(".Oeu")
    made = _crypt(data, f"$2a${_COST:02}${salt}".encode())
    if _HASH.fullmatch(made) is None:
        raise NatsError(
            "the C library of this host cannot hash the token of -auth, which would be seen on a "
            "command line",
            hint="install libxcrypt (libcrypt1), or make the token a password of the users array",
        )
    return made


def _crypt(data: bytes, setting: bytes) -> str:
    import ctypes  # noqa: PLC0415  # late: few starts have a token beside users

    for name in _LIBRARIES:
        try:
            crypt = ctypes.CDLL(name).crypt
        except (OSError, AttributeError):
            continue
        crypt.restype = ctypes.c_char_p
        return (crypt(ctypes.c_char_p(data), ctypes.c_char_p(setting)) or b"").decode(
            "ascii", "replace"
        )
    return ""
