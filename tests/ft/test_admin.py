"""Operators look at what a real server serves, and change it with ``ftstanctl``."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.admin.keys import KEY_NAME
from ftstan.admin.protocol import Request, Verb, decode_answer
from ftstan.admin.signing import Recipient, plain, seal
from ftstan.broker import constants as c
from ftstan.ft.subjects import control_subject
from tests.ft.client import NatsConnection, StanClient
from tests.ft.operator import Said, run
from tests.ft.test_ctl import id_of
from tests.ft.test_partitioning import part
from tests.processes import CLUSTER, HOST, READY, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes


class Admin:
    """An operator of one server; ``key``: the words that say where its key is."""

    def __init__(self, port: int, *key: str) -> None:
        # A busy machine must not turn a late answer into none.
        self._where = ["--server", f"nats://{HOST}:{port}", "--cluster", CLUSTER, "--timeout", "2"]
        self._key = key

    def look(self, noun: str, verb: str, *words: str) -> Any:
        """What it says, as JSON."""
        said = run(noun, verb, *self._where, "--output", "json", *words)
        assert said.status == 0, said
        return said.json

    def ask(self, noun: str, verb: str, *words: str) -> Said:
        return run(noun, verb, *self._where, *words)

    def change(self, noun: str, verb: str, *words: str) -> Said:
        return self.ask(noun, verb, *self._key, *words)

    def channels(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.look("channel", "ls")["channels"]}


def serving(stage: Stage, *words: str) -> tuple[Server, Admin]:
    server = stage.file_server("a", *words)
    server.wait_for(READY)
    # Made beside serving: nobody waits for it but who administers.
    until((stage.store / KEY_NAME).exists, "the administrators' key")
    return server, Admin(server.port, "--dir", str(stage.store))


def audit(server: Server) -> list[str]:
    return [line.partition("audit: ")[2] for line in server.lines() if "audit: " in line]


def test_channels_clients_and_subscriptions_are_shown_as_they_are(stage: Stage) -> None:
    server, operator = serving(stage)
    client = StanClient(server.port)
    client.connect()
    client.publish(b"orders.new", b"a", b"b")
    client.publish(b"empty.soon", b"a")
    client.subscribe(b"orders.new", durable=b"d", acks=False)
    assert operator.channels() == {
        "empty.soon": operator.look("channel", "info", "empty.soon")["channel"],
        "orders.new": {
            "name": "orders.new",
            "msgs": 2,
            "bytes": operator.channels()["orders.new"]["bytes"],
            "first_seq": 1,
            "last_seq": 2,
            "subscriptions": 1,
            "quarantined": False,
            "moved": False,
        },
    }
    until(
        lambda: operator.look("sub", "ls")["subscriptions"][0]["pending_count"] == 2,
        "two deliveries",
    )
    (sub,) = operator.look("sub", "ls", "--channel", "orders.new", "--client", "me")[
        "subscriptions"
    ]
    assert (sub["client_id"], sub["durable_name"], sub["is_offline"], sub["last_sent"]) == (
        "me",
        "d",
        False,
        2,
    )
    assert operator.look("sub", "ls", "--client", "another") == {"subscriptions": []}
    assert operator.look("sub", "info", "orders.new", str(sub["id"]))["subscription"] == sub
    assert operator.ask("sub", "info", "orders.new", "99").status == 1
    (row,) = operator.look("client", "ls")["clients"]
    assert (row["id"], row["subscriptions"]) == ("me", 1)
    assert operator.look("client", "info", "me")["client"]["subscriptions"] == [sub]
    for noun, verb, word in (
        ("channel", "ls", "orders.new"),
        ("client", "ls", "me"),
        ("sub", "ls", "orders.new"),
    ):
        said = operator.ask(noun, verb)
        assert said.status == 0
        assert word in said.out
    for noun, what in (("channel", "there is no channel"), ("client", "no client")):
        said = operator.ask(noun, "info", "nobody")
        assert (said.status, said.out) == (1, "")
        assert what in said.err


def test_a_long_list_comes_in_pieces_and_whole(stage: Stage) -> None:
    server, operator = serving(stage, "-mc", "0")
    client = StanClient(server.port)
    client.connect()
    names = [f"c.{'x' * 150}.{number:04}" for number in range(450)]
    client.nats.pump(lambda: True, "nothing")
    guids = [guid for name in names for guid in client.offer(name.encode(), b"m")]
    client.settle(guids)
    assert list(operator.channels()) == names
    subscription = client.subscribe(names[0].encode())
    for _ in range(450):
        client.subscribe(names[1].encode(), acks=False)
    del subscription
    rows = operator.look("sub", "ls")["subscriptions"]
    assert [(row["channel"], row["id"]) for row in rows] == [(names[0], 1)] + [
        (names[1], n) for n in range(1, 451)
    ]


def test_a_channel_is_made_within_the_limits_and_is_there_after_a_kill(stage: Stage) -> None:
    server, operator = serving(stage, "-mc", "2")
    assert operator.change("channel", "create", "made.by.hand").status == 0
    server.kill()
    server = stage.file_server("b", "-mc", "2")
    server.wait_for(READY)
    operator = Admin(server.port, "--dir", str(stage.store))
    assert operator.channels()["made.by.hand"]["last_seq"] == 0
    client = StanClient(server.port)
    client.connect()
    client.publish(b"made.by.hand", b"a")
    assert operator.change("channel", "create", "second").status == 0
    for name, why in (
        ("third", "too many channels"),
        ("second", "there is a channel"),
        ("a..b", "cannot name"),
    ):
        said = operator.change("channel", "create", name)
        assert said.status == 1, said
        assert why in said.err
    assert set(operator.channels()) == {"made.by.hand", "second"}


def test_a_deleted_channel_stays_away_and_subscriptions_need_a_word_more(stage: Stage) -> None:
    server, operator = serving(stage)
    client = StanClient(server.port)
    client.connect()
    client.publish(b"orders", b"a", b"b")
    client.publish(b"kept", b"a")
    client.subscribe(b"orders", durable=b"d")
    refused = operator.change("channel", "delete", "orders", "--yes")
    assert refused.status == 1
    assert "has 1 subscription" in refused.err
    assert "--force" in refused.err
    assert operator.channels()["orders"]["msgs"] == 2
    done = operator.change("channel", "delete", "orders", "--yes", "--force")
    assert (done.status, done.out) == (
        0,
        "channel orders: deleted with 2 messages and 1 subscription\n",
    )
    server.kill()
    server = stage.file_server("b")
    server.wait_for(READY)
    assert set(Admin(server.port).channels()) == {"kept"}
    again = StanClient(server.port, "again")
    again.connect()
    again.publish(b"orders", b"new")
    assert again.read_to(b"orders", 1) == {1: b"new"}


def test_what_was_purged_stays_away_when_the_active_is_killed_straight_after_the_answer(
    stage: Stage,
) -> None:
    nats = stage.nats()
    active, standby = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(b"orders", *(b"%d" % i for i in range(1, 21)))
    client.publish(b"all", b"a", b"b", b"c")
    client.subscribe(b"orders", durable=b"d", acks=False)
    operator = Admin(nats.port, "--dir", str(stage.store))
    until(
        lambda: operator.look("sub", "ls")["subscriptions"][0]["pending_count"] == 20,
        "twenty deliveries",
    )
    done = operator.change(
        "channel", "purge", "orders", "--up-to", "15", "--yes", "--output", "json"
    )
    words = "purged 15 messages, 5 are left, the next one gets sequence 21"
    assert (done.status, done.json) == (
        0,
        {"channel": "orders", "done": words, "purged": 15, "left": 5, "next": 21},
    )
    until(lambda: audit(active), "the line about it")
    assert audit(active)[0].endswith(
        f') asked for: channel-purge "orders" up to sequence 15: {words}'
    )
    done = operator.change("channel", "purge", "all", "--yes")
    assert done.out == "channel all: purged 3 messages, 0 are left, the next one gets sequence 4\n"
    active.kill()
    standby.wait_until_active()
    beside = {
        row["name"]: row
        for row in run("store", "ls", str(stage.store), "--output", "json").json["channels"]
    }
    assert [(beside[name]["msgs"], beside[name]["first"]) for name in ("all", "orders")] == [
        (0, 4),
        (5, 16),
    ]
    rows = operator.channels()
    assert [
        (row["name"], row["msgs"], row["first_seq"], row["last_seq"]) for row in rows.values()
    ] == [
        ("all", 0, 4, 3),
        ("orders", 5, 16, 20),
    ]
    again = StanClient(nats.port, "again")
    again.connect()
    again.publish(b"all", b"new")
    for channel, wanted in ((b"all", [4]), (b"orders", [16, 17, 18, 19, 20])):
        subscription = again.subscribe(channel)
        again.nats.pump(partial(subscription.has, len(wanted)), f"what is left of {channel!r}")
        assert subscription.sequences == wanted
    assert operator.change("channel", "purge", "orders", "--keep", "2", "--yes").status == 0
    assert operator.channels()["orders"]["first_seq"] == 19
    until(lambda: audit(standby), "the line about it")
    words = "purged 3 messages, 2 are left, the next one gets sequence 21"
    assert audit(standby)[0].endswith(
        f') asked for: channel-purge "orders" but its newest 2: {words}'
    )


def test_a_kicked_client_is_gone_also_after_a_kill_and_its_durable_stays(stage: Stage) -> None:
    server, operator = serving(stage)
    client = StanClient(server.port)
    client.connect()
    client.publish(b"orders", b"a")
    client.subscribe(b"orders", durable=b"d")
    client.subscribe(b"orders")
    assert operator.change("client", "kick", "me", "--yes").status == 0
    assert client.ping() == c.CLIENT_REPLACED
    server.kill()
    server = stage.file_server("b")
    server.wait_for(READY)
    operator = Admin(server.port)
    assert operator.look("client", "ls") == {"clients": []}
    (sub,) = operator.look("sub", "ls")["subscriptions"]
    assert (sub["durable_name"], sub["is_offline"]) == ("d", True)


def test_what_destroys_asks_first_and_without_a_terminal_wants_a_word(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, operator = serving(stage)
    client = StanClient(server.port)
    client.connect()
    client.publish(b"orders", b"a")
    purges = [
        ("channel", "purge", "orders", *bound) for bound in ((), ("--keep", "3"), ("--up-to", "1"))
    ]
    for words in (
        *purges,
        ("channel", "delete", "orders"),
        ("client", "kick", "me"),
        ("server", "drain"),
    ):
        said = operator.change(*words)
        assert said.status == 1, said
        assert "add --yes" in said.err

    class Terminal:
        def __init__(self, line: str) -> None:
            self._line = line

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self._line

    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "nothing was done" in operator.change("channel", "delete", "orders").err
    said = operator.change("channel", "purge", "orders", "--up-to", "1")
    assert (
        "purge the messages up to sequence 1 (there are 1 to 1) of channel orders? type yes"
        in said.err
    )
    assert operator.channels()["orders"]["msgs"] == 1
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    said = operator.change("channel", "delete", "orders")
    assert (said.status, operator.channels()) == (0, {})
    assert "delete channel orders with 1 message and 0 subscriptions" in said.err


def test_nothing_is_changed_without_the_key_and_every_change_is_a_line_in_the_log(
    stage: Stage, tmp_path: Path
) -> None:
    server, operator = serving(stage)
    wrong = tmp_path / "wrong.key"
    wrong.write_text(secrets.token_hex(32) + "\n")
    wrong.chmod(0o600)
    changes = [
        ("channel", "create", "orders"),
        ("channel", "purge", "kept", "--yes"),
        ("client", "kick", "me", "--yes"),
        ("server", "reload"),
        ("server", "drain", "--yes"),
    ]
    me = StanClient(server.port)
    me.connect()
    me.publish(b"kept", b"a")
    for words in changes:
        said = operator.ask(*words, "--key-file", str(wrong))
        assert said.status == 1, said
        assert "not sealed with this group's key" in said.err
        assert operator.ask(*words).status == 3
    unsealed = NatsConnection(server.port).request(
        control_subject(CLUSTER, id_of(server)), plain(Request(Verb.CREATE, name="orders"))
    )
    assert unsealed is not None
    assert "is not sealed" in decode_answer(unsealed.payload).error
    assert {name: row["msgs"] for name, row in operator.channels().items()} == {"kept": 1}
    assert operator.look("client", "ls")["clients"][0]["id"] == "me"
    assert audit(server) == []

    assert operator.change("channel", "create", "orders").status == 0
    assert operator.change("channel", "create", "orders").status == 1
    by = f"(uid {os.getuid()})"
    until(lambda: len(audit(server)) == 2, "two lines")
    done, refused = audit(server)
    assert by in done
    assert done.endswith('asked for: channel-create "orders": created')
    assert refused.endswith(
        'asked for: channel-create "orders": refused: there is a channel "orders" already'
    )


def test_the_same_request_twice_is_carried_out_once(stage: Stage) -> None:
    server, _ = serving(stage)
    key = bytes.fromhex((stage.store / KEY_NAME).read_text().strip())
    request = seal(
        Request(Verb.CREATE, name="orders"),
        Recipient(CLUSTER, id_of(server)),
        key=key,
        now_ns=time.time_ns(),
        nonce=secrets.token_bytes(16),
    )
    nats = NatsConnection(server.port)
    said = [nats.request(control_subject(CLUSTER, id_of(server)), request) for _ in range(2)]
    answers = [decode_answer(arrived.payload) for arrived in said if arrived is not None]
    assert [answer.ok for answer in answers] == [True, False]
    assert "was sent before" in answers[1].error


def test_only_the_active_says_what_is_served(stage: Stage) -> None:
    nats = stage.nats()
    active, standby = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(b"orders", b"a")
    operator = Admin(nats.port, "--dir", str(stage.store))
    assert set(operator.channels()) == {"orders"}
    until(lambda: len(operator.look("server", "ls")["servers"]) == 2, "the standby to answer, too")
    key = bytes.fromhex((stage.store / KEY_NAME).read_text().strip())
    for verb in (
        Verb.CHANNELS,
        Verb.CLIENTS,
        Verb.SUBS,
        Verb.CREATE,
        Verb.DELETE,
        Verb.PURGE,
        Verb.KICK,
    ):
        request = seal(
            Request(verb, name="orders", force=True),
            Recipient(CLUSTER, id_of(standby)),
            key=key,
            now_ns=time.time_ns(),
            nonce=secrets.token_bytes(16),
        )
        answer = NatsConnection(nats.port).request(
            control_subject(CLUSTER, id_of(standby)), request
        )
        assert answer is not None
        said = decode_answer(answer.payload)
        assert (said.ok, said.error, said.rows) == (
            False,
            "this server does not serve clients now",
            (),
        )
    servers = {row["server"]: row["state"] for row in operator.look("server", "ls")["servers"]}
    assert servers == {id_of(active): "FT_ACTIVE", id_of(standby): "FT_STANDBY"}
    assert "is 2 servers" in operator.change("server", "reload").err
    # The successor serves what was there, and answers in turn.
    active.kill()
    standby.wait_until_active()
    assert operator.change("channel", "create", "second").status == 0
    assert set(operator.channels()) == {"orders", "second"}


def test_a_drain_hands_over_and_leaves_with_status_0(stage: Stage) -> None:
    nats = stage.nats()
    active, standby = stage.pair_on(nats)
    operator = Admin(nats.port, "--dir", str(stage.store))
    assert operator.change("server", "drain", id_of(active), "--yes").status == 0
    assert active.status() == 0
    standby.wait_until_active()


def test_a_reload_takes_over_what_the_file_says_and_a_wrong_file_changes_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "stan.conf"
    file.write_text("streaming { store_limits { max_channels: 1 } }\n")
    server, operator = serving(stage, "-sc", str(file))
    assert operator.change("channel", "create", "one").status == 0
    assert operator.change("channel", "create", "two").status == 1
    file.write_text("streaming { store_limits { max_channels: 2 } }\n")
    assert operator.change("server", "reload").status == 0
    assert operator.change("channel", "create", "two").status == 0
    file.write_text("streaming { store_limits { max_channels: -2 } }\n")
    said = operator.change("server", "reload")
    assert said.status == 1, said
    assert operator.look("server", "info")["server"]["pid"] == server.pid


def test_a_memory_store_has_a_key_where_its_option_says(stage: Stage, tmp_path: Path) -> None:
    key = tmp_path / "stan.key"
    server = stage.server("m", "-admin_key", str(key))
    server.wait_for(READY)
    operator = Admin(server.port, "--key-file", str(key))
    assert operator.change("channel", "create", "orders").status == 0
    assert operator.change("channel", "purge", "orders", "--yes").status == 0
    assert operator.change("channel", "delete", "orders", "--yes").status == 0
    assert (operator.channels(), key.stat().st_mode & 0o777) == ({}, 0o600)
    keyless = stage.server("k")
    keyless.wait_for(READY)
    said = Admin(keyless.port, "--key-file", str(key)).change("channel", "create", "orders")
    assert said.status == 1, said
    assert "-admin_key" in said.err


def test_who_cannot_ask_is_told_why(stage: Stage, tmp_path: Path) -> None:
    nats = stage.nats()
    operator = Admin(nats.port, "--key-file", str(tmp_path / "missing.key"))
    assert operator.ask("channel", "ls").status == 2
    assert run("channel", "ls", "--server", f"nats://{HOST}:1").status == 3
    purges = (
        ["purge", "a", "--keep", "1", "--up-to", "1"],
        ["purge", "a", "--up-to", "0"],
        ["purge", "a", "--keep=-1"],
    )
    for words in (["dance"], [], ["info"], ["ls", "--timeout", "0"], *purges):
        assert run("channel", *words).status == 64, words
    server = stage.file_server("a", "-ns", nats.url)
    server.wait_for(READY)
    missing = operator.change("channel", "create", "orders")
    assert missing.status == 3
    assert "does not exist" in missing.err
    assert json.loads(operator.ask("channel", "ls", "--output", "json").out) == {"channels": []}


def test_of_partitions_the_one_that_owns_a_channel_is_asked_and_a_kick_is_done_by_all(
    stage: Stage, tmp_path: Path
) -> None:
    nats = stage.nats()
    key = tmp_path / "stan.key"
    first = part(stage, "a", "foo,bar.*", "-ns", nats.url, "-admin_key", str(key))
    first.wait_for(READY)
    second = part(stage, "b", "baz", "-ns", nats.url, "-admin_key", str(key))
    second.wait_for(READY)
    operator = Admin(nats.port, "--key-file", str(key))
    client = StanClient(nats.port)
    client.connect()
    client.publish(b"foo", b"a")
    client.subscribe(b"foo")
    client.subscribe(b"baz")
    until(lambda: len(operator.look("client", "ls")["clients"]) == 1, "the client")
    assert [
        row["channel"] for row in operator.look("client", "info", "me")["client"]["subscriptions"]
    ] == [
        "baz",
        "foo",
    ]
    for channel in ("bar.x", "baz.not.here"):
        assert operator.change("channel", "create", channel).status == (channel == "baz.not.here")
    assert {"bar.x", "baz", "foo"} <= set(operator.channels())
    assert operator.look("channel", "info", "baz")["channel"]["subscriptions"] == 1
    assert "there is no channel" in operator.ask("channel", "info", "bar.unknown").err
    assert operator.change("client", "kick", "me", "--yes").status == 0
    assert operator.look("client", "ls") == {"clients": []}
    assert operator.look("sub", "ls") == {"subscriptions": []}
    assert operator.change("channel", "delete", "baz", "--yes").status == 0
    assert "baz" not in operator.channels()
