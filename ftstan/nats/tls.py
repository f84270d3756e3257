"""TLS of our own links to NATS: when it is used, what is verified, and what an operator reads when
it fails.

A context is made for every connection, so that renewed files are used from the next connection on.
The texts are the original's where it has one (``docs/compat/securing.md``, TLS of our links).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import NatsError
from ftstan.base.log import errno_text

if TYPE_CHECKING:
    from ftstan.config.options import LinkOptions
    from ftstan.nats.url import NatsUrl

NOT_AVAILABLE = "nats: secure connection not available"
NOT_VERIFIED = "TLS certificate chain and hostname will not be verified. DO NOT USE IN PRODUCTION!"

_EXPIRED = 10
_NOT_YET = 9
#: More than any file of certificates has.
_MOST = 1 << 20
_BAD_NAME = 62
_BAD_ADDRESS = 64
_ALERT = re.compile(r"^(?:SSLV3|TLSV1|TLSV13)_ALERT_(\w+)$")


def is_demanded(options: LinkOptions) -> bool:
    """Whether a server without TLS is refused: any of these settings asks for it."""
    return bool(
        options.secure
        or options.client_ca
        or options.client_cert
        or options.server_name
        or options.insecure
    )


def must_upgrade(info: dict[str, Any], url: NatsUrl, options: LinkOptions) -> bool:
    """Whether this connection to ``url`` goes on with TLS, by the server's INFO.

    Raises ``NatsError`` if it must and cannot.
    """
    if info.get("tls_required"):
        return True
    if not url.is_tls and not is_demanded(options):
        return False
    if info.get("tls_available"):
        return True
    raise NatsError(
        f"{NOT_AVAILABLE} ({url.shown})",
        hint="the NATS server has no TLS: give it a certificate (-tls -tlscert -tlskey), or take "
        "away"
        " -secure, -tls_client_* and tls://",
    )


def client_context(options: LinkOptions) -> ssl.SSLContext:
    """A context for one connection: TLS 1.2 or newer, chain and name verified unless ``insecure``.

    Without ``client_ca`` the system's authorities are trusted. Raises ``NatsError`` that names the
    file at fault.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A server that renegotiates could make a write wait for bytes to read.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.client_ca:
        load_authorities(context, options.client_ca)
    else:
        context.load_default_certs()
    if options.client_cert:
        _load_pair(context, options)
    return context


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Trust the authorities in the PEM file ``path``. Raises ``NatsError``."""
    hint = f"{path} must be a readable PEM file with the authority's certificate"
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise NatsError(
            f"nats: error loading or parsing rootCA file: open {path}: {errno_text(error)}",
            hint=hint,
        ) from error
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise NatsError(
            f'nats: failed to parse root certificate from "{path}"', hint=hint
        ) from error


def _load_pair(context: ssl.SSLContext, options: LinkOptions) -> None:
    cert = options.client_cert
    key = options.client_key
    problem = pair_problem(context, cert, key)
    if problem:
        raise NatsError(
            f"nats: error loading client certificate: {problem}",
            hint=f"client certificate {cert} and key {key or '(none given)'}: give both, and "
            "readable by this user",
        )


def pair_problem(context: ssl.SSLContext, cert: str, key: str) -> str:
    """Load a certificate and its key into ``context``.

    Returns what is wrong with them, empty if nothing is.
    """
    for path, what in ((cert, "certificate"), (key, "key")):
        try:
            with open(path, "rb") as file:
                text = file.read(_MOST)
        except OSError as error:
            return f"open {path}: {errno_text(error)}"
        if b"-----BEGIN " not in text:
            return f"tls: failed to find any PEM data in {what} input ({path})"
    try:
        # Never a prompt: a key with a passphrase is refused instead.
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"tls: private key does not match public key ({cert}, {key})"
        return f"tls: failed to find a certificate or a key in {cert} and {key} ({reason(error)})"
    except (OSError, ValueError) as error:
        return f"tls: {cert}, {key}: {error}"
    return ""


def _no_passphrase() -> bytes:
    raise ValueError("the key has a passphrase: take it away, nobody can type it in here")


def server_name(host: str, options: LinkOptions) -> str:
    """The name or address that the server's certificate must be valid for."""
    return options.server_name or host


def refused(
    url: NatsUrl, options: LinkOptions, text: str = "remote error: tls: bad certificate"
) -> NatsError:
    """What it means that the server at ``url`` did not go on with us.

    A server that verifies closes without a word that arrives: in TLS 1.3 our side of the handshake
    is over by then.
    """
    own = options.client_cert or "none, for -tls_client_cert and -tls_client_key are not given"
    return NatsError(
        f"{text} ({url.shown})", hint=f"the NATS server refused our certificate: {own}"
    )


