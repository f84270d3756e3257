"""Logins and TLS reach NATS as they were given: a real nats-server with each, and a streaming
server made here behind it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import ssl
import time
from typing import TYPE_CHECKING, Any

import nkeys
import pytest
from nats.aio.client import Client

import ftstan.client
from ftstan.client import LoginError, NatsLogin, NatsUnreachableError, PublishUnknownError
from ftstan.client.link import _Client
from tests.client.fake import FakeStan, Handler, on_a_loop
from tests.compat.players.natswire import HOST, Operation
from tests.processes import CLUSTER

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.msg import Msg

    from tests.certificates import Certificates
    from tests.processes import Nats, Stage

pytestmark = pytest.mark.processes

SERVER_USER = 'user: "server", password: "s"'


class OverNats:
    """What ``FakeStan`` needs of a NATS server, over a connection to a real one."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: set[asyncio.Task[Any]] = set()

    def serve(self, subject: str, handler: Handler) -> None:
        async def deliver(message: Msg) -> None:
            handler(Operation("PUB", b"", message.subject, message.reply, payload=message.data))

        self._spawn(self._client.subscribe(subject, cb=deliver))

    def publish(self, subject: str, payload: bytes, reply: str = "") -> bool:
        self._spawn(self._client.publish(subject, payload, reply))
        return True

    async def settle(self) -> None:
        await asyncio.gather(*self._tasks)
        await self._client.flush()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def works(
    nats: Nats, login: NatsLogin, *, url: str | list[str] = "", **server_login: Any
) -> None:
    """A client with this login can publish through that NATS server."""
    connection = Client()
    await connection.connect(nats.url, **server_login)
    over = OverNats(connection)
    FakeStan(over)  # type: ignore[arg-type]
    await over.settle()
    async with await ftstan.client.connect(
        CLUSTER, "me", servers=url or nats.url, login=login, timeout=20
    ) as client:
        assert await client.publish("foo", b"x")
    await connection.close()


async def refused(nats: Nats, login: NatsLogin, url: str = "") -> None:
    with pytest.raises(LoginError, match=f"NATS refuses the login at .*:{nats.port}") as caught:
        await ftstan.client.connect(CLUSTER, "me", servers=url or nats.url, login=login, timeout=20)
    assert "wrong" not in str(caught.value)
    assert caught.value.hint


@on_a_loop
async def test_a_user_with_a_password_in_the_login_or_in_the_address(stage: Stage) -> None:
    nats = stage.nats(
        settings=f'authorization {{ users: [{{{SERVER_USER}}}, {{user: "me", password: '
        f'"right"}}] }}\n'
    )
    server = {"user": "server", "password": "s"}
    await works(nats, NatsLogin(user="me", password="right"), **server)
    await works(nats, NatsLogin(), url=f"nats://me:right@{HOST}:{nats.port}", **server)
    await refused(nats, NatsLogin(user="me", password="wrong"))
    await refused(nats, NatsLogin(), f"nats://me:wrong@{HOST}:{nats.port}")


@on_a_loop
async def test_a_token(stage: Stage) -> None:
    nats = stage.nats(settings='authorization { token: "right" }\n')
    await works(nats, NatsLogin(token="right"), token="right")
    await refused(nats, NatsLogin(token="wrong"))


@on_a_loop
async def test_an_nkey(stage: Stage, tmp_path: Path) -> None:
    mine = _key(nkeys.PREFIX_BYTE_USER)
    other = _key(nkeys.PREFIX_BYTE_USER)
    nats = stage.nats(
        settings=f"authorization {{ users: [{{{SERVER_USER}}}, {{nkey: {_public(mine)}}}] }}\n"
    )
    good = tmp_path / "good.nk"
    bad = tmp_path / "bad.nk"
    good.write_bytes(mine)
    bad.write_bytes(other)
    await works(nats, NatsLogin(nkeys_seed=str(good)), user="server", password="s")
    await refused(nats, NatsLogin(nkeys_seed=str(bad)))


@on_a_loop
async def test_a_credentials_file(stage: Stage, tmp_path: Path) -> None:
    operator, account, user, stranger = (
        _key(kind)
        for kind in (
            nkeys.PREFIX_BYTE_OPERATOR,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_USER,
            nkeys.PREFIX_BYTE_ACCOUNT,
        )
    )
    account_jwt = _jwt(operator, _public(account), "account", {"limits": _UNLIMITED})
    nats = stage.nats(
        settings=(
            f"operator: {_jwt(operator, _public(operator), 'operator', {})}\n"
            f"resolver: MEMORY\nresolver_preload: {{ {_public(account)}: {account_jwt} }}\n"
        )
    )
    good, bad = (tmp_path / f"{name}.creds" for name in ("good", "bad"))
    for file, signer in ((good, account), (bad, stranger)):
        jwt = _jwt(
            signer,
            _public(user),
            "user",
            {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1},
        )
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.decode()}\n------END USER NKEY SEED------\n"
        )
    await works(nats, NatsLogin(user_credentials=good), user_credentials=str(good))
    await refused(nats, NatsLogin(user_credentials=bad))


