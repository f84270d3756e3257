"""What a drill leaves for people and programs: page, JUnit, JSON, words of the command.

Commands for remote nodes.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from ftstan.cli import drill as drill_command
from ftstan.cli.ctl import main
from ftstan.client import NatsLogin
from ftstan.drill import commands, ledger, setting
from ftstan.drill.database import LocalDatabaseGroup
from ftstan.drill.errors import DrillError
from ftstan.drill.judge import judge
from ftstan.drill.ledger import Ack, Fault, Read, Record
from ftstan.drill.page import Timeline, page
from ftstan.drill.remote import RemoteGroup
from ftstan.drill.report import as_dict, junit
from ftstan.drill.result import Result
from ftstan.drill.rules import Rule
from ftstan.drill.scenario import Step, in_database, read
from ftstan.drill.selftest import clean_ledger
from ftstan.drill.setting import NodeFacts, Setting
from ftstan.drill.workload import Access
from ftstan.stores.sql.source import parse

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]
NASTY = "<script>alert(1)</script>"


def result(records: list[Record], *failures: str, name: str = "kill") -> Result:
    return Result(name, "text", 0, 5_000_000, judge(records), failures)


def lossy() -> list[Record]:
    return [x for x in clean_ledger() if not (isinstance(x, Read) and x.sequence == 40)]


class Tags(HTMLParser):
    """Which tags a page opens, and whether each is closed."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_needs_nothing_else_and_shows_faults_owners_and_the_verdict() -> None:
    made = page(result(clean_ledger()), Timeline.of(clean_ledger()))
    tags = Tags()
    tags.feed(made)
    assert tags.open == []
    assert {"svg", "rect", "table"} <= set(tags.seen)
    assert not {"script", "link", "img"} & set(tags.seen)
    assert "://" not in made
    assert '<span class="passed">passed</span>' in made
    assert "kill a" in made
    assert made.count('class="owner"') == 2


def test_a_page_names_what_was_broken_and_escapes_what_is_not_ours() -> None:
    records = [*lossy(), Fault(1_700_000_050_000_000, 2, NASTY, NASTY)]
    made = page(result(records, f"no takeover {NASTY}", name=NASTY), Timeline.of(records))
    assert "<script>" not in made
    assert Rule.STORED.value in made
    assert '<span class="failed">failed</span>' in made


SETTING = Setting(
    "laptop",
    "0.1.0",
    "remote",
    "200 messages a second",
    (NodeFacts("a", "host-a", "0.1.0", "http://a:8222"), NodeFacts("b", "", "0.25.6", "")),
)


def test_a_page_says_when_where_and_with_what_it_was_played() -> None:
    made = page(replace(result(clean_ledger()), setting=SETTING), Timeline.of(clean_ledger()))
    assert "1970-01-01 00:00:00 to 1970-01-01 00:00:05 UTC" in made
    for fact in (
        "200 messages a second",
        "played from laptop with ftstan 0.1.0",
        "host-a",
        "0.25.6",
    ):
        assert fact in made
    assert "not written down" in page(result(clean_ledger()), Timeline.of([]))


def test_what_was_published_and_not_acked_is_explained_where_there_is_some() -> None:
    assert not result(clean_ledger()).unacked
    records = [x for x in clean_ledger() if not (isinstance(x, Ack) and x.id == "7.1")]
    told = result(records).unacked
    assert told.startswith("1 of 40 publishes got no ack")
    assert "1 of them is stored all the same" in told
    assert "That is no loss" in told
    assert told in page(result(records), Timeline.of(records))


def test_a_page_has_no_percentile_of_one_fault_and_the_time_of_each() -> None:
    made = page(result(clean_ledger()), Timeline.of(clean_ledger()))
    (row,) = json.loads(json.dumps(as_dict(result(clean_ledger()))))["unavailability_ms"]
    assert (row["count"], row["median"], row["p99"]) == (1, None, None)
    assert made.count("ms without acks</title>") == 1


def test_every_report_tells_what_came_before_during_and_after_a_fault(capsys: Capture) -> None:
    records = clean_ledger()
    (outage,) = json.loads(json.dumps(as_dict(result(records))))["outages"]
    assert outage["acked"] == {"before": 20, "during": 0, "after": 20}
    assert outage["published"] == {"before": 20, "during": 1, "after": 19}
    made = page(result(records), Timeline.of(records))
    for head in ("before", "during", "after"):
        assert f">{head}</th>" in made
    cells = [f'<td class="n">{cell}</td>' for cell in ("20 / 20", "0 / 1", "20 / 19")]
    assert "\n".join(cells) in made
    drill_command._show(result(records))
    shown = capsys.readouterr().out
    assert re.search(r"ACKS BEFORE +DURING +AFTER +PUBLISHED BEFORE +DURING +AFTER", shown)
    assert re.search(r"kill +a +20,500 +20 +0 +20 +20 +1 +19", shown)


