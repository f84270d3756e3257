"""``migrate_from_go.yml`` on two hosts whose servers keep the original's rules: there, back, and
there for good.

The originals are peers of ``tests/oracle``, which know nothing of us, as the unit that the
original's users have; their datastore is one that a real server wrote.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest

from ftstan.nats.binary import binary_path
from tests.ansible.test_hosts import UNIT, Site, deb, site
from tests.oracle.damage import archived_tree, write_tree
from tests.oracle.gostore import read_store
from tests.processes import CLUSTER, ROOT, until

if TYPE_CHECKING:
    from tests.packaging.host import Host
    from tests.processes import Stage

# The first of a run builds the packages and the root, which takes its time on a busy machine.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

GO = "nats-streaming-server.service"
CHANNEL = b"orders.eu.1"
#: The peer has no monitoring pages: who serves is told for it, as its log says.
PAGES = """\
import http.server, subprocess, sys, threading

peer = subprocess.Popen([sys.executable, "-m", "tests.oracle.gopeer", *sys.argv[1:]], stderr=subprocess.PIPE, text=True)
serves = threading.Event()

class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if serves.is_set() else 204)
        self.end_headers()

def follow():
    for line in peer.stderr:
        sys.stderr.write(line)
        if "Streaming Server is ready" in line:
            serves.set()

threading.Thread(target=follow, daemon=True).start()
threading.Thread(target=http.server.HTTPServer(("", 8222), Pages).serve_forever, daemon=True).start()
import signal
signal.signal(signal.SIGTERM, lambda *_: peer.terminate())
sys.exit(peer.wait())
"""  # noqa: E501
SERVICE = """\
[Service]
User=ftstan
Environment=PYTHONPATH=/opt/original
ExecStart=/usr/bin/python3 /opt/original/pages.py --cluster {cluster} --group orders \\
  --dir /nss/orders --nats nats://host1:4222
SuccessExitStatus=143
Restart=always
[Install]
WantedBy=multi-user.target
"""
NATS = """\
[Service]
ExecStart=/opt/original/nats-server -a 0.0.0.0 -p 4222
[Install]
WantedBy=multi-user.target
"""


def put_original(host: Host) -> None:
    """The peer, what it imports, and its units.

    A user for it, by whom the package's files will belong.
    """
    place = host.root / "opt/original"
    place.mkdir()
    (place / "pages.py").write_text(PAGES, encoding="utf-8")
    shutil.copytree(Path(nats.__file__).parent, place / "nats")
    (place / "tests").mkdir()
    (place / "tests" / "__init__.py").touch()
    shutil.copytree(ROOT / "tests" / "oracle", place / "tests" / "oracle")
    shutil.copy(binary_path(), place / "nats-server")
    host.out("groupadd", "--gid", "842", "ftstan")
    host.out("useradd", "--uid", "842", "--gid", "842", "ftstan")
    units = host.root / "etc/systemd/system"
    (units / GO).write_text(SERVICE.format(cluster=CLUSTER), encoding="utf-8")
    (units / "nats.service").write_text(NATS, encoding="utf-8")


def enabled(made: Site, unit: str) -> list[str]:
    """The hosts whose next boot would start it."""
    return [
        n
        for n, host in made.hosts.items()
        if host.call("systemctl", "is-enabled", unit).stdout == "enabled\n"
    ]


def running(made: Site, unit: str) -> list[str]:
    return [name for name, host in made.hosts.items() if host.unit(unit, "ActiveState") == "active"]


def test_a_group_goes_over_comes_back_and_goes_over_for_good(
    stage: Stage, debian_host: Path, packages: Path
) -> None:
    store = stage.directory / "nss" / "orders"
    write_tree(archived_tree("v0.25.6/clean.tar.gz"), store)
    before = read_store(store).channels
    variables = {
        "ftstan_cluster_id": CLUSTER, "ftstan_ft_group": "orders",
        "ftstan_datastore": "/nss/orders",
        "ftstan_nats": "external", "ftstan_nats_servers": ["nats://host1:4222"],
    }  # fmt: skip
    groups: dict[str, Any] = {"ftstan": {"hosts": {"host1": {}, "host2": {}}, "vars": variables}}
    made = site(stage, debian_host, deb(packages), groups, "host1", "host2", shared=store.parent)
    host1 = made.hosts["host1"]
    for host in made.hosts.values():
        put_original(host)
    host1.out("chown", "-R", "ftstan:ftstan", "/nss")
    host1.out("systemctl", "enable", "--now", "nats.service")
    for host in made.hosts.values():
        host.out("systemctl", "enable", "--now", GO)
    until(
        lambda: "Streaming Server is ready" in host1.journal(GO) + made.hosts["host2"].journal(GO),
        "an original",
    )

    def step(name: str) -> None:
        done = made.play("migrate_from_go", migrate_step=name)
        assert done.status == 0, done.text + made.told()

    def client(*words: str) -> str:
        return host1.out("ftstanctl", *words, "--server", "nats://host1:4222", "--cluster", CLUSTER)

    def sequences(start: str, count: int) -> list[int]:
        rows = client(
            "sub", CHANNEL.decode(), start, "--count", str(count), "--output", "json"
        ).splitlines()
        return [json.loads(row)["sequence"] for row in rows]

    # There: every host has changed, and everything is there.
    step("forth")
    assert (running(made, UNIT), running(made, GO)) == (["host1", "host2"], [])
    assert (enabled(made, UNIT), enabled(made, GO)) == (["host1", "host2"], [])
    made.wait_until_whole()
    count = len(before[CHANNEL].messages)
    assert sequences("--first", count) == sorted(before[CHANNEL].messages)
    client("pub", CHANNEL.decode(), "ours")

    # Back: originals read what we wrote.
    step("back")
    assert (running(made, UNIT), running(made, GO)) == ([], ["host1", "host2"])
    assert (enabled(made, UNIT), enabled(made, GO)) == ([], ["host1", "host2"])
    client("pub", CHANNEL.decode(), "theirs")
    # The peer has synced what it acknowledged; it is read as an original would.
    messages = read_store(store).channels[CHANNEL].messages
    assert [messages[count + 1].data, messages[count + 2].data] == [b"ours", b"theirs"]

    # For good.
    step("forth")
    made.wait_until_whole()
    step("finish")

    def mixed() -> list[bool]:
        status = json.loads(client("ft", "status", "--group", "orders", "--output", "json"))
        return [node["mixed"] for node in status["nodes"]]

    # The standby reads it when it hears the epoch in which the owner recorded it.
    until(lambda: mixed() == [False, False], "a group that is not mixed")
    assert sequences(f"--sequence={count + 1}", 2) == [count + 1, count + 2]
