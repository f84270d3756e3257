"""``-check_config -strict``: what a start would refuse, or take and suffer from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.base import log
from ftstan.cli import serving
from ftstan.cli.server import main
from ftstan.config.file import load
from ftstan.config.flags import parse
from tests.certificates import Certificates
from tests.uncoded import uncoded

if TYPE_CHECKING:
    from collections.abc import Sequence

Capture = pytest.CaptureFixture[str]
USERS = "listen: '127.0.0.1:-1'\nauthorization { users: [ { user: a, password: b } ] }\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaints(capfd: Capture, text: str, *more: str, name: str = "s.conf") -> Sequence[str]:
    """What a strict check says on standard error; empty if it finds nothing."""
    Path(name).write_text(text)
    status = main(["-c", name, "-check_config", "-strict", *more])
    err = capfd.readouterr().err.splitlines()
    assert status == (1 if err else 0)
    return err


def test_heartbeats_that_cannot_work_together_are_refused_without_strict_too(
    capfd: Capture,
) -> None:
    Path("s.conf").write_text(
        "streaming { store: file, dir: d, ft_group: g, ft_hb_interval: '3s'\n"
        " ft_hb_missed_interval: '2s' }\n"
    )
    assert main(["-c", "s.conf", "-check_config"]) == 1
    first, hint = capfd.readouterr().err.splitlines()
    assert first.startswith("ft: the missed heartbeat interval needs to be at least 10%")
    assert hint.startswith("hint: s.conf:2:2: ft_hb_missed_interval: ")


@pytest.mark.parametrize(
    "own",
    ["", "streaming { user: a, password: wrong }\n", "streaming { user: c, password: b }\n"],
)
def test_a_server_that_its_own_nats_server_would_refuse_is_found(capfd: Capture, own: str) -> None:
    assert complaints(capfd, USERS)[0].startswith(
        "the embedded NATS server would refuse the streaming server: nats: Authorization Violation"
    )
    assert complaints(capfd, USERS + own)[1].startswith("hint: give what this NATS server expects")


def test_a_login_that_holds_is_no_problem_and_a_hashed_password_is_compared(
    capfd: Capture,
) -> None:
    own = "streaming { user: a, password: b }\n"
    assert complaints(capfd, USERS + own) == []
    # Of "b", with the least cost that there is.
    hashed = "$2a$04$abcdefghijklmnopqrstuu12f.Pu8ic0A965BfTwGcW6x7Xin9Xgu"
    told = USERS.replace("password: b", f"password: '{hashed}'")
    assert complaints(capfd, told + own) == []
    assert complaints(capfd, told + "streaming { user: a, password: wrong }\n")


def test_tls_that_the_servers_own_link_does_not_trust_or_cannot_show_itself_to_is_found(
    capfd: Capture, place: Path
) -> None:
    made = Certificates.make(place / "tls")
    text = "listen: '127.0.0.1:-1'\n" + made.server_lines(verify=True)
    trust = f"client_ca: '{made.ca.cert}'"
    show = f"client_cert: '{made.client.cert}', client_key: '{made.client.key}'"
    for own in ("", trust):
        first = complaints(capfd, f"{text}streaming {{ tls {{ {own} }} }}\n")[0]
        assert first.startswith("the embedded NATS server would refuse the streaming server: ")
    assert complaints(capfd, f"{text}streaming {{ tls {{ {trust}, {show} }} }}\n") == []


def test_duplicate_channels_and_keys_are_told_with_both_places(capfd: Capture) -> None:
    err = complaints(
        capfd,
        "port: 4444\nstreaming { id: a, cluster_id: b\n store_limits { channels {\n"
        " foo { max_msgs: 1 }\n foo { max_msgs: 2 } } } }\nport: 5555\n",
    )
    assert [uncoded(line) for line in err[::2]] == [
        's.conf:5:2: the key "foo" was already said at s.conf:4:2; this one counts',
        's.conf:6:1: the key "port" was already said at s.conf:1:1; this one counts',
        's.conf:2:20: the key "id or cluster_id" was already said at s.conf:2:13; this one counts',
    ]


def test_the_check_of_a_nodes_configuration_makes_nothing_and_asks_no_node_that_runs(
    capfd: Capture,
) -> None:
    node = "cluster { preview: true, node_id: a, peers: [a, b, c], log_path: log }"
    own = f"streaming {{ user: a, password: b, store: file, dir: store, {node} }}\n"
    assert complaints(capfd, USERS + own) == []
    assert sorted(path.name for path in Path().iterdir()) == ["s.conf"]
    # Another log path than one below a directory that is there would refuse a start.
    (said, hint) = complaints(capfd, USERS + own.replace("log_path: log", "log_path: none/log"))
    assert said.startswith("log_path: the directory ")
    assert said.endswith("/none is not there")
    assert hint.startswith("hint: s.conf:3:")


def test_a_key_that_stands_twice_is_a_warning_without_strict(capfd: Capture) -> None:
    Path("s.conf").write_text("port: 4444\nport: 5555\n")
    assert main(["-c", "s.conf", "-check_config"]) == 0
    out, err = capfd.readouterr()
    assert "port = 5555" in out
    assert err == (
        'warning: s.conf:2:1: the key "port" was already said at s.conf:1:1; this one counts\n'
    )


def test_what_an_include_or_a_merged_map_says_may_be_said_anew_and_so_may_variables(
    capfd: Capture,
) -> None:
    Path("common.conf").write_text("port: 4444\n")
    text = "include 'common.conf'\nport: 5555\n"
    text += "X: 6s\nping_interval: $X\nX: 7s\nwrite_deadline: $X\n"
    assert complaints(capfd, text) == []
    merged = "x: &x { max_msgs: 1 }\nstreaming:\n  store_limits:\n    <<: *x\n    max_msgs: 2\n"
    Path("s.yaml").write_text(merged)
    assert load("s.yaml").repeated == ()


def test_yaml_knows_keys_that_stand_twice(capfd: Capture) -> None:
    err = complaints(capfd, "port: 4444\nport: 5555\n", name="s.yaml")
    assert err[0].startswith('s.yaml:2:1: the key "port" was already said at s.yaml:1:1')


def test_yaml_in_a_conf_is_recognized(capfd: Capture) -> None:
    err = complaints(capfd, "streaming:\n  cluster_id: orders\n  store: memory\n")
    assert err[0] == "Parse error on line 2: 'Expected value but found new line'"
    assert err[1].startswith("hint: this reads as YAML: let the name of s.conf end in .yaml; else:")
    assert "YAML" not in complaints(capfd, "streaming {\n : } [\n")[1]


def test_a_map_that_never_ends_is_not_taken_for_yaml(capfd: Capture) -> None:
    (_, hint) = complaints(capfd, "streaming { store: file\n")
    assert hint == "hint: the map that begins at s.conf:1:11 never ends"


def test_a_memory_store_cannot_be_clustered(capfd: Capture) -> None:
    Path("s.conf").write_text("streaming { cluster { } }\n")
    assert main(["-c", "s.conf", "-check_config", "-strict"]) == 1
    assert "not supported with MEMORY store type" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("streaming { store: file, dir: '%s/none/d' }", "dir"),
        ("log_file: '%s/none/x.log'", "log_file"),
        ("pid_file: '%s/none/x.pid'", "pid_file"),
        ("ports_file_dir: '%s/none'", "ports_file_dir"),
    ],
)
def test_a_directory_that_is_missing_is_told(
    capfd: Capture, place: Path, text: str, key: str
) -> None:
    first, hint = complaints(capfd, text.replace("%s", str(place)))
    assert first == f"{key}: the directory {place}/none is not there"
    assert hint.startswith("hint: s.conf:1:")
    (place / "none").mkdir()
    assert complaints(capfd, text.replace("%s", str(place))) == []


def test_values_that_nobody_can_want_fail(capfd: Capture) -> None:
    assert complaints(capfd, "streaming { hb_timeout: '0s' }")[0].startswith("hb_timeout is 0s")


def test_a_datastore_that_is_a_file_is_told(capfd: Capture) -> None:
    Path("taken").write_text("")
    (line, hint) = complaints(capfd, "streaming { store: file, dir: taken }\n")
    assert line.startswith("dir: the directory ")
    assert line.endswith("taken is no directory")
    assert hint.startswith("hint: s.conf:1:26: dir: ")


def test_listeners_on_one_port_are_told(capfd: Capture) -> None:
    for text in (
        "listen: '127.0.0.1:4999'\nhttp: '127.0.0.1:4999'\n",
        "listen: '0.0.0.0:4999'\nhttp: '127.0.0.1:4999'\n",
        "listen: '127.0.0.1:4222'\nhttp: 4999\ncluster { listen: '127.0.0.1:4999' }\n",
    ):
        (line, _) = complaints(capfd, text + "streaming { }\n")
        assert line.endswith("would listen on the same port 4999")
    apart = "listen: '127.0.0.1:4999'\nhttp: '127.0.0.2:4999'\nstreaming { }\n"
    assert complaints(capfd, apart) == []
    assert complaints(capfd, "listen: '127.0.0.1:-1'\nhttp: '127.0.0.1:-1'\nstreaming { }\n") == []


def test_a_route_that_leads_nowhere_is_told_without_its_password(capfd: Capture) -> None:
    text = "cluster { listen: '127.0.0.1:-1', routes: ['nats://r:s3cret@host2'] }\n"
    (line, hint) = complaints(capfd, "listen: '127.0.0.1:-1'\n" + text + "streaming { }\n")
    assert line.startswith("cluster: the route nats://")
    assert "leads nowhere" in line
    assert "s3cret" not in line + hint


@pytest.mark.parametrize(
    ("rights", "denied"),
    [
        ("publish: { deny: '>' }", "publish to _INBOX.check.x"),
        ("subscribe: { deny: '_STAN.discover.>' }", "subscribe to _STAN.discover.test-cluster"),
        ("publish: { deny: '_STAN.ft.>' }", "publish to _STAN.ft.test-cluster.g"),
    ],
)
def test_rights_that_the_server_cannot_do_without_are_missed(
    capfd: Capture, rights: str, denied: str
) -> None:
    users = (
        f"authorization {{ users: [ {{ user: a, password: b, permissions: {{ {rights} }} }} ] }}\n"
    )
    text = "listen: '127.0.0.1:-1'\n" + users
    text += "streaming { user: a, password: b, store: file, dir: d, ft_group: g }\n"
    (line, hint) = complaints(capfd, text)
    assert line.startswith("the embedded NATS server would not let the streaming server ")
    assert denied in line
    assert hint == "hint: give its user the permissions of SERVER in docs/security.md"


def test_why_the_nats_server_would_not_start_is_told(capfd: Capture) -> None:
    (line, _) = complaints(capfd, USERS + "no_auth_user: zed\nstreaming { user: a, password: b }\n")
    assert line.startswith("nats-server did not start with these logins and this TLS: ")
    assert "no_auth_user" in line


def test_what_has_no_effect_or_leads_nobody_here_is_a_warning_and_fails_a_strict_check(
    capfd: Capture,
) -> None:
    (line, _) = complaints(capfd, "listen: '127.0.0.1:-1'\nstreaming { ft_steal_after: '10s' }\n")
    assert line == "ft_steal_after has no effect without ft_group: nobody could take over"
    (line, _) = complaints(capfd, "listen: '127.0.0.1:-1'\nstreaming { http_advertise: 'a b' }\n")
    assert line.startswith("http_advertise 'a b' is no host and no host:port")
    own = "listen: '127.0.0.1:-1'\n"
    for good in ("host1", "host1:8222", "10.0.0.1:8222", "[::1]:8222", "[fe80::1]"):
        assert complaints(capfd, f"{own}streaming {{ http_advertise: '{good}' }}\n") == []


def test_tls_that_the_server_asks_for_and_its_nats_server_lacks_is_found(capfd: Capture) -> None:
    (line, hint) = complaints(capfd, "listen: '127.0.0.1:-1'\nstreaming { secure: true }\n")
    assert "nats: secure connection not available" in line
    assert hint.startswith("hint: the NATS server has no TLS")


@pytest.mark.parametrize("key", ["log_file", "pid_file"])
def test_a_directory_in_the_place_of_a_file_is_told(capfd: Capture, place: Path, key: str) -> None:
    text = f"listen: '127.0.0.1:-1'\nstreaming {{ }}\n{key}: '{place}'\n"
    (line, hint) = complaints(capfd, text)
    assert line == f"{key}: {place} is a directory"
    assert hint.startswith(f"hint: s.conf:3:1: {key}: ")


def test_an_empty_token_for_the_pages_is_refused_without_strict_too(
    capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGES", "")
    for text, flags, where in (
        ("streaming { monitor_token: '' }\n", (), "s.conf:1:13"),
        ("streaming { monitor_token: $PAGES }\n", (), "s.conf:1:13, $PAGES"),
        ("streaming { }\n", ("-monitor_token", ""), "-monitor_token"),
    ):
        Path("s.conf").write_text(text)
        for what in (("-check_config",), ()):
            assert main(["-c", "s.conf", *what, *flags]) == 1
            line, hint = capfd.readouterr().err.splitlines()
            assert line.startswith("monitor_token is empty: the pages would be open to everybody")
            assert hint.startswith(f"hint: {where}: give a token")


def test_a_cut_from_nats_that_a_restart_of_it_would_make_is_warned_of(capfd: Capture) -> None:
    text = "listen: '127.0.0.1:-1'\nstreaming { ft_nats_timeout: '%s' }\n"
    assert complaints(capfd, text % "1ms")[0].startswith("ft_nats_timeout is 1ms: ")
    for good in ("0s", "1s", "5s"):
        assert complaints(capfd, text % good) == []


#: A line of a file with which nobody can be served, the same with a value that serves, and how the
#: warning begins.
USELESS = [
    ("max_payload: %s", "1", "1024", "max_payload is 1: "),
    ("max_control_line: %s", "10", "256", "max_control_line is 10: "),
    ("max_pending: %s", "65536", "1048576", "max_pending is 65536: "),
    ("max_payload: 9000, max_pending: %s", "8999", "9000", "max_pending is 8999: "),
    ("max_connections: %s", "1", "100", "max_connections is 1: "),
    ("max_connections: %s", "-4", "0", "max_connections is -4: "),
    ("max_subscriptions: %s", "999", "1000", "max_subscriptions is 999: "),
    ("write_deadline: '%s'", "1ns", "10ms", "write_deadline is 1ns: "),
    ("ping_interval: '%s'", "1ms", "100ms", "ping_interval is 1ms: "),
    ("authorization { timeout: %s }", "0.001", "0.05", "the timeout of authorization is 1ms: "),
]


@pytest.mark.parametrize(("line", "bad", "good", "said"), USELESS)
def test_limits_with_which_nobody_is_served_are_warned_of_at_a_start_and_a_reload(
    capfd: Capture, line: str, bad: str, good: str, said: str
) -> None:
    own = "listen: '127.0.0.1:-1'\n"
    Path("s.conf").write_text(own + line % bad + "\n")
    # As at a start.
    settings, _ = serving._read(parse(["-c", "s.conf"]))
    assert [warning.startswith(said) for warning in settings.warnings] == [True]
    # As at a reload.
    log.configure(logtime=False)
    serving._reread(["-c", "s.conf"])
    assert log.flush(60)
    assert f"[WRN] STREAM: {said}" in capfd.readouterr().err
    Path("s.conf").write_text(own + line % good + "\n")
    settings, _ = serving._read(parse(["-c", "s.conf"]))
    assert settings.warnings == []


def test_a_strict_check_refuses_limits_with_which_nobody_is_served(capfd: Capture) -> None:
    own = "listen: '127.0.0.1:-1'\n"
    first, hint, *_ = complaints(capfd, own + "write_deadline: '1ns'\n")
    assert first.startswith("write_deadline is 1ns: ")
    assert hint == "hint: correct the value; without -strict it is a warning"
    # They are not those of another program's NATS server.
    Path("s.conf").write_text("write_deadline: '1ns'\n")
    settings, _ = serving._read(parse(["-c", "s.conf", "-ns", "nats://127.0.0.1:4222"]))
    assert settings.warnings == []
