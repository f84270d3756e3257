"""Kinds of stores are found by their entry points, and what cannot be had is one clear line."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint, EntryPoints
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import ConfigError
from ftstan.config.options import ServerOptions
from ftstan.config.validation import check_start
from ftstan.ft.access import FileAccess
from ftstan.stores import registry
from ftstan.stores.interface import StoreContext
from ftstan.stores.memory import MemoryAccess

if TYPE_CHECKING:
    from ftstan.stores.interface import StoreKind

THEIRS = (
    EntryPoint("Etcd", "ftstan.stores.memory:MemoryAccess", registry.GROUP),
    EntryPoint("BROKEN", "no_such_package_here:Access", registry.GROUP),
    EntryPoint("EMPTY", "ftstan.stores.memory:NothingHere", registry.GROUP),
)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of third parties are installed."""
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: EntryPoints(THEIRS).select(group=group),
    )


def test_our_kinds_are_there_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: EntryPoints())
    assert registry.names() == registry.names("MEMORY") == ["FILE", "MEMORY", "SQL"]
    assert registry.load("memory") is MemoryAccess
    assert registry.load("FILE") is FileAccess


@pytest.mark.usefixtures("theirs")
def test_a_third_partys_kind_is_found_in_any_case() -> None:
    kind: StoreKind = registry.load("etcd")
    access = kind(StoreContext(ServerOptions(store="ETCD"), "me", ManualClock()))
    access.lock().acquire()
    access.activate()
    assert access.open().recover().channels == []
    check_start(ServerOptions(store="ETCD"), registry.names())


@pytest.mark.usefixtures("theirs")
def test_an_unknown_kind_is_refused_in_the_originals_words() -> None:
    with pytest.raises(ConfigError, match="unsupported store type: BOGUS") as refused:
        registry.load("BOGUS")
    assert (
        refused.value.hint
        == "use -store broken or -store empty or -store etcd or -store file or -store memory or "
        "-store sql"
    )
    with pytest.raises(ConfigError, match="unsupported store type: BOGUS"):
        check_start(ServerOptions(store="BOGUS"), registry.names())


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("name", ["broken", "empty"])
def test_a_kind_that_cannot_be_imported_says_which_and_why(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=f"store type {name}: .* cannot be loaded: .*(no_such_package|NothingHere)",
    ):
        registry.load(name)
