"""What every link of ours says in CONNECT, whatever carries it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ftstan.nats.credentials import connect_fields, read_key
from ftstan.nats.url import Login, effective_login
from ftstan.version import __version__

if TYPE_CHECKING:
    from ftstan.config.options import LinkOptions
    from ftstan.nats.url import NatsUrl


def connect_json(name: str, url: NatsUrl, options: LinkOptions, info: dict[str, Any]) -> bytes:
    """The argument of CONNECT for the server at ``url`` that sent ``info``.

    Raises ``NatsError`` for a key file.
    """
    headers = bool(info.get("headers"))
    login = effective_login(url, Login(options.user, options.password, options.token))
    connect: dict[str, str | int | bool] = {
        "verbose": False,
        "pedantic": False,
        "lang": "python-ftstan",
        "version": __version__,
        "name": name,
        "protocol": 1,
        "headers": headers,
        # The server refuses this without headers: its answer for "nobody listens" is a header.
        "no_responders": headers,
        "echo": True,
    }
    nonce = info.get("nonce")
    connect |= connect_fields(login, read_key(options), nonce if isinstance(nonce, str) else "")
    return json.dumps(connect, separators=(",", ":")).encode()
