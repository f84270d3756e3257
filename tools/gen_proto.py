"""Generate ``ftstan/wire/pb`` from ``proto/``: the message classes and their type stubs, both
committed.

``python tools/gen_proto.py`` writes them; ``--check`` writes nothing and exits 1 if what is
committed differs. It must never be needed to install or run ftstan: only who edits a ``.proto``
file runs it (``pip install -e .[dev]``).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
PACKAGE = "ftstan/wire/pb"
#: Name of the message class file and of its stub, for each ``.proto``.
SUFFIXES = ("_pb2.py", "_pb2.pyi")
#: The oldest protobuf runtime that the classes ask for; the same as in ``pyproject.toml``.
RUNTIME = (6, 31, 1)


def sources() -> list[str]:
    """List the ``.proto`` file names, sorted."""
    return sorted(path.name for path in PROTO.glob("*.proto"))


def outputs() -> list[str]:
    """List the generated file names, sorted."""
    return sorted(name.removesuffix(".proto") + suffix for name in sources() for suffix in SUFFIXES)


def generate(target: Path) -> None:
    """Write the classes and stubs into ``target`` laid out as the package is:
    ``target/ftstan/wire/pb/*_pb2.py[i]``.

    Raises ``RuntimeError`` when the compiler refuses (it has said why on stderr).
    """
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    # The files get the package's path as their name in the descriptor pool: another library in the
    # process may have registered a "stan.proto" of its own.
    mapping = f"-I{PACKAGE}={PROTO}"
    well_known = f"-I{resources.files('grpc_tools') / '_proto'}"
    # A process of its own: the compiler keeps global state and aborts when the caller's process has
    # threads or other generated classes that it does not expect.
    code = subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            mapping,
            well_known,
            f"--plugin=protoc-gen-mypy={plugin}",
            f"--python_out={target}",
            f"--mypy_out=quiet:{target}",
            *(f"{PACKAGE}/{name}" for name in sources()),
        ],
        check=False,
    ).returncode
    if code != 0:
        raise RuntimeError(f"protoc failed with exit status {code}")
    for name in sources():
        _lower_runtime(target / PACKAGE / name.replace(".proto", "_pb2.py"))


def _lower_runtime(path: Path) -> None:
    """Ask for the ``RUNTIME`` that we support instead of the compiler's own, which would refuse
    every older one.

    The compilers of 6.31 and 7.35 write the same text but for this number.
    """
    text = path.read_text()
    text, comments = re.subn(
        r"(# Protobuf Python Version: )\S+", rf"\g<1>{'.'.join(map(str, RUNTIME))}", text
    )
    text, checks = re.subn(
        r"(_runtime_version\.Domain\.PUBLIC,\n)\s+\d+,\n\s+\d+,\n\s+\d+,\n",
        "\\1" + "".join(f"    {number},\n" for number in RUNTIME),
        text,
    )
    if (comments, checks) != (1, 1):
        raise RuntimeError(
            f"{path.name}: the compiler no longer states the runtime's version where it did"
        )
    path.write_text(text)


def differing() -> list[str]:
    """Names of the committed files that are not what ``proto/`` gives with the installed
    compiler.
    """
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        return [
            name
            for name in outputs()
            if not (ROOT / PACKAGE / name).is_file()
            or (ROOT / PACKAGE / name).read_bytes() != (Path(scratch) / PACKAGE / name).read_bytes()
        ]


def main() -> int:
    """Write or check; returns the exit status."""
    parser = argparse.ArgumentParser(description="Generate ftstan/wire/pb from proto/.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the committed files differ"
    )
    if parser.parse_args().check:
        stale = differing()
        for name in stale:
            print(
                f"{os.path.join(PACKAGE, name)} is not what proto/ gives; run: python "
                "tools/gen_proto.py"
            )
        return 1 if stale else 0
    generate(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
