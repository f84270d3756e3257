"""Configuration files and values as recorded of the original: the same exit status and first line,
or a listed reason.

Every exception is named and argued in ``docs/compat/config.md``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.errors import ConfigError
from ftstan.cli.server import main
from ftstan.config.flags import parse, to_settings
from tests.ft import test_recorded_starts
from tests.recorded import (
    FakeServer,
    counted_from_one,
    fake_server,
    normalised,
    prepared,
    telling,
    with_ports,
)
from tests.unit.config import test_tls_recorded

if TYPE_CHECKING:
    from ftstan.config.options import ServerOptions

__all__ = ["fake_server"]

DATA = Path(__file__).parents[2] / "data/cli"
INVOCATIONS: list[dict[str, Any]] = json.loads((DATA / "files.json").read_text("utf-8"))[
    "invocations"
]
FILES: dict[str, dict[str, Any]] = json.loads((DATA / "config.json").read_text("utf-8"))["files"]
TYPES: dict[str, Any] = json.loads((DATA / "types.json").read_text("utf-8"))

#: What needs certificates (``test_tls_recorded.py``) or a running server
#: (``tests/ft/test_recorded_starts.py``).
DECIDED_LATER = {
    *("store/truncate-twice", "key-nats-url-unreachable.conf", "nats-max-payload-small.conf"),
    *(
        "tls/cert-missing",
        "tls/key-missing",
        "tls/wrong-key",
        "tls/garbage-cert",
        "tls/ca-missing",
        "tls/ca-garbage",
    ),
    *("tls/secure-no-server-tls", "key-secure.conf", "precedence/tls-false-sc"),
    "nats-users-without-own.conf",
    *("net/http-and-https", "net/https-without-tls"),
}
#: Where we differ on purpose.
DIFFERENT = {
    *("store/sql-postgres-unreachable", "store/sql-mysql-unreachable", "key-store-sql.conf"),
    *("store/clustered-restart-of-plain", "mode/clustered-bad-log-path", "mode/ft-and-clustered"),
    *(
        "mode/clustered-file-bootstrap",
        "mode/clustered-bootstrap-and-peers",
        "mode/clustered-no-node-id",
    ),
    *(
        "mode/cluster-flags-without-clustered",
        "precedence/peers-flag",
        "precedence/peers-file-beats-flag",
    ),
    "key-cluster.conf",
    *("config/include-loop", "config/peers-not-strings"),
    *("config/parse-unquoted-ms", "config/parse-digit-array", "config/parse-hash-after-digit"),
    *("config/parse-kbb", "config/parse-lone-key"),
    *("config/write-deadline-number-sc", "config/top-level-tls-client-cert"),
    *("tls/client-cert-without-key", "tls/client-key-without-cert", "tls/client-cert-missing"),
    *("tls/client-ca-missing", "tls/client-ca-garbage", "tls/client-ca-no-server-tls"),
}


def answer(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, first line of standard output and telling line of standard error."""
    capfd.readouterr()
    status = main(words)
    out, err = capfd.readouterr()
    return status, (out.splitlines() or [""])[0], telling(normalised(err))


NAMED = [r for r in INVOCATIONS if r["id"] not in DECIDED_LATER | DIFFERENT]


