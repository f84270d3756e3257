"""The environment of children: no key is in it, and nothing else is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base import environment
from ftstan.base.environment import KEY_VARIABLE, without_secrets
from ftstan.config.encryption_keys import keys_of
from ftstan.config.options import EncryptionOptions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_keys", set())


def test_the_variable_of_the_key_and_copies_of_it_are_withheld() -> None:
    given = {KEY_VARIABLE: "bin", "COPY": "bin", "PATH": "/usr/bin", "EMPTY": ""}
    assert without_secrets(given) == {"PATH": "/usr/bin", "EMPTY": ""}
    assert without_secrets({"PATH": "/usr/bin", "EMPTY": ""}) == {"PATH": "/usr/bin", "EMPTY": ""}


def test_no_key_of_a_ring_is_in_a_childs_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text("new\nold\n")
    given = {"A": "new", "B": "old", "C": "newer", "D": "the old", "ODD": "\udcff"}
    assert without_secrets(given) == given
    keys_of(EncryptionOptions(enabled=True, key_file=str(path)), {})
    assert without_secrets(given) == {"C": "newer", "D": "the old", "ODD": "\udcff"}


def test_a_key_of_an_option_is_withheld() -> None:
    keys_of(EncryptionOptions(enabled=True, key="secret"), {})
    assert without_secrets({"SOPS_KEY": "secret", "PATH": "/secret"}) == {"PATH": "/secret"}
