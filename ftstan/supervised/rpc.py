"""Asking a supervisord through its Unix socket: XML-RPC, each call over a connection of its own.

Blocks for seconds.
"""

from __future__ import annotations

import http.client
import socket
import xmlrpc.client
from typing import Any

from ftstan.base.errors import FtstanError

_TIMEOUT_S = 30.0


class SupervisorError(FtstanError):
    """Supervisord cannot be reached, or refuses."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


def call(path: str, method: str, *arguments: object) -> Any:
    """Call ``supervisor.<method>`` of the supervisord whose socket is ``path``.

    Raises ``SupervisorError``.
    """
    # marshalling knows only the types of XML-RPC, which is all that callers have
    body = xmlrpc.client.dumps(arguments, f"supervisor.{method}")  # type: ignore[arg-type]
    connection = _Connection(path)
    try:
        connection.request("POST", "/RPC2", body, {"Content-Type": "text/xml"})
        (answer,), _ = xmlrpc.client.loads(connection.getresponse().read())
    except xmlrpc.client.Fault as fault:
        raise SupervisorError(
            f"supervisord refuses {method}: {fault.faultString}", hint="see its log"
        ) from fault
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SupervisorError(
            f"supervisord at {path} does not answer: {error}",
            hint="is it running, and is this its socket?",
        ) from error
    finally:
        connection.close()
    return answer