@pytest.mark.parametrize("record", [r for r in NAMED if not r["started"]], ids=lambda r: r["id"])
def test_what_cannot_start_is_refused_as_by_the_original(
    record: dict[str, Any],
    server: FakeServer,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in record.get("env", {}).items():
        monkeypatch.setenv(name, value)
    status, out, err = answer(prepared(record), capfd)
    expected_out = record.get("stdout", [""])[0]
    assert status == record["exit"]
    assert server.runs == []
    if expected_out != "<TLS help text>":
        assert out == expected_out
    assert err == counted_from_one((record["stderr"] or [""])[0])


@pytest.mark.parametrize("record", [r for r in NAMED if r["started"]], ids=lambda r: r["id"])
def test_what_starts_there_starts_here(
    record: dict[str, Any], server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in record.get("env", {}).items():
        monkeypatch.setenv(name, value)
    assert main(prepared(record)) == 0
    (options,) = server.runs
    if "limits" in record:
        limits = options.limits
        shown = [limits.max_channels, limits.channel.max_subs, limits.channel.max_msgs]
        expected = [line.partition(":")[2].strip(" *") for line in record["limits"]][:3]
        assert [str(value) if value else "unlimited" for value in shown] == expected


@pytest.mark.parametrize("name", [n for n in FILES if n not in DECIDED_LATER | DIFFERENT])
def test_a_recorded_file_means_what_it_means_to_the_original(
    name: str,
    server: FakeServer,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(DATA / "config", Path.cwd(), dirs_exist_ok=True)
    record = FILES[name]
    for key, value in record.get("env", {}).items():
        monkeypatch.setenv(key, value)
    status, out, err = answer([with_ports(word) for word in record["command_line"]], capfd)
    assert status == record["exit"]
    if not record["started"]:
        assert server.runs == []
        assert (out, err) == (
            record.get("stdout", [""])[0],
            counted_from_one((record["stderr"] or [""])[0]),
        )
        return
    (options,) = server.runs
    assert (options.cluster_id, options.store) == (record["cluster_id"], record["type"])
    assert bool(options.ft_group) == record["state"].startswith("FT_")
    assert seen_limits(options) == global_limits(record["limits"])
    assert seen_by_nats(options) == settings_of_nats(record["varz"])


def seen_limits(options: ServerOptions) -> dict[str, int]:
    channel = options.limits.channel
    return {
        "max_channels": options.limits.max_channels,
        "max_msgs": channel.max_msgs,
        "max_bytes": channel.max_bytes,
        "max_age": channel.max_age,
        "max_subscriptions": channel.max_subs,
        "max_inactivity": channel.max_inactivity,
    }


def global_limits(limits: dict[str, Any] | str) -> dict[str, Any]:
    default = {
        "max_channels": 100,
        "max_msgs": 1_000_000,
        "max_bytes": 1_024_000_000,
        "max_age": 0,
        "max_subscriptions": 1000,
        "max_inactivity": 0,
    }
    return default if isinstance(limits, str) else {key: limits[key] for key in default}


NUMBERS = (
    "max_connections",
    "max_subscriptions",
    "ping_max",
    "max_control_line",
    "max_payload",
    "max_pending",
)


def seen_by_nats(options: ServerOptions) -> dict[str, Any]:
    settings = options.nats.settings
    return {name: settings[name] for name in NUMBERS if name in settings}


def settings_of_nats(varz: dict[str, Any]) -> dict[str, Any]:
    return {name: varz[name] for name in NUMBERS if name in varz}


# ---- one key, one value
# ------------------------------------------------------------------------------------------


def typed_cases() -> list[Any]:
    cases = []
    for half in ("streaming", "nats"):
        for section, keys in TYPES[half].items():
            for key, name in keys.items():
                cases.append(pytest.param((half, section, key, name), id=f"{half}-{section}-{key}"))
    return cases


#: Keys whose values are judged by those who use them, or differently by us; docs/compat/config.md
#: says why.
UNJUDGED = {
    ("(top)", "syslog", "bool"),
    ("(top)", "remote_syslog", "string"),
    ("(top)", "remote_syslog", "duration string"),
    ("tls", "ca_file", "string"),
    ("tls", "ca_file", "duration string"),
    ("authorization", "default_permissions", "array"),
    *(
        ("authorization", "timeout", kind)
        for kind in ("string", "bool", "date", "array", "map", "empty string")
    ),
    ("authorization", "users", "map"),
    *(("cluster", "permissions", kind) for kind in TYPES["values"] if kind != "map"),
}
#: A quoted item of an array has its place at the quote here, and behind it in the original.
ITEMS = {"users", "cipher_suites", "curve_preferences"}


@pytest.mark.parametrize("case", typed_cases())
def test_a_value_of_each_type_is_taken_or_refused_as_by_the_original(
    case: tuple[str, str, str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    half, section, key, name = case
    monkeypatch.chdir(tmp_path)
    values = TYPES["values" if half == "streaming" else "values_nats"]
    for kind, expected in TYPES["classes"][name].items():
        if (section, key, kind) in UNJUDGED:
            continue
        text = f"{key}: {values[kind]}"
        for part in [] if section == "(top)" else reversed(section.split(".")):
            text = f"{part} {{ {text} }}"
        Path("s.conf").write_text(
            f"streaming {{ {text} }}\n" if half == "streaming" else f"{text}\nstreaming {{ }}\n"
        )
        said = ""
        try:
            to_settings(parse(["-c", "s.conf"]))
        except ConfigError as error:
            said = error.text
        wanted = (
            ""
            if expected.startswith("accepted")
            else expected.removeprefix("exit 1: ").replace("{key}", key)
        )
        if kind == "array" and key in ITEMS:
            said = said.partition(": ")[2]
            wanted = wanted.partition(": ")[2]
        assert said == counted_from_one(wanted), kind


def test_what_is_not_judged_here_is_judged_elsewhere() -> None:
    assert set(test_recorded_starts.PLAYED) | set(test_tls_recorded.REFUSED) >= DECIDED_LATER


def test_every_exception_names_a_record_and_is_explained() -> None:
    known = {record["id"] for record in INVOCATIONS} | set(FILES)
    assert known >= DECIDED_LATER | DIFFERENT
    page = (Path(__file__).parents[3] / "docs/compat/config.md").read_text("utf-8")
    assert [name for name in sorted(DIFFERENT) if name not in page] == []
