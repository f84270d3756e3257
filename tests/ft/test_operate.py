"""``docs/operate.md`` with a pair on this host: its blocks are typed as they stand there, and do
what the page says.

Hands do what stands for other programs: they stop and start the pair for ``systemctl``, and copy
for ``rsync``. What a host with the package is needed for is left to ``tests/packaging`` and
``tests/unit/docs/test_operate.py``.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ft.client import StanClient
from tests.ft.operator import Said, run
from tests.processes import CLUSTER, GROUP, HOST, until
from tests.unit.docs.test_operate import OPERATE, blocks_of

if TYPE_CHECKING:
    from tests.processes import Nats, Server, Stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

#: Left out here: another host, a package, the unit.
ELSEWHERE = (
    "apt ",
    "ftstan -c ",
    "ftstanctl systemd-dropin",
    "systemctl daemon-reload",
    "systemctl enable",
)


def section(title: str) -> list[list[str]]:
    """The blocks of commands below a heading."""
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)^## ", OPERATE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None, title
    return blocks_of(found[1])


class Hands:
    """An operator of a pair whose storage is below ``stage.directory``."""

    def __init__(self, stage: Stage, nats: Nats) -> None:
        self.stage = stage
        self.nats = nats
        self.started = 0
        self.pair: list[Server] = []
        stage.store = stage.directory / "nss" / "orders"
        (stage.directory / "nss-new").mkdir()
        stage.store.mkdir(parents=True)
        self.start()

    @property
    def active(self) -> Server:
        """The member that serves."""
        (serving,) = [server for server in self.pair if server.get("/active")[0] == 200]
        return serving

    @property
    def standby(self) -> Server:
        """The one that does not."""
        (other,) = [server for server in self.pair if server.get("/active")[0] != 200]
        return other

    def start(self) -> None:
        """Start members until there are two."""
        self.pair = [server for server in self.pair if server.running]
        while len(self.pair) < 2:
            self.started += 1
            server = self.stage.member(f"m{self.started}", "-ns", self.nats.url)
            if self.pair:
                server.wait_until_standing_by()
            else:
                server.wait_until_active()
            self.pair.append(server)

    def stop(self, *servers: Server) -> None:
        """Stop members cleanly."""
        for server in servers:
            server.signal(signal.SIGTERM)
            assert server.status() == 128 + signal.SIGTERM

    def type(self, line: str) -> Said | None:
        """Do what a line of the page says."""
        if line.startswith(ELSEWHERE) or "--peer" in line:
            return None
        program, *words = shlex.split(
            re.sub(r"(?<=[ =])(?=/(nss|srv))", str(self.stage.directory), line), comments=True
        )
        match program, *words:
            case "ftstanctl", *words:
                return self._ctl(words)
            case "curl", *words:
                page = [
                    word.replace("host1:8222", f"{HOST}:{self.active.monitor}") for word in words
                ]
                subprocess.run(
                    ["curl", "-o", str(self.stage.directory / "page"), *page],
                    check=True,
                    timeout=60,
                )
            case "systemctl", "stop", _:
                self.stop(self.standby, self.active)
            case "systemctl", "restart", _:
                self.stop(self.standby)
                self.start()
            case "systemctl", "start", _:
                self.start()
            case "ftstan", "-unit", *_:
                pass  # there is no unit here (tests/unit/config/test_service_unit.py)
            case "mv", source, target:
                Path(source).rename(target)
                if Path(source) == self.stage.store and "moved" in target:
                    self.stage.store = self.stage.directory / "nss-new" / "orders"
            case "rsync", *_, source, target:
                shutil.copytree(source, target, dirs_exist_ok=True)
            case _:
                pytest.fail(f"what does this do: {line}")
        return None

    def _ctl(self, words: list[str]) -> Said:
        if "switchover" in words:
            former = self.active
            successor = self.standby
            said = run(
                *(successor.serverz()["server_id"] if word == "host2" else word for word in words)
            )
            assert said.status == 0, said
            # The unit would start it again.
            assert former.status() == 75
            assert successor.get("/active")[0] == 200
            self.start()
            return said
        if words[:2] == ["ft", "status"]:
            # A member that has just come needs a moment.
            until(lambda: run(*words).status == 0, " ".join(words))
            return run(*words)
        if words[0] in {"channel", "client", "server", "ft"} or words[:2] == ["sub", "ls"]:
            # A busy machine must not turn a late answer into none.
            words += ["--timeout", "3"]
        said = run(*words)
        # 1: this host alone carries a group with limits; what a repair would mend is still there.
        assert said.status in ({0, 1} if {"check-store", "--dry-run"} & set(words) else {0}), (
            words,
            said,
        )
        return said

    def publish(self, channel: bytes, *data: bytes) -> None:
        """Store messages; each is acknowledged."""
        client = StanClient(
            self.nats.port, client_id=f"publisher-{self.started}-{channel.decode()}"
        )
        client.connect()
        client.publish(channel, *data)
        client.close()

    def stored(self, channel: str) -> int:
        """The messages of a channel that is served."""
        said = run("channel", "info", channel, "--output", "json")
        assert said.status == 0, said
        count: int = said.json["channel"]["msgs"]
        return count


@pytest.fixture
def hands(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Hands:
    nats = stage.nats()
    monkeypatch.setenv("FTSTAN_SERVERS", nats.url)
    monkeypatch.setenv("FTSTAN_CLUSTER_ID", CLUSTER)
    monkeypatch.setenv("FTSTAN_GROUP", GROUP)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(stage.directory / "config"))
    return Hands(stage, nats)


def test_looking_at_a_pair_that_is_well(hands: Hands) -> None:
    hands.publish(b"orders", b"one")
    (look,) = section("Health at a glance")
    said = {line: hands.type(line) for line in look}
    status = said["ftstanctl ft status --expect 2"]
    assert status is not None
    assert status.out.splitlines()[-1] == "healthy"
    assert b"ftstan_standing_by" in (hands.stage.directory / "page").read_bytes()


def test_an_upgrade_with_packages_step_by_step(hands: Hands) -> None:
    hands.publish(b"orders", b"one")
    before = hands.active
    for block in section("Upgrade"):
        for line in block:
            if not line.startswith(("ansible", "python3", "/opt")):
                hands.type(line)
    assert not before.running
    assert hands.stored("orders") == 1


def test_a_restore_brings_back_what_was_copied(hands: Hands) -> None:
    hands.publish(b"orders", b"one", b"two")
    hands.stop(hands.standby, hands.active)
    shutil.copytree(hands.stage.store, hands.stage.directory / "srv" / "backup" / "orders-1122")
    hands.start()
    hands.publish(b"orders", b"after the copy")
    assert hands.stored("orders") == 3
    (block,) = [
        block for block in section("Back up and restore") if "systemctl stop ftstan" in block
    ]
    for line in block:
        hands.type(line)
    assert hands.stored("orders") == 2
    hands.publish(b"orders", b"three")
    assert hands.stored("orders") == 3


def test_a_move_takes_everything_along(hands: Hands) -> None:
    hands.publish(b"orders", b"one", b"two")
    for block in section("Move a datastore"):
        for line in block:
            hands.type(line)
    assert hands.stage.store.parent.name == "nss-new"
    assert not (hands.stage.directory / "nss" / "orders").exists()
    assert hands.stored("orders") == 2
    epochs = run("ft", "history", "--output", "json").json["epochs"]
    assert len(epochs) == 2


def test_room_is_made_and_channels_are_purged_and_deleted(hands: Hands) -> None:
    hands.publish(b"old-events", *(b"%d" % number for number in range(1200)))
    for title in ("When the disk fills", "Purge and delete channels"):
        for block in section(title):
            for line in block:
                hands.type(line)
    assert hands.stored("old-events") == 1000
    assert run("channel", "info", "scratch").status == 1


def test_a_quarantined_channel_is_looked_at_and_repaired(hands: Hands) -> None:
    hands.publish(b"invoices", b"a first message", b"a second one", b"a third one")
    hands.stop(hands.standby, hands.active)
    (data,) = (hands.stage.store / "invoices").glob("msgs.*.dat")
    damaged = data.read_bytes().replace(b"second", b"2econd")
    data.write_bytes(damaged)
    hands.start()
    look, mend = section("When a channel is quarantined")
    words = shlex.split(look[0].replace("/nss/orders", str(hands.stage.store)))[1:]
    said = run(*words)
    assert (said.status, "invoices" in said.out) == (1, True), said
    for line in mend:
        hands.type(line)
    assert run(*words).status == 0
    assert hands.stored("invoices") == 2


def test_drills_are_listed_shown_and_judge_themselves() -> None:
    (block,) = section("Drills")
    for line in block:
        if line.startswith("ftstanctl "):
            assert run(*shlex.split(line)[1:]).status == 0
