"""Pages that are made from the table of options are those that it makes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ftstan.config.table import CONFIGURED, FLAGS, OPTIONS
from tools.gen_docs import pages

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", sorted(pages()))
def test_a_generated_page_is_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text("utf-8") == pages()[path], "run: python -m tools.gen_docs"


def test_the_reference_names_every_key_and_every_flag() -> None:
    page = pages()["docs/configuration.md"]
    assert [name for option in CONFIGURED for name in option.names if f"`{name}`" not in page] == []
    assert [name for flag in FLAGS for name in flag.flags if f"`-{name}`" not in page] == []


def test_every_option_is_described() -> None:
    assert [option.key for option in OPTIONS if bool(option.help) is bool(option.note)] == []


@pytest.mark.parametrize("path", sorted(p for p in pages() if "/man/" in p and p[-1] != "5"))
def test_a_manual_page_of_a_command_has_two_examples_at_least(path: str) -> None:
    program = Path(path).stem.replace("-", "\\-")
    blocks = re.findall(r"^\.nf\n(.*?)^\.fi$", pages()[path], re.MULTILINE | re.DOTALL)
    shown = [line for block in blocks for line in block.splitlines()]
    assert len(shown) >= 2
    assert [line for line in shown if program not in line] == []


@pytest.mark.parametrize("path", sorted(path for path in pages() if "/man/" in path))
def test_a_manual_page_is_typeset_without_complaint(path: str) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.fail("groff was not found in PATH: install the package groff-base", pytrace=False)
    words = [groff, "-man", "-Tutf8", "-ww", "-z", str(ROOT / path)]
    # The sanitizer's runtime, preloaded for our extensions, finds leaks in it.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert done.stderr == ""
