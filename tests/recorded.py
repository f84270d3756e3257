"""Replaying what was recorded of the original's command: a stand-in for the server, command lines,
texts to compare.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import types
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base import log
from ftstan.cli import serving as command
from ftstan.cli import versions
from ftstan.config.options import ServerOptions
from ftstan.nats.addresses import check_addresses
from tests.processes import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Ports of the recordings, by their names, and by their numbers where the recording kept those.
#: They are this worker's: a command line is checked by listening there, as servers of other
#: workers' tests may do at the same time.
PORTS = dict(
    zip(
        ("{port}", "{port2}", "{port3}", "{http}", "{http2}", "{route}"),
        map(str, free_ports(6)),
        strict=True,
    )
)
_KEPT = {"23960": PORTS["{port}"], "23961": PORTS["{http}"]}


@dataclass
class FakeServer:
    """Stands in for ``ftstan.node.node``: remembers what it was asked to run."""

    runs: list[ServerOptions] = field(default_factory=list)
    rereads: list[object] = field(default_factory=list)
    status: int = 0
    failure: BaseException | None = None

    def run(self, options: ServerOptions, reread: object, host: object, early: object) -> int:
        del host, early
        self.runs.append(options)
        self.rereads.append(reread)
        if self.failure is not None:
            raise self.failure
        return self.status


@pytest.fixture(name="server")
def fake_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    fake = FakeServer()
    module = types.ModuleType("ftstan.node.node")
    module.__dict__["run"] = fake.run
    monkeypatch.setitem(sys.modules, "ftstan.node.node", module)
    module = types.ModuleType("ftstan.node.early")
    module.__dict__["Early"] = contextlib.nullcontext
    monkeypatch.setitem(sys.modules, "ftstan.node.early", module)
    monkeypatch.setattr(versions, "binary_version", lambda: "9.8.7")
    monkeypatch.setattr(command, "check_addresses", _check_addresses_elsewhere)
    monkeypatch.chdir(tmp_path)
    yield fake
    log.configure()


def _check_addresses_elsewhere(options: ServerOptions) -> None:
    """The real check, but of any port in the place of the default one, at which a server of this
    machine, or the test beside this one, may listen.
    """
    if options.nats.port == ServerOptions().nats.port:
        options = replace(options, nats=replace(options.nats, port=free_ports(1)[0]))
    check_addresses(options)


def prepared(record: dict[str, Any]) -> list[str]:
    for name, content in record.get("files", {}).items():
        if content == "<directory>":
            Path(name).mkdir()
        else:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(with_ports(content))
    return [with_ports(word) for word in record["argv"]]


def with_ports(text: str) -> str:
    for placeholder, port in (PORTS | _KEPT).items():
        text = text.replace(placeholder, port)
    return text


def normalised(text: str) -> list[str]:
    text = text.replace("\nhint: ", "\n<hint>").replace("STREAM: Hint: ", "<hint>")
    text = re.sub(
        rf"\[{os.getpid()}\] \d{{4}}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{{6}} ", "[<pid>] <time> ", text
    )
    text = re.sub(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ", "<time-s> ", text)
    text = re.sub(r"(ServerID: )\w{22}\n", r"\1<nuid1>\n", text)
    text = re.sub(r"(Go version: )python[\w.+]+\n", r"\1<go-version>\n", text)
    text = re.sub(r"(Git commit: )\[ftstan [\w.]+\]\n", r"\1[not set]\n", text)
    for placeholder, port in PORTS.items():
        text = re.sub(rf"(?<=[:(]){port}(?!\d)", f"<{placeholder[1:-1]}>", text)
    return [line for line in text.splitlines() if "<hint>" not in line]


FROM_FIRST_LINE = re.compile(r"(?<=:1:)\d+(?=: )")


def counted_from_one(line: str) -> str:
    """A line of the original with columns of the first line counted from 1, as in the others."""
    return FROM_FIRST_LINE.sub(lambda found: str(int(found[0]) + 1), line).replace(
        "got '\0'", "got 'end of file'"
    )


def telling(lines: list[str]) -> str:
    """The first line that tells why nothing was started; banners and information are left out."""
    wanted = [
        line
        for line in lines
        if line and not re.match(r"hint: |\[<pid>\] <time> \[(INF|WRN)\] ", line)
    ]
    return wanted[0] if wanted else ""
