"""The Ansible collection: what it says of itself holds, and what it writes is what the server
takes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import nkeys
import pytest
import yaml

from ftstan.config.grammar import parse
from tests.ansible.runner import COLLECTION, HOME, ansible
from tests.certificates import Authority
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.config.tree import Value

ROLES = sorted(path.name for path in (COLLECTION / "roles").iterdir())
PLAYBOOKS = sorted(path.name for path in (COLLECTION / "playbooks").glob("*.yml"))
INVENTORIES = sorted(path.name for path in (HOME / "inventories").iterdir())


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_collection_has_the_version_of_the_server() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{loaded(COLLECTION / "galaxy.yml")["version"]}"' in text


@pytest.mark.timeout(1200)
def test_it_is_clean_for_production() -> None:
    words = ("--offline", "--profile", "production", "-c", str(HOME / ".ansible-lint"), ".")
    found = ansible("ansible-lint", *words, within=1000)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "'production' was required, and it passed" in found.stderr


@pytest.mark.parametrize("inventory", INVENTORIES)
def test_every_playbook_can_be_read_with_an_inventory(inventory: str) -> None:
    files = [f"playbooks/{playbook}" for playbook in PLAYBOOKS]
    found = ansible(
        "ansible-playbook", "-i", str(HOME / "inventories" / inventory), "--syntax-check", *files
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("playbook: ") == len(files)


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_of_a_role_is_described_with_its_default(role: str) -> None:
    defaults = loaded(COLLECTION / "roles" / role / "defaults" / "main.yml")
    options = loaded(COLLECTION / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"][
        "main"
    ]["options"]
    assert set(defaults) == set(options)
    for name, value in defaults.items():
        computed = isinstance(value, str) and "{{" in value
        assert (
            computed
            or options[name].get("required")
            or options[name].get("default", value) == value
        ), name


PLAY = """
- hosts: all
  gather_facts: true
  tasks:
    - ansible.builtin.import_role: {name: ftstan.ftstan.ftstan, tasks_from: check.yml}
    - ansible.builtin.template:
        src: "ROLE/templates/{{ item }}.j2"
        dest: "OUT/{{ inventory_hostname }}.{{ item }}"
        mode: "0644"
      loop: [ftstan.conf, environment, dropin.conf, firewall.nft]
