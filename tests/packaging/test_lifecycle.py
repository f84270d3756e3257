"""Install, upgrade, remove, purge in clean roots of Debian 12, with the server under load where it
matters.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ft.client import NatsConnection, StanClient
from tests.ft.test_service import nats_of
from tests.processes import READY, children, free_ports, until
from tools.packages import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.packaging.machine import Machine

# The first of a run builds the packages and the root, which takes its time on a busy machine.
pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("packages"), pytest.mark.timeout(1800)]

FIRST = f"{current().version}-1"
SECOND = f"{current().version}-2"
HOME = "/usr/lib/ftstan"
#: What lies there beside the versions.
PLAIN = ("current", "dist", "sweep", "add-spark", "spark.txt")
CONFIGURATION = "/etc/ftstan/ftstan.conf"


@pytest.fixture(autouse=True)
def _no_connection_stays_open() -> Iterator[None]:
    yield
    NatsConnection.close_all()


def deb(directory: Path) -> Path:
    (found,) = directory.glob("ftstan_*.deb")
    return found


def alias(directory: Path) -> Path:
    (found,) = directory.glob("ftstan-nats-streaming-server_*.deb")
    return found


def test_a_package_is_installed_upgraded_removed_and_purged_and_touches_nothing_that_is_not_its_own(
    machine: Callable[[], Machine], packages: Path, next_packages: Path
) -> None:
    host = machine()
    host.install(deb(packages), alias(packages))
    # The command by each of its names, from an environment of the package's own.
    assert "nats-streaming-server version" in host.out("ftstan", "-version")
    assert host.out("nats-streaming-server", "-version") == host.out("ftstan", "-version")
    assert host.out("ftstanctl", "version").startswith(f"ftstan {current().version}")
    assert "The configuration is valid." in host.out("ftstan", "-c", CONFIGURATION, "-check_config")
    assert host.out("dpkg", "--verify", "ftstan") == ""
    assert host.out("id", "ftstan").split()[:2] == ["uid=842(ftstan)", "gid=842(ftstan)"]
    assert host.out(
        "stat", "-c", "%a %U %G", "/var/lib/ftstan", CONFIGURATION, "/etc/ftstan"
    ).splitlines() == [
        "750 ftstan ftstan",
        "640 root ftstan",
        "755 root root",
    ]
    assert host.listing(HOME) == {FIRST, *PLAIN}
    assert "--spool DIR" in host.out("ftstan-archive-slice", "--help")
    done = host.call("ftstan-pipeline", "archive", "/var/lib/ftstan/spool", "/srv/archive")
    assert (
        done.stderr == "pyspark is not installed\nhint: run: /usr/lib/ftstan/add-spark (as root)\n"
    )
    assert done.returncode == 64
    # The client libraries of the SQL store are there: what is missing is a database.
    for driver in ("postgres", "mysql"):
        source = ("-sql_driver", driver, "-sql_source", f"{driver}://nss@127.0.0.1:9/nss")
        done = host.call("ftstan", "-store", "sql", *source)
        assert done.returncode == 1
        assert "Hint: check the database and -sql_source" in done.stderr
    # What needs no Spark works; a server calls what stays where it is over upgrades.
    script = host.out("ftstan-pipeline", "archive-script", "--spool", "/var/lib/ftstan/spool")
    assert "exec /usr/bin/ftstan-archive-slice --spool /var/lib/ftstan/spool" in script
    done = host.call("/usr/lib/ftstan/add-spark")
    assert done.returncode == 1
    assert "hint: install the package python3.11-venv (Debian)" in done.stderr

    # What people wrote and what servers stored.
    edited = (host.root / CONFIGURATION[1:]).read_text() + "# ours\n"
    (host.root / CONFIGURATION[1:]).write_text(edited)
    server = host.server("server", "-c", CONFIGURATION)
    server.wait_for(READY)
    client = StanClient(server.port)
    client.connect()
    client.publish(b"orders", b"one", b"two")
    server.signal(signal.SIGTERM)
    assert server.status() == 143
    stored = sorted(path.relative_to(host.root) for path in server.store.rglob("*"))

    said = host.install(deb(next_packages))
    assert f"{SECOND} is installed" in said
    assert os.readlink(host.root / HOME[1:] / "current") == SECOND
    # Nobody ran the former version.
    assert host.listing(HOME) == {SECOND, *PLAIN}
    assert host.listing(f"{HOME}/dist") == {SECOND}
    assert (host.root / CONFIGURATION[1:]).read_text() == edited
    assert host.out("dpkg", "--verify", "ftstan").split()[-1:] == [CONFIGURATION]

    host.out("dpkg", "--remove", "ftstan-nats-streaming-server", "ftstan")
    assert not (host.root / HOME[1:]).exists()
    assert not (host.root / "usr/bin/ftstan").is_symlink()
    assert (host.root / CONFIGURATION[1:]).read_text() == edited

    done = host.call("dpkg", "--purge", "ftstan")
    assert done.returncode == 0
    assert "/var/lib/ftstan is not empty and stays" in done.stderr
    assert not (host.root / "etc/ftstan").exists()
    assert not (host.root / "var/log/ftstan").exists()
    assert sorted(path.relative_to(host.root) for path in server.store.rglob("*")) == stored
    # Files are left that belong to its number: nobody else may get it.
    assert host.out("id", "-u", "ftstan") == "842\n"

    # Installed again, the server is back with everything.
    host.install(deb(packages))
    again = host.server("again", "-c", CONFIGURATION)
    again.wait_for(READY)
    reader = StanClient(again.port, "reader")
    reader.connect()
    assert reader.read_to(b"orders", 2) == {1: b"one", 2: b"two"}


def test_a_purge_without_data_leaves_nothing_but_the_user_and_spares_what_is_linked(
    machine: Callable[[], Machine], packages: Path
) -> None:
    host = machine()
    shared = host.root / "srv" / "shared"
    shared.mkdir(parents=True)
    (host.root / "var/lib/ftstan").symlink_to("/srv/shared")
    host.install(deb(packages))
    host.out("dpkg", "--purge", "ftstan")
    assert (host.root / "var/lib/ftstan").is_symlink()
    assert shared.is_dir()
    left = host.out(
        "find", "/etc", "/usr", "/var", "-iname", "*ftstan*", "!", "-path", "/var/lib/dpkg/*"
    )
    assert left.split() == ["/var/lib/ftstan"]


def test_the_users_ids_are_chosen_before_the_installation_and_never_changed(
    machine: Callable[[], Machine], packages: Path
) -> None:
    host = machine()
    (host.root / "etc/ftstan").mkdir()
    ids = host.root / "etc/ftstan/ids"

    ids.write_text("uid = 33\ngid = 5000\n")
    done = host.try_install(deb(packages))
    assert done.returncode != 0
    assert (
        "ftstan: uid 33 belongs to the user www-data\nhint: choose one that is free" in done.stderr
    )
    assert not (host.root / "usr/lib/ftstan").exists()

    ids.write_text("uid = many\n")
    assert "'many' is no uid for the user ftstan" in host.try_install(deb(packages)).stderr

    ids.write_text("# the same on every host\nuid = 4321\ngid = 5000\n")
    host.install(deb(packages))
    assert host.out("id", "-u", "ftstan") + host.out("id", "-g", "ftstan") == "4321\n5000\n"

    said = host.install(deb(packages), environment={"FTSTAN_UID": "777"})
    assert "the user ftstan has uid 4321 and keeps it; 777 was asked for" in said
    assert host.out("id", "-u", "ftstan") == "4321\n"
    # A purge leaves what the operator wrote.
    host.out("dpkg", "--purge", "ftstan")
    assert ids.exists()


def test_an_upgrade_under_load_leaves_a_running_server_whole_until_it_is_restarted(
    machine: Callable[[], Machine], packages: Path, next_packages: Path
) -> None:
    host = machine()
    host.install(deb(packages))
    server = host.server("server", "-c", CONFIGURATION)
    server.wait_for(READY)
    client = StanClient(server.port)
    client.connect()
    published = 0

    def publish() -> None:
        nonlocal published
        client.publish(b"orders", *(b"%d" % (published + n) for n in range(20)))
        published += 20

    publish()
    with ThreadPoolExecutor(1) as pool:
        upgrade = pool.submit(host.install, deb(next_packages))
        while not upgrade.done():
            publish()
        assert f"version {FIRST} still runs and stays until it is restarted" in upgrade.result()
    # The files of the former package are gone, its directory is not.
    assert host.listing(f"{HOME}/dist") == {SECOND}
    assert host.listing(HOME) == {FIRST, SECOND, *PLAIN}
    publish()

    # What a server loads late, starts again and reads again.
    for page in ("/streaming/serverz", "/metrics", "/dashboard", "/livez"):
        assert server.get(page)[0] == 200, page
    server.signal(signal.SIGHUP)
    server.wait_for("eloaded")
    os.kill(nats_of(server), signal.SIGKILL)
    server.wait_for("nats-server is running again")
    client.move(server.port)
    until(lambda: server.get("/readyz")[0] == 200, "the server to be reached again")
    publish()
    server.signal(signal.SIGTERM)
    assert server.status() == 143

    # The next start is the new version; then nobody needs the former one, whatever a container on
    # the same host runs.
    other = machine()
    other.install(deb(packages))
    container = other.server("container", "-c", CONFIGURATION)
    container.wait_for(READY)
    after = host.server("after", "-c", CONFIGURATION)
    after.wait_for(READY)
    assert os.readlink(host.root / HOME[1:] / "current") == SECOND
    host.out(f"{HOME}/sweep")
    assert host.listing(HOME) == {SECOND, *PLAIN}
    assert f"version {FIRST} still runs" in other.install(deb(next_packages))
    reader = StanClient(after.port, "reader")
    reader.connect()
    assert list(reader.read_to(b"orders", published).values()) == [
        b"%d" % n for n in range(published)
    ]


SUPERVISORD = """\
[unix_http_server]
file=/run/supervisor.sock
[supervisord]
logfile=/var/log/supervisord.log
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[include]
files=/usr/share/doc/ftstan/examples/supervisor/ftstan.conf
"""


def test_the_shipped_file_for_supervisord_runs_a_server_again_and_says_why_it_ended(
    machine: Callable[[], Machine], packages: Path
) -> None:
    host = machine()
    host.install(deb(packages))
    port, monitor = free_ports(2)
    configuration = host.root / CONFIGURATION[1:]
    text = configuration.read_text()
    configuration.write_text(text.replace(":4222", f":{port}").replace(":8222", f":{monitor}"))
    (host.root / "etc/supervisord.conf").write_text(SUPERVISORD)
    python = f"{HOME}/current/bin/python"
    words = ("-m", "supervisor.supervisord", "--nodaemon", "-c", "/etc/supervisord.conf")
    supervisord = host.start("supervisord", python, *words)
    output = host.root / "var/log/ftstan/ftstan.out"

    def started(times: int) -> None:
        until(
            lambda: output.exists() and output.read_text().count(READY) == times,
            f"{times} starts of the server\n{supervisord.tail()}",
        )

    try:
        started(1)
        client = StanClient(port)
        client.connect()
        (server,) = (
            pid
            for pid in children(supervisord.pid)
            if b"/usr/bin/ftstan" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(server, signal.SIGKILL)
        started(2)
        ends = host.root / "var/log/ftstan/ends.log"
        until(lambda: ends.exists() and "ftstan" in ends.read_text(), "a line about the end")
        assert "killed" in ends.read_text()
    finally:
        supervisord.signal(signal.SIGTERM)
        supervisord.status(within=120)
