"""Who may see the monitoring pages: anybody, or who shows the token or a certificate.

Decides before any page is made.

The token comes in a header, never in a URL, which browsers and proxies write down. A person's
browser cannot be told to send a header, but asks for a password by itself: there the token is the
password, with any user name.

Source: ``docs/security.md``, "Monitoring pages".
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ssl
from typing import TYPE_CHECKING

from aiohttp import web

from ftstan.base.errors import ConfigError, NatsError
from ftstan.nats.tls import load_authorities

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ftstan.config.options import MonitorOptions

#: What load balancers and supervisors ask; open to everybody with ``open_health``.
HEALTH = frozenset(
    {"/livez", "/readyz", "/active", "/standby", "/healthz", "/streaming/isFTActive"}
)

#: One header each: Chromium does not ask for a password if one header holds both.
_CHALLENGES = (
    'Bearer realm="ftstan"',
    'Basic realm="ftstan: any user, the token as password", charset="UTF-8"',
)
_PREFLIGHT = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization",
    "Access-Control-Allow-Methods": "GET, HEAD",
}


def gate_of(
    options: MonitorOptions,
) -> Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None:
    """A function that lets a request in (``None``) or gives the answer that it gets.

    ``None`` if all may see all.

    A request comes in with the token, or with a certificate that the listener has verified.
    """
    if not options.token and not options.client_ca:
        return None
    token = options.token.encode()

    async def gate(request: web.Request) -> web.StreamResponse | None:
        if options.open_health and request.path in HEALTH:
            return None
        if request.method == "OPTIONS":
            # A page of another member asks whether it may send the header; it learns nothing else.
            return web.Response(status=204, headers=_PREFLIGHT)
        transport = request.transport
        if options.client_ca and transport is not None and transport.get_extra_info("peercert"):
            return None
        shown = _shown(request.headers.get("Authorization", ""))
        # In constant time: how long it takes must not tell how much of a guess was right.
        if token and hmac.compare_digest(shown, token):
            return None
        text = (
            "401 unauthorized: these pages ask for a token"
            if token
            else "401 unauthorized: show a certificate"
        )
        headers = {"Access-Control-Allow-Origin": "*", "Cache-Control": "no-store"}
        refusal = web.Response(status=401, text=f"{text}\n", headers=headers)
        for challenge in _CHALLENGES if token else ():
            refusal.headers.add("WWW-Authenticate", challenge)
        return refusal

    return gate


def ask_for_certificates(context: ssl.SSLContext, client_ca: str) -> None:
    """Have visitors show certificates of ``client_ca``, if they have one.

    Who shows another is not let in at all.

    Raises ``ConfigError``.
    """
    try:
        load_authorities(context, client_ca)
    except NatsError as error:
        raise ConfigError(f"monitor_client_ca: {error.text}", hint=error.hint) from error
    context.verify_mode = ssl.CERT_OPTIONAL


def _shown(header: str) -> bytes:
    """The token in an Authorization header, empty if there is none."""
    scheme, _, value = header.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip().encode("utf-8", "surrogateescape")
        case "basic":
            try:
                return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return b""
    return b""
