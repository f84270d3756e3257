"""TLS of clients where it ends in the listener: whether it can, and what OpenSSL is told.

The NATS server behind is spoken to plainly then, over the loopback. Whatever that one would have to
judge itself stays with it: who a client's certificate stands for, and names of cipher suites and
curves that are not the ordinary ones. Loaded only where clients connect with TLS.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError
from ftstan.front import openssl
from ftstan.nats.tls import client_context, explain, server_name

if TYPE_CHECKING:
    from ftstan.config.options import LinkOptions, ServerTlsOptions
    from ftstan.nats.url import NatsUrl

#: What the NATS server takes for 0 (s).
HANDSHAKE_S: Final = 2.0
#: OpenSSL's names of those that the NATS server takes without a word, best first. TLS 1.3 has its
#: own, which nobody chooses.
_SUITES: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
_CURVES: Final = {
    "X25519": "X25519",
    "CurveP256": "P-256",
    "CurveP384": "P-384",
    "CurveP521": "P-521",
}


def why_not(tls: ServerTlsOptions) -> str:
    """Why TLS stays with the NATS server; empty if it need not."""
    if tls.verify or tls.verify_and_map:
        return "clients connect with certificates (verify)"
    for names, known, what in (
        (tls.cipher_suites, _SUITES, "cipher_suites"),
        (tls.curve_preferences, _CURVES, "curve_preferences"),
    ):
        for name in names:
            if name not in known:
                return f"{what} of TLS has {name}"
    if problem := openssl.problem():
        return f"clients connect with TLS, and {problem}"
    return ""


def make(tls: ServerTlsOptions) -> int:
    """What ``Front.use_tls`` takes, from the files of now. Raises ``ConfigError``."""
    suites = [name for known, name in _SUITES.items() if known in (tls.cipher_suites or _SUITES)]
    curves = [_CURVES[name] for name in tls.curve_preferences or _CURVES]
    made, problem = openssl.make(
        cert=os.fsencode(tls.cert_file),
        key=os.fsencode(tls.key_file),
        ciphers=":".join(suites).encode(),
        groups=":".join(curves).encode(),
        timeout_ms=max(1, round(handshake_s(tls) * 1000)),
    )
    if not made:
        raise ConfigError(
            f"error parsing X509 certificate/key pair: {problem}",
            hint=f"certificate {tls.cert_file} and key {tls.key_file} must be PEM files that "
            "belong together and that this user may read",
        )
    return made


def handshake_s(tls: ServerTlsOptions) -> float:
    """How long a handshake may take, in seconds."""
    return tls.timeout if tls.timeout > 0 else HANDSHAKE_S


def check_trusted(tls: ServerTlsOptions, link: LinkOptions, url: NatsUrl) -> None:
    """See whether our own link, at ``url``, would trust the server's certificate, as it had to if
    the NATS server had it. Raises ``NatsError``.

    Nothing is connected: it is about certificates that do not belong together, found when the
    server starts and not when they are renewed.
    """
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(tls.cert_file, tls.key_file)
    there = ssl.MemoryBIO()
    back = ssl.MemoryBIO()
    server = ours.wrap_bio(there, back, server_side=True)
    name = server_name(url.host, link)
    client = client_context(link).wrap_bio(back, there, server_hostname=name)
    try:
        for side in (client, server, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLError as error:
        raise explain(error, url, link) from error
