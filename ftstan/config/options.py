"""What a server was asked to do, as frozen values, and the checks that a start makes before it touches anything.

Defaults are the original's. Durations are nanoseconds, sizes bytes, and 0 means unlimited for every limit. The checks
raise ``ConfigError`` with the text that the original prints behind ``Failed to start: ``.

Source: ``docs/compat/config.md`` (options, refused combinations).
"""

from __future__ import annotations

import enum
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.config.units import MILLISECOND, MINUTE, SECOND, format_duration
from ftstan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

STORE_MEMORY = "MEMORY"
STORE_FILE = "FILE"
STORE_SQL = "SQL"

FT_MIXED_AUTO = "auto"
"""As the datastore says; on for a group on a datastore of an original server that never saw one of ours."""
FT_MIXED = (FT_MIXED_AUTO, "on", "off")


class MountRisk(enum.StrEnum):
    """Ways to mount a datastore that refuse the start of a group's member, by the names that ``-ft_allow`` takes.

    What each one can do is in ``docs/ft.md`` (Mounts).
    """

    NOLOCK = "nolock"
    LOCAL_LOCK = "local_lock"
    NFS3 = "nfs3"
    SOFT = "soft"
    NOCTO = "nocto"
    RECOVER_LOST_LOCKS = "recover_lost_locks"
    GLUSTER = "gluster"
    DIRECT_IO = "direct_io"


ALL_INTERFACES = "0.0.0.0"  # noqa: S104  # the original's default, which operators expect
DEFAULT_PORT = 4222
CRC32_IEEE = 0xEDB88320


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Limits of one channel; 0 means unlimited. ``max_age`` and ``max_inactivity`` are nanoseconds."""

    max_msgs: int = 1_000_000
    max_bytes: int = 1_024_000_000
    max_age: int = 0
    max_subs: int = 1000
    max_inactivity: int = 0


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of the store: number of channels, and what every channel gets that has no limits of its own."""

    max_channels: int = 100
    channel: ChannelLimits = field(default_factory=ChannelLimits)


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Options of the file store. Sizes in bytes, ``compact_interval`` in seconds, other times in nanoseconds."""

    compact_enabled: bool = True
    compact_fragmentation: int = 50
    compact_interval: int = 300
    compact_min_size: int = 1_048_576
    buffer_size: int = 2_097_152
    crc: bool = True
    crc_poly: int = CRC32_IEEE
    sync: bool = True
    slice_max_msgs: int = 0
    slice_max_bytes: int = 67_108_864
    slice_max_age: int = 0
    slice_archive_script: str = ""
    fds_limit: int = 0
    parallel_recovery: int = 1
    truncate_bad_eof: bool = False
    read_buffer_size: int = 2_097_152
    auto_sync: int = MINUTE
    sync_index: bool = False
    sync_subs: bool = False


@dataclass(frozen=True, slots=True)
class FtOptions:
    """A fault-tolerant group's timing and rules. Times are nanoseconds.

    ``poll_interval`` 0 is chosen by the file system: 50 ms on a local one, 500 ms on a network one. ``nats_timeout`` 0
    means that an active cut off from NATS waits for ever, ``steal_after`` 0 that nobody takes a store without its lock.
    ``mixed`` says whether original servers may be members; ``allow`` names mount problems that are not to refuse.
    """

    hb_interval: int = SECOND
    hb_missed_interval: int = 1_250 * MILLISECOND
    nats_timeout: int = 5 * SECOND
    probe_interval: int = SECOND
    poll_interval: int = 0
    steal_after: int = 0
    mixed: str = FT_MIXED_AUTO
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """The NATS server that is started as a child; with ``ServerOptions.nats_servers`` only the login is used.

    ``port`` -1 is a random one, ``http_port`` 0 no monitoring; ``cluster_listen`` and ``routes`` are URLs as written.
    """

    host: str = ALL_INTERFACES
    port: int = DEFAULT_PORT
    http_port: int = 0
    cluster_listen: str = ""
    routes: tuple[str, ...] = ()
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    debug: bool = False
    trace: bool = False


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Everything that one server needs to know. ``store`` is upper case; times are nanoseconds.

    ``io_sleep_time`` is in microseconds, as its flag is; ``dedup_window`` is a number of publishes, 0 for none.
    """

    cluster_id: str = "test-cluster"
    store: str = STORE_MEMORY
    dir: str = ""
    ft_group: str = ""
    nats_servers: tuple[str, ...] = field(default=(), repr=False)
    hb_interval: int = 30 * SECOND
    hb_timeout: int = 10 * SECOND
    hb_fail_count: int = 10
    limits: StoreLimits = field(default_factory=StoreLimits)
    file: FileOptions = field(default_factory=FileOptions)
    ft: FtOptions = field(default_factory=FtOptions)
    nats: NatsOptions = field(default_factory=NatsOptions)
    dedup_window: int = 0
    debug: bool = False
    trace: bool = False
    log_file: str = ""
    log_time: bool = True
    pid_file: str = ""
    io_batch_size: int = 1024
    io_sleep_time: int = 0


def check_before_logging(options: ServerOptions) -> None:
    """Refuse what is wrong before a log exists: these texts stand alone on standard error. Raises ``ConfigError``."""
    if options.nats.routes and not options.nats.cluster_listen:
        raise ConfigError(
            "solicited routes require cluster capabilities, e.g. --cluster",
            hint="add -cluster nats://<host>:<port>, the address on which this server accepts routes",
        )


