"""Reload: what a running server takes over from its configuration, and what it names instead."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base import log
from ftstan.base.errors import ConfigError, FtstanError, NatsError
from ftstan.config.limits import changes
from ftstan.config.options import ChannelLimits, NatsOptions, ServerOptions, StoreLimits
from ftstan.node.reload import NO_FILE, ONLY_EMBEDDED, Reloader, changed, key_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ftstan.nats.generated import NatsServerOptions
    from ftstan.node.node import Node

OLD = ServerOptions()


@pytest.fixture(autouse=True)
def path(tmp_path: Path) -> Iterator[Path]:
    log.configure(file=str(tmp_path / "x.log"), logtime=False)
    yield tmp_path / "x.log"
    log.configure()


class Child:
    """Stands in for the embedded NATS server."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.options: list[NatsServerOptions] = []

    async def reload(self, options: NatsServerOptions) -> None:
        if self.refusal:
            raise NatsError(self.refusal)
        self.options.append(options)


class Serving:
    """Stands in for what serves."""

    def __init__(self) -> None:
        self.limits = OLD.limits

    def set_limits(self, limits: StoreLimits) -> list[str]:
        before = self.limits
        self.limits = limits
        return changes(before, limits)


def node_with(child: Child | None, serving: Serving | None = None) -> Any:
    async def set_limits(limits: StoreLimits) -> list[str]:
        return serving.set_limits(limits) if serving is not None else []

    pages = SimpleNamespace(renew=lambda _: None, check=lambda _: None)
    return SimpleNamespace(
        options=OLD,
        child=child,
        front=None,
        member=SimpleNamespace(set_limits=set_limits),
        monitor=pages,
    )


def lines(path: Path) -> list[str]:
    assert log.flush(60)
    return [line.partition("] ")[2] for line in path.read_text().splitlines()]


def run(node: Any, new: ServerOptions | FtstanError | None) -> None:
    def read() -> ServerOptions:
        if isinstance(new, FtstanError):
            raise new
        assert new is not None
        return new

    asyncio.run(
        Reloader(cast("Node", node), None if new is None else read, lambda _: None).on_signal()
    )


def test_levels_of_both_halves_change_and_the_nats_server_gets_its_part(path: Path) -> None:
    child = Child()
    node = node_with(child)
    new = replace(OLD, trace=True, debug=True, nats=NatsOptions(debug=True))
    run(node, new)
    assert (log.stream.debug_on, log.stream.trace_on, log.nats.debug_on, log.nats.trace_on) == (
        True,
        True,
        True,
        False,
    )
    assert [options.debug for options in child.options] == [True]
    assert node.options == new
    assert lines(path) == [
        "[INF] STREAM: Reloaded: stan_debug = true",
        "[INF] STREAM: Reloaded: stan_trace = true",
    ]
    run(node, OLD)
    assert not log.stream.debug_on
    assert lines(path)[-2:] == [
        "[INF] STREAM: Reloaded: stan_debug = false",
        "[INF] STREAM: Reloaded: stan_trace = false",
    ]


def test_date_and_time_in_log_lines_come_and_go(path: Path) -> None:
    node = node_with(Child())
    log.set_time(shown=False)
    run(node, replace(OLD, log=replace(OLD.log, time=False)))
    run(node, OLD)
    assert log.flush(60)
    pid = os.getpid()
    first, second = path.read_text().splitlines()
    assert first == f"[{pid}] [INF] Reloaded: logtime = false"
    assert re.fullmatch(
        rf"\[{pid}\] \d{{4}}/\d\d/\d\d [\d:.]+ \[INF\] Reloaded: logtime = true", second
    )


def test_limits_change_for_what_is_served_and_are_said_one_by_one(path: Path) -> None:
    serving = Serving()
    node = node_with(Child(), serving)
    new = replace(
        OLD, limits=StoreLimits(max_channels=7, channels=(("orders.>", ChannelLimits(max_msgs=5)),))
    )
    run(node, new)
    assert serving.limits == new.limits
    assert lines(path)[0] == "[INF] STREAM: Reloaded: Channels: 100 -> 7"
    assert any(line.startswith('[INF] STREAM: Reloaded: "orders.>": ') for line in lines(path))


