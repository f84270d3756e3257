"""Our own pages: all are reached from the README, no link is broken, and what they show can be
run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.processes import READY, ROOT
from tests.reference.moved import MONITOR
from tests.reference.test_reference_v10 import four_servers, use_four_servers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.certificates import Certificates
    from tests.reference.moved import Moved

INDEX = (
    "admin",
    "configuration",
    "limits",
    "logging",
    "monitoring",
    "security",
    "partitioning",
    "client",
    "ftstanctl",
)


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def links(path: Path) -> list[tuple[Path, str]]:
    """Where a page's relative links lead: file and anchor."""
    prose = re.sub(r"^```.*?^```", "", text(path), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]*))?\)", prose)
    return [
        ((path.parent / target).resolve() if target else path, anchor) for target, anchor in targets
    ]


def anchors(path: Path) -> set[str]:
    """The names of a page's sections, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")],
    key=lambda path: path.relative_to(ROOT),
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{target} is not there"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{target.name} has no section {anchor}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached = set()
    rest = [ROOT / "README.md"]
    while rest:
        page = rest.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [target / "README.md" if target.is_dir() else target for target, _ in links(page)]
        rest += [target for target in targets if target.suffix == ".md" and target.is_file()]
    assert [str(page) for page in PAGES if page not in reached] == []


def test_the_readme_and_the_index_name_what_an_operator_looks_for() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "README.md"):
        there = {target for target, _ in links(page)}
        assert {ROOT / "docs" / f"{name}.md" for name in INDEX} <= there
        assert ROOT / "docs" / "examples" in there


def blocks(page: str, language: str = "") -> list[str]:
    found = re.findall(
        r"^```(\w*)\n(.*?)^```$", text(ROOT / "docs" / page), re.MULTILINE | re.DOTALL
    )
    return [block for of, block in found if of == language]


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_four_commands_of_the_page_about_partitioning_are_one_cluster(moved: Moved) -> None:
    (commands,) = [
        block.splitlines() for block in blocks("partitioning.md") if block.startswith("host1$ ")
    ]
    foo, bar = (
        f'partitioning: true, store_limits {{ channels {{ "{name}.>": {{ }} }} }}\n'
        for name in ("foo", "bar")
    )
    use_four_servers(moved, four_servers(moved, foo, bar, commands))


@pytest.mark.processes
def test_the_commands_of_the_page_about_monitoring_show_a_page(moved: Moved) -> None:
    (shown,) = blocks("monitoring.md", "console")
    start, ask = (line.removeprefix("$ ") for line in shown.splitlines())
    moved.path("/srv").mkdir()
    server = moved.start(start.replace("/srv", str(moved.path("/srv"))), add=moved.here()[:4])
    server.wait_for(READY)
    program, url = moved.text(ask).split()
    assert program == "curl"
    assert f":{moved.port(MONITOR)}/streaming/serverz" in url
    assert server.serverz()["state"] == "STANDALONE"


@pytest.mark.processes
def test_the_tls_maps_of_the_page_about_security_are_valid(
    moved: Moved, certificates: Certificates
) -> None:
    (shown,) = [block for block in blocks("security.md") if block.startswith("tls {")]
    for name, source in (
        ("server.pem", certificates.server.cert),
        ("server.key", certificates.server.key),
        ("client.pem", certificates.client.cert),
        ("client.key", certificates.client.key),
        ("ca.pem", certificates.ca.cert),
    ):
        shutil.copy(source, moved.path(name))
    moved.file("server.conf", shown)
    done = moved.run("ftstan -c server.conf -check_config -strict")
    assert (done.status, done.lines[-1]) == (0, "The configuration is valid."), done.text


@pytest.mark.processes
@pytest.mark.parametrize("page", ["configuration.md", "partitioning.md", "limits.md"])
def test_a_configuration_on_a_page_has_no_error_and_no_key_that_nobody_knows(
    moved: Moved, page: str
) -> None:
    shown = [
        block for block in blocks(page) if re.match(r"listen:|partitioning:|store_limits", block)
    ]
    assert shown
    # What every host has: a strict check wants the directory above the datastore.
    moved.path("/var/lib").mkdir(parents=True, exist_ok=True)
    for block in shown:
        moved.file("server.conf", block)
        done = moved.run("ftstan -c server.conf -check_config -strict")
        assert (done.status, done.lines[-1]) == (0, "The configuration is valid."), done.text


def commands() -> list[str]:
    """The verbs of ``ftstanctl`` that pages show."""
    shown = re.findall(
        r"^\$ (?:.* \| )?ftstanctl ([a-z-]+(?: [a-z]+)?)", "\n".join(map(text, PAGES)), re.MULTILINE
    )
    grouped = {"ft", "store", "context"}
    return sorted({verb if verb.split()[0] in grouped else verb.split()[0] for verb in shown})


@pytest.mark.parametrize("verb", commands())
def test_a_command_that_a_page_shows_is_one(verb: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ftstan.cli.ctl", *verb.split(), "--help"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert f"ftstanctl {verb}" in done.stdout
