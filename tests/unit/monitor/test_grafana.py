"""The dashboard for Grafana asks for metrics and labels that ``/metrics`` has."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ftstan.bridge.metrics import SERIES as OF_BRIDGES
from ftstan.monitor.metrics import METRICS
from tests.processes import ROOT
from tools import grafana

SHIPPED: dict[str, Any] = json.loads(grafana.FILE.read_text(encoding="utf-8"))
TARGETS = [target for panel in SHIPPED["panels"] for target in panel["targets"]]
#: Names of series: what Prometheus makes of each kind.
SERIES = {
    f"{name}{end}": metric
    for name, metric in METRICS.items()
    for end in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
        metric.kind, ("",)
    )
}


def asked(expression: str) -> set[str]:
    return set(re.findall(r"\bftstan_\w+", expression))


def test_the_file_is_the_one_that_the_tool_makes() -> None:
    assert grafana.FILE.read_text(encoding="utf-8") == grafana.text()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"])
def test_every_query_is_about_series_and_labels_that_there_are(target: dict[str, str]) -> None:
    names = asked(target["expr"])
    assert names
    assert names - set(SERIES) - set(OF_BRIDGES) == set()
    labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - {"instance"}
    known = {label for name in names - set(OF_BRIDGES) for label in SERIES[name].labels}
    assert labels <= known | ({"channel", "stream"} if names & set(OF_BRIDGES) else set())


def test_the_choice_of_members_is_made_of_a_series_that_there_is() -> None:
    (query,) = (v["query"] for v in SHIPPED["templating"]["list"] if v["name"] == "instance")
    assert asked(query) == {"ftstan_server_info"}


def test_a_counter_is_asked_for_by_the_name_that_prometheus_has() -> None:
    assert "ftstan_takeovers" not in SERIES
    assert "ftstan_takeovers_total" in SERIES


def test_what_is_shipped_refers_to_pages_that_are_shipped() -> None:
    from tools.packages import _BESIDE_PAGES, PAGES  # noqa: PLC0415  # it is a program

    shipped = {page.name for page in PAGES}
    text = (ROOT / "packaging/files/usr/share/ftstan/alerts.yml").read_text(encoding="utf-8")
    links = re.findall(r"runbook: (\S+)", text)
    assert links
    for link in links:
        path, _, section = link.partition("#")
        assert path.rpartition("/")[0] == "/usr/share/doc/ftstan"
        page = (ROOT / "docs" / path.rpartition("/")[2]).read_text(encoding="utf-8")
        assert section in {line.lstrip("# ").lower() for line in page.splitlines()}
    for page in PAGES:
        for name in re.findall(r"\]\(([\w-]+\.md)[)#]", page.read_text(encoding="utf-8")):
            assert name in shipped, f"{page.name} -> {name}"
        for name in re.findall(r"\]\(([\w-]+)/", page.read_text(encoding="utf-8")):
            assert name in {*_BESIDE_PAGES, "man"}, f"{page.name} -> {name}/"


def test_a_reload_needs_no_program_of_another_package() -> None:
    for unit in ("ftstan.service", "ftstan@.service"):
        text = (ROOT / "systemd" / unit).read_text(encoding="utf-8")
        # Within a word systemd replaces a variable in braces only.
        assert "\nExecReload=/usr/bin/ftstan -sl reload=${MAINPID}\n" in text
        assert not re.search(r"^Exec\w+=.*\S\$\w", text, re.MULTILINE)


def test_the_roles_pages_are_on_loopback_unless_somebody_says_otherwise() -> None:
    role = ROOT / "ansible/ansible_collections/ftstan/ftstan/roles/ftstan/defaults/main.yml"
    assert "\nftstan_monitor: 127.0.0.1:8222\n" in role.read_text(encoding="utf-8")