@on_a_loop
async def test_tls_with_a_client_certificate_and_an_authority_that_is_checked(
    stage: Stage, certificates: Certificates
) -> None:
    nats = stage.nats(settings=certificates.server_lines(verify=True))
    trusting = ssl.create_default_context(cafile=certificates.ca.cert)
    trusting.load_cert_chain(certificates.client.cert, certificates.client.key)
    await works(nats, NatsLogin(tls=trusting), tls=trusting)
    await works(nats, NatsLogin(tls=trusting), url=f"tls://localhost:{nats.port}", tls=trusting)

    doubting = ssl.create_default_context(cafile=certificates.other_ca.cert)
    with pytest.raises(NatsUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
        await ftstan.client.connect(
            CLUSTER, "me", servers=nats.url, login=NatsLogin(tls=doubting), timeout=5
        )


@on_a_loop
@pytest.mark.parametrize(
    ("host", "trusts", "hint"),
    [
        ("localhost", False, "name the authority that signed it"),
        ("127.1", True, "use a name or an address that the certificate is valid for"),
    ],
)
async def test_a_certificate_that_is_not_accepted_is_told_at_once_and_why(
    stage: Stage, certificates: Certificates, host: str, trusts: bool, hint: str
) -> None:
    nats = stage.nats(settings=certificates.server_lines())
    authority = certificates.ca if trusts else certificates.other_ca
    login = NatsLogin(tls=ssl.create_default_context(cafile=authority.cert))
    # Nobody waits for the time that is left for a server to come.
    async with asyncio.timeout(120):
        with pytest.raises(NatsUnreachableError, match="certificate of the NATS server") as caught:
            await ftstan.client.connect(
                CLUSTER, "me", servers=f"tls://{host}:{nats.port}", login=login, timeout=3600
            )
    assert caught.value.hint.startswith(hint)


@on_a_loop
async def test_a_login_that_hears_no_acks_of_named_publishes_publishes_without_names(
    stage: Stage,
) -> None:
    nats = stage.nats(
        settings=f"""authorization {{ users: [{{{SERVER_USER}}}, {{user: "me", password: "right",
        permissions: {{subscribe: ["_INBOX.>", "_STAN.acks.*"]}}}}] }}
        """
    )
    connection = Client()
    await connection.connect(nats.url, user="server", password="s")
    over = OverNats(connection)
    FakeStan(over)  # type: ignore[arg-type]
    await over.settle()
    async with await ftstan.client.connect(
        CLUSTER,
        "me",
        servers=nats.url,
        login=NatsLogin(user="me", password="right"),
        ack_timeout=3600,
    ) as client:
        assert await client.publish("foo", b"x")
        with pytest.raises(PublishUnknownError, match=r'subscription to "_STAN\.acks\.\w+\.\*"'):
            await client.publish("foo", b"x", name="order 1")
        assert await client.publish("foo", b"x")
    await connection.close()


@on_a_loop
async def test_a_key_that_went_missing_ends_one_attempt_and_not_the_client(tmp_path: Path) -> None:
    client = _Client("nats://127.0.0.1:1", lambda _text, _subject: None)
    with pytest.raises(FileNotFoundError):
        await client.open(nkeys_seed=str(tmp_path / "gone.nk"))
    await client.discard()


@on_a_loop
async def test_an_address_that_its_certificate_does_not_name_keeps_nobody_from_the_next_one(
    stage: Stage, certificates: Certificates
) -> None:
    # As the addresses are by which NATS servers tell clients of each other.
    nats = stage.nats(settings=certificates.server_lines())
    trusting = ssl.create_default_context(cafile=certificates.ca.cert)
    urls = [f"tls://{host}:{nats.port}" for host in ("127.1", "localhost")]
    await works(nats, NatsLogin(tls=trusting), url=urls, tls=trusting)


_UNLIMITED = {
    "subs": -1,
    "data": -1,
    "payload": -1,
    "conn": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
}


def _key(kind: int) -> bytes:
    """A new seed."""
    return bytes(nkeys.encode_seed(secrets.token_bytes(32), kind))


def _public(seed: bytes) -> str:
    return str(nkeys.from_seed(bytearray(seed)).public_key.decode())


def _jwt(signer: bytes, subject: str, kind: str, rights: dict[str, Any]) -> str:
    claims = {
        "iat": int(time.time()),
        "iss": _public(signer),
        "name": kind,
        "sub": subject,
        "nats": {**rights, "type": kind, "version": 2},
    }
    claims["jti"] = (
        base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
    )
    head = _base64(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = f"{head}.{_base64(json.dumps(claims).encode())}"
    return f"{body}.{_base64(nkeys.from_seed(bytearray(signer)).sign(body.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
