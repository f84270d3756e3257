"""Commands on our pages are commands: their words are known, and ``docs/operate.md`` needs nothing
that is missing.
"""

from __future__ import annotations

import re
import shlex
from functools import cache

import pytest

from ftstan.base.errors import FtstanError
from ftstan.cli.ctl import PROGRAM as CTL
from ftstan.cli.ctl import in_full
from ftstan.cli.pipeline.command import PROGRAM as PIPELINE
from ftstan.config.flags import parse
from tests.processes import ROOT

DOCS = ROOT / "docs"
OPERATE = DOCS / "operate.md"
#: What is not ours, and is there on hosts that our packages are for.
OTHERS = {
    "apt",
    "curl",
    "export",
    "journalctl",
    "mount",
    "mv",
    "openssl",
    "python3.11",
    "rsync",
    "systemctl",
    "umount",
}
#: What stands for something else, or for more words.
PATTERN = re.compile(r"\.\.\.|\[--|\bN\b")


def blocks_of(text: str) -> list[list[str]]:
    """The lines of each block of commands, prompts taken off."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    shown = [block.splitlines() for language, block in found if language in {"", "sh", "console"}]
    return [
        [line.strip().removeprefix("$ ").removeprefix("# ") for line in block] for block in shown
    ]


@cache
def blocks(page: str) -> list[str]:
    """The lines of a page's blocks."""
    return [line for block in blocks_of((DOCS / page).read_text("utf-8")) for line in block]


def inline(page: str) -> list[str]:
    """What the text of a page shows of our commands, whole ones only: those with an argument or an
    option.
    """
    text = (DOCS / page).read_text("utf-8")
    return [
        found
        for found in re.findall(r"`(ftstan(?:ctl|-pipeline)? [^`\n]+)`", text)
        if not PATTERN.search(found)
    ]


def check(line: str) -> None:
    """Raise ``FtstanError`` for words that the command does not know."""
    program, *words = shlex.split(line, comments=True)
    words = words[
        : next((n for n, word in enumerate(words) if word in {">", "|", "<"}), len(words))
    ]
    if program == "ftstanctl":
        CTL.build_parser().parse_args(in_full(words))
    elif program == "ftstan-pipeline":
        PIPELINE.build_parser().parse_args(words)
    else:
        parse(words)


PAGES = sorted(path.name for path in DOCS.glob("*.md"))
OURS = ("ftstan ", "ftstanctl ", "ftstan-pipeline ")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_word_of_a_command_in_a_block_is_known(page: str) -> None:
    for line in blocks(page):
        if line.startswith(OURS) and not PATTERN.search(line):
            check(line)


@pytest.mark.slow
def test_every_command_in_the_text_about_operating_can_be_typed() -> None:
    shown = inline("operate.md")
    assert len(shown) > 20
    for line in shown:
        check(line)


def test_the_page_about_operating_needs_no_program_that_is_not_there() -> None:
    programs = {line.split()[0] for line in blocks("operate.md") if line}
    ours = {name for name in programs if name.startswith(("ftstan", "/opt/ftstan"))}
    assert programs - ours - {"ansible-playbook"} <= OTHERS


@pytest.mark.parametrize(
    "line", ["ftstanctl ft staus", "ftstanctl store verify --deep x", "ftstan -no_such_flag"]
)
def test_a_command_that_is_none_is_noticed(line: str) -> None:
    with pytest.raises(FtstanError):
        check(line)
