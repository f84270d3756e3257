"""``docs/examples/secure-pair``: its README step by step, as two real servers behind TLS with nkeys
and rights.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError
from tests.ft.client import NatsConnection, StanClient
from tests.ft.operator import run
from tests.processes import HOST, READY, ROOT, STANDING_BY, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Server
    from tests.reference.moved import Moved

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

EXAMPLE = ROOT / "docs" / "examples" / "secure-pair"
USERS = ("stan", "operator", "client", "publisher", "subscriber", "drill")
#: What a test may say on a subject without anybody minding, and who may.
MAY = {
    "_STAN.ft.orders.orders": {"stan"},
    "_FTSTAN.ft.orders.orders": {"stan", "operator", "drill"},
    "_FTSTAN.ctl.orders.who": {"operator", "drill"},
    "_STAN.pub.orders.new.a": {"client", "publisher"},
    "_STAN.pub.orders.old": {"client"},
    "_STAN.pub.orders.ftstan-drill.1f0c2a9b": {"client", "drill"},
    "_STAN.sub.orders": {"client", "subscriber", "drill"},
    "anything.else": set[str](),
}


def steps(number: int) -> str:
    """The commands of one step of the README."""
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    section = re.findall(rf"^## {number}\. .*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[0]
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return str(commands)


def made(directory: Path) -> dict[str, str]:
    """Certificates and users as the README makes them, below ``files``; gives the variables."""
    tool = directory / "bin" / "ftstanctl"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m ftstan.cli.ctl "$@"\n')
    tool.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tool.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-euc", steps(1) + steps(2)],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (directory / "files" / "public-keys").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines)
    assert sorted(values) == sorted([*(f"{user.upper()}_NKEY" for user in USERS), "MONITOR_TOKEN"])
    return values


class Pair:
    """The two hosts of the example, with what each finds below /etc/ftstan/tls."""

    def __init__(self, moved: Moved) -> None:
        self.moved = moved
        self.files = moved.stage.directory / "files"
        self.values = made(moved.stage.directory)
        moved.path("/nss").mkdir()

    def configuration(self, host: str) -> Path:
        """Step 3 for one host: files in their places, which both hosts have for themselves."""
        place = self.moved.path(f"/etc/{host}/tls")
        place.mkdir(parents=True)
        for name, source in (
            ("ca.pem", "ca.pem"),
            ("stan.nk", "stan.nk"),
            ("server.pem", f"{host}.pem"),
            ("server.key", f"{host}.key"),
        ):
            (place / name).write_bytes((self.files / source).read_bytes())
            (place / name).chmod(0o600)
        text = (EXAMPLE / f"{host}.conf").read_text(encoding="utf-8")
        text = text.replace("/etc/ftstan/tls/", f"/etc/{host}/tls/")
        return self.moved.file(f"{host}.conf", text, host)

    def start(self, host: str) -> Server:
        path = self.configuration(host)
        return self.moved.start(
            f"ftstan -c {path}", host=host, name=host, environment={**os.environ, **self.values}
        )

    def page(self, server: Server, path: str, token: str = "") -> int:
        """The status of a page."""
        request = urllib.request.Request(f"https://{HOST}:{server.monitor}{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        context = ssl.create_default_context(cafile=str(self.files / "ca.pem"))
        try:
            return int(urllib.request.urlopen(request, context=context, timeout=30).status)
        except urllib.error.HTTPError as error:
            return error.code

    def login(self, user: str) -> dict[str, str]:
        return {
            "nkey_seed_file": str(self.files / f"{user}.nk"),
            "client_ca": str(self.files / "ca.pem"),
        }


def refused(link: NatsConnection, subject: str) -> bool:
    link.publish(subject, b"")
    try:
        link.flush()
    except AssertionError as error:
        if "Permissions Violation for Publish" not in str(error):
            raise
        return True
    return False


def test_the_pair_of_the_page_serves_is_steered_and_keeps_everybody_to_their_rights(
    moved: Moved,
) -> None:
    pair = Pair(moved)
    for user in USERS:
        seed = pair.files / f"{user}.nk"
        assert seed.stat().st_mode & 0o777 == 0o600
        assert seed.read_text().startswith("SU")
    first = pair.start("host1")
    first.wait_for(READY)
    second = pair.start("host2")
    second.wait_for(STANDING_BY)

    # Everybody may do what its part needs, and nothing else.
    for subject, may in MAY.items():
        found = {
            user
            for user in USERS
            if not refused(NatsConnection(first.port, **pair.login(user)), subject)
        }
        assert found == may, subject
    with pytest.raises(NatsError):
        NatsConnection(first.port, client_ca=str(pair.files / "ca.pem"))
    with pytest.raises(NatsError):
        NatsConnection(first.port, nkey_seed_file=str(pair.files / "client.nk"))
    assert pair.page(first, "/streaming/serverz") == 401
    assert pair.page(first, "/streaming/serverz", pair.values["MONITOR_TOKEN"]) == 200
    assert pair.page(first, "/active") == 200

    # A client of the standby's host reaches the active through a route, which is TLS, too.
    publisher = StanClient(second.port, "pub", cluster="orders", **pair.login("publisher"))
    publisher.connect()
    publisher.publish(b"new.a", b"there and back")
    reader = StanClient(first.port, "sub", cluster="orders", **pair.login("subscriber"))
    reader.connect()
    assert reader.read_to(b"new.a", 1) == {1: b"there and back"}

    # Step 4: the operator asks and steers.
    where = [
        *("--server", f"tls://{HOST}:{first.port},tls://{HOST}:{second.port}"),
        *("--cluster", "orders", "--timeout", "3"),
        *("--nkey", str(pair.files / "operator.nk"), "--tlsca", str(pair.files / "ca.pem")),
    ]
    until(
        lambda: run("ft", "status", "--group", "orders", *where).status == 0,
        "a group that is whole",
    )
    nodes = run("ft", "status", "--group", "orders", "--output", "json", *where).json["nodes"]
    assert {node["name"]: node["serving"] for node in nodes} == {"host1": True, "host2": False}
    (report,) = run("sub", "report", "--output", "json", *where).json["subscriptions"]
    assert (report["channel"], report["lag"]) == ("new.a", 0)
    store = str(moved.path("/nss/orders"))
    said = run("ft", "switchover", "--group", "orders", "--yes", "--dir", store, *where)
    assert said.status == 0, said
    second.wait_for(READY)
    assert pair.page(second, "/active") == 200
    again = StanClient(second.port, "again", cluster="orders", **pair.login("subscriber"))
    again.connect()
    assert again.read_to(b"new.a", 1) == {1: b"there and back"}
    for server in (first, second):
        assert not any(pair.values["MONITOR_TOKEN"] in line for line in server.lines())


@pytest.mark.parametrize("host", ["host1", "host2"])
def test_the_check_of_the_page_finds_nothing_wrong(
    moved: Moved, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(moved)
    for variable, value in pair.values.items():
        monkeypatch.setenv(variable, value)
    done = moved.run(f"ftstan -c {pair.configuration(host)}", add=["-check_config", "-strict"])
    assert (done.status, done.lines[-1]) == (0, "The configuration is valid."), done.text
    assert pair.values["MONITOR_TOKEN"] not in done.text
