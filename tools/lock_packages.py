"""Writes ``packaging/lock``: exactly what a package holds, what compiles it, and what Spark needs,
with hashes.

Run it (``make lock``) after a change of the dependencies in ``pyproject.toml``, or to take newer
releases (``--upgrade``); the result is committed. Nothing but versions and hashes stands there:
where files come from is the business of the machine that builds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "packaging" / "lock"
#: What each file is made from, and with which options; "-" stands for the extra "spark". What Spark
#: needs must fit beside what the package holds, because one process has both.
SOURCES = {
    "runtime.txt": (str(ROOT / "pyproject.toml"), "--extra=drill", "--extra=sql"),
    "spark.txt": ("-", f"--constraint={LOCK / 'runtime.txt'}"),
    "build.txt": (str(LOCK / "build.in"),),
}


def main() -> int:
    """Write both files; returns the exit status of the first that fails."""
    parser = argparse.ArgumentParser(description="write packaging/lock")
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest releases that pyproject.toml allows"
    )
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    spark = "\n".join(extras["spark"])
    for name, words in SOURCES.items():
        command = [
            f"{sysconfig.get_path('scripts')}/uv",
            "pip",
            "compile",
            "--quiet",
            "--python-version=3.11",
        ]
        command += [
            "--generate-hashes",
            "--no-header",
            "--no-annotate",
            "--no-emit-index-url",
            *upgrade,
        ]
        command += ["-o", str(LOCK / name), *words]
        done = subprocess.run(command, cwd=ROOT, input=spark, text=True, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
