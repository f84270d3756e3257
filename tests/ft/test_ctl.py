"""Operators look at a real group and steer it: ``ftstanctl ft`` and the page ``/streaming/ftz``."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from ftstan import __version__
from ftstan.admin.keys import KEY_NAME
from ftstan.admin.protocol import Answer, Request, Verb, decode_answer
from ftstan.admin.signing import Recipient, plain, seal
from ftstan.ft.subjects import control_subject
from ftstan.wire.subjects import Subjects
from tests.ft.client import NatsConnection, StanClient
from tests.ft.hung import Hanging
from tests.ft.load import CHANNEL
from tests.ft.operator import Operator, run
from tests.ft.test_pair import owner_of
from tests.processes import CLUSTER, GROUP, HOST, free_ports, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Nats, Server, Stage

pytestmark = pytest.mark.processes


def id_of(server: Server) -> str:
    name = server.serverz()["server_id"]
    assert isinstance(name, str)
    return name


def name_of(server: Server) -> str:
    """What a member is called that has no name of its own, and external NATS servers."""
    return f"{socket.gethostname()}:{server.monitor}"


def ask(nats: Nats, server_id: str, payload: bytes) -> Answer:
    """Send a request as anybody on NATS can."""
    answer = NatsConnection(nats.port).request(control_subject(CLUSTER, server_id), payload)
    assert answer is not None
    return decode_answer(answer.payload)


def sealed(store: Path, request: Request, server_id: str, key: bytes | None = None) -> bytes:
    if key is None:
        until((store / KEY_NAME).exists, "the administrators' key")
        key = bytes.fromhex((store / KEY_NAME).read_text().strip())
    return seal(
        request,
        Recipient(CLUSTER, server_id),
        key=key,
        now_ns=time.time_ns(),
        nonce=secrets.token_bytes(16),
    )


# ---- status
# --------------------------------------------------------------------------------------------------


def test_status_shows_every_member_and_says_that_the_pair_is_healthy(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    operator = Operator(nats.url)
    said = operator.status("--expect", "2", "--timeout", "60")
    assert said.status == 0, said
    assert (said.json["health"], said.json["problems"]) == ("healthy", [])
    nodes = {node["server"]: node for node in said.json["nodes"]}
    active = nodes[id_of(a)]
    standby = nodes[id_of(b)]
    owner = owner_of(stage.store)
    assert (active["state"], active["phase"], active["serving"], active["epoch"]) == (
        "FT_ACTIVE",
        "active",
        True,
        1,
    )
    assert (standby["state"], standby["serving"], standby["epoch"]) == ("FT_STANDBY", False, 0)
    for node, server in ((active, a), (standby, b)):
        assert (node["pid"], node["host"], node["version"]) == (
            server.pid,
            socket.gethostname(),
            __version__,
        )
        assert (node["cluster"], node["group"], node["store_id"]) == (
            CLUSTER,
            GROUP,
            owner.store_id.hex(),
        )
        assert (node["holder"], node["holder_epoch"]) == (owner.describe(), 1)
        assert (node["mixed"], node["paused"], node["warm_lag"]) == (False, False, None)
        assert node["probe_age"] is not None
    table = operator.ft("status", "--expect", "2", "--timeout", "60")
    assert table.status == 0
    assert table.out.splitlines()[-1] == "healthy"
    assert table.out.split()[:4] == ["MEMBER", "ROLE", "HOST", "EPOCH"]
    wide = operator.ft("status", "--wide", "--expect", "2", "--timeout", "60").out
    for node, server in ((active, a), (standby, b)):
        assert node["name"] == name_of(server)
        assert name_of(server) in table.out
        assert id_of(server) in wide


def test_status_says_what_is_missing_and_when_nobody_serves(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    operator = Operator(nats.url)
    missing = operator.status("--expect", "3", "--timeout", "5")
    assert (missing.status, missing.json["problems"]) == (1, ["2 of 3 members answered"])

    # A process that is stopped by somebody does not answer, and is missed.
    b.signal(signal.SIGSTOP)
    alone = operator.status("--expect", "2", "--timeout", "5")
    assert (alone.status, alone.json["health"]) == (1, "degraded")
    assert alone.json["problems"] == ["no standby could take over", "1 of 2 members answered"]
    a.kill()
    nobody = operator.ft("status")
    assert (nobody.status, nobody.out) == (2, "unserved: no member answered\n")


def test_status_names_an_active_that_is_frozen_as_its_standby_knows_it(stage: Stage) -> None:
    nats = stage.nats()
    a, _ = stage.pair_on(nats)
    operator = Operator(nats.url)
    a.signal(signal.SIGSTOP)
    frozen = operator.status("--timeout", "5")
    assert frozen.status == 2
    first, holder = frozen.json["problems"]
    assert first == "nobody serves"
    assert holder.startswith(f"epoch 1 of server {name_of(a)} on host ")
    assert f"pid {a.pid} since" in holder
    assert holder.endswith(" does not answer")


def test_who_cannot_ask_is_told_why_with_status_3(stage: Stage) -> None:
    nats = stage.nats()
    gone = Operator(f"nats://127.0.0.1:{free_ports(1)[0]}").ft("status")
    assert (gone.status, gone.out) == (3, "")
    assert "connection refused" in gone.err
    assert "hint: check --server (or FTSTAN_SERVER)" in gone.err
    assert "--dir DATASTORE looks at the datastore instead" in gone.err
    assert Operator(nats.url, group="another").ft("status").status == 2
    assert run("ft", "status", "--server", nats.url).status == 64
    for words in (
        ["status", "--expect", "many"],
        ["status", "--timeout", "0"],
        ["dance"],
        ["mixed", "maybe"],
        [],
    ):
        said = run("ft", *words)
        assert said.status == 64, words
        assert "hint: see ftstanctl ft" in said.err


def test_the_server_to_ask_can_come_from_the_environment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats = stage.nats()
    stage.pair_on(nats)
    monkeypatch.setenv("FTSTAN_SERVER", nats.url)
    assert run("ft", "status", "--group", GROUP, "--expect", "2", "--timeout", "60").status == 0


def test_members_behind_credentials_are_asked_with_them(stage: Stage) -> None:
    a = stage.member("a", "-user", "me", "-pass", "secret")
    a.wait_until_active()
    operator = Operator(f"nats://127.0.0.1:{a.port}")
    assert operator.status("--user", "me", "--pass", "secret").json["nodes"][0]["server"] == id_of(
        a
    )
    refused = operator.status("--user", "me", "--pass", "wrong")
    assert refused.status == 3
    assert "Authorization Violation" in refused.err


# ---- switchover
# --------------------------------------------------------------------------------------------------


def test_a_switchover_hands_over_to_the_standby_that_was_named(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    c = stage.member("c", "-ns", nats.url)
    c.wait_until_standing_by()
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"before")
    operator = Operator(nats.url, stage.store)
    former = id_of(a)
    target = id_of(c)
    said = operator.change("switchover", "--to", target[:10], "--output", "json", "--wait", "60")
    assert said.status == 0, said
    assert (said.json["from"], said.json["to"], said.json["epoch"]) == (former, target, 2)
    assert said.json["seconds"] > 0
    # A supervisor is to start it again, as a standby.
    assert a.status() == 75
    assert (b.ft_status, c.ft_status) == (204, 200)
    client.publish(CHANNEL, b"after")
    assert client.read_to(CHANNEL, 2) == {1: b"before", 2: b"after"}
    newest, first = operator.epochs()
    assert (newest["server"], newest["cause"], newest["after"]) == (target, "switchover", 1)
    assert (first["server"], first["cause"], first["until_ns"]) == (
        former,
        "first_start",
        newest["since_ns"],
    )


def test_a_switchover_through_the_nats_server_that_ends_with_the_former_active_is_seen_to_its_end(
    stage: Stage,
) -> None:
    a, b = stage.routed_pair()
    urls = ",".join(f"nats://{HOST}:{server.port}" for server in (a, b))
    said = Operator(urls, stage.store).change("switchover", "--output", "json", "--wait", "60")
    assert said.status == 0, said
    assert said.json["epoch"] == 2
    assert a.status() == 75
    assert b.ft_status == 200


def test_a_switchover_that_would_help_nobody_is_refused_and_the_active_goes_on(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url)
    a.wait_until_active()
    operator = Operator(nats.url, stage.store)
    alone = operator.change("switchover")
    assert (alone.status, alone.err.splitlines()[0]) == (1, "no standby could take over")
    b = stage.member("b", "-ns", nats.url)
    b.wait_until_standing_by()
    active = id_of(a)
    standby = id_of(b)
    for word, error in (
        (active, "is the active one already"),
        ("nobody", 'no member "nobody" answered'),
    ):
        refused = operator.change("switchover", "--to", word)
        assert refused.status == 1
        assert error in refused.err
    assert operator.change("pause").status == 0
    paused = operator.change("switchover", "--to", standby)
    assert paused.status == 1
    assert "is paused" in paused.err
    # The active itself asks for a successor before it stops, whatever the command thought.
    answer = ask(nats, active, sealed(stage.store, Request(Verb.SWITCHOVER), active))
    assert (answer.ok, answer.error) == (False, "no standby is ready to take over")
    assert (a.ft_status, b.ft_status) == (200, 204)
    assert owner_of(stage.store).epoch == 1


def test_a_switchover_without_anybody_who_serves_ends_with_status_2(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    operator = Operator(nats.url, stage.store)
    assert operator.change("pause").status == 0
    a.kill()
    said = operator.change("switchover")
    assert said.status == 2
    assert "nobody serves" in said.err
    assert b.ft_status == 204


# ---- pause and resume
# ------------------------------------------------------------------------------------------------


def test_a_paused_standby_does_not_take_over_until_it_is_resumed(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    operator = Operator(nats.url, stage.store)
    standby = id_of(b)
    assert operator.change("pause", standby[:8]).out == f"{name_of(b)}: paused by the operator\n"
    degraded = operator.status()
    assert degraded.status == 1
    assert degraded.json["problems"][0] == "no standby could take over"
    a.kill()
    # Far longer than silence and polls need; nothing else would stop it.
    time.sleep(3)
    unserved = operator.status()
    assert (unserved.status, unserved.json["nodes"][0]["phase"]) == (2, "paused by the operator")
    assert owner_of(stage.store).epoch == 1
    assert operator.change("resume").status == 0
    b.wait_until_active()
    assert operator.epochs()[0]["cause"] in {"lock_free", "silence"}
    assert "ft: resumed by the operator" in b.text()


def test_an_active_cannot_be_paused(stage: Stage) -> None:
    nats = stage.nats()
    a, _ = stage.pair_on(nats)
    said = Operator(nats.url, stage.store).change("pause", id_of(a))
    assert said.status == 1
    assert "this server is active, and only a standby can be paused" in said.err
    assert "hint: run ftstanctl ft switchover first" in said.err


# ---- who may
# --------------------------------------------------------------------------------------------------


def test_nothing_is_changed_for_who_lacks_the_key_and_each_refusal_says_why(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    active = id_of(a)
    standby = id_of(b)
    switch = Request(Verb.SWITCHOVER)
    own = sealed(stage.store, switch, standby)
    for payload, error in (
        (plain(switch), "is not sealed with the group's key"),
        (sealed(stage.store, switch, active, key=bytes(32)), "is not sealed with this group's key"),
        (own, f"the request is for server {standby}"),
        (
            seal(switch, Recipient(CLUSTER, active), key=_key(stage), now_ns=1, nonce=bytes(16)),
            "has expired",
        ),
        (b"\xff" * 100, "a request is a JSON object"),
        (b"{" + b" " * 100_000, "a request is a JSON object"),
    ):
        answer = ask(nats, active, payload)
        assert not answer.ok
        assert error in answer.error
        assert answer.hint
    # It is a true request for the standby, which has nothing to hand over; and only once.
    assert (
        ask(nats, standby, own).error
        == "this server is not the active one: there is nothing to hand over"
    )
    assert ask(nats, standby, own).error == "the request was sent before"
    assert (a.ft_status, b.ft_status) == (200, 204)
    assert "ft: a control request was refused" in a.text()
    for server in (a, b):
        assert _key(stage).hex() not in server.text()
    no_key = Operator(nats.url).ft("switchover")
    assert no_key.status == 3
    assert "takes the servers' admin.key" in no_key.err


def _key(stage: Stage) -> bytes:
    until((stage.store / KEY_NAME).exists, "the administrators' key")
    return bytes.fromhex((stage.store / KEY_NAME).read_text().strip())


def test_the_key_is_its_owners_alone_outlives_owners_and_a_copy_will_do(
    stage: Stage, tmp_path: Path
) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    key = stage.store / KEY_NAME
    until(key.exists, "the key")
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    a.kill()
    b.wait_until_active()
    assert key.read_bytes() == before
    c = stage.member("c", "-ns", nats.url)
    c.wait_until_standing_by()
    copy = tmp_path / "copy"
    copy.touch(0o600)
    copy.write_bytes(before)
    operator = Operator(nats.url)
    assert operator.ft("pause", "--admin-key", str(copy)).status == 0
    copy.chmod(0o644)
    loose = operator.ft("resume", "--admin-key", str(copy))
    assert (loose.status, "chmod 600" in loose.err) == (3, True)
    # A new key counts, for the standby, too, and the old one does not.
    key.write_text("ab" * 32 + "\n")
    copy.chmod(0o600)
    until(
        lambda: operator.ft("resume", "--admin-key", str(copy)).status == 1,
        "the old key to be refused",
    )
    assert Operator(nats.url, stage.store).change("resume").status == 0


# ---- history
# --------------------------------------------------------------------------------------------------


def test_history_tells_who_why_and_how_long_from_the_active_and_from_the_directory(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    first = id_of(a)
    second = id_of(b)
    a.signal(signal.SIGTERM)
    assert a.status() == 143
    b.wait_until_active()
    operator = Operator(nats.url)
    b.kill()
    c = stage.member("c", "-ns", nats.url)
    c.wait_until_active()
    epochs = operator.epochs()
    assert [epoch["server"] for epoch in epochs] == [id_of(c), second, first]
    assert [epoch["cause"] for epoch in epochs[1:]] == ["released", "first_start"]
    assert epochs[0]["cause"] in {"lock_free", "silence"}
    assert epochs[1]["after"] == 1
    assert [epoch["until_ns"] for epoch in epochs] == [
        0,
        epochs[0]["since_ns"],
        epochs[1]["since_ns"],
    ]
    c.kill()
    # Nobody can be asked any more; the directory can.
    assert operator.ft("history").status == 2
    here = run("ft", "history", "--dir", str(stage.store), "--output", "json")
    assert (here.status, here.json["epochs"]) == (0, epochs)
    two = run("ft", "history", "--dir", str(stage.store), "--count", "2")
    assert [line.split()[0] for line in two.out.splitlines()] == ["EPOCH", "3", "2"]
    assert "stopped (SIGTERM) (epoch 1)" in two.out


# ---- mixed
# --------------------------------------------------------------------------------------------------


def test_mixed_is_recorded_by_the_active_while_it_serves_and_its_successor_is_found(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, _ = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"one")
    operator = Operator(nats.url, stage.store)
    said = operator.change("mixed", "on", "--output", "json")
    assert (said.status, said.json) == (0, {"mixed": True, "epoch": 2})
    until(
        lambda: any(node["fit"] for node in operator.status().json["nodes"]),
        "an original to be able to follow",
    )
    client.publish(CHANNEL, b"two")
    owner = owner_of(stage.store)
    assert (owner.epoch, owner.server_id, owner.ft_mixed) == (2, id_of(a), True)
    active = next(node for node in operator.status().json["nodes"] if node["epoch"])
    assert (active["epoch"], active["mixed"], active["serving"]) == (2, True, True)
    assert operator.change("mixed", "off").out == "mixed group: off, recorded with epoch 3\n"
    active = next(node for node in operator.status().json["nodes"] if node["epoch"])
    assert (active["epoch"], active["mixed"], active["serving"]) == (3, False, True)
    assert operator.change("switchover", "--wait", "60").status == 0
    client.publish(CHANNEL, b"three")
    assert client.read_to(CHANNEL, 3) == {1: b"one", 2: b"two", 3: b"three"}
    causes = [(epoch["cause"], epoch["after"], epoch["mixed"]) for epoch in operator.epochs()]
    assert causes == [
        ("switchover", 3, False),
        ("mixed_switched", 2, False),
        ("mixed_switched", 1, True),
        ("first_start", 0, False),
    ]


def test_mixed_is_recorded_in_the_directory_when_nobody_serves_and_never_beside_an_owner(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url)
    a.wait_until_active()
    # Asked through another NATS server, nobody seems to serve; the lock knows better.
    elsewhere = Operator(f"nats://127.0.0.1:{free_ports(1)[0]}", stage.store)
    busy = elsewhere.change("mixed", "on")
    assert busy.status == 3
    assert f"is in use by epoch 1 of server {name_of(a)}" in busy.err
    a.kill()
    assert elsewhere.change("mixed", "on").out == "mixed group: on, recorded with epoch 2\n"
    assert owner_of(stage.store).ft_mixed
    assert owner_of(stage.store).name == "ftstanctl"
    b = stage.member("b", "-ns", nats.url)
    b.wait_until_active()
    assert owner_of(stage.store).epoch == 3
    assert owner_of(stage.store).ft_mixed


# ---- monitoring
# --------------------------------------------------------------------------------------------------


def test_the_page_of_ours_shows_what_status_shows_and_what_came_of_the_lock(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    until(
        lambda: json.loads(b.get("/streaming/ftz")[1])["lock_tries"]["busy"] > 1,
        "the standby to poll",
    )
    page = json.loads(a.get("/streaming/ftz")[1])
    node = next(node for node in Operator(nats.url).status().json["nodes"] if node["serving"])
    moving = {"probe_age", "uptime"}
    assert {key: page[key] for key in node if key not in moving} == {
        key: value for key, value in node.items() if key not in moving
    }
    assert page["lock_tries"]["granted"] == 1
    assert page["recovery"] == {"channels": 0, "of": 0}
    StanClient(nats.port).connect()


def test_a_standalone_server_has_the_page_too(stage: Stage) -> None:
    server = stage.file_server("alone")
    server.wait_for("Streaming Server is ready")
    client = StanClient(server.port)
    client.connect()
    client.publish(CHANNEL, b"one")
    server.kill()
    server = stage.file_server("again")
    server.wait_for("Streaming Server is ready")
    page = json.loads(server.get("/streaming/ftz")[1])
    assert (page["state"], page["phase"], page["serving"], page["group"]) == (
        "STANDALONE",
        "active",
        True,
        "",
    )
    assert (page["epoch"], page["recovery"]) == (2, {"channels": 1, "of": 1})
    epochs = run("ft", "history", "--dir", str(stage.store), "--output", "json").json["epochs"]
    assert [epoch["cause"] for epoch in epochs] == ["standalone_start", "first_start"]
    memory = stage.server("memory")
    memory.wait_for("Streaming Server is ready")
    page = json.loads(memory.get("/streaming/ftz")[1])
    assert (page["serving"], page["epoch"], page["holder"], page["probe_age"]) == (
        True,
        0,
        "",
        None,
    )


def test_nobody_listens_to_clients_while_the_active_recovers(stage: Stage) -> None:
    nats = stage.nats()
    storage = Hanging(stage.directory)
    a = stage.member("a", "-ns", nats.url, wrap=storage.wrap)
    a.wait_for("Recovering the state...")
    subjects = Subjects.for_cluster(CLUSTER)
    asked = (
        subjects.discovery,
        f"{subjects.publish}.foo",
        subjects.subscribe,
        subjects.close,
        subjects.pings,
    )
    # NATS itself says at once that nobody listens, with an empty message; a server would answer
    # these with an error.
    answers = [NatsConnection(nats.port).request(subject, b"") for subject in asked]
    assert [answer.payload if answer is not None else None for answer in answers] == [b""] * len(
        asked
    )
    assert json.loads(a.get("/streaming/ftz")[1])["phase"] == "recovering"
    storage.answer()
    a.wait_until_active()
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"one")


def test_every_page_answers_while_the_active_recovers_and_again_and_again(stage: Stage) -> None:
    nats = stage.nats()
    storage = Hanging(stage.directory)
    a = stage.member("a", "-ns", nats.url, wrap=storage.wrap)
    a.wait_for("Recovering the state...")
    for _ in range(5):
        assert a.serverz()["state"] == "FT_STANDBY"
        assert a.ft_status == 204
        page = json.loads(a.get("/streaming/ftz")[1])
        assert (page["state"], page["phase"], page["serving"]) == (
            "FT_STANDBY",
            "recovering",
            False,
        )
        assert (page["epoch"], page["recovery"]) == (1, {"channels": 0, "of": 0})
    said = Operator(nats.url, stage.store).status()
    assert (said.status, said.json["problems"][0]) == (
        2,
        f"nobody serves; {name_of(a)} is recovering",
    )
    refused = Operator(nats.url, stage.store).change("switchover")
    assert (refused.status, "is recovering" in refused.err) == (2, True)
    storage.answer()
    a.wait_until_active()
    assert Operator(nats.url, stage.store).status().json["problems"] != said.json["problems"]
