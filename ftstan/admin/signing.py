"""Seals on requests that change something: HMAC-SHA256 with a nonce and an expiry.

Pure: key and time come in.

A sealed message is ``{"body": <string>, "mac": <hex>}``; the mac covers the bytes of the body,
which names the cluster and the one server that it is for, when it expires, and a nonce. So a
request that was overheard cannot be changed, sent to another member, sent twice, or kept for later;
a restarted server has another id, so it need not remember anything.

The two hosts' clocks may differ by half a minute. A member accepts what expires within
``LONGEST_S`` from now, and remembers a nonce as long as its request could be sent again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftstan.admin.protocol import Request, decode_request, encode_request, load_object
from ftstan.base.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

LIFETIME_S = 30.0
"""How long a request is good for, from its making."""

LONGEST_S = 2 * LIFETIME_S
NONCE_SIZE = 16

_NS = 1_000_000_000
_DOMAIN = b"ftstan control request 1\0"
_MAX_NONCES = 4096
_KEY_HINT = "give --dir the group's datastore, or --admin-key a copy of its admin.key"


@dataclass(frozen=True, slots=True)
class Recipient:
    """Whom a request is for."""

    cluster: str
    server: str


def plain(request: Request) -> bytes:
    """Build a request that needs no seal."""
    return json.dumps(encode_request(request), separators=(",", ":")).encode()


def seal(request: Request, recipient: Recipient, *, key: bytes, now_ns: int, nonce: bytes) -> bytes:
    """Build a sealed request that is good for ``LIFETIME_S``."""
    values = encode_request(request) | {
        "cluster": recipient.cluster,
        "server": recipient.server,
        "nonce": nonce.hex(),
        "expires_ns": now_ns + round(LIFETIME_S * _NS),
    }
    body = json.dumps(values, separators=(",", ":"))
    return json.dumps({"body": body, "mac": _mac(key, body)}, separators=(",", ":")).encode()


def is_sealed(payload: bytes) -> bool:
    """Whether somebody claims to have sealed it. Raises ``WireError`` if it is no request."""
    return "body" in load_object(payload)


class RequestVerifier:
    """Opens requests for one recipient, each at most once."""

    def __init__(self, recipient: Recipient) -> None:
        self._recipient = recipient
        self._seen: dict[str, int] = {}

    def open(self, payload: bytes, *, keys: Sequence[bytes], now_ns: int) -> Request:
        """Read a request, sealed or (if it changes nothing) plain.

        ``keys``: those that count, none while the store has none.

        Raises ``WireError`` if it is no request, and ``RefusedError``: not sealed, wrong key,
        expired, seen before, for somebody else.
        """
        values = load_object(payload)
        if "body" not in values:
            request = decode_request(values)
            if request.verb.changes:
                raise RefusedError(
                    f"the request {request.verb} is not sealed with the group's key", hint=_KEY_HINT
                )
            return request
        body = values["body"]
        mac = values.get("mac")
        if not keys:
            raise RefusedError(
                "there is no admin.key: it was removed, or the datastore never had an active",
                hint="the next server that becomes active makes one; to replace a key, run: "
                "ftstanctl key rotate",
            )
        if not (
            isinstance(body, str)
            and isinstance(mac, str)
            and any(hmac.compare_digest(_mac(key, body), _ascii(mac)) for key in keys)
        ):
            raise RefusedError("the request is not sealed with this group's key", hint=_KEY_HINT)
        # From here on the message comes from somebody who has the key; what is wrong may be told in
        # detail.
        inner = load_object(body.encode())
        self._check(inner, now_ns)
        return decode_request(inner)

    def _check(self, inner: dict[str, Any], now_ns: int) -> None:
        named = Recipient(str(inner.get("cluster")), str(inner.get("server")))
        if named != self._recipient:
            raise RefusedError(
                f"the request is for server {named.server} of cluster {named.cluster}",
                hint="ask again: the server was restarted, or the message was sent to the wrong "
                "one",
            )
        nonce = inner.get("nonce")
        expires = inner.get("expires_ns")
        if (
            not isinstance(nonce, str)
            or len(nonce) != 2 * NONCE_SIZE
            or not isinstance(expires, int)
        ):
            raise RefusedError(
                "the request has no nonce or no expiry",
                hint="use an ftstanctl of the servers' release",
            )
        if expires <= now_ns or expires > now_ns + LONGEST_S * _NS:
            off = (expires - now_ns) / _NS - LIFETIME_S
            raise RefusedError(
                f"the request has expired, or the clocks of the two hosts differ ({off:+.0f} s)",
                hint=f"ask again; clocks may differ by {LIFETIME_S:g} s: check that both hosts "
                "keep the time",
            )
        for old in [known for known, until in self._seen.items() if until <= now_ns]:
            del self._seen[old]
        if nonce in self._seen:
            raise RefusedError("the request was sent before", hint="ask again with a new request")
        if len(self._seen) >= _MAX_NONCES:
            raise RefusedError("too many requests within a minute", hint="ask again in a minute")
        self._seen[nonce] = expires


def _mac(key: bytes, body: str) -> str:
    return hmac.new(
        key, _DOMAIN + body.encode("utf-8", "surrogatepass"), hashlib.sha256
    ).hexdigest()


def _ascii(text: str) -> str:
    # compare_digest takes no other text.
    return text if text.isascii() else ""
