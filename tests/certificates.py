"""Certificates for tests, made with openssl: two authorities, servers, clients.

Keys are new in every run.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SERVER = "extendedKeyUsage=serverAuth,clientAuth"
_CLIENT = "extendedKeyUsage=clientAuth"
_DAYS = "3650"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, by path."""

    cert: str
    key: str


class Authority:
    """One that signs certificates into ``directory``; its own is ``cert``."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self.cert = str(directory / f"{name}.pem")
        self._key = str(directory / f"{name}.key")
        _openssl(
            *(
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                _DAYS,
            ),
            *("-subj", f"/CN={name}", "-keyout", self._key, "-out", self.cert),
        )

    def server(
        self, name: str, *, names: str = "DNS:localhost,IP:127.0.0.1", expired: bool = False
    ) -> Pair:
        """A server's certificate for ``names``."""
        return self._leaf(name, f"subjectAltName={names}\n{_SERVER}\n", expired=expired)

    def client(self, name: str, *, expired: bool = False) -> Pair:
        """A client's certificate; its subject is ``CN=<name>``."""
        return self._leaf(name, f"subjectAltName=DNS:{name}\n{_CLIENT}\n", expired=expired)

    def _leaf(self, name: str, extensions: str, *, expired: bool) -> Pair:
        pair = Pair(str(self._directory / f"{name}.pem"), str(self._directory / f"{name}.key"))
        request = self._directory / f"{name}.csr"
        extra = self._directory / f"{name}.ext"
        _openssl(
            *(
                "req",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-subj",
                f"/CN={name}",
            ),
            *("-keyout", pair.key, "-out", str(request)),
        )
        extra.write_text(extensions)
        # openssl takes no dates in the past here; -1 days from now is one.
        _openssl(
            *(
                "x509",
                "-req",
                "-in",
                str(request),
                "-CA",
                self.cert,
                "-CAkey",
                self._key,
                "-CAcreateserial",
            ),
            *("-days", "-1" if expired else _DAYS, "-extfile", str(extra), "-out", pair.cert),
        )
        return pair


@dataclass(frozen=True, slots=True)
class Certificates:
    """What most tests need: a server for loopback and a client of one authority, and strangers."""

    directory: Path
    ca: Authority
    other_ca: Authority
    server: Pair
    client: Pair
    stranger: Pair

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        directory.mkdir(exist_ok=True)
        ca = Authority(directory, "ca")
        other = Authority(directory, "otherca")
        return cls(
            directory, ca, other, ca.server("server"), ca.client("client"), other.client("stranger")
        )

    def server_lines(self, *, verify: bool = False) -> str:
        """The ``tls`` map for a nats-server."""
        lines = (
            f'cert_file: "{self.server.cert}", key_file: "{self.server.key}", ca_file: '
            f'"{self.ca.cert}", timeout: 10'
        )
        return f"tls {{ {lines}{', verify: true' if verify else ''} }}\n"


def replace_pair(old: Pair, new: Pair) -> None:
    """Put a renewed certificate in the place of the old one."""
    shutil.copy(new.cert, old.cert)
    shutil.copy(new.key, old.key)


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
