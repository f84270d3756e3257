"""Logins of our links: every kind that a NATS server can ask for, and what is wrong with a key
file.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import nkeys
import pytest

from ftstan.base.errors import NatsError
from ftstan.config.options import LinkOptions, NatsOptions
from ftstan.nats.credentials import presented, read_key
from tests.unit.nats.ways import by_client, by_link

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Stage

# Throw-away seeds: of the bytes 0..31 and of 1..32.
SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
USER = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"
OTHER_SEED = "SUAACAQDAQCQMBYIBEFAWDANBYHRAEISCMKBKFQXDAMRUGY4DUPB6IC5CQ"
#: A bcrypt hash of "foo".
HASH = "$2a$04$abcdefghijklmnopqrstuusPAkIApvNSrrxdx0BTXtj7R2NfqZq36"


WAYS = [pytest.param(by_link, id="link"), pytest.param(by_client, id="nats-py")]


def decorated(kind: str, body: str) -> str:
    return f"-----BEGIN {kind}-----\n{body}\n------END {kind}------\n"


def refused(connect: Callable[..., None], url: str, options: LinkOptions) -> None:
    with pytest.raises(NatsError, match=r"(?i)authorization violation"):
        connect(url, options)


def key_pair(prefix: int, first: int) -> nkeys.KeyPair:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(bytes(range(first, first + 32)), prefix)))


def jwt(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, name: str, nats: dict[str, object]) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {
        "jti": name,
        "iat": 1,
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": name,
        "nats": nats,
    }
    text = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(claims)}"
    return f"{text}.{base64.urlsafe_b64encode(issuer.sign(text.encode())).rstrip(b'=').decode()}"


@pytest.mark.processes
@pytest.mark.parametrize("connect", WAYS)
class TestLogins:
    def test_one_of_several_users_is_let_in_with_a_plain_or_a_hashed_password(
        self, stage: Stage, connect: Callable[..., None]
    ) -> None:
        nats = stage.nats(
            settings=f'authorization {{ users = [ {{user: alice, password: "{HASH}"}},'
            " {user: bob, password: bar} ] }"
        )
        connect(nats.url, LinkOptions(user="alice", password="foo"))
        connect(nats.url, LinkOptions(user="bob", password="bar"))
        for options in (
            LinkOptions(),
            LinkOptions(user="alice", password="bar"),
            LinkOptions(user="alice", password=HASH),
            LinkOptions(token="foo"),
        ):
            refused(connect, nats.url, options)

    def test_a_server_takes_what_it_asks_for_and_passes_over_the_rest(
        self, stage: Stage, connect: Callable[..., None], tmp_path: Path
    ) -> None:
        (tmp_path / "seed").write_text(SEED)
        everything = LinkOptions(
            user="u", password="p", token="t", nkey_seed_file=str(tmp_path / "seed")
        )
        for settings in (
            "",
            "authorization { token: t }",
            "authorization { user: u, password: p }",
            f"authorization {{ users = [ {{ nkey: {USER} }} ] }}",
        ):
            connect(stage.nats(f"nats{len(settings)}", settings=settings).url, everything)

    def test_what_stands_in_a_url_wins(self, stage: Stage, connect: Callable[..., None]) -> None:
        nats = stage.nats(settings='authorization { user: "a@b", password: "p/q:r" }')
        url = nats.url.replace("nats://", "nats://a%40b:p%2Fq%3Ar@")
        connect(url, LinkOptions(user="a@b", password="wrong"))
        refused(
            connect,
            nats.url.replace("nats://", "nats://a%40b:wrong@"),
            LinkOptions(user="a@b", password="p/q:r"),
        )

    @pytest.mark.parametrize("text", [SEED, f"\n  {SEED}  \n", decorated("USER NKEY SEED", SEED)])
    def test_an_nkey_signs_with_its_seed_bare_or_decorated(
        self, stage: Stage, connect: Callable[..., None], text: str
    ) -> None:
        nats = stage.nats(settings=f"authorization {{ users = [ {{ nkey: {USER} }} ] }}")
        file = stage.directory / "seed"
        file.write_text(text)
        connect(nats.url, LinkOptions(nkey_seed_file=str(file)))
        file.write_text(OTHER_SEED)
        refused(connect, nats.url, LinkOptions(nkey_seed_file=str(file)))

    def test_a_credentials_file_shows_its_jwt_and_signs_and_its_path_is_expanded(
        self, stage: Stage, connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        operator, account, user = (
            key_pair(prefix, first)
            for prefix, first in (
                (nkeys.PREFIX_BYTE_OPERATOR, 1),
                (nkeys.PREFIX_BYTE_ACCOUNT, 2),
                (nkeys.PREFIX_BYTE_USER, 3),
            )
        )
        unlimited = {
            "subs": -1,
            "conn": -1,
            "leaf": -1,
            "imports": -1,
            "exports": -1,
            "data": -1,
            "payload": -1,
        }
        accounts = jwt(
            operator, account, "A", {"type": "account", "version": 2, "limits": unlimited}
        )
        users = jwt(
            account,
            user,
            "U",
            {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1},
        )
        operators = jwt(operator, operator, "O", {"type": "operator", "version": 2})
        nats = stage.nats(
            settings=f"operator: {operators}\nresolver: MEMORY\n"
            f"resolver_preload: {{ {account.public_key.decode()}: {accounts} }}\n"
        )
        (stage.directory / "x.creds").write_text(
            decorated("NATS USER JWT", users)
            + "\nKeep this.\n\n"
            + decorated("USER NKEY SEED", user.seed.decode())
        )
        monkeypatch.setenv("CREDS", str(stage.directory))
        connect(nats.url, LinkOptions(credentials="$CREDS/x.creds"))
        monkeypatch.setenv("HOME", str(stage.directory))
        connect(nats.url, LinkOptions(credentials="~/x.creds"))
        refused(connect, nats.url, LinkOptions())


def test_each_value_of_our_own_counts_only_where_the_nats_servers_is_empty() -> None:
    nats = NatsOptions(user="bob")
    link = presented(LinkOptions(user="alice", password="bar", token="t"), nats)
    assert (link.user, link.password, link.token) == ("bob", "bar", "t")
    assert presented(LinkOptions(user="alice"), NatsOptions()).user == "alice"


@pytest.mark.parametrize("option", ["nkey_seed_file", "credentials"])
class TestKeyFiles:
    def test_a_file_that_is_not_there_is_named(self, option: str) -> None:
        with pytest.raises(NatsError, match=r"^nats: open no/such: no such file or directory$"):
            read_key(LinkOptions(**{option: "no/such"}))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("hello\n", "^no nkey seed found$"),
            ("", "^no nkey seed found$"),
            (SEED[:-3] + "AAA", "^nats: Not a valid nkey user seed$"),
            (
                nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT).decode(),
                "^nats: Not a valid nkey user seed$",
            ),
        ],
    )
    def test_a_file_without_a_users_seed_is_refused_in_the_words_of_the_original(
        self, tmp_path: Path, option: str, text: str, problem: str
    ) -> None:
        (tmp_path / "file").write_text(
            decorated("NATS USER JWT", "e30") + "\n" + decorated("SEED", text)
        )
        with pytest.raises(NatsError, match=problem):
            read_key(LinkOptions(**{option: str(tmp_path / "file")}))  # type: ignore[arg-type]

    def test_nothing_of_a_key_shows_in_a_repr(self, tmp_path: Path, option: str) -> None:
        (tmp_path / "file").write_text(
            decorated("NATS USER JWT", "e30") + "\n" + decorated("SEED", SEED)
        )
        key = read_key(LinkOptions(**{option: str(tmp_path / "file")}))  # type: ignore[arg-type]
        assert key is not None
        assert SEED[5:] not in repr(key)


def test_two_key_files_at_once_are_refused() -> None:
    with pytest.raises(NatsError, match=r"^nats: user callback and nkey defined$"):
        read_key(LinkOptions(nkey_seed_file="a", credentials="b"))
