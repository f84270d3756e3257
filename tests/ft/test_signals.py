"""Signals to real servers: how they leave in peace, and how their configuration is read again."""

from __future__ import annotations

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.config.options import LinkOptions
from ftstan.nats.link import Link
from tests.certificates import Certificates, replace_pair
from tests.ft.client import StanClient
from tests.ft.load import Load
from tests.processes import HOST, PATIENCE_S, READY, alive, children, until

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

CHANNEL = b"orders"
LAME_DUCK = "[INF] STREAM: Entering lame duck mode, no new clients are taken"


def ready(server: Server) -> Server:
    server.wait_for(READY)
    return server


def connected(port: int, client_id: str = "me") -> StanClient:
    client = StanClient(port, client_id)
    client.connect()
    return client


class TestLameDuck:
    def test_a_server_alone_takes_nobody_new_serves_those_it_has_and_ends_when_they_have_gone(
        self, stage: Stage
    ) -> None:
        nats = stage.nats()
        server = ready(stage.file_server("server", "-ns", nats.url))
        client = connected(nats.port)
        server.signal(signal.SIGUSR2)
        server.wait_for(LAME_DUCK.removeprefix("[INF] "))
        refused = StanClient(nats.port, "late")
        # The line is written before the data plane knows; from some moment on everybody is refused.
        until(lambda: b"lame duck" in refused.ask_to_connect().error, "a refusal")
        client.publish(CHANNEL, b"served")
        client.close()
        assert server.status() == 0
        assert "[INF] STREAM: Shutting down." in server.lines()
        later = ready(stage.file_server("later", "-ns", nats.url))
        assert connected(nats.port).read_to(CHANNEL, 1) == {1: b"served"}
        assert later.running

    def test_its_nats_server_is_told(self, stage: Stage) -> None:
        server = ready(stage.server("server"))
        below = children(server.pid)
        client = connected(server.port)
        server.signal(signal.SIGUSR2)
        server.wait_for("[INF] Entering lame duck mode, stop accepting new clients")
        client.close()
        assert server.status() == 0
        assert not [pid for pid in below if alive(pid)]
        assert "nats-server (pid" not in server.text(), "it was started again"

    def test_the_active_of_a_group_hands_over_and_stays_away(self, stage: Stage) -> None:
        nats = stage.nats()
        a, b = stage.pair_on(nats)
        client = connected(nats.port)
        client.publish(CHANNEL, b"one")
        a.signal(signal.SIGUSR2)
        client.publish(CHANNEL, b"two")
        # 75 would bring it back under a service manager.
        assert a.status() == 0
        b.wait_until_active()
        assert client.ping() == ""
        assert client.read_to(CHANNEL, 2) == {1: b"one", 2: b"two"}

    def test_under_load_drain_after_drain_loses_nothing_and_acks_nothing_twice(
        self, stage: Stage
    ) -> None:
        nats = stage.nats()
        active, standby = stage.pair_on(nats)
        load = Load(CHANNEL)
        load.join(connected(nats.port))
        for number in range(3):
            load.run(500)
            active.signal(signal.SIGUSR2)
            load.run(3000)
            assert active.status() == 0
            standby.wait_until_active()
            active = standby
            standby = stage.member(f"n{number}", "-ns", nats.url)
            standby.wait_until_standing_by()
        load.settle()
        assert load.unanswered == 0
        load.judge(connected(nats.port, "reader").read_all(CHANNEL))

    def test_a_drain_that_a_stop_overtakes_loses_nothing(self, stage: Stage) -> None:
        nats = stage.nats()
        active, standby = stage.pair_on(nats)
        load = Load(CHANNEL)
        load.join(connected(nats.port))
        load.run(500)
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR2):
            active.signal(number)
        load.run(2000)
        assert active.status() in {0, 143}
        standby.wait_until_active()
        load.settle()
        load.judge(connected(nats.port, "reader").read_all(CHANNEL))

    def test_its_nats_server_goes_on_for_clients_that_have_not_moved_until_somebody_is_in_a_hurry(
        self, stage: Stage
    ) -> None:
        a, b = stage.routed_pair()
        client = connected(a.port)
        client.publish(CHANNEL, b"one")
        a.signal(signal.SIGUSR2)
        b.wait_until_active()
        # Through the NATS server of the node that has left, and the route between the two.
        client.publish(CHANNEL, b"two")
        assert a.running
        a.signal(signal.SIGTERM)
        assert a.status() == 0

    def test_a_standby_ends(self, stage: Stage) -> None:
        a, b = stage.pair_on(stage.nats())
        b.signal(signal.SIGUSR2)
        assert b.status() == 0
        assert a.ft_status == 200

    def test_an_active_without_a_standby_says_so_and_leaves_all_the_same(
        self, stage: Stage
    ) -> None:
        nats = stage.nats()
        a = stage.member("a", "-ns", nats.url)
        a.wait_until_active()
        a.signal(signal.SIGUSR2)
        assert a.status() == 0
        assert any("nobody to hand over to" in line for line in a.lines())