def test_a_setting_is_found_beside_the_ledger_and_what_is_none_is_passed_over(
    tmp_path: Path,
) -> None:
    assert setting.read(str(tmp_path)) is None
    setting.write(SETTING, str(tmp_path))
    assert setting.read(str(tmp_path)) == SETTING
    for text in ("[]", "{", '{"nodes": [{"name": 1}]}', '{"nodes": []}'):
        (tmp_path / setting.FILE).write_text(text)
        assert setting.read(str(tmp_path)) is None


def test_an_empty_ledger_has_a_page_too() -> None:
    assert "Nothing happened." in page(result([]), Timeline.of([]))


def test_junit_has_a_case_for_the_promise_each_fault_and_each_failure() -> None:
    clean = ET.fromstring(junit(result(clean_ledger())))  # ours
    assert (clean.get("tests"), clean.get("failures")) == ("2", "0")
    spoiled = ET.fromstring(junit(result(lossy(), "no takeover")))  # ours
    assert (spoiled.get("tests"), spoiled.get("failures")) == ("3", "2")
    messages = [failure.get("message", "") for failure in spoiled.iter("failure")]
    assert any(Rule.STORED.value in message for message in messages)
    assert "no takeover" in messages


def test_json_says_what_happened_and_whether_it_passed() -> None:
    made = json.loads(json.dumps(as_dict(result(lossy()))))
    assert not made["passed"]
    assert {breach["rule"] for breach in made["breaches"]} == {"stored", "kept"}
    assert made["takeovers"][0] | {"active_ms": 0, "ack_ms": 0} == {
        "epoch": 2,
        "fault": "kill",
        "former": "a",
        "node": "b",
        "active_ms": 0,
        "ack_ms": 0,
    }
    assert made["unavailability_ms"][0]["fault"] == "kill"


def write_ledger(place: Path, records: list[Record]) -> None:
    place.mkdir()
    writer = ledger.Writer(str(place / "x.jsonl"))
    for record in records:
        writer.write(record)
    writer.close()


def test_a_ledger_can_be_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ledger(tmp_path / "clean", clean_ledger())
    write_ledger(tmp_path / "lossy", lossy())
    files = ["--html", str(tmp_path / "p.html"), "--junit", str(tmp_path / "j.xml")]
    assert main(["drill", "--judge", str(tmp_path / "clean"), *files]) == 0
    assert "clean: PASSED" in capsys.readouterr().out
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    assert ET.parse(tmp_path / "j.xml").getroot().get("failures") == "0"  # ours
    assert main(["drill", "--judge", str(tmp_path / "lossy"), "--output", "json"]) == 1
    assert not json.loads(capsys.readouterr().out)["passed"]
    assert main(["drill", "--judge", str(tmp_path / "none")]) == 64


