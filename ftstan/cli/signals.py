"""``-sl <command>[=<pid>|<pid file>]``: tell a running server to stop, reopen its log or reload.

Starts nothing.

Source: ``docs/compat/config.md`` (signals).
"""

from __future__ import annotations

import os
import signal

from ftstan.base.errors import ConfigError
from ftstan.base.log import errno_text
from ftstan.config.units import quote

COMMANDS = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "reload": signal.SIGHUP,
    "ldm": signal.SIGUSR2,
}


def send(text: str) -> None:
    """Carry out the value of ``-sl``. Raises ``ConfigError`` with the original's texts."""
    command, *rest = text.split("=")
    if len(rest) > 1:
        raise ConfigError(
            f"invalid signal parameters: [{' '.join(rest[1:])}]", hint="write -sl <command>=<pid>"
        )
    target = rest[0] if rest else ""
    if not target:
        # The original looks the process up by name; the kernel cuts that name, so on Linux it never
        # finds one.
        raise ConfigError(
            "no nats-streaming-server processes running",
            hint="name it: -sl <command>=<pid or pid file of -P>",
        )
    pid = _pid(target)
    if command not in COMMANDS:
        raise ConfigError(
            f"unknown signal {quote(command)}", hint=f"commands: {', '.join(COMMANDS)}"
        )
    try:
        os.kill(pid, COMMANDS[command])
    except OSError as error:
        raise ConfigError(errno_text(error), hint=f"process {pid}: see ps -p {pid}") from error
    except OverflowError as error:  # larger than any process id
        raise ConfigError("no such process") from error


def _pid(target: str) -> int:
    """Read ``target``: a pid, or a file whose whole content is one (digits, not even a line
    feed).
    """
    text = target
    if not _is_pid(text):
        try:
            with open(target, encoding="ascii") as file:
                text = file.read(32)
        except (OSError, ValueError):
            text = ""
    if not _is_pid(text):
        raise ConfigError(
            f"invalid pid: {target}", hint="give a process id or the file written by -P"
        )
    return int(text)


def _is_pid(text: str) -> bool:
    # 0 and negative numbers address process groups: never that.
    return text.isascii() and text.isdigit() and int(text) > 0