class TestReload:
    @staticmethod
    def start(stage: Stage, text: str, *words: str) -> tuple[Server, Path]:
        file = stage.directory / "stan.conf"
        file.write_text(text)
        return ready(stage.server("server", "-c", str(file), *words)), file

    @staticmethod
    def reload(server: Server, said: str) -> str:
        """Send SIGHUP, wait for ``said``, and return what was logged since."""
        before = len(server.text())
        server.signal(signal.SIGHUP)
        until(lambda: said in server.text()[before:], f"{said!r} in the log")
        return server.text()[before:]

    def test_log_levels_and_the_nats_part_change_while_clients_are_served(
        self, stage: Stage
    ) -> None:
        server, file = self.start(stage, "streaming { }")
        client = connected(server.port)
        client.publish(CHANNEL, b"one")
        below = children(server.pid)
        file.write_text("debug: true, max_payload: 2000\nstreaming { sd: true }")
        text = self.reload(server, "STREAM: Reloaded: stan_debug = true")
        assert "[INF] Reloaded: debug = true\n" in text
        assert "[INF] Reloaded: max_payload = 2000\n" in text
        assert text.count("[INF] Reloaded server configuration\n") == 1
        client.publish(CHANNEL, b"two")
        connected(server.port, "other")
        server.wait_for("[DBG] STREAM: [Client:other] Connected")
        assert children(server.pid) == below
        # What it was told once it is started with the next time, too.
        os.kill(below[0], signal.SIGKILL)
        server.wait_for("nats-server is running again")
        client.move(server.port)
        assert client.nats.max_payload == 2000
        assert client.read_to(CHANNEL, 2) == {1: b"one", 2: b"two"}
        assert not list(Path(tempfile.gettempdir()).glob(f"ftstan-nats-*/{file.name}"))

    def test_what_is_logged_changes_as_the_file_says_also_behind_a_reopened_log(
        self, stage: Stage
    ) -> None:
        written = stage.directory / "stan.log"
        file = stage.directory / "stan.conf"
        file.write_text("streaming { }")
        server = stage.server("server", "-c", str(file), "-l", str(written))
        until(lambda: written.exists() and READY in written.read_text(), "a server that is ready")

        def reload(text: str, last: str) -> list[str]:
            before = len(written.read_text())
            file.write_text(text)
            server.signal(signal.SIGHUP)
            until(lambda: last in written.read_text()[before:], f"{last!r} in the log")
            lines = written.read_text()[before:].splitlines()
            return [line.partition("[INF] ")[2] for line in lines if "[INF] " in line]

        on = "debug: true, trace: true, logtime: false\nstreaming { sd: true, sv: true }"
        lines = reload(on, "STREAM: Reloaded: stan_trace = true")
        assert lines[-3:] == [
            "Reloaded: logtime = false",
            "STREAM: Reloaded: stan_debug = true",
            "STREAM: Reloaded: stan_trace = true",
        ]
        assert {"Reloaded: debug = true", "Reloaded: trace = true"} <= set(lines)
        written.rename(stage.directory / "stan.log.1")
        server.signal(signal.SIGUSR1)
        until(lambda: written.exists() and "re-opened" in written.read_text(), "another log")
        lines = reload("streaming { }", "STREAM: Reloaded: stan_trace = false")
        assert lines[-3:] == [
            "Reloaded: logtime = true",
            "STREAM: Reloaded: stan_debug = false",
            "STREAM: Reloaded: stan_trace = false",
        ]
        assert {"Reloaded: debug = false", "Reloaded: trace = false"} <= set(lines)
        connected(server.port, "quiet")
        assert "Client:quiet" not in written.read_text()

    def test_limits_change_for_channels_that_are_there(self, stage: Stage) -> None:
        server, file = self.start(stage, "streaming { }")
        client = connected(server.port)
        client.publish(CHANNEL, *(b"%d" % n for n in range(10)))
        file.write_text("streaming { store_limits { max_msgs: 4, max_channels: 1 } }")
        text = self.reload(server, "STREAM: Reloaded: Messages: ")
        assert "STREAM: Reloaded: Channels: 100 -> 1" in text
        client.publish(CHANNEL, b"10")
        assert client.offer(b"another", b"x")
        client.nats.pump(lambda: client.errors, "an error")
        assert ["too many channels"] in client.errors.values()
        reader = connected(server.port, "reader")
        subscription = reader.subscribe(CHANNEL)
        reader.nats.pump(lambda: 11 in subscription.sequences, "the last message")
        assert subscription.sequences == [8, 9, 10, 11]

    def test_under_load_only_the_new_limit_takes_anything_whatever_the_file_says_meanwhile(
        self, stage: Stage
    ) -> None:
        nats = stage.nats()
        server, file = self.start(
            stage, "streaming { }", "-store", "file", "-dir", str(stage.store), "-ns", nats.url
        )
        load = Load(CHANNEL)
        load.join(connected(nats.port))
        texts = [
            "max_msgs: 1000000",
            "max_bytes: 9GB",
            "max_msgs: 1000000, channels { orders { max_age: '9h' } }",
        ]
        for text in texts:
            load.run(500)
            file.write_text(f"streaming {{ store_limits {{ {text} }} }}")
            server.signal(signal.SIGHUP)
            load.run(1500)
            # Neither of these may change anything: the first would leave one message.
            for wrong in ("max_msgs: 1, max_bytes: -5", "max_msgs: 1 } hb_interval: '7s', x {"):
                errors = server.text().count("[ERR] STREAM: Reload: ")
                file.write_text(f"streaming {{ store_limits {{ {wrong} }} }}")
                server.signal(signal.SIGHUP)
                server.wait_for("[ERR] STREAM: Reload: ", errors + 1)
        load.settle()
        stored = connected(nats.port, "reader").read_all(CHANNEL)
        load.judge(stored)
        last = max(stored)
        file.write_text("streaming { store_limits { max_msgs: 100 } }")
        self.reload(server, "STREAM: Reloaded: Messages: ")
        late = connected(nats.port, "late")
        late.publish(CHANNEL, b"the last")
        subscription = late.subscribe(CHANNEL)
        late.nats.pump(lambda: last + 1 in subscription.sequences, "the last message")
        assert subscription.sequences == list(range(last - 98, last + 2))
        assert [m.data for m in subscription.received[:-1]] == [
            stored[s] for s in subscription.sequences[:-1]
        ]

    def test_limits_that_a_standby_reads_hold_when_it_takes_over(self, stage: Stage) -> None:
        nats = stage.nats()
        file = stage.directory / "standby.conf"
        file.write_text("streaming { store_limits { max_msgs: 50 } }")
        a = stage.member("a", "-ns", nats.url, "-max_msgs", "50")
        a.wait_until_active()
        b = stage.member("b", "-ns", nats.url, "-c", str(file))
        b.wait_until_standing_by()
        client = connected(nats.port)
        client.publish(CHANNEL, *(b"%d" % n for n in range(10)))
        client.publish(b"other", *(b"%d" % n for n in range(10)))
        file.write_text(
            "streaming { store_limits { max_msgs: 50, channels { orders { max_msgs: 4 } } } }"
        )
        self.reload(b, 'STREAM: Reloaded: "orders": ')
        # It reads ahead with other limits than those who serves has, and takes nothing from it.
        assert client.read_to(CHANNEL, 10) == {n + 1: b"%d" % n for n in range(10)}
        a.kill()
        b.wait_until_active()
        client.publish(CHANNEL, b"10")
        client.publish(b"other", b"10")
        late = connected(nats.port, "late")
        subscription = late.subscribe(CHANNEL)
        late.nats.pump(lambda: 11 in subscription.sequences, "the last message")
        assert subscription.sequences == [8, 9, 10, 11]
        assert late.read_to(b"other", 11) == {n + 1: b"%d" % n for n in range(11)}

    def test_a_renewed_certificate_and_another_login_are_used_without_a_restart(
        self, stage: Stage
    ) -> None:
        certificates = Certificates.make(stage.directory / "certificates")
        own = certificates.server
        tls = f'tls {{ cert_file: "{own.cert}", key_file: "{own.key}" }}\n'
        trust = f'streaming {{ tls {{ client_ca: "{certificates.ca.cert}" }} }}\n'
        server, file = self.start(stage, tls + "authorization { user: u, password: one }\n" + trust)
        replace_pair(own, certificates.ca.server("renewed"))
        file.write_text(tls + "authorization { user: u, password: two }\n" + trust)
        self.reload(server, "[INF] Reloaded server configuration")
        # The connection with the former login is closed; the new one comes with the new login.
        server.wait_for('connection "_NSS-test-cluster-general" reconnected')
        login = LinkOptions(user="u", password="two", client_ca=certificates.ca.cert)
        link = Link(
            [f"nats://{HOST}:{server.port}"], name="test", clock=SystemClock(), options=login
        )
        link.connect(PATIENCE_S)
        link.close()
        wrong = replace(login, password="one")
        with pytest.raises(NatsError, match="Authorization"):
            Link(
                [f"nats://{HOST}:{server.port}"], name="test", clock=SystemClock(), options=wrong
            ).connect(PATIENCE_S)
        assert "two" not in server.text()

    def test_a_file_with_an_error_changes_nothing_and_is_one_line_with_its_place(
        self, stage: Stage
    ) -> None:
        server, file = self.start(stage, "streaming { }")
        file.write_text("debug: true\nstreaming { sd: true, store_limits { max_msgs: many } }")
        text = self.reload(server, "Reload: ")
        (line,) = text.splitlines()
        assert "[ERR] STREAM: Reload: " in line
        assert f"{file}:2" in line
        assert "max_msgs" in line
        connected(server.port).publish(CHANNEL, b"one")
        assert "[DBG]" not in server.text()

    def test_what_cannot_change_is_named(self, stage: Stage) -> None:
        server, file = self.start(stage, "streaming { }")
        file.write_text(
            "debug: true\nstreaming { hb_interval: '7s', store: file, dir: x, sd: true }"
        )
        text = self.reload(server, "without a restart")
        assert (
            '[ERR] STREAM: Reload: cannot change "store", "dir", "hb_interval" without a restart'
            in text
        )
        connected(server.port)
        assert "[DBG]" not in server.text()

    def test_what_the_nats_server_refuses_is_told_in_its_words_and_changes_nothing(
        self, stage: Stage
    ) -> None:
        server, file = self.start(stage, "streaming { }")
        file.write_text("max_connections: 1, server_name: other\nstreaming { sd: true }")
        text = self.reload(server, "[ERR]")
        assert "[ERR] STREAM: Reload: config reload not supported for ServerName: old=" in text
        connected(server.port, "one")
        connected(server.port, "two")
        assert "[DBG]" not in server.text()

    def test_without_a_file_it_says_so(self, stage: Stage) -> None:
        server = ready(stage.server("server"))
        self.reload(
            server,
            "STREAM: Reload: can only reload config when a file is provided using -c or --config",
        )
        connected(server.port).publish(CHANNEL, b"one")

    def test_signals_in_quick_succession_are_carried_out_one_after_the_other(
        self, stage: Stage
    ) -> None:
        server, file = self.start(stage, "streaming { }")
        file.write_text("streaming { sd: true }")
        for _ in range(5):
            server.signal(signal.SIGHUP)
        server.wait_for("STREAM: Reloaded: stan_debug = true")
        file.write_text("streaming { }")
        self.reload(server, "STREAM: Reloaded: stan_debug = false")
        assert "[ERR]" not in server.text()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGQUIT, 0), (signal.SIGINT, 0), (signal.SIGTERM, 143)]
)
def test_each_signal_to_stop_stops_cleanly(
    stage: Stage, number: signal.Signals, status: int
) -> None:
    server = ready(stage.server("server"))
    server.signal(number)
    assert server.status() == status
    assert "[INF] STREAM: Shutting down." in server.lines()
