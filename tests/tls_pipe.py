"""A TLS connection that two threads may use, one to read and one to write, and that can be told how
to cut what it sends.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time

#: Between two pieces, so that they arrive one by one.
_PAUSE_S = 0.0003


def unverified(version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """A client that trusts everybody; ``version``: of TLS, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


class TlsPipe:
    """Looks like a socket to who reads and writes it. ``raw`` has been greeted; ``piece``: bytes of
    TLS that are sent at once.
    """

    def __init__(
        self, raw: socket.socket, context: ssl.SSLContext | None = None, *, piece: int = 0
    ) -> None:
        """Do the handshake. Raises ``ssl.SSLError``, ``OSError``."""
        self.raw = raw
        self.piece = piece
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self.ssl = (context or unverified()).wrap_bio(self._in, self._out)
        self._lock = threading.Lock()
        while True:
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._fill()
            else:
                break
        self._flush()

    def settimeout(self, seconds: float) -> None:
        self.raw.settimeout(seconds)

    def recv(self, size: int) -> bytes:
        while True:
            with self._lock:
                try:
                    return self.ssl.read(size)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    return b""
                finally:
                    with contextlib.suppress(OSError):
                        self._flush()
            self._fill()

    def sendall(self, data: bytes) -> None:
        with self._lock:
            for at in range(0, len(data), 16384):
                self.ssl.write(data[at : at + 16384])
            self._flush()

    def shutdown(self, how: int) -> None:
        self.raw.shutdown(how)

    def close(self) -> None:
        self.raw.close()

    def _fill(self) -> None:
        """Raises ``ConnectionError`` if the end comes without TLS saying so."""
        data = self.raw.recv(1 << 16)
        if not data:
            raise ConnectionError("cut off")
        with self._lock:
            self._in.write(data)

    def _flush(self) -> None:
        data = self._out.read()
        step = self.piece or len(data)
        for at in range(0, len(data), step or 1):
            self.raw.sendall(data[at : at + step])
            if self.piece:
                time.sleep(_PAUSE_S)


def greeted(host: str, port: int, *, patience: float = 20.0) -> tuple[socket.socket, bytes]:
    """A connection whose INFO has been read, and nothing behind it; and that INFO."""
    sock = socket.create_connection((host, port), patience)
    info = bytearray()
    while not info.endswith(b"\r\n"):
        byte = sock.recv(1)
        if not byte:
            raise ConnectionError(f"no greeting: {bytes(info)!r}")
        info += byte
    return sock, bytes(info)
