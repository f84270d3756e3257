"""Our own stores keep the contract that every store keeps (``ftstan.stores.contract``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import SystemClock
from ftstan.config.options import ServerOptions
from ftstan.stores import registry
from ftstan.stores.contract import AccessContract, DurableContract, StoreContract
from ftstan.stores.contract.place import opened, put, recovered
from ftstan.stores.interface import ClientInfo, StoreContext
from tests.contract.places import KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ftstan.stores.contract import Place
    from ftstan.stores.interface import StoreAccess


class TestStores(StoreContract):
    @pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
        kind: Kind = request.param
        return kind.make(tmp_path)


class TestDurableStores(DurableContract):
    @pytest.fixture(params=[kind for kind in KINDS if kind.durable], ids=lambda kind: kind.name)
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
        kind: Kind = request.param
        return kind.make(tmp_path)


class TestFileAccess(AccessContract):
    @pytest.fixture
    def new_access(self, tmp_path: Path) -> Callable[[], StoreAccess]:
        options = ServerOptions(store="FILE", dir=str(tmp_path / "store"))
        return lambda: registry.load("file")(StoreContext(options, "me", SystemClock()))

    def test_the_holder_is_named(self, new_access: Callable[[], StoreAccess]) -> None:
        first = new_access()
        second = new_access()
        assert second.holder() == ""
        first.lock().acquire()
        first.activate()
        assert re.match(r"epoch 1 of server \S+ on host ", second.holder())
        first.close()
        second.close()


class TestMemoryAccess(AccessContract):
    exclusive = False

    @pytest.fixture
    def new_access(self) -> Callable[[], StoreAccess]:
        return lambda: registry.load("MEMORY")(StoreContext(ServerOptions(), "me", SystemClock()))


def test_a_store_that_is_not_durable_leaves_nothing(tmp_path: Path) -> None:
    for kind in KINDS:
        if not kind.durable:
            place = kind.make(tmp_path)
            store, channel = opened(place)
            put(store, channel, b"a")
            store.add_client(ClientInfo(b"a", b"hb"))
            store.commit()
            store.close()
            _, found = recovered(place)
            assert (found.channels, found.clients) == ([], [])
