"""What operators see of a real group, and plan for it: names, status from storage, causes, pauses,
keys.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.admin.keys import KEY_NAME
from tests.ft.client import StanClient
from tests.ft.load import CHANNEL
from tests.ft.operator import Operator, run
from tests.ft.test_pair import owner_of
from tests.processes import CLUSTER, GROUP, HOST, ROOT, until

if TYPE_CHECKING:
    from tests.processes import Nats, Server, Stage

pytestmark = pytest.mark.processes


def named_pair(stage: Stage, nats: Nats) -> tuple[Server, Server]:
    a = stage.member("a", "-ns", nats.url, "-ft_member", "node-a")
    a.wait_until_active()
    b = stage.member("b", "-ns", nats.url, "-ft_member", "node-b")
    b.wait_until_standing_by()
    return a, b


def roles(operator: Operator) -> dict[str, bool]:
    return {node["name"]: node["serving"] for node in operator.status().json["nodes"]}


# ---- status
# --------------------------------------------------------------------------------------------------


def test_members_keep_their_names_over_restarts_and_are_shown_by_them(stage: Stage) -> None:
    nats = stage.nats()
    a, b = named_pair(stage, nats)
    operator = Operator(nats.url, stage.store)
    said = operator.ft("status", "--expect", "2")
    lines = said.out.splitlines()
    assert lines[0].split() == ["MEMBER", "ROLE", "HOST", "EPOCH", "LAG", "NOTE"]
    assert sorted(line.split()[:2] for line in lines[1:3]) == [
        ["node-a", "active"],
        ["node-b", "standby"],
    ]
    assert max(map(len, lines)) <= 80
    wide = operator.ft("status", "--wide", "--expect", "2").out
    assert wide.split()[:5] == ["MEMBER", "SERVER", "HOST", "PID", "STATE"]
    assert str(a.serverz()["server_id"]) in wide

    assert operator.change("switchover", "--to", "node-b", "--wait", "60").status == 0
    assert a.status() == 75
    again = stage.member("a2", "-ns", nats.url, "-ft_member", "node-a")
    again.wait_until_standing_by()
    assert roles(operator) == {"node-a": False, "node-b": True}
    assert [epoch["name"] for epoch in operator.epochs()] == ["node-b", "node-a"]
    assert "node-b" in operator.ft("history").out
    assert owner_of(stage.store).describe().startswith("epoch 2 of server node-b on host")
    assert "ft: switchover: handing over to server node-b" in a.text()
    assert b.ft_status == 200


def test_without_a_name_host_and_port_are_it(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    host = socket.gethostname()
    assert roles(Operator(nats.url)) == {f"{host}:{a.monitor}": True, f"{host}:{b.monitor}": False}


def test_who_names_an_unknown_group_is_told_which_there_are(stage: Stage) -> None:
    nats = stage.nats()
    stage.pair_on(nats)
    said = Operator(nats.url, group="tset-group").ft("status")
    assert said.status == 2
    assert f"cluster {CLUSTER} has the groups: {GROUP}" in said.out
    changed = Operator(nats.url, stage.store, group="tset-group").change("switchover")
    assert f"cluster {CLUSTER} has the groups: {GROUP}" in changed.err


def test_status_reads_storage_when_nats_is_down_and_when_the_active_is_frozen(stage: Stage) -> None:
    nats = stage.nats()
    a, b = named_pair(stage, nats)
    where = ("ft", "status", "--dir", str(stage.store))
    served = run(*where)
    assert served.status == 0, served
    assert re.search(r"^owner +node-a on \S+, pid \d+$", served.out, re.MULTILINE)
    assert re.search(r"^lock +held$", served.out, re.MULTILINE)

    # Both, so that nobody takes over: what is seen is the lock of somebody who does not answer.
    b.signal(signal.SIGSTOP)
    a.signal(signal.SIGSTOP)
    nats.kill()
    frozen = run(*where, "--output", "json")
    assert frozen.status == 2, frozen
    (problem,) = frozen.json["problems"]
    assert "holds the lock, does not answer" in problem
    storage = frozen.json["storage"]
    assert (storage["name"], storage["host"], storage["pid"], storage["epoch"]) == (
        "node-a",
        socket.gethostname(),
        a.pid,
        1,
    )
    assert (storage["lock_held"], storage["answers"]) == (True, False)
    assert 0 < storage["last_sign_ns"] < time.time_ns()

    a.kill()
    dead = run(*where)
    assert dead.status == 2
    assert "nobody holds the lock; last: epoch 1 of server node-a on host" in dead.out


def test_a_directory_without_a_datastore_is_an_error_and_stays_empty(stage: Stage) -> None:
    empty = stage.directory / "empty"
    empty.mkdir()
    for verb in ("status", "history"):
        said = run("ft", verb, "--dir", str(empty))
        assert said.status == 3
        assert "holds no datastore" in said.err
        assert "hint: " in said.err
    assert list(empty.iterdir()) == []


def test_status_is_watched_until_it_is_interrupted_also_while_nats_is_away(stage: Stage) -> None:
    nats = stage.nats()
    named_pair(stage, nats)
    words = ["ft", "status", "--server", nats.url, "--cluster", CLUSTER, "--group", GROUP]
    watching = stage.run(
        "watch", [sys.executable, "-m", "ftstan.cli.ctl", *words, "--watch", "0.2"]
    )
    until(lambda: watching.text().count("healthy") >= 2, "two looks")
    nats.kill()
    until(lambda: "connection refused" in watching.text(), "a look without NATS")
    watching.signal(signal.SIGINT)
    assert watching.status() == 130


# ---- history
# --------------------------------------------------------------------------------------------------


def test_history_tells_a_stop_by_signal_and_leaves_the_dead_time_out(stage: Stage) -> None:
    nats = stage.nats()
    a, b = named_pair(stage, nats)
    operator = Operator(nats.url, stage.store)
    a.signal(signal.SIGTERM)
    b.wait_until_active()
    newest, first = operator.epochs()
    assert (newest["left"], first["ended_ns"] > first["since_ns"]) == ("sigterm", True)
    assert "stopped (SIGTERM) (epoch 1)" in operator.ft("history").out

    # Killed, and nobody there for a while: it served until its last sign of life.
    until((stage.store / "ft.watch").exists, "a sign of life")
    time.sleep(1.5)
    b.kill()
    time.sleep(3)
    c = stage.member("c", "-ns", nats.url, "-ft_member", "node-c")
    c.wait_until_active()
    newest, former, _ = operator.epochs()
    assert newest["left"] == ""
    dead_s = (newest["since_ns"] - former["ended_ns"]) / 1e9
    assert dead_s > 2.5
    assert former["ended_ns"] > former["since_ns"]


def test_the_active_tells_each_takeover_in_one_line(stage: Stage) -> None:
    nats = stage.nats()
    a, b = named_pair(stage, nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"before")
    a.kill()
    b.wait_until_active()
    client.publish(CHANNEL, b"after")
    until(lambda: "ft: takeover:" in b.text(), "the line")
    (line,) = [line for line in b.lines() if "ft: takeover:" in line]
    assert re.search(
        r"ft: takeover: epoch 2, cause: [^,]+, predecessor: epoch 1 of server node-a on "
        r"host \S+ pid \d+ since \S+, first ack \d+ ms after suspicion",
        line,
    )


# ---- switchover and pause
# --------------------------------------------------------------------------------------------------


def test_a_pause_survives_a_restart_which_says_so_and_ends_when_it_is_resumed(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = named_pair(stage, nats)
    operator = Operator(nats.url, stage.store)
    assert operator.change("pause", "node-b").out == "node-b: paused by the operator\n"
    b.signal(signal.SIGTERM)
    assert b.status() == 143
    again = stage.member("b2", "-ns", nats.url, "-ft_member", "node-b")
    again.wait_for("ftstanctl ft resume node-b")
    until(lambda: len(operator.status().json["nodes"]) == 2, "both members")
    assert "node-b" in run("ft", "status", "--dir", str(stage.store)).out
    a.kill()
    time.sleep(3)
    assert operator.status().json["nodes"][0]["phase"] == "paused by the operator"
    assert owner_of(stage.store).epoch == 1
    assert operator.change("resume").status == 0
    again.wait_until_active()
    assert not list(stage.store.glob("ft.paused.*"))


def test_the_pause_of_a_member_that_does_not_run_is_ended_on_storage(stage: Stage) -> None:
    nats = stage.nats()
    _, b = named_pair(stage, nats)
    operator = Operator(nats.url, stage.store)
    assert operator.change("pause", "node-b").status == 0
    b.kill()
    assert operator.change("resume", "node-x").status == 1
    said = operator.change("resume", "node-b")
    assert (said.status, "is not paused any more" in said.out) == (0, True), said
    stage.member("b2", "-ns", nats.url, "-ft_member", "node-b").wait_until_standing_by()


def test_a_switchover_is_planned_shown_cancelled_and_carried_out(stage: Stage) -> None:
    nats = stage.nats()
    a, b = named_pair(stage, nats)
    operator = Operator(nats.url, stage.store)
    assert operator.change("switchover", "--at", "+1h").status == 0
    assert "switchover at " in operator.ft("status").out
    assert operator.change("switchover", "--cancel").status == 0
    refused = operator.change("switchover", "--cancel")
    assert (refused.status, "no switchover is planned" in refused.err) == (1, True)
    assert (
        operator.change("switchover", "--at", "2020-01-01T00:00Z").err.splitlines()[0]
        == "node-a: that time is over"
    )
    assert operator.change("switchover", "--to", "node-b", "--at", "+12s").status == 0
    assert a.ft_status == 200
    assert a.status() == 75
    b.wait_until_active()
    assert operator.epochs()[0]["cause"] == "switchover"


def test_switchover_and_pause_ask_on_a_terminal(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats = stage.nats()
    a, _ = named_pair(stage, nats)
    operator = Operator(nats.url, stage.store)

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return "no\n"

    monkeypatch.setattr("sys.stdin", Terminal())
    for words in (["switchover"], ["switchover", "--at", "+1h"], ["pause", "node-b"]):
        said = operator.change(words[0], *words[1:])
        assert (said.status, "nothing was done" in said.err) == (1, True), said
    assert a.ft_status == 200
    assert operator.change("pause", "node-b", "--yes").status == 0


# ---- keys
# --------------------------------------------------------------------------------------------------


def key(nats: Nats, verb: str, *words: str) -> tuple[int, str]:
    said = run(
        "key", verb, *words, *(() if verb == "show" else ("--server", nats.url, "--timeout", "3"))
    )
    return said.status, said.out + said.err


def test_a_key_is_rotated_without_a_restart_and_the_former_one_counts_for_a_while(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = named_pair(stage, nats)
    until((stage.store / KEY_NAME).exists, "the key")
    copy = stage.directory / "copy.key"
    copy.write_bytes((stage.store / KEY_NAME).read_bytes())
    copy.chmod(0o600)
    operator = Operator(nats.url)
    by_copy = ("--key-file", str(copy))
    by_dir = ("--dir", str(stage.store))
    _, before = key(nats, "show", *by_dir)
    status, told = key(nats, "rotate", *by_dir, "--grace", "1h")
    assert status == 0, told
    _, after = key(nats, "show", *by_dir)
    assert before.split()[1] != after.split()[1]
    assert before.split()[1] in after
    assert before.split()[1] in told
    # Both count, at both members, at once.
    assert operator.ft("pause", "node-b", *by_dir).status == 0
    assert operator.ft("resume", "node-b", *by_copy).status == 0
    # A time that ends.
    copy.write_bytes((stage.store / KEY_NAME).read_bytes())
    status, told = key(nats, "rotate", *by_dir, "--grace", "3s")
    assert status == 0, told
    until(lambda: operator.ft("resume", "node-b", *by_copy).status == 1, "the end of the grace")
    refused = operator.ft("resume", "node-b", *by_copy)
    assert "is not sealed with this group's key" in refused.err
    assert operator.ft("switchover", *by_dir, "--wait", "60").status == 0
    assert a.status() == 75
    assert b.ft_status == 200
    # Without grace the former one is refused from the start.
    copy.write_bytes((stage.store / KEY_NAME).read_bytes())
    assert key(nats, "rotate", *by_dir, "--grace", "0s")[0] == 0
    assert operator.ft("pause", *by_copy, "--yes").status == 1
    assert key(nats, "rotate", *by_copy)[0] == 1


def test_a_standby_replaces_no_key(stage: Stage) -> None:
    nats = stage.nats()
    named_pair(stage, nats)
    until((stage.store / KEY_NAME).exists, "the key")
    status, told = key(nats, "rotate", "node-b", "--dir", str(stage.store))
    assert status == 1
    assert "only the server that owns the datastore can replace its key" in told


# ---- rights
# --------------------------------------------------------------------------------------------------


def test_what_nats_does_not_allow_is_told_at_once_and_as_that(stage: Stage) -> None:
    nats = stage.nats(
        settings="""authorization { users = [
        {user: server, password: s}
        {user: mute, password: p, permissions: {publish: {allow: ["other"]}}}
        {user: deaf, password: p, permissions: {subscribe: {allow: ["other"]}}}
        ]}"""
    )
    stage.member("a", "-ns", f"nats://server:s@{HOST}:{nats.port}").wait_until_active()
    for user in ("mute", "deaf"):
        for words in (
            ["pub", CHANNEL, "text"],
            ["sub", CHANNEL, "--count", "1"],
            ["channel", "ls"],
        ):
            login = ("--server", nats.url, "--user", user, "--pass", "p", "--timeout", "30")
            done = subprocess.run(
                [sys.executable, "-m", "ftstan.cli.ctl", *words, *login],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert done.returncode == 3, done
            assert "permissions violation" in done.stderr.lower()
            # The subject as permissions have to name it.
            assert ' to "_' in done.stderr
            assert ' to "_stan' not in done.stderr
            assert ' to "_inbox' not in done.stderr
            assert "no answer" not in done.stderr
            assert "hint: " in done.stderr


def test_a_publish_that_nats_does_not_allow_waits_for_no_ack(stage: Stage) -> None:
    nats = stage.nats(
        settings="""authorization { users = [
        {user: server, password: s}
        {user: reader, password: p, permissions: {publish: {deny: ["_STAN.pub.>"]}}}
        {user: deaf, password: p, permissions: {subscribe: {deny: ["_STAN.acks.>"]}}}
        ]}"""
    )
    stage.member("a", "-ns", f"nats://server:s@{HOST}:{nats.port}").wait_until_active()
    for user, subject, more in (
        ("reader", f'"_STAN.pub.{CLUSTER}.orders"', ()),
        ("reader", f'"_STAN.pub.{CLUSTER}.orders"', ("--republish",)),
        ("deaf", '"_STAN.acks.', ()),
    ):
        login = ("--server", nats.url, "--user", user, "--pass", "p")
        # Without the refusal the wait for the ack would outlast that of the test.
        done = run("pub", "orders", "text", "--count", "3", "--timeout", "600", *more, *login)
        assert (done.status, done.out) == (1, "0 stored in orders\n")
        assert "NATS refuses: permissions violation for" in done.err
        assert subject in done.err
        assert "[FTS-6201]" in done.err


def test_a_mistyped_channel_is_no_warning_in_the_log(stage: Stage) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url)
    a.wait_until_active()
    said = run("channel", "info", "ordres", "--server", nats.url, "--output", "json")
    assert (said.status, 'there is no channel "ordres"' in said.err) == (1, True)
    assert "refused" not in a.text()
    assert json.loads(run("server", "ls", "--server", nats.url, "--output", "json").out)
