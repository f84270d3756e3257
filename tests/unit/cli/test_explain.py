"""``ftstanctl explain``: what to do about a code."""

from __future__ import annotations

import json

import pytest

from ftstan.base.codes.table import CODES
from ftstan.base.errors import FtstanError
from ftstan.cli.ctl import main
from ftstan.cli.terminal import complain

SUPERSEDED = "ft: epoch 7 was superseded by epoch 8 of server b"


@pytest.mark.parametrize("words", ["FTS-2104", "2104", f"[1] [FTL] {SUPERSEDED} [FTS-2104]"])
def test_a_code_is_explained(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", words]) == 0
    out = capfd.readouterr().out
    assert out.startswith("FTS-2104  ")
    assert "compare their mounts" in out
    assert "docs/operate.md#when-a-node-is-fenced-again-and-again" in out


def test_a_text_is_explained_by_its_beginning(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", SUPERSEDED]) == 0
    assert capfd.readouterr().out.startswith("FTS-2104  ")


def test_json_has_all_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "FTS-2104", "--output", "json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["code"] == "FTS-2104"
    assert set(shown) == {"code", "section", "line", "do", "page"}


@pytest.mark.parametrize("words", ["FTS-9999", "hello", "Reload: x"])
def test_what_has_no_code_is_one_line_and_a_hint(
    words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", words]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    said, hint = err.splitlines()
    assert said.startswith(f"nothing is known of {words}")
    assert hint.startswith("hint: ")


def test_every_code_can_be_explained(capfd: pytest.CaptureFixture[str]) -> None:
    for code in CODES:
        assert main(["explain", code.name]) == 0
    out = capfd.readouterr().out
    assert "`" not in out
    assert "None" not in out


def test_what_a_command_complains_of_has_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert complain(FtstanError("there is no admin.key: it was removed"), 3) == 3
    assert capfd.readouterr().err == "there is no admin.key: it was removed [FTS-6005]\n"
