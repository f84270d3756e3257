"""Files of both halves, YAML, warnings, precedence, and what becomes of it all: options, a dump, a
child's file.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError
from ftstan.config.declaration import Option, Section, ValueKind
from ftstan.config.effective import HIDDEN, dump, effective_lines
from ftstan.config.file import apply_files, load
from ftstan.config.flags import parse, to_settings
from ftstan.config.options import ChannelLimits, NatsOptions, ServerOptions, StoreLimits
from ftstan.config.precedence import Settings, field_value
from ftstan.config.table import BY_KEY, CONFIGURED, OPTIONS
from ftstan.config.units import MINUTE, SECOND
from ftstan.config.validation import ModeError
from ftstan.config.values import plain
from ftstan.nats.generated import child_options, render
from tests.command_lines import to_options


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def options_of(text: str, *words: str, name: str = "s.conf") -> ServerOptions:
    return settings_of(text, *words, name=name).options()


def settings_of(text: str, *words: str, name: str = "s.conf") -> Settings:
    Path(name).write_text(text)
    return to_settings(parse(["-c", name, *words]))


# ---- the table
# --------------------------------------------------------------------------------------------------


def test_every_option_is_bound_to_a_field_or_read_by_the_command() -> None:
    commands = {
        "stan_config",
        "config",
        "signal",
        "SDV",
        "DV",
        "DVV",
        "t",
        "help",
        "version",
        "help_tls",
    }
    commands |= {"check_config", "strict", "unit", "dump_config", "completion"}
    assert {option.key for option in OPTIONS} - {option.key for option in CONFIGURED} == commands


def test_every_field_of_the_options_can_be_said_in_a_file_or_by_a_flag() -> None:
    bound = {option.field for option in CONFIGURED}

    def paths(value: Any, prefix: str) -> list[str]:
        found = []
        for field in fields(value):
            inner = getattr(value, field.name)
            found += (
                paths(inner, f"{prefix}{field.name}.")
                if is_dataclass(inner)
                else [f"{prefix}{field.name}"]
            )
        return found

    assert set(paths(ServerOptions(), "")) - bound == {
        "limits.channels",
        "limits.deliveries",
        # Said by the server itself, of the NATS server that it starts.
        "link.of_child",
        "nats.settings",
        "config_file",
    }


@pytest.mark.parametrize("option", [o for o in CONFIGURED if o.field], ids=lambda o: o.key)
def test_the_default_of_an_option_is_that_of_its_field(option: Option) -> None:
    value = field_value(ServerOptions(), option)
    if value is not None:
        assert option.default == ("" if value == () else value)


def test_no_section_has_a_name_twice() -> None:
    for section in Section:
        names = [name for o in CONFIGURED if o.section is section for name in o.names]
        assert len(names) == len(set(names))
        assert all(name == name.lower() for name in names)


# ---- which half reads what
# ---------------------------------------------------------------------------------------


def test_only_the_streaming_map_is_read_where_there_is_one() -> None:
    assert options_of('id: "a"\nSTREAMING { ID: "b" }\n').cluster_id == "b"
    assert options_of('id: "a"\n').cluster_id == "a"


def test_with_two_files_each_half_has_its_own() -> None:
    Path("n.conf").write_text("id: n\nport: 5000\nmax_payload: 5\n")
    Path("x.conf").write_text("id: x\nport: 6000\n")
    found = to_settings(parse(["-c", "n.conf", "-sc", "x.conf"]))
    options = found.options()
    assert (options.cluster_id, options.nats.port, options.nats.settings) == (
        "x",
        5000,
        {"max_payload": 5},
    )
    assert found.unknown_keys == [
        'n.conf:1:1: unknown key "id" is ignored',
        'x.conf:2:1: the key "port" is ignored: the NATS half reads only the file of -c',
    ]


def test_a_cluster_map_without_a_streaming_map_is_clustering_and_a_hint_names_routes() -> None:
    text = 'cluster { listen: "127.0.0.1:5000" }\n'
    Path("s.conf").write_text(text)
    with pytest.raises(ModeError, match="clustering mode not supported with MEMORY") as caught:
        to_options(parse(["-c", "s.conf"]))
    assert caught.value.hint == (
        "s.conf:1:1: this map makes a server clustered; if it is meant for NATS routes, add: "
        "streaming { }"
    )
    assert options_of(text + "streaming {}").nats.cluster_listen == "nats://127.0.0.1:5000"


def test_a_flat_tls_map_of_client_keys_is_the_streaming_halfs() -> None:
    options = options_of('tls { client_cert: "c", client_key: "k", client_ca: "a" }\n')
    assert (options.link.client_cert, options.link.client_key, options.link.client_ca) == (
        "c",
        "k",
        "a",
    )
    assert not options.nats.tls.enabled


# ---- precedence
# --------------------------------------------------------------------------------------------------


def test_a_flag_beats_the_file_and_one_that_was_not_given_does_not() -> None:
    options = options_of(
        "store_limits { max_msgs: 5, max_subs: 6 }\nport: 5000\nsd: true\n",
        "-mm",
        "1000000",
        "-SD=false",
    )
    assert (options.limits.channel.max_msgs, options.limits.channel.max_subs) == (1_000_000, 6)
    assert (options.nats.port, options.debug) == (5000, False)


@pytest.mark.parametrize("flag", ["-c", "-sc"])
def test_sdv_beats_the_file_and_dv_only_that_of_c(flag: str) -> None:
    Path("s.conf").write_text(
        "sd: true\ndebug: true\ncluster { listen: 5000, routes: [nats://a:1] }\nstreaming { sd: "
        "true }"
    )
    words = [flag, "s.conf", "-SDV=false", "-DV=false", "-routes", "nats://b:2"]
    options = to_options(parse(words))
    assert not options.debug
    assert options.nats.debug is (flag == "-sc")
    assert options.nats.routes == (("nats://b:2",) if flag == "-c" else ("nats://a:1",))


def test_peers_and_keys_of_the_file_beat_the_flags() -> None:
    text = 'streaming { cluster { peers: [x] }, encryption_key: "file" }\n'
    found = settings_of(text, "-cluster_peers", "y", "-encryption_key", "flag")
    assert (found.value("cluster_peers"), found.value("encryption_key")) == (("x",), "file")
    assert settings_of("", "-encryption_key", "flag").value("encryption_key") == "flag"


def test_tls_flags_replace_the_map_of_the_file() -> None:
    text = 'tls { cert_file: "a", key_file: "b", verify: true }\nstreaming { }\n'
    tls = options_of(text, "-tlscert", "x", "-tlskey", "y").nats.tls
    assert (tls.enabled, tls.cert_file, tls.key_file, tls.verify) == (True, "x", "y", False)
    assert not options_of(text, "-tls=false").nats.tls.enabled
    with pytest.raises(ConfigError, match="TLS Server private key must be present and valid"):
        options_of(text, "-tlscert", "x")


def test_tls_false_loses_against_the_file_of_sc() -> None:
    Path("s.conf").write_text('tls { cert_file: "a", key_file: "b" }\nstreaming { }\n')
    assert to_settings(parse(["-sc", "s.conf", "-tls=false"])).options().nats.tls.enabled


def test_the_login_of_the_nats_half_is_the_streaming_halfs_each_part_by_itself() -> None:
    link = options_of("username: u\npassword: p\n", "-user", "x").link
    assert (link.user, link.password) == ("", "p")


def test_a_login_of_flags_says_which_of_the_users_the_server_is_and_makes_no_user() -> None:
    text = "authorization { users: [ {user: a, password: b} ] }\n"
    options = options_of(text, "-user", "x", "-pass", "y")
    assert (options.nats.user, options.link.user, options.link.password) == ("", "x", "y")
    section: Any = options.nats.settings["authorization"]
    assert [user["user"] for user in section["users"]] == ["a"]
    link = options_of(f"{text}streaming {{ user: c, password: d }}\n", "-user", "a").link
    assert (link.user, link.password) == ("a", "d")


# ---- values
# --------------------------------------------------------------------------------------------------


def test_limits_of_a_channel_are_raw_0_inherits_and_less_is_unlimited() -> None:
    options = options_of(
        'store_limits { channels { a { max_msgs: 0, mb: 1KB, ma: "1m" }, "b.>" { msu: -3 } } }'
    )
    assert options.limits.channels == (
        (
            "a",
            ChannelLimits(
                max_msgs=-1, max_bytes=1024, max_age=MINUTE, max_subs=0, max_inactivity=0
            ),
        ),
        ("b.>", ChannelLimits(max_msgs=0, max_bytes=0, max_age=0, max_subs=-3, max_inactivity=0)),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: 127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("listen: 5000", ("0.0.0.0", 5000)),
        ('listen: "[::1]:-1"', ("::1", -1)),
        ("net: h\nport: 1", ("h", 1)),
        ('listen: ":5000"', ("0.0.0.0", 5000)),
    ],
)
def test_clients_connect_where_the_file_says(text: str, expected: tuple[str, int]) -> None:
    options = options_of(text)
    assert (options.nats.host, options.nats.port) == expected
    assert options.monitor.host == expected[0]


def test_pages_have_an_address_of_their_own_if_the_file_says_so() -> None:
    assert options_of('http: "127.0.0.1:80"\n', "-a", "10.0.0.1").monitor.host == "127.0.0.1"
    assert options_of("http: 80\n", "-a", "10.0.0.1").monitor.host == "10.0.0.1"
    assert options_of('http: ":80"\n', "-a", "10.0.0.1").monitor.host == "10.0.0.1"


def test_a_cluster_map_becomes_a_url_and_settings() -> None:
    nats = options_of(
        'cluster { host: "::1", port: 5000, authorization { user: "a b", password: "p@:/", '
        "timeout: 3 }, name: n,"
        " routes: [nats://x:1, nats://y:2], no_advertise: true, permissions { import: a } "
        "}\nstreaming {}\n"
    ).nats
    assert nats.cluster_listen == "nats://a%20b:p%40%3A%2F@[::1]:5000"
    assert nats.routes == ("nats://x:1", "nats://y:2")
    assert nats.settings == {
        "cluster": {
            "authorization": {"timeout": 3.0},
            "name": "n",
            "no_advertise": True,
            "permissions": {"import": "a"},
        }
    }


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "store_limits { max_mgs: 1 }",
            '1:16: unknown key "max_mgs" in store_limits is ignored; did you mean "max_msgs"?',
        ),
        ("prot: 1", '1:1: unknown key "prot" is ignored; did you mean "port"?'),
        ("max_paylod: 1", '1:1: unknown key "max_paylod" is ignored; did you mean "max_payload"?'),
        ("streaming { disk: a }", '1:13: unknown key "disk" in streaming is ignored'),
        (
            "streaming { clusterid: a }",
            '1:13: unknown key "clusterid" in streaming is ignored; did you mean "cluster_id"?',
        ),
        (
            "streaming {}\nid: a",
            '2:1: the key "id" is ignored: there is a streaming map, and this is outside of it',
        ),
        ("limits { channels { a { mx: 1 } } }", '1:25: unknown key "mx" in channel "a" is ignored'),
        ("xyzzy: 1", '1:1: unknown key "xyzzy" is ignored'),
    ],
)
def test_a_key_that_nobody_knows_is_warned_about_with_the_nearest_one(
    text: str, warning: str
) -> None:
    (found,) = settings_of(text).unknown_keys
    assert found.removeprefix("s.conf:").startswith(warning)


def test_a_key_that_is_a_variable_is_nobodys_mistake() -> None:
    found = settings_of(
        "limit: 5\nstreaming { mine: 6, store_limits { max_msgs: $limit, max_subs: $mine } }\n"
    )
    assert found.warnings == []


@pytest.mark.parametrize(
    "text",
    ["ack_subs_pool_size: 10", "streaming { ack_subscriptions_pool_size: 10 }", "nodelay: true"],
)
def test_a_key_of_old_releases_is_taken_with_a_warning(text: str) -> None:
    found = settings_of(text)
    assert found.unknown_keys == []
    assert len(found.warnings) == 1
    assert "has no effect" in found.warnings[0]


def test_an_unsupported_key_is_refused_by_name_and_place() -> None:
    Path("s.conf").write_text("streaming {\nstore: file, cluster { node_id: a } }\n")
    with pytest.raises(
        ConfigError, match=r'^s\.conf:2:\d+: "(cluster|node_id)" is not supported by this version'
    ) as caught:
        to_options(parse(["-c", "s.conf"]))
    assert caught.value.hint


def test_flags_of_the_nats_half_are_handed_to_its_server() -> None:
    words = (
        "-client_advertise h:1 -max_traced_msg_len 9 -profile 6060 -name me -js -store_dir d -VV "
        "-cluster nats://h:2"
    )
    words += " -cluster_advertise h:3 -no_advertise -connect_retries 4 -cluster_name c"
    options = to_options(parse(words.split()))
    text = render(child_options(options), server_name="n", ports_dir="/p", port=0, cluster_port=0)
    Path("child.conf").write_text(text)
    child = {key: plain(node.value) for key, node in load("child.conf").entries.items()}
    expected = {
        "server_name": "me",
        "client_advertise": "h:1",
        "max_traced_msg_len": 9,
        "prof_port": 6060,
        "jetstream": True,
        "store_dir": "d",
        "trace": True,
        "trace_verbose": True,
        "cluster": {
            "name": "c",
            "cluster_advertise": "h:3",
            "no_advertise": True,
            "connect_retries": 4,
            "listen": "h:2",
        },
    }
    assert {key: child[key] for key in expected} == expected


def test_t_has_no_effect_and_the_log_says_so() -> None:
    settings = settings_of('listen: "0.0.0.0:4222"', "-t")
    (warning,) = settings.warnings
    assert warning.startswith("-t has no effect")
    assert (settings.options().nats.host, settings.options().monitor.host) == (
        "127.0.0.1",
        "127.0.0.1",
    )


# ---- the annotated file of the oldest reference
# ------------------------------------------------------------------

README = (Path(__file__).parents[2] / "data/cli/readme-0.5.conf").read_text("utf-8")


@pytest.mark.parametrize("flag", ["-c", "-sc"])
def test_the_annotated_file_of_the_readme_loads_as_it_stands(flag: str) -> None:
    Path("s.conf").write_text(README)
    found = to_settings(parse([flag, "s.conf"]))
    options = found.options()
    assert found.unknown_keys == []
    assert [warning.partition(": ")[2][:36] for warning in found.warnings] == [
        'the key "ack_subs_pool_size" of old '
    ]
    assert (options.cluster_id, options.store, options.dir) == (
        "my_cluster_name",
        "FILE",
        "/path/to/storage",
    )
    assert options.nats_servers == ("nats://localhost:4222",)
    assert (options.hb_interval, options.hb_timeout, options.hb_fail_count) == (
        10 * SECOND,
        10 * SECOND,
        2,
    )
    assert (options.ft_group, options.partitioning) == ("ft", True)
    assert options.limits.channel.max_age == 24 * 60 * MINUTE
    assert options.link.client_cert == "/path/to/client/cert_file"
    assert (options.file.compact_min_size, options.file.parallel_recovery) == (10485760, 4)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("stand_debug: true", "debug", True),
        ("StoreType: FILE", "store", "FILE"),
        ("StoreLimits { MaxChannels: 3 }", "limits.max_channels", 3),
        ("limits { max_sybs: 3 }", "limits.channel.max_subs", 3),
        ("file { compact_fragmemtation: 3 }", "file.compact_fragmentation", 3),
    ],
)
def test_the_misprints_of_the_readme_are_names_too(text: str, field: str, value: Any) -> None:
    found: Any = options_of(text)
    for name in field.split("."):
        found = getattr(found, name)
    assert found == value


# ---- YAML
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["s.yaml", "s.yml", "S.YAML"])
def test_yaml_says_the_same(name: str) -> None:
    yaml = """