def test_the_self_test_passes_and_names_everything_that_it_put_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["drill", "--self-test", "--output", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["passed"]
    wanted = {"nothing", "a lost ack", "a duplicate", "a gap", "a double owner"}
    assert wanted <= {trial["injected"] for trial in said["trials"]}


def test_the_self_test_fails_with_a_judge_that_sees_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blind = replace(judge(clean_ledger()), breaches=())
    monkeypatch.setattr("ftstan.drill.selftest.judge", lambda _: blind)
    assert main(["drill", "--self-test"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_drills_are_listed_shown_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drill", "--list", "--output", "json"]) == 0
    names = [drill["name"] for drill in json.loads(capsys.readouterr().out)["drills"]]
    assert "kill" in names
    assert main(["drill", "--show", "production"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    assert main(["drill", str(tmp_path / "mine.yaml"), "--check", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "mine", "faults": 2, "repeat": 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which drill?"),
        (["missing"], "missing: No such file"),
        (["--list", "--self-test"], "not allowed with"),
        (["kill", "--repeat", "0"], "invalid number value"),
        (["kill", "--sql-source-file", "x"], "--sql-source-file needs --sql-driver"),
        (["kill", "--sql-driver", "oracle"], "invalid choice: 'oracle'"),
        (["kill", "--sql-driver", "mysql"], "which database?"),
        (["kill", "--sql-driver", "mysql", "--sql-source-file", "none"], "none cannot be read"),
        (["kill-sessions"], '"kill-sessions" is done to a database'),
        (["kill-sessions", "--check"], '"kill-sessions" is done to a database'),
        (["fill-disk", "--sql-driver", "mysql"], '"fill-disk" is done to a directory'),
        (["fill-disk", "--sql-driver", "mysql", "--check"], '"fill-disk" is done to a directory'),
    ],
)
def test_wrong_words_are_one_line_and_start_nothing(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSTAN_SQL_SOURCE", raising=False)
    assert main(["drill", *words]) == 64
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_a_scenario_for_databases_is_checked_without_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["drill", "database", "--sql-driver", "postgres", "--check", "--output", "json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "database"


# ---- a group in a database
# --------------------------------------------------------------------------------------------------


def test_the_source_of_a_database_is_in_the_environment_of_nodes_alone(tmp_path: Path) -> None:
    text = "postgres://nss:pw-s3cret@127.0.0.1:1/drills?sslmode=disable"
    (tmp_path / "logs").mkdir()
    scenario = in_database(read("faults: [partition]\n", "s.yaml"), "postgres")
    source = parse("postgres", text, {})
    group = LocalDatabaseGroup(scenario, str(tmp_path), source, text)
    programs = configparser.RawConfigParser()
    programs.read_string(group._configuration())
    assert group._environment()["FTSTAN_SQL_SOURCE"] == text
    assert "pw-s3cret" not in "".join(
        value for section in programs.sections() for value in programs[section].values()
    )
    assert "pw-s3cret" not in repr(group.access)
    for name in ("a", "b"):
        node = programs[f"program:{name}"]
        assert '"-store" "sql" "-sql_driver" "postgres" "-admin_key"' in node["command"]
        assert "-dir" not in node["command"]
        assert "environment" not in node
    for name in ("nats", "proxy-a", "proxy-b"):
        assert programs[f"program:{name}"]["environment"] == 'FTSTAN_SQL_SOURCE=""'
    assert group.access.key_words == ("--admin-key", str(tmp_path / "store" / "admin.key"))


# ---- remote nodes
# --------------------------------------------------------------------------------------------------

REMOTE = """\
driver: remote
cluster: c
group: g
servers: [nats://a:4222]
nodes:
  - {{name: a, monitor: "http://127.0.0.1:9", rack: left}}
  - {{name: b, monitor: "http://127.0.0.1:9", rack: right}}
commands:
  pause: echo pause {{name}} {{rack}} {{seconds}} >> {place}
  resume: echo resume {{name}} >> {place}
  kill: echo no such host; exit 3
  stop: echo {{shelf}}
  start: "true"
faults: [pause, kill, stop]
"""


def remote(tmp_path: Path) -> tuple[RemoteGroup, dict[str, Step]]:
    scenario = read(
        REMOTE.replace("{{", "{").replace("}}", "}").replace("{place}", str(tmp_path / "done")),
        "s.yaml",
    )
    access = Access(["nats://a:4222"], "c", "g", NatsLogin())
    return RemoteGroup(scenario, access), {step.kind: step for step in scenario.steps}


def test_commands_know_their_node_and_what_was_begun_is_ended(tmp_path: Path) -> None:
    group, steps = remote(tmp_path)

    async def broken_off() -> None:
        await group.begin(steps["pause"], "a")
        await group.begin(steps["pause"], "b")
        await group.finish(steps["pause"], "b")
        await group.end()

    asyncio.run(broken_off())
    assert (tmp_path / "done").read_text().splitlines() == [
        "pause a left 3",
        "pause b right 3",
        "resume b",
        "resume a",
    ]


def test_a_command_that_fails_or_names_what_nobody_has_ends_the_drill(tmp_path: Path) -> None:
    group, steps = remote(tmp_path)
    with pytest.raises(DrillError, match="kill of a ended with status 3: no such host"):
        asyncio.run(group.begin(steps["kill"], "a"))
    with pytest.raises(DrillError, match="'shelf' is no variable of it"):
        asyncio.run(group.begin(steps["stop"], "a"))


def test_a_drill_does_not_begin_with_a_node_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(DrillError, match="no answer from the monitoring pages of a, b"):
        asyncio.run(remote(tmp_path)[0].prepare())


def test_a_command_that_is_not_there_is_told_without_its_words() -> None:
    with pytest.raises(DrillError, match="thing: /none: No such file") as caught:
        asyncio.run(commands.run(["/none", "secret"], "thing"))
    assert "secret" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(("status", "asked"), [(0, 1), (1, 6), (2, 1), (3, 1)])
def test_a_switchover_is_asked_for_again_only_where_it_was_refused(
    status: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody served in time the service has moved all the same: the next one would move it
    back.
    """
    said: list[tuple[str, ...]] = []

    async def ask(_access: Access, *words: str, within_s: float) -> str:
        said.append(words)
        if status:
            raise commands.CommandError("no", status)
        return ""

    monkeypatch.setattr(commands, "ftstanctl", ask)
    monkeypatch.setattr(commands, "_AGAIN_S", 0.0)
    access = Access(["nats://a:4222"], "c", "g", NatsLogin())
    with contextlib.suppress(commands.CommandError):
        asyncio.run(commands.switchover(access, 90.0))
    assert said == [("ft", "switchover", "--wait", "90")] * asked