def check_start(options: ServerOptions, kinds: Collection[str] = (STORE_FILE, STORE_MEMORY)) -> None:
    """Refuse what the original refuses at start, in its order and words. Raises ``ConfigError``.

    ``kinds`` are the stores that can be asked for, upper case.
    """
    _check_store(options, kinds)
    _check_limits(options.limits)
    if options.store == STORE_FILE:
        _check_file(options)
    if options.ft_group and options.store != STORE_FILE:
        raise ConfigError(
            "ft: only FILE or SQL stores supported in FT mode",
            hint="add -store file -dir <directory shared by the group>",
        )
    if options.ft_group and not _is_subject(options.ft_group):
        raise ConfigError(
            "ft: unable to subscribe on ft subject: nats: invalid subject",
            hint="the group name becomes part of a subject: no blanks, no empty tokens",
        )
    _check_ft(options.ft)
    if options.dedup_window < 0:
        raise ConfigError(
            "dedup_window cannot be negative", hint="give the number of publishes to remember, 0 for none"
        )
    if not _is_subject(options.cluster_id):
        raise ConfigError(
            "could not subscribe to discover subject: nats: invalid subject",
            hint="the cluster id becomes part of a subject: not empty, no blanks, no empty tokens",
        )
    if ">" in options.cluster_id.split("."):
        raise ConfigError(
            "could not flush the subscriptions, nats: connection closed",
            hint="the cluster id becomes part of a subject that is published to: it cannot have the token '>'",
        )


def _check_store(options: ServerOptions, kinds: Collection[str]) -> None:
    if options.store in kinds:
        return
    if options.store == STORE_SQL:
        raise ConfigError("store type SQL is not supported by this version of ftstan (planned)", hint="use -store file")
    raise ConfigError(
        f"unsupported store type: {options.store}",
        hint="use " + " or ".join(f"-store {k.lower()}" for k in sorted(kinds)),
    )


def _check_limits(limits: StoreLimits) -> None:
    channel = limits.channel
    for name, value, shown in (
        ("max channels", limits.max_channels, str(limits.max_channels)),
        ("max subscriptions", channel.max_subs, str(channel.max_subs)),
        ("max messages", channel.max_msgs, str(channel.max_msgs)),
        ("max bytes", channel.max_bytes, str(channel.max_bytes)),
        ("max age", channel.max_age, format_duration(channel.max_age)),
        ("max inactivity", channel.max_inactivity, format_duration(channel.max_inactivity)),
    ):
        if value < 0:
            raise ConfigError(f"{name} limit cannot be negative ({shown})", hint="0 means unlimited")


def _check_file(options: ServerOptions) -> None:
    """Check in the original's order: an operator sees the first complaint only."""
    if not options.dir:
        raise ConfigError("for FILE stores, root directory must be specified", hint="add -dir <directory>")
    file = options.file
    checks = (
        (file.buffer_size >= 0, "buffer size value must be a positive number"),
        (file.compact_interval > 0, "compact interval value must at least be 1 seconds"),
        (file.compact_fragmentation > 0, "compact fragmentation value must at least be 1"),
        (file.compact_min_size >= 0, "compact minimum file size value must be a positive number"),
        (0 < file.crc_poly <= 0xFFFF_FFFF, "crc polynomial should be between 1 and 4294967295"),
        (
            min(file.slice_max_msgs, file.slice_max_bytes, file.slice_max_age) >= 0,
            "slice max values must be positive numbers",
        ),
        (file.fds_limit >= 0, "file descriptor limit must be a positive number"),
        (file.parallel_recovery >= 1, "parallel recovery value must be at least 1"),
        (file.read_buffer_size >= 0, "read buffer size value must be a positive number"),
    )
    for holds, text in checks:
        if not holds:
            raise ConfigError(text)


def _check_ft(ft: FtOptions) -> None:
    """Check what no original has; how the two heartbeat intervals go together is ``FtTiming``'s to say."""
    for name in ("hb_interval", "hb_missed_interval", "probe_interval"):
        if getattr(ft, name) <= 0:
            raise ConfigError(f"ft_{name} must be longer than zero", hint="give a duration such as 1s")
    for name in ("nats_timeout", "poll_interval", "steal_after"):
        if getattr(ft, name) < 0:
            raise ConfigError(f"ft_{name} cannot be negative", hint="give a duration such as 1s, or 0s for none")
    if 0 < ft.steal_after < ft.hb_missed_interval:
        raise ConfigError(
            f"ft_steal_after ({format_duration(ft.steal_after)}) is shorter than the silence that makes a standby "
            f"suspect ({format_duration(ft.hb_missed_interval)})",
            hint="give ft_steal_after several times ft_hb_missed_interval, or 0s for never",
        )
    if ft.steal_after and ft.mixed == "on":
        raise ConfigError(
            "ft_steal_after cannot be used in a group with original servers: they obey no epoch",
            hint="leave out -ft_steal_after until every member runs ftstan",
        )
    for name in ft.allow:
        if name not in list(MountRisk):
            raise ConfigError(
                f'ft_allow has no mount problem of the name "{name}"', hint="use some of: " + ", ".join(MountRisk)
            )
    if ft.mixed not in FT_MIXED:
        raise ConfigError(f'ft_mixed is "{ft.mixed}"', hint="use one of: " + ", ".join(FT_MIXED))


def _is_subject(name: str) -> bool:
    """Whether ``name`` can be the end of a subject: no white space and no empty token."""
    return not any(c in string.whitespace for c in name) and all(name.split("."))