# for Ansible
listen: 127.0.0.1:5000
max_payload: 64KB
authorization:
  users:
    - {user: a, password: "1"}
streaming:
  cluster_id: "007"
  store: file
  dir: d
  hb_interval: 10s
  sd: yes
  store_limits: &limits
    max_msgs: 10k
    channels:
      "foo.>": {max_bytes: 1MB}
      bar: {}
  file_options:
    slice_archive_script:
"""
    same = """
listen: 127.0.0.1:5000, max_payload: 64KB
authorization { users: [ {user: a, password: "1"} ] }
streaming { cluster_id: "007", store: file, dir: d, hb_interval: "10s", sd: true, store_limits { max_msgs: 10000,
 channels { "foo.>" { max_bytes: 1MB }, bar {} } } }
"""  # noqa: E501
    assert options_of(yaml, name=name) == options_of(same)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", r"^s\.yaml:1:6: "),
        ("a: b: c", r"^s\.yaml:1:5: mapping values are not allowed here"),
        ("- a", r"^s\.yaml:1:1: expected keys and values$"),
        ("? [a]\n: b", r"^s\.yaml:1:3: a key must be a word$"),
        ("a: !!python/object:os.system x\nport: x", "interface conversion"),
        ("a: 1\n---\nb: 2", r"^s\.yaml:2:1: "),
        ("x: \x07", r"^s\.yaml: "),
        ("a: &a [*a]", r"more than 100 maps and lists in each other|undefined alias"),
        ("max_payload: 99999999999999999999", "out of the range"),
        ("a: " + "[" * 2000, r"^s\.yaml"),
        (
            "store_limits: {max_age: 1m}",
            'parameter "max_age" value is expected to be string, got int64',
        ),
    ],
)
def test_what_is_no_yaml_is_an_error_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(text, name="s.yaml")


def test_places_in_yaml_are_those_of_keys() -> None:
    Path("s.yaml").write_text("streaming:\n  limits:\n    mx: 1\n")
    found = Settings()
    apply_files(found, "s.yaml", "")
    assert found.unknown_keys[0].startswith("s.yaml:3:5: ")


@given(st.text(max_size=80))
@settings(max_examples=200)
def test_any_yaml_is_a_tree_or_a_config_error(text: str) -> None:
    path = Path("x.yaml")
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        document = load(str(path))
    except ConfigError:
        return
    plain(document.entries)


# ---- what becomes of it
# ------------------------------------------------------------------------------------------

FULL = """
listen: 127.0.0.1:5000, http: "127.0.0.2:8222", server_name: "me", client_advertise: "x:1"
max_payload: 64KB, max_pending: 1MB, max_connections: 5
write_deadline: "5s", ping_interval: "1m", lame_duck_duration: "9s"
authorization {
  users: [ {user: "a", password: "se'c\\"ret", permissions { publish { allow: [">"], deny: "x" } } } ], timeout: 0.5
}
cluster {
  listen: 127.0.0.1:5001, authorization { user: r, password: s, timeout: 1 }, routes: [nats://r:s@h:1]
  no_advertise: yes
}
accounts { A { users: [ {user: q, password: w} ], exports: [ {stream: ">"} ] } }
tls { cert_file: "c", key_file: "k", verify: true, timeout: 3, cipher_suites: [TLS_AES_128_GCM_SHA256] }
log_file: "l", debug: true, pid_file: "p", http_base_path: "/b"
streaming {
  id: i, store: file, dir: d, ns: "", hbi: "1m30s", ft_group: g, ft_allow: [soft, nfs3], partitioning: true
  user: u, token: t
  tls { client_ca: a, server_name: b, skip_verify: true }
  limits { max_msgs: 7, ma: "1h", channels { "a b" { mm: 0 }, "x.>" { ma: "1m", msu: -1 } } }
  file { sync: false, slice_age: "1h", crc_poly: 5, auto_sync: "-1s" }
}
"""  # noqa: E501


def test_a_dump_loads_back_to_the_same_options() -> None:
    options = options_of(FULL)
    assert options_of(dump(options), name="d.conf") == options
    assert options_of(dump(ServerOptions()), name="d.conf") == ServerOptions()


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
NUMBERS = st.integers(0, 1 << 40)
CHANNELS = st.lists(
    st.tuples(st.sampled_from(["a", "a.*", ">", "é b"]), st.integers(-1, 9)), max_size=3
)


@given(
    name=TEXTS,
    path=TEXTS,
    number=NUMBERS,
    age=NUMBERS,
    user=TEXTS,
    flag=st.booleans(),
    channels=CHANNELS,
)
def test_any_options_survive_a_dump(**drawn: Any) -> None:
    limits = StoreLimits(
        drawn["number"],
        ChannelLimits(max_age=drawn["age"], max_bytes=drawn["number"]),
        tuple(
            {
                n: ChannelLimits(max_msgs=v, max_bytes=0, max_age=0, max_subs=0)
                for n, v in drawn["channels"]
            }.items()
        ),
    )
    options = replace(
        ServerOptions(
            cluster_id=drawn["name"],
            dir=drawn["path"],
            hb_interval=drawn["age"],
            debug=drawn["flag"],
        ),
        limits=limits,
        nats=NatsOptions(user=drawn["user"], settings={"max_payload": 5, "mappings": {"a": ["b"]}}),
    )
    assert options_of(dump(options), name="d.conf") == options


def test_the_effective_configuration_names_every_source_and_shows_no_secret() -> None:
    found = settings_of(FULL, "-mm", "9", "-p", "4000")
    text = "\n".join(effective_lines(found, found.options()))
    assert "streaming.store_limits.max_msgs = 9 " in text
    for shown in ("(-mm)", "(default)", "(s.conf:16:3)", "(-p)", "port = 4000"):
        assert shown in text, shown
    for secret in ("se'c", "ret", "nats://r:s", '"t"', '"w"'):
        assert secret not in text, secret
    assert text.count(HIDDEN) >= 5


def test_the_effective_configuration_says_what_came_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_ID", "mine")
    found = settings_of("here: $MY_ID\ncluster_id: $MY_ID\ndir: $here\n")
    lines = effective_lines(found, found.options())
    assert [line.partition("  ")[2].strip() for line in lines if "mine" in line] == [
        "(s.conf:2:1, $MY_ID)",
        "(s.conf:3:1, $MY_ID)",
    ]


def test_every_option_that_is_named_like_a_secret_is_one() -> None:
    secret = ("pass", "password", "token", "_key")
    named = {o.key for o in OPTIONS if o.kind is ValueKind.STRING and o.key.endswith(secret)}
    assert [key for key in named - {"tls_client_key", "admin_key"} if not BY_KEY[key].secret] == []


def test_the_childs_file_has_what_is_its_own_and_nothing_else() -> None:
    options = options_of(FULL)
    text = render(child_options(options), server_name="n", ports_dir="/p", port=0, cluster_port=0)
    Path("child.conf").write_text(text)
    child = {key: plain(node.value) for key, node in load("child.conf").entries.items()}
    assert json.loads(json.dumps(child)) == {
        "server_name": "me",
        "max_pending": 1 << 20,
        "write_deadline": "5s",
        "client_advertise": "x:1",
        "lame_duck_duration": "9s",
        "reconnect_error_reports": 300,
        "max_connections": 5,
        "max_payload": 65536,
        "ping_interval": "1m0s",
        "accounts": {
            "A": {"exports": [{"stream": ">"}], "users": [{"password": "w", "user": "q"}]}
        },
        "host": "127.0.0.1",
        "port": 5000,
        "http": "127.0.0.1:-1",
        "ports_file_dir": "/p",
        "debug": True,
        "trace": False,
        "authorization": {
            "timeout": 0.5,
            "users": [
                {
                    "user": "a",
                    "password": "se'c\"ret",
                    "permissions": {"publish": {"allow": [">"], "deny": "x"}},
                }
            ],
        },
        "tls": {
            "cert_file": "c",
            "key_file": "k",
            "verify": True,
            "timeout": 3.0,
            "cipher_suites": ["TLS_AES_128_GCM_SHA256"],
        },
        "cluster": {
            "name": "ftstan-i",
            "no_advertise": True,
            "authorization": {"timeout": 1.0, "user": "r", "password": "s"},
            "listen": "127.0.0.1:5001",
            "routes": ["nats://r:s@h:1"],
        },
    }
