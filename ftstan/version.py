"""The versions: of this package, and of the release that it is compatible with."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"

#: The release whose behaviour clients, operators and monitoring see (banner, ``-v``, ``serverz``).
COMPATIBLE_VERSION: Final = "0.25.6"