"""


def rendered(tmp_path: Path, inventory: Path, **extra: object) -> subprocess.CompletedProcess[str]:
    """Write what the role writes on each host into ``tmp_path``."""
    play = tmp_path / "play.yml"
    play.write_text(
        PLAY.replace("ROLE", str(COLLECTION / "roles" / "ftstan")).replace("OUT", str(tmp_path))
    )
    more = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **extra}
    return ansible("ansible-playbook", "-i", str(inventory), str(play), "-e", json.dumps(more))


@pytest.mark.parametrize("inventory", INVENTORIES)
def test_what_is_written_for_each_host_is_a_configuration_that_the_server_knows(
    tmp_path: Path, inventory: str
) -> None:
    found = rendered(tmp_path, HOME / "inventories" / inventory)
    assert found.returncode == 0, found.stdout + found.stderr
    files = sorted(tmp_path.glob("*.ftstan.conf"))
    assert len(files) == {"partitions": 4, "cluster": 3}.get(inventory, 2)
    log = ("-cluster_log_path", str(tmp_path / "log")) if inventory == "cluster" else ()
    for file in files:
        host = file.name.partition(".")[0]
        checked = subprocess.run(
            [sys.executable, "-m", "ftstan.cli.server", "-check_config", "-strict", "-c",
             str(file), "-dir", str(tmp_path), *log],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stderr
        # Nobody gave a password: clients may say anything, and so may whoever joins.
        (warning,) = checked.stderr.splitlines()
        assert "whoever reaches nats://0.0.0.0:6222 may join as a route" in warning
        routes = next(
            line for line in checked.stdout.splitlines() if line.startswith("cluster.routes")
        )
        assert f"//{host}:" not in routes
        assert routes.count("nats://") == len(files) - 1


def test_each_host_of_a_cluster_is_a_node_with_a_log_that_its_service_may_write_to(
    tmp_path: Path,
) -> None:
    assert rendered(tmp_path, HOME / "inventories" / "cluster").returncode == 0
    for host in ("host1", "host2", "host3"):
        assert dumped(tmp_path / f"{host}.ftstan.conf")["streaming"]["cluster"] == {
            "preview": True,
            "node_id": host,
            "peers": ["host1", "host2", "host3"],
            "log_path": "/var/lib/ftstan/log",
        }
        dropin = (tmp_path / f"{host}.dropin.conf").read_text(encoding="utf-8")
        assert (
            'ReadWritePaths="/var/lib/ftstan/store"\nReadWritePaths="/var/lib/ftstan/log"' in dropin
        )
    # A host that comes later founds nothing.
    more = tmp_path / "more"
    more.mkdir()
    nodes = {"ftstan_cluster_nodes": ["host1", "host2", "other"]}
    assert rendered(more, HOME / "inventories" / "cluster", **nodes).returncode == 0
    assert "peers" not in dumped(more / "host3.ftstan.conf")["streaming"]["cluster"]
    for wrong in (
        {"ftstan_ft_group": "orders"},
        {"ftstan_cluster_nodes": ["host1", "host2"]},
        {"ftstan_cluster_node": "a.b"},
        {"ftstan_cluster_log_path": "/var/lib/ftstan/store"},
    ):
        refused = rendered(more, HOME / "inventories" / "cluster", **wrong)
        assert refused.returncode != 0
        assert "makes this host a node of a replicated cluster" in refused.stdout


@pytest.mark.parametrize("inventory", INVENTORIES)
def test_with_passwords_clients_cannot_speak_for_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inventory: str
) -> None:
    monkeypatch.setenv("STAN_PASSWORD", "s3cret-of-stan")
    monkeypatch.setenv("OPERATOR_PASSWORD", "s3cret-of-ops")
    found = rendered(tmp_path, HOME / "inventories" / inventory)
    assert found.returncode == 0, found.stdout + found.stderr
    logins = set()
    for file in tmp_path.glob("*.ftstan.conf"):
        done = subprocess.run(
            [sys.executable, "-m", "ftstan.cli.server", "-dump_config", "-c", str(file)],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        text = file.read_text(encoding="utf-8")
        users = json.loads(
            re.findall(r"^authorization: (\{.*?^\})", text, re.DOTALL | re.MULTILINE)[0]
        )["users"]
        denied = {
            user["user"]: user.get("permissions", {}).get("publish", {}).get("deny", [])
            for user in users
        }
        assert denied == {
            "stan": [],
            "operator": ["_STAN.ft.>", "_STAN.part.>"],
            "client": ["_STAN.ft.>", "_STAN.part.>", "_FTSTAN.>"],
        }
        heard = {
            user["user"]: user.get("permissions", {}).get("subscribe", {}).get("deny", [])
            for user in users
        }
        assert heard == {"stan": [], "operator": [], "client": denied["client"]}
        assert '\nno_auth_user: "client"\n' in text
        assert '"user": "stan"' in text.partition("\nstreaming: ")[2]
        cluster = json.loads(re.findall(r"^cluster: (\{.*?^\})", text, re.DOTALL | re.MULTILINE)[0])
        logins.add((cluster["authorization"]["user"], cluster["authorization"]["password"]))
        assert not any("@" in url for url in cluster["routes"])
    ((user, password),) = logins
    assert user == "routes"
    assert len(password) == 64
    assert "s3cret" not in password


def plain(value: Value) -> Any:
    """A value of a configuration without the places where its parts stand."""
    if isinstance(value, dict):
        return {key: plain(node.value) for key, node in value.items()}
    if isinstance(value, list):
        return [plain(node.value) for node in value]
    return value


def dumped(file: Path) -> Any:
    """Every value of a configuration."""
    done = subprocess.run(
        [sys.executable, "-m", "ftstan.cli.server", "-dump_config", "-c", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return plain(parse(done.stdout, "dump").entries)


def test_the_inventory_of_the_secured_pair_makes_the_configuration_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = ROOT / "docs" / "examples" / "secure-pair"
    for number, user in enumerate(
        ("STAN", "OPERATOR", "CLIENT", "PUBLISHER", "SUBSCRIBER", "DRILL")
    ):
        seed = nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER)
        public = nkeys.from_seed(bytearray(seed)).public_key.decode()
        monkeypatch.setenv(f"{user}_NKEY", public)
        if user == "STAN":
            (tmp_path / "stan.nk").write_bytes(bytes(seed))
    monkeypatch.setenv("MONITOR_TOKEN", "s3cret-of-pages")
    found = rendered(tmp_path, example / "hosts.yml")
    assert found.returncode == 0, found.stdout + found.stderr
    authority = Authority(tmp_path, "ca")
    authority.server("server")

    def here(text: str, name: str) -> Path:
        path = tmp_path / name
        path.write_text(text.replace("/etc/ftstan/tls/", f"{tmp_path}/"), encoding="utf-8")
        return path

    for host in ("host1", "host2"):
        made = (tmp_path / f"{host}.ftstan.conf").read_text(encoding="utf-8")
        written = (example / f"{host}.conf").read_text(encoding="utf-8")
        values = dumped(here(made, f"{host}-made.conf"))
        assert values == dumped(here(written, f"{host}-written.conf"))
        assert len(values["authorization"]["users"]) == 6
        assert "s3cret-of-pages" not in found.stdout


def test_the_password_of_routes_may_be_ones_own(tmp_path: Path) -> None:
    inventory = HOME / "inventories" / "ft-pair-nfs"
    found = rendered(
        tmp_path,
        inventory,
        ftstan_routes_password="a b",
        ftstan_config={"cluster": {"no_advertise": True}},
    )
    assert found.returncode == 0, found.stdout + found.stderr
    text = (tmp_path / "host1.ftstan.conf").read_text(encoding="utf-8")
    cluster = json.loads(re.findall(r"^cluster: (\{.*?^\})", text, re.DOTALL | re.MULTILINE)[0])
    assert cluster["authorization"] == {"user": "routes", "password": "a b"}
    assert cluster["no_advertise"] is True


NATS_PLAY = """
- hosts: all
  gather_facts: true
  tasks:
    - ansible.builtin.include_vars: {file: "ROLE/vars/main.yml"}
    - ansible.builtin.template:
        src: ROLE/templates/nats-server.conf.j2
        dest: "OUT/{{ inventory_hostname }}.conf"
        mode: "0644"
