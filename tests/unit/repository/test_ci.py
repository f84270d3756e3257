"""What CI runs, what the targets of the Makefile set up by themselves, and how the extensions are
built.

The script is run with stand-ins for its commands, ``make`` says what it would run, and
``setup.py`` is run with stand-ins for the build; nothing is installed, built or removed.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest

#: The checkout, also for the copy of the tests that runs in the debug tree inside it.
ROOT = next(parent for parent in Path(__file__).parents if (parent / ".ci" / "run").is_file())
CALLS = [
    "system_packages.sh",
    "make -j 3 --output-sync=line prepared",
    "make test",
    "make test-systems",
]
#: Side by side, and then those.
BOTH = ["make fuzz FUZZ_SECONDS=60", "make test-recorded"]
SANITIZED = (
    "make test-sanitized WORKERS=2 DEBUG_SERVERS= DEBUG_COMPAT= "
    "DEBUG_PLACES=tests/fuzz tests/unit/wire"
)
LAST = [SANITIZED, "make test-hosts", "make retried"]


class Extension(Protocol):
    """What is looked at in an extension module's declaration."""

    extra_compile_args: list[str]
    extra_link_args: list[str]


def ci_with_stand_ins(
    directory: Path, failing: str = "", seconds: int = 0
) -> tuple[int, list[str]]:
    """The exit status of ``.ci/run`` and the commands it called, when the one named ``failing``
    fails. ``seconds``: what has passed already.
    """
    directory.mkdir()
    for name in (".ci", "tools", "bin"):
        (directory / name).mkdir()
    shutil.copy(ROOT / ".ci" / "run", directory / ".ci" / "run")
    note = '#!/bin/sh\necho "{called}" >> "$CALLED"\ntest "{called}" != "$FAILING"\n'
    for path, called in (
        ("tools/system_packages.sh", "system_packages.sh"),
        ("bin/make", "make $*"),
    ):
        stand_in = directory / path
        stand_in.write_text(note.format(called=called), encoding="utf-8")
        stand_in.chmod(0o755)
    log = directory / "called"
    environment = {
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
        "CALLED": str(log),
        "FAILING": failing,
        "SECONDS": str(seconds),
    }
    ended = subprocess.run([directory / ".ci" / "run"], env=environment, cwd="/", check=False)
    return ended.returncode, log.read_text(encoding="utf-8").splitlines()


def test_ci_installs_lints_and_tests_in_that_order_and_stops_at_the_first_failure(
    tmp_path: Path,
) -> None:
    for count, failing in enumerate(CALLS, 1):
        status, called = ci_with_stand_ins(tmp_path / f"first-{count}", failing)
        assert status != 0
        assert called == CALLS[:count]
    for number, failing in enumerate(BOTH):
        status, called = ci_with_stand_ins(tmp_path / f"both-{number}", failing)
        assert status != 0
        assert called[: len(CALLS)] == CALLS
        assert set(called[len(CALLS) :]) <= set(BOTH)
    for count, failing in enumerate(LAST, 1):
        status, called = ci_with_stand_ins(tmp_path / f"last-{count}", failing)
        assert status != 0
        assert called[len(CALLS) + len(BOTH) :] == LAST[:count]
    status, called = ci_with_stand_ins(tmp_path / "none")
    assert status == 0
    assert called[: len(CALLS)] == CALLS
    assert sorted(called[len(CALLS) : -len(LAST)]) == BOTH
    assert called[-len(LAST) :] == LAST


@pytest.mark.parametrize(
    ("seconds", "left_out"), [(4000, LAST[1:2]), (5000, LAST[:2])], ids=["slow", "slower"]
)
def test_on_a_slow_machine_ci_leaves_out_the_last_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], seconds: int, left_out: list[str]
) -> None:
    status, called = ci_with_stand_ins(tmp_path / "slow", seconds=seconds)
    assert status == 0
    assert sorted(called) == sorted({*CALLS, *BOTH, *LAST} - {*left_out})
    said = capfd.readouterr().out
    for command in left_out:
        assert f"CI LEAVES OUT {' '.join(command.split()[:2])}: " in said
    assert said.count("CI LEAVES OUT") == len(left_out)


