"""Contexts, and what wins over what: words, environment, context, default."""

from __future__ import annotations

import argparse
import errno
import json
import stat
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import ConfigError
from ftstan.cli import contexts
from ftstan.cli.contexts import SETTINGS, Context
from ftstan.cli.ctl import main
from ftstan.cli.program import EXIT_ERROR, EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for setting in SETTINGS:
        for variable in setting.variables:
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("FTSTAN_CONTEXT", raising=False)


def filled(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    contexts.add_options(parser)
    parser.add_argument("--dir", default="")
    arguments = parser.parse_args(words)
    contexts.fill(arguments)
    return arguments


def test_without_anything_the_defaults_count() -> None:
    arguments = filled()
    assert (arguments.server, arguments.cluster, arguments.user) == (
        "nats://127.0.0.1:4222",
        "test-cluster",
        "",
    )


def test_words_win_over_the_environment_that_over_the_context_and_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts.save("prod", Context(server="nats://c", cluster="c", group="c"))
    contexts.select("prod")
    monkeypatch.setenv("FTSTAN_SERVERS", "nats://e")
    monkeypatch.setenv("FTSTAN_CLUSTER_ID", "e")
    arguments = filled("--server", "nats://w")
    assert (arguments.server, arguments.cluster, arguments.group) == ("nats://w", "e", "c")


def test_every_setting_has_a_field_in_a_context_and_a_variable_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [setting.name for setting in SETTINGS] == list(Context.__slots__)
    for setting in SETTINGS:
        for variable in setting.variables:
            monkeypatch.setenv(variable, f"of {variable}")
            assert getattr(filled(), setting.name) == f"of {variable}"
            monkeypatch.delenv(variable)


def test_a_context_that_is_named_wins_over_the_variable_and_that_over_the_selected_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b", "c"):
        contexts.save(name, Context(cluster=name))
    contexts.select("a")
    assert filled().cluster == "a"
    monkeypatch.setenv("FTSTAN_CONTEXT", "b")
    assert filled().cluster == "b"
    assert filled("--context", "c").cluster == "c"


def test_only_its_owner_can_read_a_context(tmp_path: Path) -> None:
    contexts.save("prod", Context(password="secret"))
    file = tmp_path / "ftstan" / "contexts" / "prod.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["prod.json"]


def test_contexts_are_added_listed_selected_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--server",
        "nats://me:secret@a:4222,nats://b:4222",
        "--cluster",
        "prod",
        "--pass",
        "secret",
    ]
    assert main(["context", "add", "prod", *words, "--select"]) == EXIT_OK
    assert main(["context", "add", "test", "--server", "nats://t:4222"]) == EXIT_OK
    assert main(["context", "ls", "--output", "json"]) == EXIT_OK
    out = capsys.readouterr().out
    assert json.loads(out) == [
        {
            "name": "prod",
            "selected": True,
            "server": "nats://[REDACTED]@a:4222,nats://b:4222",
            "cluster": "prod",
            "password": "[REDACTED]",
        },
        {"name": "test", "selected": False, "server": "nats://t:4222"},
    ]
    assert main(["context", "select", "test"]) == EXIT_OK
    assert filled().server == "nats://t:4222"
    assert main(["context", "ls"]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "secret" not in shown
    assert [line.split()[:2] for line in shown.splitlines() if line.startswith("*")] == [
        ["*", "test"]
    ]
    assert main(["context", "rm", "test"]) == EXIT_OK
    assert contexts.selected() == ""
    assert contexts.names() == ["prod"]
    assert main(["context", "select"]) == EXIT_OK
    assert filled().server == "nats://127.0.0.1:4222"


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", ".x", "a b"])
def test_a_name_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a context"):
        contexts.save(name, Context(cluster="x"))


@pytest.mark.parametrize("text", ["{", "[]", '{"servr": "x"}', '{"server": 5}'])
def test_a_context_that_cannot_be_read_is_told_with_its_path(text: str, tmp_path: Path) -> None:
    contexts.save("prod", Context(cluster="x"))
    file = tmp_path / "ftstan" / "contexts" / "prod.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=str(file)) as caught:
        filled("--context", "prod")
    assert caught.value.hint


def test_a_context_that_is_not_there_is_told_with_those_that_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    contexts.save("prod", Context(cluster="x"))
    assert main(["context", "select", "prud"]) == EXIT_ERROR
    error = capsys.readouterr().err
    assert "there is no context 'prud'" in error
    assert "known: prod" in error
    assert main(["context", "add", "empty"]) == EXIT_USAGE


def test_a_context_that_is_not_there_is_a_wrong_word_whatever_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words in (["pub", "orders", "text"], ["ft", "status"], ["channel", "ls"], ["key", "show"]):
        assert main([*words, "--context", "nope"]) == EXIT_USAGE, words
        assert "it is selected" not in capsys.readouterr().err
    contexts.save("gone", Context(cluster="x"))
    contexts.select("gone")
    next(tmp_path.rglob("gone.json")).unlink()
    assert main(["channel", "ls"]) == EXIT_USAGE
    assert "it is selected: ftstanctl context select" in capsys.readouterr().err


def test_what_must_be_named_and_is_not_is_a_wrong_word_whatever_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["ft", "status"], ["key", "show"], ["store", "verify"], ["drill"]):
        assert main(words) == EXIT_USAGE, words
        assert capsys.readouterr().err.startswith("which ")


