"""One server after the other on one store, each ended in some way; time is theirs in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError
from ftstan.broker.broker import BrokerOptions
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.memory import MemoryStore
from tests.compat.driver import CLUSTER, SECOND, Driver
from tests.datastores import server_info
from tests.model.reference import HB_FAIL_COUNT, HB_INTERVAL, HB_TIMEOUT
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE

if TYPE_CHECKING:
    from ftstan.stores.interface import Store

OPTIONS = BrokerOptions(
    hb_interval=round(HB_INTERVAL * SECOND),
    hb_timeout=round(HB_TIMEOUT * SECOND),
    hb_fail_count=HB_FAIL_COUNT,
)


class MemoryServers:
    """Nothing survives a server. ``driver`` is the one that serves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.driver = self._start(self._open())

    @property
    def now(self) -> float:
        """Seconds."""
        return self.clock.mono()

    @property
    def started(self) -> float:
        """When the one that serves was made: what leaves it carries seconds since then."""
        return self._started

    def _open(self) -> Store:
        return MemoryStore()

    def _start(self, store: Store, before: Driver | None = None) -> Driver:
        self._started = self.clock.mono()
        driver = Driver(store, OPTIONS, self.clock)
        if before is not None:
            driver.alive = before.alive
            driver.absent = before.absent
        return driver

    def tick(self) -> None:
        """What is done once a second."""
        self.driver.store.tick(self.clock.wall_ns())

    def kill(self) -> None:
        """The process ends where it is."""
        self.driver.store.abandon()
        self.driver = self._start(self._open(), self.driver)


class FileServers(MemoryServers):
    """The file store on a simulated disk, with small slices and state files that are rewritten
    often.
    """

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        super().__init__()
        self.driver.store.set_server_info(server_info(CLUSTER))

    def _open(self) -> Store:
        options = FileStoreOptions(slice_max_msgs=5, compact_min_size=0)
        return open_file_store(self.disk.sibling(), self.clock, options)

    def stop(self) -> None:
        """A clean stop."""
        self.driver.store.close()
        self.driver = self._start(self._open(), self.driver)

    def lose_power(self) -> None:
        """Nothing is left that was not synced."""
        self.disk = self.disk.crash(mode=CrashMode.LOST)
        self.driver = self._start(self._open(), self.driver)

    def fail_over(self, subject: str, request: bytes) -> None:
        """Another server takes the store while this one lives, and knows nothing of it until its
        next request.
        """
        former = self.driver
        self.driver = self._start(self._open(), self.driver)
        before = len(former.out)
        former.frame(subject, request)
        with pytest.raises(FencedError):
            former.run()
        assert former.out[before:] == [], "a former owner has answered"
