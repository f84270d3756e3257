"""Asking ``nats-server`` whether it would take the configuration that its child is going to get.

Starts no server.

The file has mode 0600 in a directory of its own, and is gone when the answer is there.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

from ftstan.base.environment import without_secrets
from ftstan.base.errors import ConfigError, NatsError
from ftstan.base.log.redact import redact
from ftstan.nats.binary import binary_path
from ftstan.nats.generated import refusal, render

if TYPE_CHECKING:
    from ftstan.nats.generated import NatsServerOptions

_WITHIN_S = 20


def check(options: NatsServerOptions) -> None:
    """Raise ``ConfigError`` with the words of ``nats-server`` if it refuses the file.

    ``NatsError`` without one.
    """
    with tempfile.TemporaryDirectory(prefix="ftstan-check-") as directory:
        path = os.path.join(directory, "nats.conf")
        text = render(options, server_name="check", ports_dir=directory, port=0, cluster_port=0)
        with open(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        try:
            done = subprocess.run(
                [binary_path(), "-t", "-c", path],
                capture_output=True,
                timeout=_WITHIN_S,
                check=False,
                text=True,
                env=without_secrets(os.environ),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NatsError(
                f"nats-server -t: {error}", hint="is it a nats-server for this machine?"
            ) from error
        if done.returncode != 0:
            said = (done.stderr + done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
            words, key = refusal(redact(said[0]), text)
            raise ConfigError(
                f"nats-server refuses its part: {words}",
                hint=f'look at "{key}", which is handed to it'
                if key
                else "look at the keys that are handed to it",
                option=key,
            )