def test_a_command_that_is_told_everything_does_not_look_into_a_broken_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts.save("prod", Context(dir="/data"))
    contexts.select("prod")
    next((tmp_path / "ftstan" / "contexts").iterdir()).write_text("{", encoding="utf-8")
    for setting in SETTINGS:
        monkeypatch.setenv(setting.variables[0], "given")
    with pytest.raises(ConfigError):
        filled()
    words = argparse.Namespace(dir="/data", context="")
    contexts.fill(words)
    assert words.dir == "/data"
    words.context = "prod"
    with pytest.raises(ConfigError):
        contexts.fill(words)


def test_a_directory_in_a_context_does_not_depend_on_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["context", "add", "here", "--dir", "data"]) == EXIT_OK
    assert contexts.load("here").dir == str(tmp_path / "data")
    words = ("--nkey", "op.nk", "--tlsca", "tls/ca.pem", "--creds", "~/op.creds")
    assert main(["context", "add", "here", *words]) == EXIT_OK
    context = contexts.load("here")
    assert context.nkey_seed_file == str(tmp_path / "op.nk")
    assert context.client_ca == str(tmp_path / "tls" / "ca.pem")
    assert context.credentials == "~/op.creds"


def test_every_change_of_contexts_is_told_as_json_to_whoever_asks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(*words: str) -> object:
        assert main(["context", *words, "--output", "json"]) == EXIT_OK
        return json.loads(capsys.readouterr().out)

    assert told("add", "prod", "--server", "nats://a") == {"name": "prod", "selected": False}
    assert told("add", "test", "--server", "nats://b", "--select") == {
        "name": "test",
        "selected": True,
    }
    assert told("select", "prod") == {"name": "prod", "selected": True}
    assert told("select") == {"name": "", "selected": False}
    assert told("rm", "prod") == {"name": "prod", "selected": False}
    assert [context["name"] for context in told("ls")] == ["test"]  # type: ignore[attr-defined]


def test_a_home_of_somebody_else_is_told_where_a_context_would_have_named_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    assert main(["ft", "status"]) == EXIT_USAGE
    assert "cannot be read" not in capsys.readouterr().err
    monkeypatch.setattr(type(tmp_path), "stat", denied)
    assert main(["ft", "status"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("which group?\n")
    assert f"contexts in {tmp_path}/ftstan cannot be read: Permission denied" in said


def test_lines_of_a_table_end_with_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    contexts.save("a", Context(group="one"))
    contexts.save("b", Context(group="the other one"))
    assert main(["context", "ls"]) == EXIT_OK
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines == [line.rstrip() for line in lines]