def test_a_node_that_does_not_serve_takes_limits_when_it_does(path: Path) -> None:
    node = node_with(Child())
    new = replace(OLD, limits=StoreLimits(max_channels=7))
    run(node, new)
    assert node.options.limits == new.limits
    assert lines(path) == []


def test_the_channels_of_a_partition_need_a_restart(path: Path) -> None:
    node = node_with(Child())
    node.options = replace(OLD, partitioning=True)
    limits = StoreLimits(channels=(("orders.>", ChannelLimits()),))
    run(node, replace(OLD, partitioning=True, limits=limits))
    (line,) = lines(path)
    assert 'Reload: cannot change "channels" without a restart' in line


def test_nothing_is_said_of_what_is_as_it_was(path: Path) -> None:
    child = Child()
    run(node_with(child), ServerOptions())
    assert lines(path) == []
    # The file may name others that changed: certificates, say.
    assert len(child.options) == 1


def test_what_needs_a_restart_is_named_and_nothing_changes(path: Path) -> None:
    child = Child()
    node = node_with(child)
    new = replace(
        OLD,
        cluster_id="other",
        debug=True,
        file=replace(OLD.file, sync=False),
        nats=NatsOptions(port=1),
    )
    run(node, new)
    (line,) = lines(path)
    assert line.startswith(
        '[ERR] STREAM: Reload: cannot change "cluster_id", "file_sync", "port" without a restart '
        "(nothing was changed"
    )
    assert not log.stream.debug_on
    assert child.options == []
    assert node.options is OLD


def test_an_error_in_the_file_is_one_line_and_nothing_changes(path: Path) -> None:
    child = Child()
    node = node_with(child)
    run(node, ConfigError('a.conf:3:7: "max_msgs" wants a number', hint="write max_msgs: 100"))
    assert lines(path) == [
        '[ERR] STREAM: Reload: a.conf:3:7: "max_msgs" wants a number (write max_msgs: 100)'
    ]
    assert child.options == []
    assert node.options is OLD


def test_a_nats_server_that_refuses_its_part_stops_the_rest_too(path: Path) -> None:
    node = node_with(Child("config reload not supported for Port: old=4592, new=4593"))
    run(node, replace(OLD, debug=True))
    assert lines(path) == [
        "[ERR] STREAM: Reload: config reload not supported for Port: old=4592, new=4593"
    ]
    assert not log.stream.debug_on
    assert node.options is OLD


def test_pages_that_cannot_read_their_part_stop_the_rest_before_the_nats_server_changes_anything(
    path: Path,
) -> None:
    def check(_: object) -> None:
        raise ConfigError("monitor client CA: gone.pem: no such file or directory")

    child = Child()
    node = node_with(child)
    node.monitor = SimpleNamespace(check=check, renew=check)
    run(node, replace(OLD, debug=True))
    assert lines(path) == [
        "[ERR] STREAM: Reload: monitor client CA: gone.pem: no such file or directory"
    ]
    assert child.options == []
    assert node.options is OLD


def test_without_a_file_there_is_nothing_to_reload(path: Path) -> None:
    run(node_with(Child()), None)
    (line,) = lines(path)
    assert line.startswith(f"[ERR] STREAM: Reload: {NO_FILE}")


def test_with_an_external_nats_server_the_streaming_part_is_reloaded_the_rest_is_named(
    path: Path,
) -> None:
    node = node_with(None)
    node.options = replace(OLD, nats_servers=("nats://h:1",))
    run(node, replace(node.options, debug=True))
    assert lines(path) == [
        f"[WRN] STREAM: {ONLY_EMBEDDED}",
        "[INF] STREAM: Reloaded: stan_debug = true",
    ]


def test_every_difference_is_found_and_has_the_name_that_operators_know() -> None:
    new = replace(
        OLD, dir="/x", ft=replace(OLD.ft, hb_interval=1), nats=replace(OLD.nats, token="t")
    )
    assert sorted(key_of(path) for path in changed(OLD, new)) == ["auth", "dir", "ft_hb_interval"]
