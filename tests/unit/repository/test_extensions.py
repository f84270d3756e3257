"""What ``make test-debug`` leaves out can run no extension, and nothing else is left out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.extensions import runs_none, without
from tests.processes import ROOT

PLACES = ["contract", "fuzz", "model", "oracle", "sim", "unit"]


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("unit/wire/test_codec.py", "it imports an extension"),
        ("unit/wire/test_messages.py", "what it imports does"),
        ("unit/stores/test_registry.py", "what it imports does so by a name made at run time"),
        ("contract/test_stores.py", "its fixtures do"),
        ("oracle/test_gopeer.py", "it starts processes"),
        ("sim/test_filestore.py", "a simulated disk is below a real store"),
    ],
)
def test_what_may_run_an_extension_is_kept(module: str, why: str) -> None:
    assert not runs_none(ROOT / "tests" / module), why


@pytest.mark.parametrize(
    "module", ["unit/broker/test_timers.py", "unit/config/test_units.py", "unit/base/test_log.py"]
)
def test_what_is_pure_python_is_left_out(module: str) -> None:
    assert runs_none(ROOT / "tests" / module)


@pytest.mark.slow
def test_nothing_that_is_left_out_loads_an_extension() -> None:
    files = without([f"tests/{place}" for place in PLACES])
    assert len(files) > 50
    names = [file.removesuffix(".py").replace("/", ".") for file in files]
    extensions = [
        str(file.relative_to(ROOT).with_suffix("")).replace("/", ".")
        for file in sorted((ROOT / "ftstan").rglob("*.pyx"))
    ]
    assert len(extensions) > 20
    script = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print(sorted(set({extensions!r}) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == "[]"
