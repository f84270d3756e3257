"""The syntax of the command line: every flag of the original, in every written form that was
measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftstan.base.errors import ConfigError
from ftstan.config.declaration import Group, ValueKind
from ftstan.config.flags import FlagSyntaxError, evaluate_sizes, parse, to_settings
from ftstan.config.options import ServerOptions
from ftstan.config.table import BY_FLAG, FLAGS
from ftstan.config.units import HOUR, parse_duration
from ftstan.config.usage import help_text
from ftstan.config.validation import refuse_unsupported
from ftstan.nats.generated import child_options
from tests.command_lines import to_options

DATA: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data/cli/flags.json").read_text("utf-8")
)

#: Sizes whose complaint differs, see docs/compat/config.md, or that depend on the environment.
OTHER_SIZE_TEXTS = {"[1]", "1kbb", "$HOME"}

FLAG_NAMES = [(name, row["class"]) for row in DATA["flags"] for name in row["names"]]


def complaint(words: list[str]) -> str:
    try:
        parse(words)
    except FlagSyntaxError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("name", "parse_class"), FLAG_NAMES)
def test_every_written_form_of_a_flag_is_taken_or_refused_as_by_the_original(
    name: str, parse_class: str
) -> None:
    expected = DATA["errors"][parse_class]
    for form in DATA["forms"]:
        # Only the first blank separates: "-x= 5" is one word.
        words = (
            form.replace("{name}", name).split(" ")
            if "= " not in form
            else [form.replace("{name}", name)]
        )
        assert complaint(["-v", *words]) == expected.get(form, "").replace("{name}", name), form


@pytest.mark.parametrize("row", DATA["flags"], ids=lambda row: row["names"][0])
def test_a_flag_has_the_kind_and_default_of_the_original(row: dict[str, Any]) -> None:
    flag = BY_FLAG[row["names"][0]]
    assert set(row["names"]) <= set(flag.flags)
    kind = {"int64": "int", "list": "string"}.get(row["kind"], row["kind"])
    assert (ValueKind.STRING if flag.kind is ValueKind.LIST else flag.kind) is ValueKind[
        kind.upper()
    ]
    default = parse_duration(row["default"]) if kind == "duration" else row["default"]
    if flag.key == "cluster_sync":
        # A cluster's log is synced unless the operator says otherwise (docs/clustering.md).
        default = True
    assert flag.default == default


def test_no_flag_is_missing_from_the_table_and_only_ours_are_added() -> None:
    measured = {name for row in DATA["flags"] for name in row["names"]}
    assert set(BY_FLAG) - measured == {
        *(
            "ft_group_name",
            "file_sync_index",
            "file_sync_subs",
            "dedup_window",
            "encryption_key_file",
            "encryption_accept_unreadable",
            "sql_source_file",
            "ft_allow",
            "ft_member",
            "ft_mixed",
        ),
        *("io_spin", "io_buffer_size", "nats_gomaxprocs", "nats_gogc", "direct"),
        "cluster_log_max_bytes",
        "cluster_preview",
        *("http_advertise", "metrics_channels", "metrics_nss"),
        *(
            "ft_hb_interval",
            "ft_hb_missed_interval",
            "ft_nats_timeout",
            "ft_poll_interval",
            "ft_probe_interval",
        ),
        *(
            "ft_steal_after",
            "partition_wait",
            "strict_permissions",
            "log_format",
            "monitor_token",
            "monitor_client_ca",
        ),
        *("monitor_open_health", "admin_key", "allow_channel_move"),
        *("encryption_accept_mixed", "encryption_refuse_plain"),
        *("check_config", "check-config", "strict", "unit", "completion"),
        *("dump_config", "dump-config"),
    }
    assert measured <= set(BY_FLAG)


@pytest.mark.parametrize(
    ("text", "expected"),
    [item for item in DATA["sizes"].items() if item[0] not in OTHER_SIZE_TEXTS],
)
@pytest.mark.parametrize("name", ["max_bytes", "mb", "file_slice_max_bytes"])
def test_a_size_is_taken_or_refused_as_by_the_original(
    name: str, text: str, expected: str | None
) -> None:
    line = parse([f"-{name}", text])
    if expected is None:
        evaluate_sizes(line)
        return
    with pytest.raises(ConfigError) as caught:
        evaluate_sizes(line)
    assert str(caught.value) == expected.replace("{name}", name)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1]", r"mb should be a size, got '\[1\]'"),
        ("1kbb", "size '1kbb' has the unknown unit 'kbb'"),
        ("$HOME", "mb should be a size, got '/nonexistent'"),
    ],
)
def test_a_size_that_is_none_is_refused_in_our_words_where_they_differ(
    text: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert text in OTHER_SIZE_TEXTS
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(ConfigError, match=f"^{complaint}$"):
        evaluate_sizes(parse(["-mb", text]))


def test_a_size_beyond_64_bits_is_out_of_range_not_wrapped() -> None:
    with pytest.raises(ConfigError, match="integer '9223372036854775807KB' is out of the range"):
        evaluate_sizes(parse(["-mb", "9223372036854775807KB"]))


def test_the_last_of_two_aliases_wins() -> None:
    assert (
        to_options(parse(["-mc", "5", "-mc", "7", "--max_channels", "9"])).limits.max_channels == 9
    )
    assert to_options(parse(["-max_channels", "9", "-mc=5"])).limits.max_channels == 5


@pytest.mark.parametrize(
    "words", [["-mb", "1MB", "-max_bytes", "2MB"], ["-max_bytes", "2MB", "-mb", "1MB"]]
)
def test_the_short_size_flag_beats_the_long_one_in_any_order(words: list[str]) -> None:
    assert to_options(parse(words)).limits.channel.max_bytes == 1 << 20


@pytest.mark.parametrize(
    ("words", "debug", "trace"),
    [
        (["-SD"], True, False),
        (["-SDV", "-SD=false", "-SV=false"], True, True),
        (["-SD", "-SV", "-SDV=false"], False, False),
    ],
)
def test_sdv_beats_sd_and_sv(words: list[str], debug: bool, trace: bool) -> None:
    options = to_options(parse(words))
    assert (options.debug, options.trace) == (debug, trace)
    assert not options.nats.debug


@pytest.mark.parametrize(
    ("words", "debug", "trace"),
    [(["-D"], True, False), (["-DV"], True, True), (["-D=false", "-DV"], False, True)],
)
def test_d_and_v_beat_dv(words: list[str], debug: bool, trace: bool) -> None:
    nats = to_options(parse(words)).nats
    assert (nats.debug, nats.trace) == (debug, trace)


def test_flags_end_at_two_dashes_a_single_dash_or_any_other_word() -> None:
    assert parse(["-SD", "--", "-v"]).leftover == ("-v",)
    assert parse(["-SD", "-", "-v"]).leftover == ("-", "-v")
    assert parse(["-SD", "false"]).leftover == ("false",)
    assert parse(["--"]).leftover == ()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["-cluster_idd", "x"], "did you mean -cluster_id?"),
        (["-xyzzy"], "-help lists all flags"),
        (["-cid"], "write -cid <string>; Name of the streaming cluster that clients connect to"),
        (["-SD=maybe"], "write -SD or -SD=false"),
        (["-mc", "many"], "a whole number of 64 bits, such as 1000"),
        (["-ma", "5"], 'time: missing unit in duration "5"; units: ns us ms s m h'),
        (["---cid"], "a flag is one or two dashes and its name; see -help"),
    ],
)
def test_a_malformed_flag_has_a_hint_with_the_right_form(words: list[str], hint: str) -> None:
    with pytest.raises(FlagSyntaxError) as caught:
        parse(words)
    assert caught.value.hint == hint


def test_no_flags_are_the_defaults() -> None:
    assert to_options(parse([])) == ServerOptions()


def test_flags_become_options() -> None:
    words = (
        "-cid c -st file -dir d -ft_group_name g -hbi 1m -hbt 1500ms -hbf 3 -mc 1 -msu 2 -mm 3 "
        "-mb 4KB -ma 24h"
    )
    words += (
        " -p -1 -a h -m 8222 -cluster nats://h:1 -routes nats://x:1,nats://y:2 -user u -pass p "
        "-auth t -T=0 -l f -P q"
    )
    words += (
        " -file_slice_max_msgs 5 -file_slice_max_bytes 6k -file_slice_max_age 7h -file_sync=f "
        "-file_crc=F"
    )
    words += " -file_crc_poly 0x10 -io_batch_size 8 -io_sleep_time 9"
    options = to_options(parse(words.split(" ")))
    assert (options.cluster_id, options.store, options.dir, options.ft_group) == (
        "c",
        "FILE",
        "d",
        "g",
    )
    assert (options.hb_interval, options.hb_timeout, options.hb_fail_count) == (
        60 * 10**9,
        1_500_000_000,
        3,
    )
    limits = options.limits
    assert (limits.max_channels, limits.channel.max_subs, limits.channel.max_msgs) == (1, 2, 3)
    assert (limits.channel.max_bytes, limits.channel.max_age) == (4096, 24 * HOUR)
    nats = options.nats
    assert (nats.port, nats.host, options.monitor.http_port, nats.cluster_listen) == (
        -1,
        "h",
        8222,
        "nats://h:1",
    )
    assert (nats.routes, nats.user, nats.password, nats.token) == (
        ("nats://x:1", "nats://y:2"),
        "u",
        "p",
        "t",
    )
    assert (options.log.time, options.log.file, options.pid_file) == (False, "f", "q")
    file = options.file
    assert (file.slice_max_msgs, file.slice_max_bytes, file.slice_max_age) == (5, 6000, 7 * HOUR)
    assert (file.sync, file.crc, file.crc_poly) == (False, False, 16)
    assert (options.io_batch_size, options.io_sleep_time) == (8, 9)


def test_settings_of_the_pipeline_reach_where_they_are_used() -> None:
    words = "-io_spin 50us -io_buffer_size 64KB -nats_gomaxprocs 2 -nats_gogc 300"
    options = to_options(parse(words.split(" ")))
    assert (options.io_spin, options.io_buffer_size) == (50_000, 65_536)
    child = child_options(options)
    assert (child.gomaxprocs, child.gogc) == (2, 300)


def test_an_empty_host_and_port_0_are_the_defaults() -> None:
    nats = to_options(parse(["-a", "", "-p", "0"])).nats
    assert (nats.host, nats.port) == (ServerOptions().nats.host, 4222)


#: Left out: server TLS, whose flags need each other.
UNSUPPORTED = [f for f in FLAGS if not f.supported and f.group is not Group.TLS]


@pytest.mark.parametrize("flag", UNSUPPORTED, ids=lambda flag: flag.key)
def test_a_flag_that_is_not_supported_yet_is_refused_by_the_name_that_was_used(flag: Any) -> None:
    value = {
        ValueKind.BOOL: str(not flag.default),
        ValueKind.SIZE: "7",
        ValueKind.INT: "7",
        ValueKind.DURATION: "7s",
        ValueKind.STRING: "x",
        ValueKind.LIST: "x",
    }
    name = flag.flags[-1]
    settings = to_settings(parse([f"--{name}={value[flag.kind]}"]))
    with pytest.raises(
        ConfigError, match=rf"^-{name} is not supported by this version of ftstan \(planned\)$"
    ):
        refuse_unsupported(settings)


def test_a_flag_that_is_not_supported_yet_is_taken_with_its_default_value() -> None:
    words = [
        "-mi",
        "0s",
        "-encrypt=false",
        "-file_buffer_size",
        "2048KB",
        "-cluster_node_id=",
        "-file_compact_enabled",
    ]
    assert to_options(parse(words)) == ServerOptions()


def test_options_do_not_show_secrets() -> None:
    options = to_options(
        parse(["-user", "bob", "-pass", "hunter2", "-auth", "s3cret", "-ns", "nats://u:pw@h:1"])
    )
    assert not {"hunter2", "s3cret", "pw"} & set(
        repr(options).replace("'", " ").replace("@", " ").split(" ")
    )
    assert "hunter2" not in repr(options)
    assert "s3cret" not in repr(options)


def test_the_help_text_has_the_groups_in_order_and_one_column_of_descriptions() -> None:
    lines = help_text().split("\n")
    assert lines[:3] == ["", "Usage: nats-streaming-server [options]", ""]
    assert lines[-2:] == ["", ""]
    assert [line for line in lines if line.endswith("Options:")] == [
        f"{group.value}:" for group in Group if any(flag.group is group for flag in FLAGS)
    ]
    flags = [line for line in lines if line.startswith("    ")]
    assert len(flags) == sum(1 for flag in FLAGS if flag.help)
    assert {line[49] for line in flags} == {" "}
    assert all(line[50] != " " for line in flags)


def test_the_help_text_says_what_is_not_supported_yet() -> None:
    shown = [line for line in help_text().splitlines() if line.endswith("[not supported yet]")]
    assert len(shown) == sum(1 for flag in FLAGS if flag.help and not flag.supported)
