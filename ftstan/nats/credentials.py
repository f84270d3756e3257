"""What a link of ours presents when a NATS server asks who we are: password, token, nkey signature,
user JWT.

Files are read at every connect, so that renewed ones are used from the next connection on, and
nothing of them is kept. Everything that is configured is presented at once: a server takes what it
asks for and passes over the rest.

Source: ``docs/compat/securing.md`` (Which credentials our links present).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftstan.base.errors import NatsError
from ftstan.base.log import errno_text

if TYPE_CHECKING:
    from ftstan.config.options import LinkOptions, NatsOptions, ServerOptions
    from ftstan.nats.url import Login

#: A block between two lines of dashes, as in credentials files.
_BLOCK = re.compile(r"-{3,}[^\n]*-{3,}\r?\n(.+?)\r?\n\s*-{3,}[^\n]*-{3,}", re.DOTALL)
_SEED = re.compile(r"^\s*(S[OAU][A-Z2-7]+)\s*$", re.MULTILINE)
_MOST = 1 << 20


def presented(link: LinkOptions, nats: NatsOptions) -> LinkOptions:
    """What our links present to the NATS server of ``nats``: its own user, password and token, each
    by itself.

    Only where one of those is empty, that of ``link`` is taken: a user of one and a password of the
    other are a pair.
    """
    return replace(
        link,
        user=nats.user or link.user,
        password=nats.password or link.password,
        token=nats.token or link.token,
    )


def own(options: ServerOptions) -> LinkOptions:
    """What our links present, and whose NATS server it is."""
    shown = presented(options.link, options.nats)
    return replace(shown, of_child=not options.nats_servers)


@dataclass(frozen=True, slots=True, repr=False)
class Key:
    """A user's key: the seed to sign with, and the JWT that names the user (empty: the public key
    does).
    """

    seed: str
    jwt: str = ""

    def sign(self, nonce: str) -> dict[str, str]:
        """Fields for CONNECT: the signature of ``nonce``, and who signed. Raises ``NatsError``."""
        # Late: a signature needs cryptography that no other login does.
        import base64  # noqa: PLC0415

        import nkeys  # noqa: PLC0415

        try:
            raw = bytearray(base64.b32decode(self.seed + "=" * (-len(self.seed) % 8)))
            if nkeys.crc16(raw[:-2]) != int.from_bytes(raw[-2:], "little"):
                raise ValueError("checksum")  # noqa: TRY301  # one text for all that is no seed
            pair = nkeys.from_seed(bytearray(self.seed.encode()))
            signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
            who = {"jwt": self.jwt} if self.jwt else {"nkey": pair.public_key.decode()}
        except (nkeys.NkeysError, ValueError) as error:
            raise NatsError(
                "nats: Not a valid nkey user seed",
                hint="a seed begins with SU and carries a checksum: copy it anew",
            ) from error
        return {**who, "sig": signature}


def read_key(options: LinkOptions) -> Key | None:
    """Read the key file that ``options`` name, ``None`` if they name none.

    Raises ``NatsError`` in the original's words: ``nats: open <path>: no such file or directory``,
    ``no nkey seed found``, ``nats: user callback and nkey defined`` when both files are given.
    """
    if options.nkey_seed_file and options.credentials:
        raise NatsError(
            "nats: user callback and nkey defined",
            hint="give either nkey_seed_file or credentials, not both",
        )
    if options.credentials:
        path = os.path.expanduser(os.path.expandvars(options.credentials))
        text = _read(path, "credentials")
        blocks: list[str] = _BLOCK.findall(text)
        seed = _seed(blocks[1] if len(blocks) > 1 else text, path)
        if not blocks:
            raise NatsError(
                f"nats: {path}: no user JWT found",
                hint="a credentials file holds a user JWT and a seed, both decorated",
            )
        key = Key(seed, "".join(blocks[0].split()))
    elif options.nkey_seed_file:
        key = Key(_seed(_read(options.nkey_seed_file, "nkey_seed_file"), options.nkey_seed_file))
    else:
        return None
    # A seed that cannot sign is found here, before any server is asked.
    key.sign("")
    return key


def connect_fields(login: Login, key: Key | None, nonce: str) -> dict[str, str]:
    """The fields of CONNECT that say who we are.

    ``login`` is what holds for the server's URL; ``nonce`` is the one of its INFO, empty if it has
    none: such a server takes no keys. Raises ``NatsError``.
    """
    fields: dict[str, str] = {}
    if login.token:
        fields["auth_token"] = login.token
    if login.user:
        fields |= {"user": login.user, "pass": login.password}
    if key is not None and nonce:
        fields |= key.sign(nonce)
    return fields


def _seed(text: str, path: str) -> str:
    found = _SEED.search(text)
    if found is None:
        raise NatsError(
            "no nkey seed found", hint=f"{path} must hold a user's seed, SU..., bare or decorated"
        )
    if not found[1].startswith("SU"):
        raise NatsError(
            "nats: Not a valid nkey user seed",
            hint=f"the seed in {path} is not a user's: those begin with SU",
        )
    return found[1]


def _read(path: str, option: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST)
    except OSError as error:
        raise NatsError(
            f"nats: open {path}: {errno_text(error)}",
            hint=f"{option} names a file that the user of this server must be able to read",
            option=option,
        ) from error