def is_end(error: OSError) -> bool:
    """Whether the other side has closed the connection, in whatever way."""
    return isinstance(error, (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError))


def explain(error: ssl.SSLError, url: NatsUrl, options: LinkOptions) -> NatsError:
    """What a failed handshake with the server at ``url`` means, for operators."""
    name = server_name(url.host, options)
    shown = url.shown
    trusted = options.client_ca or "the system's authorities"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return refused(url, options, reason(error))
    code = error.verify_code
    if code in {_EXPIRED, _NOT_YET}:
        return NatsError(
            f"x509: certificate has expired or is not yet valid ({shown})",
            hint=f"renew the NATS server's certificate or that of its authority ({trusted}); is "
            "the clock right?",
        )
    if code in {_BAD_NAME, _BAD_ADDRESS}:
        text = f"x509: certificate is not valid for {name}"
        if _is_address(name):
            text = (
                f"x509: cannot validate certificate for {name} because it doesn't contain it as "
                "an IP SAN"
            )
        return NatsError(
            f"{text} ({shown})",
            hint="make a certificate that names this address, or give the name that it has as "
            "server_name",
        )
    return NatsError(
        f"x509: certificate signed by unknown authority ({shown})",
        hint=f"trusted are {trusted}: name the authority that signed it with -tls_client_cacert "
        f"or client_ca ({error.verify_message})",
    )


def reason(error: OSError) -> str:
    """One line about a failure inside TLS: an alert of the other side in the original's words, or
    OpenSSL's.
    """
    if not isinstance(error, ssl.SSLError):
        return errno_text(error)
    if is_end(error):
        return "closed by the server"
    found = _ALERT.match(error.reason or "")
    if found is None:
        return f"tls: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return f"remote error: tls: {found[1].replace('_', ' ').lower()}"


def _is_address(name: str) -> bool:
    import ipaddress  # noqa: PLC0415  # late: for an error only

    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class TlsSocket:
    """A TLS connection with the calls of a socket that a link makes.

    The raw one is ours from here on.

    Not blocking, it raises ``BlockingIOError`` where a socket does. Only ``shutdown`` may come from
    another thread: it ends the raw connection and touches nothing of TLS, so that no call under way
    can go on in plain text.
    """

    def __init__(self, raw: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """Do the handshake within the raw socket's timeout.

        Raises ``ssl.SSLError``, ``OSError``; it is closed then.
        """
        self._tls = context.wrap_socket(raw, server_hostname=name, do_handshake_on_connect=False)
        try:
            self._tls.do_handshake()
        except BaseException:
            self._tls.close()
            raise

    def fileno(self) -> int:
        """The descriptor for ``poll``; ``pending`` bytes do not make it readable."""
        return self._tls.fileno()

    def pending(self) -> bool:
        """Whether decrypted bytes wait that ``poll`` does not know of."""
        return self._tls.pending() > 0

    def settimeout(self, seconds: float) -> None:
        """As of a socket."""
        self._tls.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:  # a socket's
        """As of a socket."""
        self._tls.setblocking(flag)

    def recv(self, size: int) -> bytes:
        """As of a socket that blocks."""
        return self._tls.recv(size)

    def sendall(self, data: bytes) -> None:
        """As of a socket that blocks."""
        self._tls.sendall(data)

    def recv_into(self, buffer: memoryview) -> int:
        """Read all that has arrived and fits, 0 at the end: less than ``buffer`` means that nothing
        more is there.
        """
        got = 0
        while got < len(buffer):
            try:
                n = self._tls.recv_into(buffer[got:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if got:
                    break
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
            except OSError:
                if got:
                    break  # it is raised again by the next call
                raise
            if n == 0:
                break
            got += n
        return got

    def send(self, data: memoryview) -> int:
        """As of a socket.

        After ``BlockingIOError`` the next call must begin with the same bytes.
        """
        try:
            return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None

    def shutdown(self, how: int) -> None:
        """End the raw connection, from any thread."""
        # Not that of SSLSocket: it forgets TLS first, and a send of another thread would go on
        # without.
        socket.socket.shutdown(self._tls, how)

    def close(self) -> None:
        """Close it; the other side is not told, as with a plain one."""
        with contextlib.suppress(OSError):
            self._tls.close()
