"""The alert rules that the package brings: Prometheus accepts them, each fires when it should and
at no other time.

``promtool`` plays series against the rules. A case changes some series of a calm pair, and names
what must fire then.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client import PROCESS_COLLECTOR

from ftstan.base.states import Phase
from ftstan.bridge.metrics import SERIES
from ftstan.monitor.metrics import METRICS
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path


RULES = ROOT / "packaging" / "files" / "usr" / "share" / "ftstan" / "alerts.yml"
PAGE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
#: Each series has a value a minute, for three hours.
STEPS = 180
#: Series by member, then name with labels: what promtool reads as values.
Series = dict[str, dict[str, str]]


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}


def steady(value: float) -> str:
    return f"{value:g}x{STEPS}"


def rising(step: float, start: float = 0) -> str:
    return f"{start:g}{step:+g}x{STEPS}"


def then(before: float, steps: int, after: float) -> str:
    """``before`` for ``steps`` steps, and ``after`` from then on."""
    return f"{before:g}x{steps - 1} {after:g}x{STEPS - steps}"


def calm() -> Series:
    """A pair that is well: ``a`` serves, ``b`` stands by."""
    pair: Series = {}
    for name, serves in (("a", True), ("b", False)):
        phase = Phase.ACTIVE if serves else Phase.LISTENING
        pair[name] = {
            "up": steady(1),
            f'ftstan_server_info{{cluster_id="c",group="g",server_id="{name}"}}': steady(1),
            'ftstan_build_info{version="1",compatible="0.25.6"}': steady(1),
            "ftstan_serving": steady(serves),
            "ftstan_standing_by": steady(not serves),
            "ftstan_paused": steady(0),
            "ftstan_mixed": steady(0),
            "ftstan_holder_epoch": steady(7),
            "ftstan_start_time_seconds": steady(-1000),
            "ftstan_time_seconds": rising(60),
            "ftstan_probe_age_seconds": steady(0.4),
            f'ftstan_phase{{phase="{phase}"}}': steady(1),
            'ftstan_phase{phase="recovering"}': steady(0),
            'ftstan_nats_connected{connection="ft"}': steady(1),
            'ftstan_nats_reconnects_total{connection="ft"}': steady(0),
            'ftstan_lock_attempts_total{outcome="busy"}': rising(1200),
            'ftstan_lock_attempts_total{outcome="io"}': steady(0),
            "process_open_fds": steady(40),
            "process_max_fds": steady(1024),
            "ftstan_channels": steady(12 if serves else 0),
            "ftstan_max_channels": steady(100),
            "ftstan_failed_commits_total": steady(0),
        }
    pair["b"]["ftstan_warm_lag_seconds"] = steady(2)
    channel = {
        "messages": 1000,
        "bytes": 5e5,
        "lag_messages": 0,
        "subscriptions": 3,
        "stalled_subscriptions": 0,
    }
    limits = {"max_messages": 1000, "max_bytes": 0, "max_subscriptions": 10}
    pair["a"] |= {
        **{
            f'ftstan_channel_{name}{{channel="x"}}': steady(value)
            for name, value in (channel | limits).items()
        },
        **{
            f'ftstan_{of}_seconds_bucket{{le="{le}"}}': rising(60)
            for of in ("probe", "commit")
            for le in BUCKETS
        },
        "ftstan_datastore_free_bytes": steady(5e9),
        "ftstan_datastore_size_bytes": steady(9e9),
        "ftstan_quarantined_channels": steady(0),
        **bridge(),
        "ftstan_redelivered_messages_total": rising(4),
        "ftstan_sent_messages_total": rising(400),
    }
    return pair


def bridge(**values: str) -> dict[str, str]:
    """A bridge that is level, but for these."""
    calm_ones = dict.fromkeys(
        ("lag_messages", "back_waiting_messages", "stopped", "back_stopped"), steady(0)
    )
    return {
        f'ftstan_bridge_{name}{{channel="x",stream="x"}}': series
        for name, series in (calm_ones | values).items()
    }


BUCKETS = ("0.005", "0.25", "1.0", "5.0", "+Inf")


def slow(of: str, below: str) -> dict[str, str]:
    """Buckets of a histogram in which nothing was quicker than the bound before ``below``."""
    first = BUCKETS.index(below)
    return {
        f'ftstan_{of}_seconds_bucket{{le="{le}"}}': rising(60) if i >= first else steady(0)
        for i, le in enumerate(BUCKETS)
    }


def of_channel(**values: str) -> dict[str, str]:
    return {f'ftstan_channel_{name}{{channel="x"}}': series for name, series in values.items()}


def gone(member: str) -> dict[str, str]:
    """A member of which nothing has been heard since minute 25."""
    return {**dict.fromkeys(calm()[member], "1x24 stale"), "up": then(1, 25, 0)}


STOPPED = {
    "ftstan_serving": steady(0),
    "ftstan_standing_by": steady(0),
    'ftstan_phase{phase="active"}': steady(0),
}


@dataclass(frozen=True, slots=True)
class Case:
    """What differs from a calm pair on ``a`` and ``b``, and which alerts fire at the minute ``at``,
    in their order.
    """

    fires: str
    a: dict[str, str] | None = None
    b: dict[str, str] | None = None
    at: int = 60


CASES = {
    "calm": Case("", at=150),
    "both stand by": Case("FtstanNobodyServes", a=STOPPED | {"ftstan_standing_by": steady(1)}),
    "they stand by for a moment": Case("", a={"ftstan_serving": f"1x59 0x0 1x{STEPS}"}),
    "both are gone": Case("FtstanDown FtstanNobodyServes", a=gone("a"), b=gone("b")),
    "two serve": Case(
        "FtstanNoStandby FtstanTwoServe",
        b={"ftstan_serving": steady(1), "ftstan_standing_by": steady(0)},
    ),
    "two seem to serve in one scrape": Case("", b={"ftstan_serving": f"0x59 1x0 0x{STEPS}"}),
    "no standby": Case("FtstanDown FtstanNoStandby", b=gone("b")),
    "no standby for a minute": Case("", b={"ftstan_standing_by": f"1x58 0x1 1x{STEPS}"}),
    "it has another store": Case("FtstanMemberNotReady FtstanNoStandby", b=STOPPED),
    "it recovers": Case(
        "FtstanNobodyServes FtstanRecoveryTakesLong",
        a=STOPPED | {'ftstan_phase{phase="recovering"}': steady(1)},
    ),
    "it recovered in a minute": Case(
        "", a={'ftstan_phase{phase="recovering"}': f"0x58 1x1 0x{STEPS}"}
    ),
    "a takeover": Case("FtstanTakeover", b={"ftstan_holder_epoch": then(7, 55, 8)}),
    "a takeover an hour ago": Case("", b={"ftstan_holder_epoch": then(7, 55, 8)}, at=120),
    "a member that does not know the epoch yet": Case(
        "", b={"ftstan_holder_epoch": then(0, 55, 7)}
    ),
    "takeovers": Case(
        "FtstanFlapping FtstanTakeover",
        b={"ftstan_holder_epoch": f"7x20 8x10 9x10 10x8 11x{STEPS}"},
    ),
    "restarts": Case(
        "FtstanRestarting", b={"ftstan_start_time_seconds": f"1x34 2100x9 2700x9 3300x{STEPS}"}
    ),
    "two restarts": Case("", b={"ftstan_start_time_seconds": f"1x34 2100x9 2700x{STEPS}"}),
    "paused": Case(
        "FtstanNoStandby FtstanPaused",
        b={"ftstan_paused": steady(1), "ftstan_standing_by": steady(0)},
        at=65,
    ),
    "paused for ten minutes": Case("", b={"ftstan_paused": then(0, 50, 1)}),
    "mixed for three hours": Case("", a={"ftstan_mixed": steady(1)}, at=150),
    "versions": Case(
        "FtstanVersionsDiffer",
        b={
            'ftstan_build_info{version="1",compatible="0.25.6"}': "_",
            'ftstan_build_info{version="2",compatible="0.25.6"}': steady(1),
        },
        at=125,
    ),
    "an upgrade": Case(
        "", b={'ftstan_build_info{version="2",compatible="0.25.6"}': f"_x50 1x{STEPS}"}, at=60
    ),
    "behind": Case("FtstanStandbyBehind", b={"ftstan_warm_lag_seconds": rising(60)}),
    "behind a little": Case("", b={"ftstan_warm_lag_seconds": steady(200)}),
    "the owner's storage hangs": Case(
        "FtstanStorageHangs", a={"ftstan_probe_age_seconds": steady(7)}
    ),
    "a standby's storage hangs": Case(
        "FtstanMemberNotReady FtstanNoStandby FtstanStorageHangs",
        b=STOPPED | {'ftstan_phase{phase="waiting for storage lock"}': steady(1)},
    ),
    "a standby looks seldom": Case("", b={"ftstan_probe_age_seconds": steady(12)}),
    "probes are slow": Case("FtstanStorageSlow", a=slow("probe", "1.0")),
    "commits are slow": Case("FtstanStorageSlow", a=slow("commit", "5.0")),
    "commits take a while": Case("", a=slow("commit", "1.0")),
    "commits fail": Case("FtstanCommitsFail", a={"ftstan_failed_commits_total": then(0, 57, 3)}),
    "commits failed an hour ago": Case(
        "", a={"ftstan_failed_commits_total": then(0, 57, 3)}, at=120
    ),
    "almost full": Case(
        "FtstanDatastoreAlmostFull", a={"ftstan_datastore_free_bytes": steady(8e8)}
    ),
    "full": Case(
        "FtstanDatastoreAlmostFull FtstanDatastoreFull",
        a={"ftstan_datastore_free_bytes": steady(1e8)},
    ),
    "room": Case("", a={"ftstan_datastore_free_bytes": steady(1e9)}),
    "quarantined": Case("FtstanQuarantined", a={"ftstan_quarantined_channels": steady(1)}),
    "lock faults": Case(
        "FtstanLockFaults", b={'ftstan_lock_attempts_total{outcome="io"}': then(0, 55, 1)}
    ),
    "NATS": Case("FtstanNatsLost", a={'ftstan_nats_connected{connection="ft"}': steady(0)}),
    "NATS for a moment": Case(
        "", a={'ftstan_nats_connected{connection="ft"}': f"1x59 0x0 1x{STEPS}"}
    ),
    "NATS again and again": Case(
        "FtstanNatsUnstable", a={'ftstan_nats_reconnects_total{connection="ft"}': then(0, 40, 5)}
    ),
    "NATS came back": Case("", a={'ftstan_nats_reconnects_total{connection="ft"}': then(0, 40, 1)}),
    "clock": Case("FtstanClockSkew", a={"ftstan_time_seconds": rising(60, -20)}),
    "clock, a little": Case("", a={"ftstan_time_seconds": rising(60, 2)}),
    "descriptors": Case("FtstanFewDescriptors", a={"process_open_fds": steady(900)}),
    "many descriptors": Case("", a={"process_open_fds": steady(700)}),
    "channels": Case("FtstanChannelsNearLimit", a={"ftstan_channels": steady(95)}),
    "channels without a limit": Case(
        "", a={"ftstan_channels": steady(95), "ftstan_max_channels": steady(0)}
    ),
    "subscriptions": Case("FtstanSubscriptionsNearLimit", a=of_channel(subscriptions=steady(10))),
    "subscriptions without a limit": Case(
        "", a=of_channel(subscriptions=steady(10), max_subscriptions=steady(0))
    ),
    "a reader loses messages by number": Case(
        "FtstanReaderLosesMessages", a=of_channel(lag_messages=steady(960))
    ),
    "a reader loses messages by bytes": Case(
        "FtstanReaderLosesMessages",
        a=of_channel(lag_messages=steady(960), max_messages=steady(0), max_bytes=steady(5e5)),
    ),
    "a reader of everything in a channel with room": Case(
        "", a=of_channel(lag_messages=steady(1000), max_messages=steady(2000))
    ),
    "a reader stalls": Case(
        "FtstanReaderStalled", a=of_channel(stalled_subscriptions=steady(1), lag_messages=steady(5))
    ),
    "a reader takes one at a time": Case(
        "", a=of_channel(stalled_subscriptions=steady(1), lag_messages=rising(-4, 800))
    ),
    "a lag grows": Case(
        "FtstanLagGrows", a=of_channel(lag_messages=rising(40), messages=rising(4e3))
    ),
    "a lag shrinks": Case("", a=of_channel(lag_messages=rising(-40, 8000), messages=rising(4e3))),
    "redeliveries": Case(
        "FtstanRedeliveries", a={"ftstan_redelivered_messages_total": rising(120)}
    ),
    "a stream is behind": Case("FtstanBridgeBehind", a=bridge(lag_messages=steady(2000)), at=60),
    "new messages wait": Case(
        "FtstanBridgeBehind", a=bridge(back_waiting_messages=steady(2000)), at=60
    ),
    "a stream is behind for a moment": Case("", a=bridge(lag_messages=f"0x55 2000x3 0x{STEPS}")),
    "a bridge has stopped": Case("FtstanBridgeStopped", a=bridge(stopped=steady(1))),
    "a way back has stopped": Case("FtstanBridgeStopped", a=bridge(back_stopped=steady(1))),
    "a redelivery": Case("", a={"ftstan_redelivered_messages_total": rising(40)}),
}


def written(case: Case, name: str) -> dict[str, Any]:
    """A test of promtool."""
    pair = calm()
    series = [
        {"series": _labelled(metric, member), "values": values}
        for member, changed in (("a", case.a), ("b", case.b))
        for metric, values in (pair[member] | (changed or {})).items()
    ]
    samples = [
        {
            "labels": f'{{alertname="{alert}"}}',
            "value": 2 if alert == "FtstanDown" and case.a else 1,
        }
        for alert in case.fires.split()
    ]
    question = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "name": name,
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {"expr": question, "eval_time": f"{case.at}m", "exp_samples": samples}
        ],
    }


def _labelled(metric: str, member: str) -> str:
    name, _, labels = metric.partition("{")
    return f'{name}{{job="stan",instance="{member}",{labels or "}"}'


def play(directory: Path, *tests: dict[str, Any]) -> tuple[int, str]:
    """What promtool says of tests; JSON is YAML."""
    file = directory / "tests.yml"
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    return promtool("test", "rules", str(file))


def promtool(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        ["promtool", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        # A quarter of its time is Go's collector otherwise.
        env=os.environ | {"GOGC": "400"},
    )
    return done.returncode, done.stdout + done.stderr


def test_prometheus_accepts_the_rules() -> None:
    status, said = promtool("check", "rules", str(RULES))
    assert (status, f"{len(rules())} rules found" in said) == (0, True), said


@pytest.mark.timeout(600)
def test_each_alert_fires_when_it_should_and_no_other_does(tmp_path: Path) -> None:
    status, said = play(tmp_path, *(written(case, name) for name, case in CASES.items()))
    assert status == 0, said


def test_a_group_that_stays_mixed_is_told_after_a_day(tmp_path: Path) -> None:
    pair = calm()
    series = [
        {"series": _labelled(metric, "a"), "values": "1x400"}
        for metric in pair["a"]
        if metric.startswith(("ftstan_mixed", "ftstan_server_info", "ftstan_serving"))
    ]
    firing = 'count by (alertname) (ALERTS{alertname="FtstanMixedGroup", alertstate="firing"})'
    asked = [
        {"expr": firing, "eval_time": "23h", "exp_samples": []},
        {
            "expr": firing,
            "eval_time": "25h",
            "exp_samples": [{"labels": '{alertname="FtstanMixedGroup"}', "value": 1}],
        },
    ]
    status, said = play(
        tmp_path,
        {"name": "a day", "interval": "5m", "input_series": series, "promql_expr_test": asked},
    )
    assert status == 0, said


def test_a_case_that_expects_the_wrong_alert_is_noticed(tmp_path: Path) -> None:
    assert play(tmp_path, written(Case("FtstanDown"), "wrong"))[0] == 1
    assert play(tmp_path, written(Case("", a=STOPPED), "wrong"))[0] == 1


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert {alert for case in CASES.values() for alert in case.fires.split()} | {
        "FtstanMixedGroup"
    } == set(ALERTS)


def test_what_an_alert_says_is_filled_in(tmp_path: Path) -> None:
    case = CASES["almost full"]
    labels = {"instance": "a", "job": "stan", "severity": "warning"}
    summary = "8.889% of the file system"
    test = written(case, "text")
    annotations = ALERTS["FtstanDatastoreAlmostFull"]["annotations"] | {
        "summary": f"{summary} of the datastore are free"
    }
    test["alert_rule_test"] = [
        {
            "alertname": "FtstanDatastoreAlmostFull",
            "eval_time": "60m",
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}],
        }
    ]
    status, said = play(tmp_path, test)
    assert status == 0, said


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_every_alert_has_its_section_in_the_page_for_operators(alert: str) -> None:
    found = re.search(rf"^### {alert}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    for part in ("**Means**", "**Look**", "**Do**"):
        assert part in found[1], part
    rule = ALERTS[alert]
    assert rule["annotations"]["runbook"] == f"/usr/share/doc/ftstan/operate.md#{alert.lower()}"
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert f"**Means** ({rule['labels']['severity']}):" in found[1]


def test_the_page_for_operators_has_no_section_about_an_alert_that_is_gone() -> None:
    assert set(re.findall(r"^### (Ftstan\w+)$", PAGE, re.MULTILINE)) == set(ALERTS)


def used() -> set[str]:
    """The metrics that the rules read."""
    text = "\n".join(rule["expr"] for rule in rules())
    return set(re.findall(r"\b((?:ftstan|process)_\w+)", text)) - {"process"}


@cache
def phases() -> set[str]:
    return set(re.findall(r'phase="([^"]+)"', RULES.read_text(encoding="utf-8")))


def test_every_phase_of_the_rules_is_one() -> None:
    assert phases()
    assert phases() <= {str(phase) for phase in Phase}


def test_every_metric_of_the_rules_is_one_of_the_list() -> None:
    listed = {f"{m.name}_total" if m.kind == "counter" else m.name for m in METRICS.values()}
    process = {sample.name for family in PROCESS_COLLECTOR.collect() for sample in family.samples}
    known = listed | process | set(SERIES)
    assert {name.removesuffix("_bucket") for name in used()} - known == set()
