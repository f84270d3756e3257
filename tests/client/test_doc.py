"""Every program of ``docs/client.md`` runs, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import ftstan.client
from tests.processes import PATIENCE_S, READY, ROOT

if TYPE_CHECKING:
    from tests.processes import Stage

PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_every_program_of_the_page_has_its_output() -> None:
    assert len(PROGRAMS) == PAGE.count("```python") >= 6


def test_the_page_names_every_error_and_every_option() -> None:
    errors = [
        name for name in ftstan.client.__all__ if name.endswith("Error") and name != "RequestError"
    ]
    assert [name for name in errors if f"`{name}`" not in PAGE] == []
    assert set(re.findall(r"`(\w+Error)`", PAGE)) <= set(ftstan.client.__all__)


@pytest.mark.processes
def test_every_program_of_the_page_prints_what_it_says(stage: Stage) -> None:
    server = stage.server("server")
    server.wait_for(READY)
    for number, (program, output) in enumerate(PROGRAMS):
        text = program.replace(":4222", f":{server.port}")
        if text == program:
            # It leaves the address to the default.
            text = re.sub(
                r'connect\((\s*"[\w-]+", "\w+")',
                rf'connect(\1, servers="127.0.0.1:{server.port}"',
                program,
            )
        assert text.count(f":{server.port}") == 1
        file = stage.directory / f"program{number}.py"
        file.write_text(text)
        done = subprocess.run(
            [sys.executable, "-P", str(file)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert (done.stdout, done.stderr, done.returncode) == (output, "", 0), program
