"""Who may join as a route: a listener that asks for nothing is refused beside logins of clients,
and told elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import ConfigError, NatsError
from ftstan.cli.server import main
from ftstan.config.flags import parse
from ftstan.config.options import NatsOptions, ServerOptions
from ftstan.embed import StanServer
from ftstan.nats.generated import child_options, render
from ftstan.nats.routes import check_routes
from ftstan.nats.url import Login, with_login
from tests.command_lines import to_options
from tests.recorded import FakeServer, fake_server

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["fake_server"]

PASSWORD = "hunter2"
LISTEN = "cluster { listen: 0.0.0.0:6222 }"
USERS = "authorization { users: [{ user: a, password: b }] }"
TLS = "ca_file: ca.pem, cert_file: c.pem, key_file: k.pem"
#: Every way to ask clients who they are, as files say it.
LOGINS = (
    "authorization { user: a, password: b }",
    "authorization { token: t }",
    USERS,
    f"{USERS}\nno_auth_user: a",
    "authorization { auth_callout { issuer: x } }",
    "accounts { A { users: [{ user: a, password: b }] } }",
    "trusted_keys: [x]",
    "tls { cert_file: c.pem, key_file: k.pem, ca_file: ca.pem, verify: true }",
)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def options_of(text: str, *words: str) -> ServerOptions:
    Path("s.conf").write_text(f"{text}\nstreaming {{ }}\n")
    return to_options(parse(["-c", "s.conf", *words]))


@pytest.mark.parametrize("login", LOGINS)
def test_where_clients_need_a_login_a_listener_that_asks_for_nothing_is_refused(login: str) -> None:
    with pytest.raises(
        ConfigError, match=r"whoever reaches nats://0\.0\.0\.0:6222 may join .*\[open_routes\]$"
    ) as caught:
        check_routes(options_of(f"{login}\n{LISTEN}"))
    assert caught.value.hint.endswith("; who knows better starts with -ft_allow open_routes")


@pytest.mark.parametrize(
    "words",
    [
        ("-user", "a", "-pass", "b", "-cluster", "nats://127.0.0.1:6222"),
        ("-auth", "t", "-cluster", "nats://0.0.0.0:6222", "-routes", "nats://h:6222"),
        # Half a login is none to nats-server, or half a secret.
        ("-auth", "t", "-cluster", "nats://boss:@0.0.0.0:6222"),
        ("-auth", "t", "-cluster", "nats://:pw@0.0.0.0:6222"),
    ],
)
def test_flags_are_looked_at_too_and_other_users_of_this_host_are_strangers(
    words: tuple[str, ...],
) -> None:
    with pytest.raises(ConfigError, match="open_routes"):
        check_routes(to_options(parse(words)))


def test_a_listener_of_a_file_meets_a_login_of_a_flag() -> None:
    with pytest.raises(ConfigError, match="open_routes"):
        check_routes(options_of(LISTEN, "-auth", "t"))


@pytest.mark.parametrize(
    "text",
    [
        "cluster { listen: 0.0.0.0:6222, authorization { user: r, password: s } }",
        f"cluster {{ listen: 0.0.0.0:6222, tls {{ {TLS} }} }}",
    ],
)
@pytest.mark.parametrize("login", ["", *LOGINS])
def test_a_listener_with_a_login_or_certificates_is_nobodys_business(text: str, login: str) -> None:
    assert check_routes(options_of(f"{login}\n{text}")) == []


@pytest.mark.parametrize("tls", ["cert_file: c.pem, key_file: k.pem", f"{TLS}, insecure: true"])
def test_certificates_that_nobody_checks_are_no_login(tls: str) -> None:
    options = options_of(f"{USERS}\ncluster {{ listen: 0.0.0.0:6222, tls {{ {tls} }} }}")
    with pytest.raises(ConfigError, match="open_routes"):
        check_routes(options)


def test_who_knows_better_is_told_once() -> None:
    (warning,) = check_routes(options_of(f"{USERS}\n{LISTEN}", "-ft_allow", "soft,open_routes"))
    assert "without one" in warning
    assert "(accepted by -ft_allow open_routes)" in warning
    with pytest.raises(ConfigError, match="open_routes"):
        check_routes(options_of(f"{USERS}\n{LISTEN}", "-ft_allow", "soft"))


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "host1"])
def test_where_clients_need_no_login_an_open_listener_is_one_warning(host: str) -> None:
    (warning,) = check_routes(to_options(parse(["-cluster", f"nats://{host}:6222"])))
    assert warning.startswith(f"cluster: whoever reaches nats://{host}:6222 may join as a route")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_and_nothing_where_only_this_host_reaches_it(host: str) -> None:
    assert check_routes(to_options(parse(["-cluster", f"nats://{host}:6222"]))) == []


def test_an_external_nats_server_is_its_own_operators() -> None:
    options = options_of(f"{USERS}\n{LISTEN}", "-ns", "nats://h:4222")
    assert check_routes(options) == []


def test_a_server_inside_a_program_is_refused_too_before_anything_runs() -> None:
    nats = NatsOptions(host="127.0.0.1", port=-1, token="t", cluster_listen="nats://127.0.0.1:-1")
    server = StanServer(ServerOptions(nats=nats))
    with pytest.raises(ConfigError, match="open_routes"):
        server.start()
    assert not server.is_running


def test_no_password_of_a_route_is_in_the_error_that_a_program_gets() -> None:
    nats = NatsOptions(
        host="127.0.0.1",
        port=-1,
        cluster_listen=f"nats://r:{PASSWORD}@127.0.0.1:-1",
        routes=("nats://h:no-port",),
    )
    with pytest.raises(NatsError, match="no-port") as caught:
        StanServer(ServerOptions(nats=nats)).start()
    assert PASSWORD not in str(caught.value)


def test_routes_show_the_login_of_the_listener_unless_they_have_one() -> None:
    login = "authorization { user: r, password: 'p@:/' }"
    options = options_of(
        f"cluster {{ listen: 0.0.0.0:6222, {login}, routes: [nats://b:6222, 'nats://x:y@c:6222'] }}"
    )
    text = render(child_options(options), server_name="n", ports_dir="/p", port=0, cluster_port=0)
    assert 'routes: ["nats://r:p%40%3A%2F@b:6222", "nats://x:y@c:6222" ]' in text


def test_a_url_keeps_what_is_written_in_it() -> None:
    login = Login(user="r", password="s")
    assert with_login("nats-route://b:1/x?y", login) == "nats-route://r:s@b:1/x?y"
    assert with_login("nats://t@b:1", login) == "nats://t@b:1"
    assert with_login("b:1", login) == "b:1"
    assert with_login("nats://b:1", Login(token="t")) == "nats://b:1"


class TestCommand:
    @pytest.fixture(autouse=True)
    def nothing_is_touched(self, server: FakeServer) -> Iterator[None]:
        yield
        assert server.runs == []
        assert set(os.listdir()) <= {"s.conf"}

    @pytest.mark.parametrize("more", [(), ("-check_config",)])
    def test_a_start_and_a_check_refuse_with_the_place_in_the_file(
        self, more: tuple[str, ...], capfd: pytest.CaptureFixture[str]
    ) -> None:
        Path("s.conf").write_text(f"{USERS}\n{LISTEN}\nstreaming {{ store: file, dir: d }}\n")
        assert main(["-c", "s.conf", *more]) == 1
        out, err = capfd.readouterr()
        assert out == ""
        assert "[open_routes]" in err
        assert "s.conf:2:1: cluster: give every member the same" in err
        assert "Traceback" not in err

    @pytest.mark.parametrize("password", [PASSWORD, f"{PASSWORD}@x"])
    def test_no_password_of_a_route_is_shown_by_a_check(
        self, password: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        login = f"user: r, password: '{password}'"
        Path("s.conf").write_text(
            f"cluster {{ listen: 127.0.0.1:6222, authorization {{ {login} }},"
            " routes: ['nats://h:6222', "
            f"'nats://r:{password}@i:6222,nats://r:{password}@j:6222'] }}\nstreaming {{ }}\n"
        )
        main(["-c", "s.conf", "-check_config"])
        out, err = capfd.readouterr()
        assert "cluster.routes = " in out
        assert PASSWORD not in out + err
        assert "@x" not in out + err

    def test_no_password_is_in_what_nats_server_says_of_a_route(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The login was put into the URL that it complains of."""
        Path("s.conf").write_text(
            f"cluster {{ listen: 127.0.0.1:6222, authorization {{ user: r, password: {PASSWORD} }},"
            " routes: ['nats://h:no-port'] }\nstreaming { }\n"
        )
        assert main(["-c", "s.conf", "-check_config"]) == 1
        out, err = capfd.readouterr()
        assert "no-port" in err
        assert PASSWORD not in out + err


