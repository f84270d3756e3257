"""What holds for every command of ``ftstan-pipeline``: JSON, exit statuses, help, the manual page.

And no Spark.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.errors import ConfigError
from ftstan.cli import contexts
from ftstan.cli.pipeline import running
from ftstan.cli.pipeline.command import COMMANDS, PROGRAM, main
from ftstan.cli.pipeline.replay import careful
from ftstan.cli.pipeline.running import SparkError
from ftstan.cli.program import EXIT_USAGE
from ftstan.spark.selection import Selection, moment
from tests.processes import ROOT
from tools.man_ftstanctl import actions, leaves
from tools.man_pipeline import manual

if TYPE_CHECKING:
    from pathlib import Path

LEAVES = {" ".join(path): parser for path, parser in leaves(PROGRAM.build_parser())}

#: Enough words of each command that nothing is wrong with them.
WORDS = {
    "read": ["read", "store"],
    "archive": ["archive", "spool", "archive"],
    "audit": ["audit", "store"],
    "judge": ["judge", "ledger"],
    "query": ["query", "rate", "store"],
    "replay": ["replay", "store", "--prefix", "x."],
    "restore": ["restore", "store", "--to", "nowhere", "--cluster", "x"],
}


@pytest.mark.parametrize("words", sorted(set(LEAVES) - {"completion"}))
def test_every_command_prints_json(words: str) -> None:
    (output,) = [action for action in actions(LEAVES[words]) if "--output" in action.option_strings]
    assert output.choices is not None
    assert "json" in output.choices


def test_every_word_is_described() -> None:
    bare = [
        f"{words} {'/'.join(action.option_strings)}"
        for words, parser in LEAVES.items()
        for action in actions(parser)
        if not action.help and words != "completion"
    ]
    assert bare == []


def test_a_replay_ends_at_payloads_that_look_encrypted_unless_an_option_says_otherwise() -> None:
    assert careful(Selection(("store",), options={"mode": "a"})).options == {
        "mode": "a",
        "failOnEncrypted": "true",
    }
    said = Selection(("store",), options={"FailOnEncrypted": "false"})
    assert careful(said) == said


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_says_what_its_exit_statuses_mean(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for status, text in COMMANDS[name].load().statuses.items():
        assert f"{status}: {text}" in shown


def test_the_manual_page_has_every_command_and_option() -> None:
    page = manual().replace("\\-", "-")
    assert [words for words in LEAVES if f".SS ftstan-pipeline {words}" not in page] == []
    options = {
        word
        for parser in LEAVES.values()
        for action in actions(parser)
        for word in action.option_strings
    }
    assert [word for word in options if f"\\fB{word}\\fR" not in page] == []


def test_the_page_about_the_pipeline_names_every_command() -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"ftstan-pipeline {name}" not in page] == []


def test_the_slices_of_any_cluster_are_archived_unless_one_is_named() -> None:
    for words, cluster in ([], ""), (["--cluster", "orders"], "orders"):
        arguments = PROGRAM.build_parser().parse_args(["archive", "spool", "table", *words])
        contexts.fill(arguments)
        assert arguments.of_cluster == cluster


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("module", ["pyspark", "pyarrow"])
def test_a_missing_package_is_one_line_with_the_cure(
    words: list[str],
    module: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == module else real(name, *a)
    )
    assert main(words) == EXIT_USAGE
    assert (
        capsys.readouterr().err
        == f"{module} is not installed\nhint: run: pip install 'ftstan[spark]'\n"
    )


@pytest.mark.parametrize("module", ["grpc", "grpc_status", "pandas", "zstandard"])
def test_a_package_that_spark_connect_misses_is_one_line_with_the_cure(
    module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == module else real(name, *a)
    )
    assert main([*WORDS["read"], "--remote", "sc://127.0.0.1:1"]) == EXIT_USAGE
    assert (
        capsys.readouterr().err
        == f"{module} is not installed\nhint: run: pip install 'ftstan[connect]'\n"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--remote", "sc://127.0.0.1:1"],
            "no Spark Connect server answers at 127.0.0.1:1: Connection refused",
        ),
        (
            ["--remote", "spark://127.0.0.1:1"],
            "spark://127.0.0.1:1 is no address of a Spark Connect server",
        ),
        (
            ["--remote", "sc://127.0.0.1:port"],
            "sc://127.0.0.1:port is no address of a Spark Connect server",
        ),
        (
            ["--remote", "sc://127.0.0.1:1", "--master", "local[1]"],
            "--master and --remote were given",
        ),
        (
            ["--remote", "sc://127.0.0.1:1", "--idle"],
            "--idle is for Spark on this machine, whose processes this command starts",
        ),
        (
            ["--master", "spark://127.0.0.1:1", "--idle"],
            "--idle is for Spark on this machine, whose processes this command starts",
        ),
    ],
)
def test_a_spark_that_is_not_there_is_one_line_and_is_not_waited_for(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS["read"], *words]) == EXIT_USAGE
    first, second = capsys.readouterr().err.splitlines()
    assert first == text
    assert second.startswith("hint: ")


def test_a_missing_java_is_one_line_with_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(WORDS["read"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("Spark needs Java, and there is none on PATH\nhint: install Java 17")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "the following arguments are required: <command>"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["read"], "the following arguments are required: PLACE"),
        (["read", "s", "--count", "--export", "x"], "--count and --export were given"),
        (["read", "s", "--channel", "a", "--pattern", "b"], "--channel and --pattern were given"),
        (["read", "s", "--since", "yesterday"], "'yesterday' is no point in time"),
        (["read", "s", "--conf", "x"], "invalid setting KEY=VALUE value: 'x'"),
        (
            ["restore", "s", "--to", "x", "--cluster", "c", "--slice-bytes", "0"],
            "invalid size such as 64MiB value: '0'",
        ),
        (["replay", "s"], "where to is not said, or said twice"),
        (
            ["replay", "s", "--prefix", "a", "--to-channel", "b"],
            "where to is not said, or said twice",
        ),
        (["query", "rates", "s"], "there is no query 'rates'"),
    ],
)
def test_wrong_words_are_one_line_and_status_2(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == EXIT_USAGE
    first, second = capsys.readouterr().err.splitlines()
    assert text in first
    assert second.startswith("hint: ")


def test_a_directory_that_holds_something_is_refused_before_spark_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").write_text("mine")
    assert (
        main(["restore", "store", "--to", str(tmp_path), "--cluster", "x"]) == running.EXIT_FAILED
    )
    assert f"{tmp_path} is not empty: it holds 'notes'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("64MB", 64 << 20),
        ("64 MiB".replace(" ", ""), 64 << 20),
        ("2g", 2 << 30),
        ("5k", 5120),
    ],
)
def test_sizes_are_written_as_people_write_them(text: str, size: int) -> None:
    assert running.size(text) == size


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert (
        moment("2026-11-22")
        == moment("2026-11-22T00:00:00Z")
        == moment("2026-11-22T01:00:00+01:00")
    )
    assert moment("2h") < moment("30m")


def test_a_selection_without_a_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="no place"):
        Selection(()).frame(None)  # type: ignore[arg-type]  # it is not asked


_OF_OURS = """[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance planned.
Traceback (most recent call last):
  File "x.py", line 1, in f
    raise StoreError("no")
ftstan.base.errors.StoreError: /x holds no datastore
"""
_OF_A_JOB = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: Job aborted.
\tat x
Caused by: java.io.IOException: No space left on device
\tat y
"""
ERRORS = [
    (_OF_OURS, "/x holds no datastore"),
    (
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'and'. SQLSTATE: 42601 (line 1, pos "
            "3)\n\n== SQL =="
        ),
        "Syntax error",
    ),
    (_OF_A_JOB, "java.io.IOException: No space left on device"),
    ("", "Spark failed and did not say why"),
]


@pytest.mark.parametrize(("text", "told"), ERRORS)
def test_what_spark_raises_is_told_in_one_line(text: str, told: str) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415  no other test here needs it

    error: Any = PySparkException(text)
    with pytest.raises(SparkError) as raised, running.translating():
        raise error
    assert told in raised.value.text
    assert "\n" not in raised.value.text


def test_neither_servers_nor_ftstanctl_load_spark() -> None:
    program = (
        "import sys, ftstan.cli.server, ftstan.cli.ctl, ftstan.node.node\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'pyarrow') or "
        "m.startswith('ftstan.spark')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_the_words_are_read_without_spark() -> None:
    program = (
        "import sys, ftstan.cli.pipeline.command\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'pyarrow')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"