def test_what_ci_prepares_has_the_linters_and_every_build_in_it() -> None:
    commands = planned("prepared")
    for part in ("mypy", "ruff check", "FTSTAN_DEBUG_BUILD=1", "FTSTAN_FUZZ_BUILD=1"):
        assert place(commands, part) >= 0


@cache
def planned(target: str) -> list[str]:
    """What ``make`` would run for a target after a change of what the extensions are built from."""
    made = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "--what-if", "setup.py", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
    )
    return made.stdout.replace("\\\n", "").splitlines()


def place(commands: list[str], part: str) -> int:
    """Which of the commands is the first that contains a text."""
    return next(at for at, command in enumerate(commands) if part in command)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "install", "use"),
    [
        ("demo", "pip install -q --disable-pip-version-check -e .", "python -m demo"),
        ("demo-pipeline", "'ftstan[dev]'", "python -m demo.pipeline"),
        ("test", "'ftstan[dev]'", "python -m tests.suite"),
        ("lint", "'ftstan[dev]'", "ruff check ."),
        ("bench", "'ftstan[dev]'", "python -m benchmarks"),
        ("test-debug", "FTSTAN_DEBUG_BUILD=1", "python -m tests.suite"),
        ("fuzz", "FTSTAN_FUZZ_BUILD=1 CC=clang", "python -m tests.fuzz.engine"),
    ],
)
def test_a_target_first_makes_its_environment_anew_when_its_sources_have_changed(
    target: str, install: str, use: str
) -> None:
    commands = planned(target)
    assert place(commands, install) < place(commands, use)


def test_the_demo_installs_only_what_the_package_needs() -> None:
    assert [command for command in planned("demo") if "[dev]" in command] == []


def test_clean_installs_nothing() -> None:
    assert [command for command in planned("clean") if "pip" in command] == []


def test_the_debug_run_fuzzes_every_parser_for_a_minute() -> None:
    assert any("tests.fuzz.engine 60" in command for command in planned("test-debug"))


def test_the_debug_run_leaves_out_what_is_pure_python() -> None:
    run = next(command for command in planned("test-debug") if "--ignore" in command)
    assert "--ignore tests/unit/broker/test_timers.py" in run
    assert "test_codec.py" not in run


def built(
    monkeypatch: pytest.MonkeyPatch, debug: str, fuzz: str = ""
) -> tuple[list[Extension], dict[str, Any]]:
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


def test_the_debug_build_checks_what_cython_and_the_c_compiler_can_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extensions, directives = built(monkeypatch, debug="1")
    assert directives["boundscheck"]
    assert directives["initializedcheck"]
    assert extensions
    for extension in extensions:
        assert "-fsanitize=address,bounds" in extension.extra_compile_args
        assert "-fsanitize=address,bounds" in extension.extra_link_args


def test_the_fuzz_build_is_counted_and_checked_and_brings_no_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extensions, directives = built(monkeypatch, debug="", fuzz="1")
    assert directives["boundscheck"]
    for extension in extensions:
        assert "-fsanitize=address,undefined,fuzzer-no-link" in extension.extra_compile_args
        assert extension.extra_link_args == []


def test_an_ordinary_build_is_optimised_and_checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    extensions, directives = built(monkeypatch, debug="")
    assert not directives["boundscheck"]
    for extension in extensions:
        assert "-O3" in extension.extra_compile_args
        assert not any("sanitize" in flag for flag in extension.extra_compile_args)
        assert extension.extra_link_args == []


def test_every_console_script_can_be_imported() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ]
    assert set(scripts) == {
        "ftstan",
        "ftstan-archive-slice",
        "ftstan-bridge",
        "ftstan-pipeline",
        "ftstanctl",
        "nats-streaming-server",
    }
    assert scripts["nats-streaming-server"] == scripts["ftstan"]
    for place in scripts.values():
        module, name = place.split(":")
        assert callable(getattr(import_module(module), name))
