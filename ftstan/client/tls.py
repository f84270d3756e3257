"""The TLS of a login, from the files that a person names."""

from __future__ import annotations

import ssl


def tls_context(
    *, ca: str = "", cert: str = "", key: str = "", insecure: bool = False
) -> ssl.SSLContext | None:
    """What ``NatsLogin`` takes; ``None`` if nothing was asked for.

    Raises ``OSError`` for files that cannot be used.

    ``ca``: authorities that the server's certificate is checked with, instead of the system's;
    ``cert``, ``key``: our own certificate; ``insecure``: the server's certificate is not checked.
    """
    if not (ca or cert or insecure):
        return None
    tls = ssl.create_default_context(cafile=ca or None)
    if cert:
        tls.load_cert_chain(cert, key or None)
    if insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls
