"""Telling a service manager how we are: the ``sd_notify`` protocol, without a library of its.

Datagrams to the socket in ``NOTIFY_SOCKET`` (a path, or an abstract name behind ``@``):
``READY=1``, ``STATUS=...``, ``WATCHDOG=1``, ``EXTEND_TIMEOUT_USEC=...``, ``STOPPING=1``. Without
that variable nothing is sent. It never blocks and never raises: a manager that is gone is no reason
to stop serving.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_ADDRESS = "NOTIFY_SOCKET"
_TIMEOUT = "WATCHDOG_USEC"
_PID = "WATCHDOG_PID"


class Notifier:
    """The manager's end.

    ``watchdog_s``: it restarts us after so many seconds without ``WATCHDOG=1``; 0: never.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Take the address out of the environment: our children are not the service."""
        variables = os.environ if environment is None else environment
        address = variables.pop(_ADDRESS, "")
        timeout = variables.pop(_TIMEOUT, "")
        pid = variables.pop(_PID, "")
        for_us = pid in ("", str(os.getpid()))
        self.watchdog_s = int(timeout) / 1e6 if address and for_us and timeout.isdecimal() else 0.0
        self._socket: socket.socket | None = None
        self._status = ""
        self._failed = False
        if address[:1] in ("/", "@"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            self._address = "\0" + address[1:] if address[0] == "@" else address

    def ready(self) -> None:
        """Tell the service manager that the server serves or stands by."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """One line for people; sent when it has changed."""
        line = " ".join(text.split())
        if line != self._status:
            self._status = line
            self._send(f"STATUS={line}")

    def alive(self) -> None:
        """Reset the service manager's watchdog."""
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """The start is under way, however long it takes: the manager waits for so many seconds more
        from now on.
        """
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def stopping(self) -> None:
        """The service stops."""
        self._send("STOPPING=1")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode("utf-8", "replace"), self._address)
        except OSError as error:
            if not self._failed:
                self._failed = True
                log.warning(
                    f"the service manager cannot be told how we are: {error.strerror or error}"
                )
