"""The file of ``-ports_file_dir``: which ports this server really has, for who started it with
random ones.

``<program>_<pid>.ports`` in that directory, one JSON object: kind of listener to its URLs. It is
there while the server runs. An address that stands for every interface is written as it was
configured.

Source: ``docs/compat/config.md`` (ports file).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.base.log import errno_text
from ftstan.nats.url import parse_cluster_listen

if TYPE_CHECKING:
    from ftstan.config.options import ServerOptions
    from ftstan.nats.embedded import NatsServerChild


def write(options: ServerOptions, child: NatsServerChild, monitor_port: int) -> str:
    """Write the file if it was asked for; its path, or nothing. Raises ``ConfigError``."""
    if not options.ports_file_dir:
        return ""
    listed = {"nats": [f"nats://{_shown(options.nats.host)}:{child.port}"]}
    if monitor_port:
        scheme = "https" if options.monitor.https_port else "http"
        listed["monitoring"] = [f"{scheme}://{_shown(options.monitor.host)}:{monitor_port}"]
    if options.nats.cluster_listen:
        host = parse_cluster_listen(options.nats.cluster_listen).host
        listed["cluster"] = [f"nats://{_shown(host)}:{child.cluster_port}"]
    name = f"{os.path.basename(sys.argv[0]) or 'ftstan'}_{os.getpid()}.ports"
    path = os.path.join(options.ports_file_dir, name)
    try:
        # Whoever waits for it must never read half of it.
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(listed, file, separators=(",", ":"))
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise ConfigError(
            f"Could not write ports file: open {path}: {errno_text(error)}",
            hint="give -ports_file_dir an existing directory that this user may write",
        ) from error
    return path


def remove(path: str) -> None:
    """Remove the file, if there is one."""
    if path:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
