"""Certificates, keys and page ports that cannot be used: recorded starts of the original, refused
before all else.

A line of ours may go on where the original's ends: with the names of the files. What only a running
server decides is in ``tests/ft/test_recorded_starts.py``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ftstan.cli.server import main
from tests.certificates import Certificates
from tests.recorded import FakeServer, counted_from_one, fake_server, normalised, prepared, telling

__all__ = ["fake_server"]

DATA = Path(__file__).parents[2] / "data/cli"
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for name, key in (("auth-tls", "cases"), ("files", "invocations"))
    for case in json.loads((DATA / f"{name}.json").read_text("utf-8"))[key]
}

REFUSED = (
    *(
        "tls/cert-missing",
        "tls/key-missing",
        "tls/wrong-key",
        "tls/garbage-cert",
        "tls/ca-missing",
        "tls/ca-garbage",
    ),
    *(
        "tls/server-client-ca-missing",
        "tls/server-client-ca-garbage",
        "tls/server-client-cert-no-key",
    ),
    *("tls/server-client-cert-missing", "tls/server-client-wrong-pair", "tls/file-map-unknown-key"),
    *("tls/file-map-cert-file-number", "tls/file-map-verify-string", "tls/file-map-cipher-empty"),
    *(
        "tls/file-map-curve-empty",
        "tls/file-map-cert-only",
        "tls/file-map-key-only",
        "tls/file-map-cert-missing",
    ),
    *("tls/file-map-pair-wrong", "tls/file-map-ca-garbage", "tls/file-map-ca-missing"),
    *(
        "tls/file-client-map-cert-only-plain-server",
        "auth/file-user-and-token",
        "auth/file-user-and-users",
    ),
    *(
        "auth/file-token-and-users",
        "auth/nkey-seed-missing",
        "auth/nkey-seed-garbage",
        "auth/credentials-missing",
    ),
    *("auth/credentials-garbage", "net/http-and-https", "net/https-without-tls"),
)

#: Where we differ on purpose, and what is said here.
DIFFERENT = {"tls/file-map-empty": "s.conf:1:1: TLS Server certificate must be present and valid"}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Certificates.make(tmp_path_factory.mktemp("recorded") / "tls")
    (made.directory / "garbage.pem").write_text("this is not a certificate\n")
    return made.directory


@pytest.mark.parametrize("checked", [False, True], ids=["start", "check"])
@pytest.mark.parametrize("name", [*REFUSED, *DIFFERENT])
def test_what_cannot_be_used_is_told_as_by_the_original_before_anything_is_touched(
    name: str,
    server: FakeServer,
    material: Path,
    capfd: pytest.CaptureFixture[str],
    *,
    checked: bool,
) -> None:
    case = CASES[name]
    words = prepared(case)
    Path("tls").symlink_to(material)
    before = sorted(Path.cwd().iterdir())
    assert main([*words, "-P", "pid", *(["-check_config"] if checked else [])]) == 1
    assert server.runs == []
    assert sorted(Path.cwd().iterdir()) == before
    said = re.sub(r"^\[<pid>\] <time> ", "", telling(normalised(capfd.readouterr().err)))
    expected = (
        DIFFERENT.get(name) or case.get("line") or next(line for line in case["stderr"] if line)
    )
    expected = re.sub(r"^\[<pid>\] <time> ", "", expected)
    if name not in DIFFERENT:
        expected = counted_from_one(expected)
    if checked:
        expected = expected.removeprefix("[FTL] ").removeprefix("STREAM: Failed to start: ")
    assert said.startswith(expected)


def test_every_exception_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs/compat/config.md").read_text("utf-8")
    assert [name for name in DIFFERENT if name not in page] == []
