"""TLS of the embedded NATS server: what its options name is looked at before the server is started.

Which cipher suites and curves there are is the child's to say: it refuses a name that it does not
know.

Source: ``docs/compat/securing.md`` (TLS of the server side).
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.base.log import errno_text
from ftstan.nats.tls import pair_problem

if TYPE_CHECKING:
    from ftstan.config.options import ServerTlsOptions


def check_tls(tls: ServerTlsOptions) -> None:
    """Load what ``tls`` names, unless it is off.

    Raises ``ConfigError`` in the original's words, naming the file.
    """
    if not tls.enabled:
        return
    if not tls.cert_file:
        raise ConfigError(
            "TLS Server certificate must be present and valid",
            hint="add -tlscert, or cert_file in tls",
        )
    if not tls.key_file:
        raise ConfigError(
            "TLS Server private key must be present and valid",
            hint="add -tlskey, or key_file in tls",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    problem = pair_problem(context, tls.cert_file, tls.key_file)
    if problem:
        raise ConfigError(
            f"error parsing X509 certificate/key pair: {problem}",
            hint=f"certificate {tls.cert_file} and key {tls.key_file} must be PEM files that "
            "belong together and that"
            " this user may read",
        )
    if tls.ca_file:
        _check_authorities(context, tls.ca_file)


def _check_authorities(context: ssl.SSLContext, path: str) -> None:
    hint = (
        f"{path} must be a readable PEM file with the certificates of the authorities that sign "
        "for clients"
    )
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"open {path}: {errno_text(error)}", hint=hint) from error
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"failed to parse root ca certificate ({path})", hint=hint) from error
