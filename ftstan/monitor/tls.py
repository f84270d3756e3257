"""TLS of the monitoring port.

It never asks for a client certificate by itself; whoever wants one says so.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from ftstan.base.errors import NatsError

if TYPE_CHECKING:
    from ftstan.config.options import ServerTlsOptions


def server_context(tls: ServerTlsOptions) -> ssl.SSLContext:
    """Server side TLS with the certificate of the client listener.

    Raises ``NatsError`` in the original's words.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise NatsError(
            f"Can't start monitoring: error parsing X509 certificate/key pair {tls.cert_file}, "
            f"{tls.key_file}: {error}",
            hint="both are PEM files, the key without a passphrase, and they belong together",
        ) from error
    return context
