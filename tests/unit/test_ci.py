"""What CI runs, what the targets of the Makefile set up by themselves, and how the extensions are built.

The script is run with stand-ins for its commands, the rules of the Makefile are read, and ``setup.py`` is run with
stand-ins for the build; nothing is installed, built or removed.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest

#: The checkout, also for the copy of the tests that runs in the debug tree inside it.
ROOT = next(parent for parent in Path(__file__).parents if (parent / ".ci" / "run").is_file())
CALLS = ["system_packages.sh", "make lint", "make test", "make test-system", "make test-debug", "make retried"]
STAMP = ".venv/.ready"
TARGETS = ("demo", "demo-pipeline", "test", "lint", "bench", "build")


class Extension(Protocol):
    """What is looked at in an extension module's declaration."""

    extra_compile_args: list[str]
    extra_link_args: list[str]


def ci_with_stand_ins(directory: Path, failing: str) -> tuple[int, list[str]]:
    """The exit status of ``.ci/run`` and the commands it called, when the one named ``failing`` fails."""
    for name in (".ci", "tools", "bin"):
        (directory / name).mkdir()
    shutil.copy(ROOT / ".ci" / "run", directory / ".ci" / "run")
    note = '#!/bin/sh\necho "{called}" >> "$CALLED"\ntest "{called}" != "$FAILING"\n'
    for path, called in (("tools/system_packages.sh", "system_packages.sh"), ("bin/make", "make $*")):
        stand_in = directory / path
        stand_in.write_text(note.format(called=called), encoding="utf-8")
        stand_in.chmod(0o755)
    log = directory / "called"
    environment = {"PATH": f"{directory / 'bin'}:{os.environ['PATH']}", "CALLED": str(log), "FAILING": failing}
    ended = subprocess.run([directory / ".ci" / "run"], env=environment, cwd="/", check=False)
    return ended.returncode, log.read_text(encoding="utf-8").splitlines()


def test_ci_installs_lints_and_tests_in_that_order_and_stops_at_the_first_failure(tmp_path: Path) -> None:
    for count, failing in enumerate(CALLS, 1):
        directory = tmp_path / str(count)
        directory.mkdir()
        status, called = ci_with_stand_ins(directory, failing)
        assert status != 0
        assert called == CALLS[:count]
    directory = tmp_path / "none"
    directory.mkdir()
    assert ci_with_stand_ins(directory, failing="") == (0, CALLS)


def rules() -> dict[str, tuple[str, list[str]]]:
    """Each target of the Makefile with what it needs and what it runs, as written."""
    found: dict[str, tuple[str, list[str]]] = {}
    commands: list[str] = []
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if line.startswith("\t"):
            commands.append(line.strip())
        elif ":" in line and "=" not in line and not line.startswith(("#", ".")):
            target, needs = line.replace("$(STAMP)", STAMP).split(":", 1)
            commands = []
            found[target] = (needs, commands)
    return found


def needed(target: str) -> set[str]:
    """Everything that a target needs, directly or through another."""
    every = rules()
    seen: set[str] = set()
    ahead = [target]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += every[name][0].split() if name in every else []
    return seen


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_sets_up_its_environment_by_itself(target: str) -> None:
    assert STAMP in needed(target)


def test_a_changed_source_of_an_extension_makes_the_environment_anew() -> None:
    assert needed(STAMP) == {STAMP, "$(SOURCES)"}
    assert any("pip install" in command for command in rules()[STAMP][1])


def test_clean_needs_nothing() -> None:
    assert needed("clean") == {"clean"}


def test_lint_checks_style_format_and_types() -> None:
    commands = rules()["lint"][1]
    assert [command.split("/", 1)[1] for command in commands] == [
        "ruff check .",
        "ruff format --check .",
        "lint-imports --no-cache",
        "mypy",
    ]


def test_the_suite_runs_against_the_debug_build() -> None:
    needs, commands = rules()["test-debug"]
    assert "$(DEBUG_VENV)/.ready" in needs
    assert any("FTSTAN_DEBUG_BUILD=1" in command for command in rules()["$(DEBUG_VENV)/.ready"][1])
    assert any("$(DEBUG_VENV)/bin/python -m tests.suite" in command for command in commands)


def test_the_debug_run_fuzzes_every_parser_for_a_minute() -> None:
    assert "$(MAKE) fuzz FUZZ_SECONDS=60" in rules()["test-debug"][1]
    assert needed("fuzz") == {"fuzz", "$(FUZZ_VENV)/.ready", "$(SOURCES)"}
    assert any("FTSTAN_FUZZ_BUILD=1 CC=clang" in command for command in rules()["$(FUZZ_VENV)/.ready"][1])


def built(monkeypatch: pytest.MonkeyPatch, debug: str, fuzz: str = "") -> tuple[list[Extension], dict[str, Any]]:
    """The extensions and compiler directives that ``setup.py`` hands to Cython."""
    handed: list[tuple[list[Extension], dict[str, Any]]] = []

    def cythonize(extensions: list[Extension], **options: Any) -> list[Extension]:
        handed.append((extensions, options["compiler_directives"]))
        return extensions

    monkeypatch.setenv("FTSTAN_DEBUG_BUILD", debug)
    monkeypatch.setenv("FTSTAN_FUZZ_BUILD", fuzz)
    monkeypatch.setattr("Cython.Build.cythonize", cythonize)
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    runpy.run_path(str(ROOT / "setup.py"))
    return handed[0]


def test_the_debug_build_checks_what_cython_and_the_c_compiler_can_check(monkeypatch: pytest.MonkeyPatch) -> None:
    extensions, directives = built(monkeypatch, debug="1")
    assert directives["boundscheck"]
    assert directives["initializedcheck"]
    assert extensions
    for extension in extensions:
        assert "-fsanitize=address,bounds" in extension.extra_compile_args
        assert "-fsanitize=address,bounds" in extension.extra_link_args


def test_the_fuzz_build_is_counted_and_checked_and_brings_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    extensions, directives = built(monkeypatch, debug="", fuzz="1")
    assert directives["boundscheck"]
    for extension in extensions:
        assert "-fsanitize=address,undefined,fuzzer-no-link" in extension.extra_compile_args
        assert extension.extra_link_args == []


def test_an_ordinary_build_is_optimised_and_checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    extensions, directives = built(monkeypatch, debug="")
    assert not directives["boundscheck"]
    assert [extension.extra_compile_args for extension in extensions] == [["-O3"]] * len(extensions)
    assert [extension.extra_link_args for extension in extensions] == [[]] * len(extensions)


def test_every_console_script_can_be_imported() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert set(scripts) == {
        "ftstan",
        "ftstan-archive-slice",
        "ftstan-pipeline",
        "ftstanctl",
        "nats-streaming-server",
    }
    assert scripts["nats-streaming-server"] == scripts["ftstan"]
    for place in scripts.values():
        module, name = place.split(":")
        assert callable(getattr(import_module(module), name))