"""


def test_external_nats_servers_show_each_other_the_password_of_routes(tmp_path: Path) -> None:
    role = COLLECTION / "roles" / "nats_server"
    play = tmp_path / "play.yml"
    play.write_text(NATS_PLAY.replace("ROLE", str(role)).replace("OUT", str(tmp_path)))
    more = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable} | loaded(
        role / "defaults" / "main.yml"
    )
    more |= {"nats_server_peers": ["host1", "host2"], "nats_server_routes_password": "a/b@c d"}
    words = ("-i", str(HOME / "inventories" / "ft-pair-nfs"), str(play), "-e", json.dumps(more))
    found = ansible("ansible-playbook", *words)
    assert found.returncode == 0, found.stdout + found.stderr
    text = (tmp_path / "host1.conf").read_text(encoding="utf-8")
    assert 'authorization { user: routes, password: "a/b@c d" }' in text
    assert 'routes: ["nats://routes:a%2Fb%40c%20d@host2:6222"]' in text


def test_passwords_reach_the_service_as_they_are(tmp_path: Path) -> None:
    secret = "a\"b$HOME`c\\d e'f"
    found = rendered(
        tmp_path, HOME / "inventories" / "ft-pair-nfs", ftstan_environment={"SECRET": secret}
    )
    assert found.returncode == 0, found.stdout + found.stderr
    file = tmp_path / "host1.environment"
    shown = subprocess.run(
        ["sh", "-c", (f'set -a; . {file}; exec {sys.executable} -c \'import os; '
                     'print(os.environ["SECRET"])\'')],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert shown.stdout == secret + "\n"


def test_members_of_a_group_that_disagree_are_refused_before_anything_is_touched(
    tmp_path: Path,
) -> None:
    inventory = tmp_path / "hosts.yml"
    hosts = loaded(HOME / "inventories" / "ft-pair-nfs" / "hosts.yml")
    hosts["all"]["children"]["ftstan"]["hosts"]["host2"] = {"ftstan_datastore": "/nss/other"}
    inventory.write_text(yaml.safe_dump(hosts))
    found = rendered(tmp_path, inventory)
    assert found.returncode != 0
    assert (
        "the hosts host1, host2 are members of the group orders and must have the same "
        "ftstan_datastore" in (found.stdout + found.stderr)
    )
    assert not list(tmp_path.glob("*.conf"))


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"ftstan_datastore": "nss"}, "ftstan_datastore must be an absolute path"),
        ({"ftstan_nats": "external"}, "ftstan_nats: external needs ftstan_nats_servers"),
        ({"ftstan_package_file": "ftstan.zip"}, "ftstan_package_file must be a .deb or .rpm"),
        ({"ftstan_mount": "/mnt"}, "below ftstan_mount"),
        ({"ftstan_server_password": "s"}, "ftstan_operator_password are given together"),
    ],
)
def test_variables_that_cannot_be_meant_are_refused(
    tmp_path: Path, variables: dict[str, str], named: str
) -> None:
    found = rendered(tmp_path, HOME / "inventories" / "ft-pair-nfs", **variables)
    assert found.returncode != 0
    assert named in " ".join((found.stdout + found.stderr).split())
    assert not list(tmp_path.glob("*.conf"))


def test_the_scenario_of_a_drill_is_one_that_drills_take(tmp_path: Path) -> None:
    play = tmp_path / "play.yml"
    told = loaded(COLLECTION / "playbooks" / "drill.yml")[0]["vars"]
    source = COLLECTION / "playbooks" / "templates" / "drill.yaml.j2"
    task = {
        "name": "x",
        "ansible.builtin.template": {"src": str(source), "dest": str(tmp_path / "drill.yaml")},
    }
    play.write_text(
        yaml.safe_dump([{"hosts": "host1", "gather_facts": False, "vars": told, "tasks": [task]}])
    )
    more = json.dumps({"ansible_connection": "local", "ansible_python_interpreter": sys.executable})
    found = ansible(
        "ansible-playbook",
        "-i",
        str(HOME / "inventories" / "partitions" / "hosts.yml"),
        str(play),
        "-e",
        more,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    checked = subprocess.run(
        [sys.executable, "-m", "ftstan.cli.ctl", "drill", "--check", str(tmp_path / "drill.yaml")],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr
    scenario = loaded(tmp_path / "drill.yaml")
    assert [node["name"] for node in scenario["nodes"]] == ["host1", "host2"]
    assert scenario["servers"] == ["nats://host1:4222", "nats://host2:4222"]


@pytest.mark.parametrize("kind", ["nfs", "efs"])
def test_a_boot_waits_for_a_file_server_that_comes_late(tmp_path: Path, kind: str) -> None:
    inventory = {
        "all": {"hosts": {"host1": {"ansible_connection": "local", "nfs_mount_kind": kind}}}
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    tasks = [
        {
            "ansible.builtin.include_vars": str(
                COLLECTION / "roles" / "nfs_mount" / "defaults" / "main.yml"
            )
        },
        {
            "ansible.builtin.copy": {
                "content": "{{ nfs_mount_options }}",
                "dest": str(tmp_path / "out"),
                "mode": "0644",
            }
        },
    ]
    play = tmp_path / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    found = ansible(
        "ansible-playbook",
        "-i",
        str(tmp_path / "hosts.yml"),
        str(play),
        "-e",
        f"ansible_python_interpreter={sys.executable}",
    )
    assert found.returncode == 0, found.stdout + found.stderr
    options = (tmp_path / "out").read_text().split(",")
    assert {"hard", "_netdev", "retry=10000", "x-systemd.mount-timeout=infinity"} <= set(options)


def test_every_playbook_that_a_page_names_is_there() -> None:
    named = {
        name
        for page in (ROOT / "docs").glob("*.md")
        for name in re.findall(
            r"ansible-playbook [^\n]*ftstan\.ftstan\.([a-z_-]+)", page.read_text(encoding="utf-8")
        )
    }
    assert {"site", "upgrade", "decommission", "migrate_from_go"} <= named
    assert {f"{name}.yml" for name in named} - set(PLAYBOOKS) == set()


def test_every_name_that_a_page_gives_a_playbook_is_one_that_a_collection_can_have() -> None:
    pages = [
        *(ROOT / "docs").glob("*.md"),
        *COLLECTION.glob("playbooks/*.yml"),
        COLLECTION / "README.md",
    ]
    for page in pages:
        for name in re.findall(r"ftstan\.ftstan\.([\w-]+)", page.read_text(encoding="utf-8")):
            assert name.isidentifier(), f"{page.name}: {name}"
