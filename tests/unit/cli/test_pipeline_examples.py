"""``docs/examples/pipeline``: units that systemd accepts, and a DAG that Airflow would load."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.cli.pipeline.command import PROGRAM
from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXAMPLES = ROOT / "docs" / "examples" / "pipeline"
UNITS = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in {".service", ".timer"})


def commands() -> dict[str, list[str]]:
    """The command of each service."""
    found = {}
    for name in UNITS:
        if name.endswith(".service"):
            (line,) = re.findall(
                r"^ExecStart=(.*)$", (EXAMPLES / name).read_text("utf-8"), re.MULTILINE
            )
            found[name] = shlex.split(line)
    return found


def test_every_service_runs_a_command_that_exists() -> None:
    for name, words in commands().items():
        assert words[0] == "/usr/bin/ftstan-pipeline"
        assert PROGRAM.build_parser().parse_args(words[1:]).quiet, name


def test_every_timer_has_its_service() -> None:
    timers = {name.removesuffix(".timer") for name in UNITS if name.endswith(".timer")}
    assert timers == {name.removesuffix(".service") for name in commands()}


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.fail(
            "systemd-analyze was not found in PATH: install the package systemd", pytrace=False
        )
    for name in UNITS:
        # The command is not installed where the tests run.
        text = (EXAMPLES / name).read_text("utf-8").replace("/usr/bin/ftstan-pipeline", "/bin/true")
        (tmp_path / name).write_text(text)
    words = [verify, "verify", "--man=no", *(str(tmp_path / name) for name in UNITS)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "ftstan-" in line]
    assert ours == []


class FailError(Exception):
    """What Airflow does not try again."""


def airflow(made: list[str]) -> dict[str, types.ModuleType]:
    """Stand-ins for the names that the DAG imports; ``made`` gets the ids of the DAGs."""

    def dag(*, dag_id: str, **_: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def decorate(function: Callable[[], None]) -> Callable[[], None]:
            def make() -> None:
                made.append(dag_id)
                function()

            return make

        return decorate

    package, exceptions, sdk = (
        types.ModuleType(name) for name in ("airflow", "airflow.exceptions", "airflow.sdk")
    )
    exceptions.__dict__.update(AirflowFailException=FailError)
    variable = types.SimpleNamespace(get=lambda _, default: default)
    sdk.__dict__.update(Variable=variable, dag=dag, task=lambda function: function)
    return {module.__name__: module for module in (package, exceptions, sdk)}


@pytest.mark.parametrize(("status", "raised"), [(0, None), (1, FailError), (3, RuntimeError)])
def test_the_dags_run_the_commands_and_do_not_repeat_what_people_must_look_at(
    status: int, raised: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    ran: list[list[str]] = []
    for name, module in airflow(made).items():
        monkeypatch.setitem(sys.modules, name, module)

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(words)
        return subprocess.CompletedProcess(words, status, "{}", "what happened")

    monkeypatch.setattr(subprocess, "run", run)
    code = compile((EXAMPLES / "airflow_dag.py").read_text("utf-8"), "airflow_dag.py", "exec")
    if raised is None:
        exec(code, {"__name__": "dag"})
        assert made == ["ftstan_archive", "ftstan_audit"]
        for words in ran:
            assert words[0] == "ftstan-pipeline"
            PROGRAM.build_parser().parse_args(words[1:])
    else:
        with pytest.raises(raised, match="what happened"):
            exec(code, {"__name__": "dag"})
