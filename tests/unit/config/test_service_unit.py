"""What a unit of systemd gives its server, and who asks for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ftstan.cli import ctl, strict
from ftstan.cli.server import main
from ftstan.config import service_unit
from ftstan.config.service_unit import environment_of, read_unit
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the shipped units are, with environment files of the test."""
    found = tmp_path / "units"
    found.mkdir()
    for name in ("ftstan.service", "ftstan@.service"):
        text = (ROOT / "systemd" / name).read_text()
        for there in ("/etc/default", "/etc/ftstan"):
            text = text.replace(there, str(tmp_path))
        (found / name).write_text(text)
    monkeypatch.setattr(service_unit.read_unit, "__defaults__", ((str(found),), None))
    monkeypatch.setattr("ftstan.cli.dropin.UNIT_PLACES", (str(found),))
    return found


def shipped_units() -> list[Path]:
    """Every unit and template of one in which something of ours runs."""
    found = [
        path
        for place in ("systemd", "docs/examples", "ansible", "packaging")
        for path in sorted((ROOT / place).rglob("*.service*"))
        if path.is_file()
    ]
    assert {"ftstan.service", "ftstan@.service", "ftstan-drill.service"} <= {p.name for p in found}
    return found


@pytest.mark.parametrize("path", shipped_units(), ids=lambda path: path.name)
def test_a_unit_lets_the_listener_ask_the_kernel_whose_a_socket_is(path: Path) -> None:
    """Without AF_NETLINK (sock_diag), nats-server cannot list the host's addresses either."""
    lines = [line.partition("=") for line in path.read_text().splitlines()]
    given = [value.split() for key, _, value in lines if key == "RestrictAddressFamilies"]
    needed = {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}
    assert all(set(families) == needed for families in given)
    # Tables of the kernel are the other way to know.
    assert not any(key == "ProcSubset" for key, _, _ in lines)


def test_an_environment_file_is_read_as_systemd_reads_it() -> None:
    text = (
        '# a comment\n; another\n\nA=1\n B = two words \nC="q $A \\" x"\nD=\'s\\n\'\n'
        'E=a\\\nb\nno assignment\n1X=2\nF=\nG="open\nH=8\n'
    )
    assert environment_of(text) == {
        "A": "1",
        "B": "two words",
        "C": 'q $A " x',
        "D": "s\\n",
        "E": "ab",
        "F": "",
        "H": "8",
    }


def test_a_service_has_the_variables_and_flags_of_its_unit_and_drop_ins_and_none_of_the_shell(
    units: Path, tmp_path: Path
) -> None:
    (tmp_path / "ftstan-orders").write_text("FTSTAN_OPTIONS=\"-SD -dir '/a b'\"\nWHERE=file\n")
    dropins = units / "ftstan@orders.service.d"
    dropins.mkdir()
    (dropins / "10-a.conf").write_text('[Service]\nEnvironment="WHO=%i x" WHERE=unit OTHER=1\n')
    (dropins / "20-b.conf").write_text("[Unit]\nEnvironment=NO=1\n")
    found = read_unit("ftstan@orders.service", (str(units),), {"SHELL_ONLY": "1", "PATH": "/bin"})
    assert found is not None
    assert found.words == ("-c", f"{tmp_path}/orders.conf", "-SD", "-dir", "/a b")
    assert found.environment == {
        "PATH": "/bin",
        "WHO": "orders x",
        "WHERE": "file",
        "OTHER": "1",
        "FTSTAN_OPTIONS": "-SD -dir '/a b'",
    }
    assert "/run/ftstan/orders" in found.directories
    assert read_unit("nobody.service", (str(units),)) is None


