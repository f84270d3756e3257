"""The words that shells complete are those of the parsers."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from ftstan.cli.completion import SHELLS
from ftstan.cli.ctl import COMMANDS, main
from ftstan.cli.program import EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from pathlib import Path


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == EXIT_OK
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_the_script(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell, capsys)
    assert [name for name in COMMANDS if name not in text] == []
    option = "-l max-in-flight" if shell == "fish" else "--max-in-flight"
    assert option in text
    assert "switchover" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ftstanctl ", {*COMMANDS, "--help", "--version"}),
        ("ftstanctl st", {"store"}),
        ("ftstanctl ft s", {"status", "switchover"}),
        ("ftstanctl ft switchover --ti", {"--timeout"}),
        ("ftstanctl sub --first orders --dur", {"--durable"}),
        ("ftstanctl nothing ", {*COMMANDS, "--help", "--version"}),
    ],
)
def test_bash_offers_what_can_stand_there(
    line: str, words: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    file = tmp_path / "completion"
    file.write_text(script("bash", capsys))
    typed = line.split(" ")
    asked = (
        f"source {file}; COMP_WORDS=({' '.join(typed[:-1])} '{typed[-1]}'); "
        f"COMP_CWORD={len(typed) - 1}; "
        'COMPREPLY=(); _ftstanctl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run([bash, "-c", asked], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == words
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("ftstanctl pub ", "channel"),
        ("ftstanctl ft status --context ", "context"),
        ("ftstanctl ft switchover --to ", "server"),
        ("ftstanctl channel purge ", "channel"),
    ],
)
def test_bash_offers_the_names_that_there_are_and_expands_none(
    line: str, asked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "completion"
    file.write_text(script("bash", capsys))
    typed = line.split(" ")
    names = "orders\\n\\$(touch hurt)\\n"
    command = (
        f"cd {tmp_path}; source {file}; "
        f'ftstanctl() {{ [ "$1 $2 $3 $4" = "{asked} ls --output names" ] && printf "{names}"; }}; '
        f"COMP_WORDS=({' '.join(typed[:-1])} ''); COMP_CWORD={len(typed) - 1}; "
        'COMPREPLY=(); _ftstanctl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "orders" in done.stdout.split()
    assert not (tmp_path / "hurt").exists()
    assert done.stderr == ""


def test_a_shell_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == EXIT_USAGE
    assert "bash" in capsys.readouterr().err
