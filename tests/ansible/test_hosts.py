"""Playbooks on hosts of Debian 12 under systemd: what they change, what they predict, and the pair
that they make.

The hosts have no kernel of their own, and so no NFS: the datastore of the pair is a directory that
both have.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.ansible.runner import HOME, Played, play
from tests.packaging.host import Host, Network
from tests.processes import Stage, until
from tools.packages import current

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first of a run builds the packages and the root, which takes its time on a busy machine.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]

FT = "ftstan.ftstan.ftstan : "
UNIT = "ftstan.service"
#: What a check cannot say of a host that has no package yet: its copy is told, and what it will do
#: is not known.
UNTOLD = {
    f"{FT}Install the package file (apt)",
    f"{FT}Restart ftstan",
    f"{FT}Run the service",
    "ftstan.ftstan.nats_server : Restart nats-server",
    "ftstan.ftstan.nats_server : Start nats-server",
    "ftstan.ftstan.pipeline : Have the timers run",
    "ftstan.ftstan.pipeline : Read the units",
    f"{FT}Load the firewall's rules",
    f"{FT}Have nftables start with the host",
}


def deb(directory: Path) -> str:
    (found,) = directory.glob("ftstan_*.deb")
    return str(found)


@dataclass(frozen=True)
class Site:
    """Hosts and the inventory that names them."""

    hosts: dict[str, Host]
    inventory: Path
    package: str

    def play(self, playbook: str, *words: str, **variables: object) -> Played:
        return play(
            playbook, self.inventory, *words, **({"ftstan_package_file": self.package} | variables)
        )

    def active(self) -> list[str]:
        """Who serves, as systemd tells it."""
        return [
            name
            for name, host in self.hosts.items()
            if "FT_ACTIVE" in host.unit(UNIT, "StatusText")
        ]

    def whole(self) -> bool:
        """Whether one serves, and every other one stands by."""
        said = sorted(
            host.unit(UNIT, "StatusText").partition(":")[0] for host in self.hosts.values()
        )
        return said == ["FT_ACTIVE", *["FT_STANDBY"] * (len(self.hosts) - 1)]

    def wait_until_whole(self) -> None:
        until(self.whole, "one that serves and others that stand by")

    def told(self) -> str:
        """What the services wrote, for who has to see why a test failed."""
        return "\n".join(f"--- {name}\n{host.journal(UNIT)}" for name, host in self.hosts.items())


def site(
    stage: Stage,
    lower: Path,
    package: str,
    groups: dict[str, Any],
    *names: str,
    shared: Path | None = None,
) -> Site:
    """Boot hosts of these names, with ``shared`` as their ``/nss``, and write an inventory with
    these groups.
    """
    network = Network(stage)
    mounts = [(shared, "/nss")] if shared else []
    hosts = {name: Host(stage, lower, name, network, mounts) for name in names}
    reached = {
        name: {
            "ansible_connection": "community.general.chroot",
            "ansible_host": str(host.root),
            "ansible_chroot_exe": str(host.enter),
        }
        for name, host in hosts.items()
    }
    path = stage.directory / "hosts.yml"
    path.write_text(
        yaml.safe_dump({"all": {"hosts": reached, "children": groups}}), encoding="utf-8"
    )
    return Site(hosts, path, package)


# ---- every role on one host
# --------------------------------------------------------------------------------------


ALONE = {
    "nfs_mount_source": "nas.example.com:/export/nss",
    "nfs_mount_path": "/srv/nss",
    # The hosts' kernel has no NFS.
    "nfs_mount_state": "present",
    "ftstan_cluster_id": "orders",
    "ftstan_datastore": "/srv/orders",
    "ftstan_writable": ["/srv/spool"],
    "ftstan_nats": "external",
    "ftstan_nats_servers": ["nats://127.0.0.1:4222"],
    "ftstan_environment": {"SECRET": "a b"},
    "nats_server_peers": ["host1", "host2"],
    "ftstan_firewall": "nftables",
    "pipeline_spool": "/srv/spool",
    "pipeline_table": "/srv/archive",
    # What is there already: hosts of the test reach no repository.
    "pipeline_java_package": "",
}


def spark_is_there(host: Host) -> None:
    """As if Spark had been installed: the hosts reach no index of packages."""
    with (host.root / "usr/lib/ftstan/spark.txt").open("rb") as file:
        digest = hashlib.file_digest(file, "sha1").hexdigest()
    host.out("mkdir", "-p", "/opt/ftstan-spark")
    host.out("touch", f"/opt/ftstan-spark/{digest}.spark")


def files(host: Host) -> set[str]:
    """What lies where roles write."""
    return set(host.out("find", "/etc", "/opt", "/srv", "/usr", "/var/lib").splitlines())


def test_roles_are_checked_applied_and_then_change_nothing(
    stage: Stage, debian_host: Path, packages: Path
) -> None:
    groups: dict[str, Any] = {
        name: {"hosts": {"host1": {}}, "vars": ALONE} for name in ("nats", "ftstan", "pipeline")
    }
    alone = site(stage, debian_host, deb(packages), groups, "host1")
    host = alone.hosts["host1"]

    # Before the first run: everything is told, nothing is touched.
    before = files(host)
    told = alone.play("site", "--check")
    assert told.status == 0, told.text
    assert files(host) == before

    # Spark comes from the network; all that is before it has to be done when it cannot be reached,
    # and said in a line.
    done = alone.play(
        "site", pipeline_pip={"PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0"}
    )
    assert done.failed == {"host1": ["ftstan.ftstan.pipeline : Install Spark"]}, done.text
    assert "add-spark: pip could not install what /usr/lib/ftstan/spark.txt says" in done.said
    spark_is_there(host)
    rest = alone.play("site")
    assert rest.status == 0, rest.text
    assert not [
        task for task in rest.changed["host1"] if not task.startswith("ftstan.ftstan.pipeline")
    ]
    changed = set(done.changed["host1"] + rest.changed["host1"])
    assert changed - set(told.changed["host1"]) <= UNTOLD
    assert set(told.changed["host1"]) <= changed

    again = alone.play("site")
    assert (again.status, again.changed) == (0, {"host1": []}), again.text
    checked = alone.play("site", "--check")
    assert (checked.status, checked.changed) == (0, {"host1": []}), checked.text

    assert (
        host.unit(UNIT, "ActiveState")
        == host.unit("nats-server.service", "ActiveState")
        == "active"
    )
    assert (
        host.unit(UNIT, "UnitFileState")
        == host.unit("nats-server.service", "UnitFileState")
        == "enabled"
    )
    assert "The configuration is valid." in host.out(
        "ftstan", "-c", "/etc/ftstan/ftstan.conf", "-check_config"
    )
    assert host.out(
        "stat", "-c", "%a %U %G", "/etc/ftstan/ftstan.conf", "/etc/default/ftstan", "/srv/orders"
    ) == ("640 root ftstan\n640 root ftstan\n750 ftstan ftstan\n")
    assert (
        "nas.example.com:/export/nss /srv/nss nfs4 vers=4.2,proto=tcp,hard,noatime,_netdev"
        in host.out("cat", "/etc/fstab")
    )
    assert '"nats://host2:6222"' in host.out("cat", "/etc/nats/nats-server.conf")
    assert "tcp dport" in host.out("nft", "list", "table", "inet", "ftstan")
    for timer in ("ftstan-archive.timer", "ftstan-audit.timer"):
        assert host.unit(timer, "ActiveState") == "active"
        assert host.unit(timer, "NextElapseUSecRealtime") != ""

    # What somebody did to the host is told, and not done, by a check.
    host.out("systemctl", "stop", UNIT)
    (host.root / "etc/ftstan/ftstan.conf").write_text("# ours\n", encoding="utf-8")
    checked = alone.play("site", "--check")
    assert checked.changed == {
        "host1": [f"{FT}Write the configuration", f"{FT}Restart ftstan", f"{FT}Run the service"]
    }
    assert host.unit(UNIT, "ActiveState") == "inactive"

    refused = alone.play("decommission")
    assert "this takes host1 out of service: say -e decommission_confirm=all" in refused.said
    gone = alone.play("decommission", decommission_confirm="all")
    assert gone.status == 0, gone.text
    assert host.unit(UNIT, "LoadState") == "not-found"
    assert "server.dat" in host.out("ls", "/srv/orders")
    assert (host.root / "etc/ftstan/ftstan.conf").exists()


REFUSALS = """
- hosts: all
  gather_facts: true
  tasks:
    - name: nats-server itself
      block:
        - ansible.builtin.include_role: {name: ftstan.ftstan.nats_server}
          vars: {nats_server_config: {no_such_key: 1}}
      rescue:
        - ansible.builtin.debug: {msg: refused}
    - name: the server itself
      block:
        - ansible.builtin.include_role: {name: ftstan.ftstan.ftstan, tasks_from: configure.yml}
          vars: {ftstan_streaming: {no_such_key: 1}}
      rescue:
        - ansible.builtin.debug: {msg: refused}
    - name: numbers that are not those of the user
      block:
        - ansible.builtin.include_role: {name: ftstan.ftstan.ftstan, tasks_from: install.yml}
          vars: {ftstan_uid: 843}
      rescue:
        - ansible.builtin.debug: {msg: refused}