def test_the_check_and_the_drop_in_see_what_the_unit_sees(
    units: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    del units
    (tmp_path / "ftstan").write_text(f"STORE={tmp_path}/nss/orders\nFTSTAN_OPTIONS=-cid mine\n")
    (tmp_path / "nss").mkdir()
    conf = tmp_path / "ftstan.conf"
    conf.write_text("pid_file: /run/ftstan/x.pid\nstreaming { store: file, dir: $STORE }\n")
    assert main(["-c", str(conf), "-check_config"]) == 1
    assert "variable reference for 'STORE'" in capfd.readouterr().err
    assert main(["-check_config", "-strict", "-unit", "ftstan.service"]) == 0
    out = capfd.readouterr().out
    assert f'streaming.dir = "{tmp_path}/nss/orders"' in out
    assert 'streaming.cluster_id = "mine"' in out
    assert ctl.main(["systemd-dropin", "-c", str(conf)]) == 0
    assert f"ReadWritePaths={tmp_path}/nss/orders\n" in capfd.readouterr().out
    # What only the shell of the operator has, the service has not.
    (tmp_path / "ftstan").write_text("")
    monkeypatch.setenv("STORE", "/from/the/shell")
    assert main(["-check_config", "-unit", "ftstan.service"]) == 1
    assert os.environ["STORE"] == "/from/the/shell"


def test_a_unit_that_is_not_there_and_one_that_cannot_be_read_are_told(
    units: Path, tmp_path: Path, capfd: Capture
) -> None:
    assert main(["-check_config", "-unit", "nobody.service"]) == 1
    assert capfd.readouterr().err.startswith("there is no unit nobody.service\nhint: ")
    (tmp_path / "ftstan").mkdir()
    assert main(["-check_config", "-unit", "ftstan.service"]) == 1
    assert "cannot be read: Is a directory" in capfd.readouterr().err
    assert units.is_dir()


def test_the_check_sees_what_the_service_may_not_write_to_and_what_it_would_not_start_without(
    units: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict, "_PRIVATE", ())
    conf = tmp_path / "ftstan.conf"
    datastore = tmp_path / "orders"
    conf.write_text(f"streaming {{ store: file, dir: '{datastore}' }}\n")
    (tmp_path / "ftstan").write_text("")
    words = ["-check_config", "-strict", "-unit", "ftstan.service"]
    assert main(words) == 1
    said = capfd.readouterr().err
    assert f"dir: the service may not write to {datastore}" in said
    assert "ftstanctl systemd-dropin --write" in said

    write = ["systemd-dropin", "-c", str(conf), "--units", str(units), "--write"]
    assert ctl.main(write) == 0
    told = capfd.readouterr()
    assert "from the next start of ftstan.service on" in told.out
    make = f"install -d -o ftstan -g ftstan -m 0750 {datastore}"
    assert make in told.err
    assert main(words) == 1
    said = capfd.readouterr().err
    assert f"the service may write to {datastore}, which is not there" in said
    assert make in said

    datastore.mkdir()
    assert main(words) == 0
    node = "cluster { preview: true, node_id: a, peers: [a, b, c] }"
    conf.write_text(
        f"streaming {{ store: file, dir: '{datastore}', cluster_id: orders, {node} }}\n"
    )
    assert main(words) == 1
    assert "log_path: the service may not write to /orders" in capfd.readouterr().err
    log = datastore.parent / "log"
    node = node.replace("node_id", f"log_path: '{log}', node_id")
    conf.write_text(
        f"streaming {{ store: file, dir: '{datastore}', cluster_id: orders, {node} }}\n"
    )
    assert main(words) == 1
    assert f"log_path: the service may not write to {log}" in capfd.readouterr().err
    conf.write_text(f"streaming {{ store: file, dir: '{datastore}' }}\n")
    # What may be missing is no mistake.
    dropin = units / "ftstan.service.d" / "more.conf"
    dropin.write_text("[Service]\nReadWritePaths=-/not/there\n")
    assert main(words) == 0
    dropin.write_text("[Service]\nReadWritePaths=\n")
    assert main(words) == 0  # "more" stands before "paths"
