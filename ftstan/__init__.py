"""ftstan: a NATS Streaming (STAN) server centred on the fault-tolerant group.

Several nodes share one datastore and exactly one of them serves. See ``docs/architecture.md`` for
the parts of this package and the rule that each imports only from those below it.

A program that wants a server inside itself calls ``run_server`` or ``run_server_with``, or uses
``StanServer`` (``docs/embedding.md``). These names, and the options they take, are loaded when they
are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ftstan.version import COMPATIBLE_VERSION, __version__

if TYPE_CHECKING:
    from ftstan.embed import (
        ChannelLimits,
        EncryptionOptions,
        FileOptions,
        FtOptions,
        LinkOptions,
        LogOptions,
        MonitorOptions,
        NatsOptions,
        ServerOptions,
        ServerTlsOptions,
        StanServer,
        StoreLimits,
        run_server,
        run_server_with,
    )

__all__ = [
    "COMPATIBLE_VERSION",
    "ChannelLimits",
    "EncryptionOptions",
    "FileOptions",
    "FtOptions",
    "LinkOptions",
    "LogOptions",
    "MonitorOptions",
    "NatsOptions",
    "ServerOptions",
    "ServerTlsOptions",
    "StanServer",
    "StoreLimits",
    "__version__",
    "run_server",
    "run_server_with",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("ftstan.embed"), name)
