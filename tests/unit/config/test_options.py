"""What a start refuses before it touches anything, in the words of the original."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftstan.base.errors import ConfigError
from ftstan.config.options import (
    ChannelLimits,
    ClusterOptions,
    FileOptions,
    FtOptions,
    MountRisk,
    NatsOptions,
    ServerOptions,
    StoreLimits,
)
from ftstan.config.validation import check_before_logging, check_start

FILE = ServerOptions(store="FILE", dir="d")


def refusal(options: ServerOptions) -> str:
    try:
        check_start(options)
    except ConfigError as error:
        return str(error)
    return ""


def test_defaults_and_a_file_store_start() -> None:
    assert refusal(ServerOptions()) == ""
    assert refusal(FILE) == ""
    assert refusal(replace(FILE, ft_group="ft")) == ""


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (StoreLimits(max_channels=-1), "max channels limit cannot be negative (-1)"),
        (
            StoreLimits(channel=ChannelLimits(max_subs=-2)),
            "max subscriptions limit cannot be negative (-2)",
        ),
        (
            StoreLimits(channel=ChannelLimits(max_msgs=-3)),
            "max messages limit cannot be negative (-3)",
        ),
        (
            StoreLimits(channel=ChannelLimits(max_bytes=-1024)),
            "max bytes limit cannot be negative (-1024)",
        ),
        (
            StoreLimits(channel=ChannelLimits(max_age=-(10**9))),
            "max age limit cannot be negative (-1s)",
        ),
        (
            StoreLimits(channel=ChannelLimits(max_inactivity=-60 * 10**9)),
            "max inactivity limit cannot be negative (-1m0s)",
        ),
        (
            StoreLimits(max_channels=-1, channel=ChannelLimits(max_bytes=-1, max_inactivity=-1)),
            "max channels limit cannot be negative (-1)",
        ),
    ],
)
def test_a_negative_limit_is_refused(limits: StoreLimits, text: str) -> None:
    assert refusal(ServerOptions(limits=limits)) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"buffer_size": -1}, "buffer size value must be a positive number"),
        ({"compact_interval": 0}, "compact interval value must at least be 1 seconds"),
        ({"compact_fragmentation": 0}, "compact fragmentation value must at least be 1"),
        ({"compact_min_size": -1}, "compact minimum file size value must be a positive number"),
        ({"crc_poly": 0}, "crc polynomial should be between 1 and 4294967295"),
        ({"crc_poly": 1 << 32}, "crc polynomial should be between 1 and 4294967295"),
        ({"slice_max_msgs": -1}, "slice max values must be positive numbers"),
        ({"slice_max_bytes": -1}, "slice max values must be positive numbers"),
        ({"slice_max_age": -1}, "slice max values must be positive numbers"),
        ({"fds_limit": -1}, "file descriptor limit must be a positive number"),
        ({"parallel_recovery": 0}, "parallel recovery value must be at least 1"),
        ({"read_buffer_size": -1}, "read buffer size value must be a positive number"),
        (
            {"buffer_size": -1, "read_buffer_size": -1},
            "buffer size value must be a positive number",
        ),
        ({"auto_sync": -1}, ""),
        ({"crc_poly": 0xFFFF_FFFF}, ""),
    ],
)
def test_file_options_are_checked_for_the_file_store_only(
    change: dict[str, Any], text: str
) -> None:
    file = replace(FileOptions(), **change)
    assert refusal(replace(FILE, file=file)) == text
    assert refusal(ServerOptions(file=file)) == ""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (ServerOptions(store="BOGUS"), "unsupported store type: BOGUS"),
        (ServerOptions(store=""), "unsupported store type: "),
        (
            ServerOptions(store="SQL"),
            'sql: unknown driver "" (forgotten import?)',
        ),
        (ServerOptions(store="FILE"), "for FILE stores, root directory must be specified"),
        (ServerOptions(ft_group="ft"), "ft: only FILE or SQL stores supported in FT mode"),
        (
            ServerOptions(store="FILE", ft_group="ft"),
            "for FILE stores, root directory must be specified",
        ),
        (
            replace(FILE, ft_group="a b"),
            "ft: unable to subscribe on ft subject: nats: invalid subject",
        ),
        (
            replace(FILE, ft=FtOptions(allow=("soft", "bogus"))),
            'ft_allow has no problem of the name "bogus"',
        ),
        (replace(FILE, ft=FtOptions(allow=("soft", "nfs3", "gluster"))), ""),
        (
            replace(FILE, ft=FtOptions(steal_after=10**9)),
            "ft_steal_after (1s) is shorter than the silence that makes a standby suspect (1.25s)",
        ),
        (
            replace(FILE, ft=FtOptions(steal_after=10**10, mixed="on")),
            "ft_steal_after cannot be used in a group with original servers: they obey no epoch",
        ),
        (replace(FILE, ft=FtOptions(steal_after=10**10)), ""),
        (
            replace(FILE, cluster_id="a.>"),
            "could not flush the subscriptions, nats: connection closed",
        ),
    ],
)
def test_a_combination_that_cannot_serve_is_refused(options: ServerOptions, text: str) -> None:
    assert refusal(options) == text


def test_an_unknown_mount_problem_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        check_start(replace(FILE, ft=FtOptions(allow=("",))))
    assert all(risk in caught.value.hint for risk in MountRisk)


@pytest.mark.parametrize("cluster_id", ["", "a b", "a\tb", "a\nb", ".a", "a.", "a..b"])
def test_a_cluster_id_that_cannot_be_part_of_a_subject_is_refused(cluster_id: str) -> None:
    assert refusal(ServerOptions(cluster_id=cluster_id)) == (
        "could not subscribe to discover subject: nats: invalid subject"
    )


@pytest.mark.parametrize(
    "cluster_id", ["a.b.c", "a*", "*", "a/b", "café", "-x", "x" * 300, '"q"', "A_b-9"]
)
def test_any_other_cluster_id_is_taken(cluster_id: str) -> None:
    assert refusal(ServerOptions(cluster_id=cluster_id)) == ""


def test_routes_need_an_address_of_ones_own() -> None:
    options = ServerOptions(nats=NatsOptions(routes=("nats://h:1",)))
    with pytest.raises(
        ConfigError, match=r"^solicited routes require cluster capabilities, e\.g\. --cluster$"
    ):
        check_before_logging(options)
    check_before_logging(
        ServerOptions(nats=NatsOptions(routes=("nats://h:1",), cluster_listen="nats://h:2"))
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (ServerOptions(io_spin=-1), "io_spin cannot be negative"),
        (ServerOptions(io_spin=10_000_001), "io_spin cannot be more than 10ms"),
        (ServerOptions(io_buffer_size=4095), "io_buffer_size must be at least 4096 bytes"),
        (
            ServerOptions(io_buffer_size=(1 << 30) + 1),
            "io_buffer_size must be at most 1073741824 bytes",
        ),
        (
            ServerOptions(nats=NatsOptions(gomaxprocs=-1)),
            "nats_gomaxprocs and nats_gogc cannot be negative",
        ),
        (
            ServerOptions(nats=NatsOptions(gogc=-1)),
            "nats_gomaxprocs and nats_gogc cannot be negative",
        ),
        (
            ServerOptions(cluster=ClusterOptions(log_max_bytes=0)),
            "cluster_log_max_bytes must be at least 1",
        ),
    ],
)
def test_settings_of_the_pipeline_are_checked(options: ServerOptions, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        check_start(options)
    assert caught.value.hint
    check_start(ServerOptions(io_spin=0, io_buffer_size=4096))
