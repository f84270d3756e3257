"""The package on a host of Debian 12 under systemd: the page about installing, and what comes late
at boot.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from ftstan.node.awake import has_quota
from tests.packaging.host import Host, Network
from tests.packaging.test_lifecycle import CONFIGURATION, deb
from tests.processes import ROOT, until
from tools.packages import current

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Stage

# The first of a run builds the packages and the root, which takes its time on a busy machine.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

UNIT = "ftstan.service"


@pytest.fixture
def host(stage: Stage, debian_host: Path) -> Host:
    """A host that is up."""
    return Host(stage, debian_host, "host1", Network(stage))


def commands(section: str) -> list[str]:
    """The lines of the code blocks in a section of the page, without their comments."""
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    _, _, rest = text.partition(f"\n## {section}\n")
    blocks = re.findall(r"^```\w*\n(.*?)^```", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line) for block in blocks for line in block.splitlines()]
    assert lines, section
    return lines


def test_what_the_page_says_for_debian_is_what_happens(host: Host, packages: Path) -> None:
    shutil.copytree(packages, host.root / "root/packages")
    (host.root / "etc/apt/apt.conf.d/90test").write_text('APT::Get::Assume-Yes "true";\n')

    def follow(section: str) -> str:
        lines = [line.replace("VERSION", current().full) for line in commands(section)]
        return "".join(host.out("sh", "-ec", f"cd /root/packages; {line}") for line in lines)

    follow("Before the first package: the user's numbers")
    said = follow("Debian")
    assert "The configuration is valid." in said
    assert re.search(r"Active: active \(running\)", said)
    assert re.search(r'Status: "STANDALONE: serving', said), said
    assert (
        host.out("id", "-u", "ftstan")
        == host.out("stat", "-c", "%u", "/var/lib/ftstan/store")
        == "4321\n"
    )
    assert host.answers("http://127.0.0.1:8222/readyz")

    # With io_spin processors are kept awake for a client that waits for each answer: the unit
    # allows what that takes, and no more.
    configuration = host.root / CONFIGURATION[1:]
    text = configuration.read_text()
    configuration.write_text(text.replace("  store: file\n", '  store: file\n  io_spin: "500us"\n'))
    host.out("systemctl", "restart", UNIT)
    assert host.answers("http://127.0.0.1:8222/readyz")
    host.out("ftstanctl", "bench", "--sync", "--count", "2000")
    threads = f"/proc/{host.unit(UNIT, 'MainPID')}/task"
    said = host.out(
        "sh", "-ec", f'for t in {threads}/*; do echo "$(cat $t/comm) $(chrt -p ${{t##*/}})"; done'
    )
    policies = {
        line.rsplit(" ", 1)[-1]
        for line in said.splitlines()
        if "policy" in line and line.startswith("awake ")
    }
    has_none = has_quota() or len(os.sched_getaffinity(0)) == 1
    assert policies == (set() if has_none else {"SCHED_IDLE"}), said

    # Another datastore: refused by the unit until a drop-in allows it.
    other = (
        text.replace("/var/lib/ftstan/store", "/srv/orders")
        .replace("4222", "4223")
        .replace("8222", "8223")
    )
    (host.root / "etc/ftstan/orders.conf").write_text(other)
    for directory in ("/srv/orders", "/srv/spool"):
        host.out("install", "-d", "-o", "ftstan", "-g", "ftstan", directory)
    host.out("chgrp", "ftstan", "/etc/ftstan/orders.conf")
    host.call("systemctl", "start", "ftstan@orders.service")
    assert "read-only file system (EROFS)" in host.journal("ftstan@orders.service")
    host.out("systemctl", "stop", "ftstan@orders.service")
    follow("systemd")
    host.out("systemctl", "start", "ftstan@orders.service")
    assert host.answers("http://127.0.0.1:8223/readyz")

    # Remove and purge.
    host.out("apt", "remove", "ftstan")
    assert "Deactivated successfully" in host.journal(UNIT)
    assert (host.unit(UNIT, "ActiveState"), host.unit(UNIT, "LoadState")) == (
        "inactive",
        "not-found",
    )
    assert (host.root / CONFIGURATION[1:]).exists()
    host.out("apt", "purge", "ftstan")
    assert not (host.root / CONFIGURATION[1:]).exists()
    assert "server.dat" in host.listing("/var/lib/ftstan/store")


MOUNT = """\
[Unit]
Requires=late.service
After=late.service
[Mount]
What=/srv/storage
Where=/nss
Type=none
Options=bind
"""
LATE = """\
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'until [ -e /run/storage ]; do sleep 0.1; done'
"""


def test_a_server_waits_for_storage_and_for_nats_that_come_late_at_boot(
    host: Host, packages: Path
) -> None:
    host.install(deb(packages))
    text = (
        (host.root / CONFIGURATION[1:]).read_text().replace("/var/lib/ftstan/store", "/nss/orders")
    )
    external = text.replace(
        "\nstreaming {", '\nstreaming {\n  nats_server_url: "nats://127.0.0.1:4333"'
    )
    (host.root / CONFIGURATION[1:]).write_text(re.sub(r"(?m)^listen.*$", "", external))
    host.out("install", "-d", "-o", "ftstan", "-g", "ftstan", "/srv/storage/orders", "/nss")
    units = host.root / "etc/systemd/system"
    (units / "nss.mount").write_text(MOUNT)
    (units / "late.service").write_text(LATE)
    host.out("ftstanctl", "systemd-dropin", "--write")
    host.out("systemctl", "enable", UNIT)

    host.lose_power()
    host.start_boot()
    host.wait_until_reached()
    host.wait_for("late.service", "ActiveState", "activating")
    assert host.unit(UNIT, "ActiveState") == "inactive"
    assert host.listing("/nss") == set()

    host.out("touch", "/run/storage")
    host.wait_for("nss.mount", "ActiveState", "active")
    until(lambda: "nats://127.0.0.1:4333" in host.journal(UNIT), "the server to look for NATS")
    assert host.unit(UNIT, "ActiveState") != "active"
    nats = "/usr/lib/ftstan/current/bin/nats-server"
    host.out("systemd-run", "--unit=nats", nats, "-a", "127.0.0.1", "-p", "4333")
    host.wait_for(UNIT, "StatusText", "STANDALONE: serving")
    assert "server.dat" in host.listing("/srv/storage/orders")