"""


def test_a_configuration_that_the_server_refuses_is_not_written_and_no_user_is_renumbered(
    stage: Stage, debian_host: Path, packages: Path
) -> None:
    groups: dict[str, Any] = {"ftstan": {"hosts": {"host1": {}}}}
    alone = site(stage, debian_host, deb(packages), groups, "host1")
    host = alone.hosts["host1"]
    host.install(Path(alone.package))
    before = host.out("cat", "/etc/ftstan/ftstan.conf")
    (stage.directory / "refusals.yml").write_text(REFUSALS, encoding="utf-8")
    done = alone.play(str(stage.directory / "refusals.yml"))
    assert done.failed == {
        "host1": [
            "ftstan.ftstan.nats_server : Write the configuration",
            f"{FT}Write the configuration",
            f"{FT}Refuse to renumber them, for somebody may run and own files by these numbers",
        ]
    }, done.text
    assert "is there as 842:842, and ftstan_uid:ftstan_gid says 843:842" in done.said
    assert host.out("id", "ftstan").startswith("uid=842(ftstan) gid=842(ftstan)")
    assert 'unknown field "no_such_key"' in done.said
    assert "no_such_key in streaming" in done.said.replace('"', "").replace("\\", "")
    assert host.out("cat", "/etc/ftstan/ftstan.conf") == before
    assert not (host.root / "etc/nats/nats-server.conf").exists()


# ---- a pair
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, debian_host: Path, packages: Path
) -> Iterator[Site]:
    """The pair of the inventory that is shipped, as ``site.yml`` makes it.

    Its tests leave it whole.
    """
    stage = Stage(tmp_path_factory.mktemp("pair"))
    (stage.directory / "nss").mkdir()
    try:
        shipped = yaml.safe_load(
            (HOME / "inventories" / "ft-pair-nfs" / "hosts.yml").read_text(encoding="utf-8")
        )
        group = shipped["all"]["children"]
        # The directory is there: the hosts' kernel has no NFS.
        group["ftstan"]["vars"]["nfs_mount_source"] = ""
        made = site(
            stage,
            debian_host,
            deb(packages),
            group,
            "host1",
            "host2",
            shared=stage.directory / "nss",
        )
        done = made.play("site")
        assert done.status == 0, done.text
        yield made
    finally:
        stage.end()


@pytest.fixture
def pair(made: Site) -> Iterator[Site]:
    """The pair, whole; what its services wrote is in the report of a test that failed."""
    made.wait_until_whole()
    yield made
    print(made.told())


def other(pair: Site, name: str) -> Host:
    (found,) = set(pair.hosts) - {name}
    return pair.hosts[found]


def test_a_killed_active_is_back_at_once_as_a_standby(pair: Site) -> None:
    (active,) = pair.active()
    host = pair.hosts[active]
    standby = other(pair, active)
    restarts = int(host.unit(UNIT, "NRestarts"))
    host.out("systemctl", "kill", "--kill-whom=main", "--signal=KILL", UNIT)
    standby.wait_for(UNIT, "StatusText", "FT_ACTIVE")
    host.wait_for(UNIT, "StatusText", "FT_STANDBY")
    assert int(host.unit(UNIT, "NRestarts")) == restarts + 1
    assert host.unit(UNIT, "Result") == "success"


def test_a_frozen_active_is_ended_by_the_watchdog_and_the_other_takes_over(pair: Site) -> None:
    (active,) = pair.active()
    host = pair.hosts[active]
    standby = other(pair, active)
    host.out("systemctl", "kill", "--kill-whom=main", "--signal=STOP", UNIT)
    standby.wait_for(UNIT, "StatusText", "FT_ACTIVE")
    host.wait_for(UNIT, "StatusText", "FT_STANDBY")
    assert "Watchdog timeout" in host.journal(UNIT)


def test_hosts_that_lost_power_boot_at_once_into_a_pair_with_one_active(pair: Site) -> None:
    for host in pair.hosts.values():
        host.lose_power()
    for host in pair.hosts.values():
        host.start_boot()
    for host in pair.hosts.values():
        host.wait_until_up()
    pair.wait_until_whole()


def test_a_drill_of_the_pair_is_passed(pair: Site) -> None:
    done = pair.play(
        "drill", drill_faults=["switchover"], drill_reports=str(pair.inventory.parent / "reports")
    )
    assert done.status == 0, done.text


def test_an_upgrade_ends_with_both_on_the_new_version(pair: Site, next_packages: Path) -> None:
    (active,) = pair.active()
    done = pair.play("upgrade", ftstan_package_file=deb(next_packages))
    assert done.status == 0, done.text
    # It served until a standby with the new version took over.
    assert pair.active() == [other(pair, active).name]
    for host in pair.hosts.values():
        assert f"/usr/lib/ftstan/{current().version}-2/" in host.out(
            "cat", f"/proc/{host.unit(UNIT, 'MainPID')}/maps"
        )
