"""What a start and a command load: the large parts that they have no use for stay out, so that they
are quick. Which modules, and no times: those belong to a machine.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import HOST, ROOT, free_ports

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

#: Says what is loaded when clients are served, and nothing else has begun.
_START = """\
import os, sys
from ftstan.node import node

def report():
    print(*sys.modules, flush=True)
    os._exit(0)

node._CLIENTS_FIRST_S = 600.0
node._load_admin_listener = report
node._load_pages = report
from ftstan.cli.server import main
sys.exit(main())
"""
_COMMAND = """\
import atexit, sys
atexit.register(lambda: print(*sys.modules))
from ftstan.cli.{} import main
sys.exit(main())
"""

#: An HTTP server, a client of NATS, YAML, signatures, tables, what is installed, e-mail.
_LARGE = (
    *("aiohttp", "jinja2", "prometheus_client", "nats", "yaml", "nkeys", "nacl", "rich"),
    *("argparse", "logging.handlers", "ftstan.client", "ftstan.monitor", "ftstan.spark"),
    *("ftstan.config.effective", "ftstan.config.file", "ftstan.config.grammar"),
    *("ftstan.broker.managing", "ftstan.node.administration", "ftstan.node.group"),
    *("ftstan.ft.active", "ftstan.ft.standby", "ftstan.ft.history", "ftstan.ft.warm"),
    *("ftstan.node.partition_exchange", "ftstan.stores.file.tools"),
)
#: A store in memory has no lock and no epoch either.
_STORAGE = ("portalocker", "importlib.metadata", "email", "ftstan.ft.epoch", "ftstan.stores.file")


def loaded(program: str, words: Sequence[str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=120,
    )
    return set(done.stdout.splitlines()[-1].split())


def of(modules: Collection[str], names: Sequence[str]) -> list[str]:
    return sorted(
        module
        for module in modules
        if any(module == name or module.startswith(f"{name}.") for name in names)
    )


def server_words() -> list[str]:
    return ["-a", HOST, "-p", str(free_ports(1)[0])]


@pytest.mark.processes
def test_a_memory_server_serves_without_what_it_does_not_use() -> None:
    modules = loaded(_START, server_words())
    assert of(modules, _LARGE + _STORAGE) == []
    assert len(of(modules, ["ftstan"])) <= 157


@pytest.mark.processes
def test_a_file_server_serves_without_what_it_does_not_use(tmp_path: Path) -> None:
    words = [*server_words(), "-store", "file", "-dir", str(tmp_path / "store")]
    modules = loaded(_START, words)
    assert of(modules, _LARGE) == []
    assert len(of(modules, ["ftstan"])) <= 224


@pytest.mark.processes
def test_pages_are_loaded_when_clients_are_served(tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    modules = loaded(_START, [*server_words(), "-m", port])
    assert of(modules, _LARGE + _STORAGE) == []


def test_the_version_is_said_without_the_options() -> None:
    modules = loaded(_COMMAND.format("server"), ["-v"])
    assert of(modules, ["ftstan.config", "dataclasses", "asyncio", *_LARGE]) == []


def test_the_help_text_needs_no_server() -> None:
    modules = loaded(_COMMAND.format("server"), ["-help"])
    assert of(modules, ["ftstan.node", "ftstan.broker", "ftstan.nats", "asyncio", *_LARGE]) == []


@pytest.mark.parametrize(
    "command", ["", "store", "check-store", "ft", "pub", "sub", "bench", "drill", "context"]
)
def test_the_words_of_a_command_are_told_without_its_work(command: str) -> None:
    modules = loaded(_COMMAND.format("ctl"), [*([command] if command else []), "--help"])
    large = [name for name in _LARGE if name != "argparse"]
    assert of(modules, ["asyncio", "ftstan.node", "ftstan.stores", "ftstan.drill", *large]) == []