GATEWAY = "gateway { name: a, listen: 0.0.0.0:7222"


@pytest.mark.parametrize("login", LOGINS)
def test_a_gateway_that_asks_for_nothing_is_refused_where_clients_need_a_login(login: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^gateway: .*reaches 0\.0\.0\.0:7222 may join as a gateway .*\[open_routes\]$",
    ) as caught:
        check_routes(options_of(f"{login}\n{GATEWAY} }}"))
    assert caught.value.hint.startswith("give every member the same gateway { authorization")


@pytest.mark.parametrize(
    "asks",
    [
        "authorization { user: a, password: b }",
        f"tls {{ {TLS} }}",
        "Authorization { username: a, pass: b }",
    ],
)
def test_a_gateway_that_asks_is_taken(asks: str) -> None:
    assert check_routes(options_of(f"{USERS}\n{GATEWAY}, {asks} }}")) == []


def test_a_gateway_of_a_server_without_logins_is_told_and_on_a_loopback_is_not() -> None:
    (line,) = check_routes(options_of(f"{GATEWAY} }}"))
    assert line.startswith("gateway: whoever reaches 0.0.0.0:7222 may join as a gateway and say")
    assert check_routes(options_of("gateway { name: a, host: 127.0.0.1, port: 7222 }")) == []
