"""How ftstan came to this host, and so how Spark comes to it: a package of the distribution, or
pip.
"""

from __future__ import annotations

import os

import ftstan
from ftstan.base.errors import ConfigError

_PACKAGED = "/usr/lib/ftstan/"
_SPARK = "/opt/ftstan-spark"


def packaged() -> bool:
    """Whether this is the program of the deb or rpm, whose commands are in ``/usr/bin``."""
    return ftstan.__file__.startswith(_PACKAGED)


def missing(module: str, extra: str = "spark") -> ConfigError:
    """The error to raise where something that Spark needs is not installed, which pip knows as
    ``extra``.
    """
    if not packaged():
        cure = f"pip install 'ftstan[{extra}]'"
    elif extra == "connect":
        cure = (
            f"{os.environ.get('FTSTAN_SPARK', _SPARK)}/bin/pip install 'pyspark[connect]' "
            "'pandas<3' (as root)"
        )
    else:
        cure = f"{_PACKAGED}add-spark (as root)"
    return ConfigError(f"{module} is not installed", hint=f"run: {cure}")
