"""What a server was asked to do, as frozen values, and the checks that a start makes before it touches anything.

Defaults are the original's. Durations are nanoseconds, sizes bytes, and 0 means unlimited for every limit. The checks
raise ``ConfigError`` with the text that the original prints behind ``Failed to start: ``.

Source: ``docs/compat/config.md`` (options, refused combinations).
"""

from __future__ import annotations

import enum
import os
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.config.units import MILLISECOND, MINUTE, SECOND, format_duration, quote
from ftstan.errors import ConfigError
from ftstan.reserved import RESERVED_HINT, is_reserved

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

STORE_MEMORY = "MEMORY"
STORE_FILE = "FILE"
STORE_SQL = "SQL"

FT_MIXED_AUTO = "auto"
"""As the datastore says; on for a group on a datastore of an original server that never saw one of ours."""
FT_MIXED = (FT_MIXED_AUTO, "on", "off")

#: Longer than any client takes for its next publish that waits for the last one.
_LONGEST_SPIN = 10 * MILLISECOND


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


#: The name for ``-ft_allow`` of a listener for routes that asks nobody for a login (``docs/security.md``, Routes).
OPEN_ROUTES = "open_routes"
#: Every name that ``-ft_allow`` takes.
FT_ALLOW = (*MountRisk, OPEN_ROUTES)

#: What a partitioned server without channels says.
NO_CHANNEL = "stan: no configured channel"

ALL_INTERFACES = "0.0.0.0"  # noqa: S104  # the original's default, which operators expect
DEFAULT_PORT = 4222
LOG_FORMATS = ("text", "json")
CRC32_IEEE = 0xEDB88320
LEAST_BUFFER = 4096


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
    """Limits of the store: number of channels, and what every channel gets that has no limits of its own.

    ``channels`` are the entries of the per-channel map in its order, names with wildcards included, values as written:
    there 0 inherits and a negative number is unlimited (in a file, 0 is read as unlimited and a missing key as 0).
    The last of several entries of one name counts. Start one from ``ftstan.config.limits.INHERIT``: what is left out of
    a ``ChannelLimits`` is the default. What holds for a channel in the end: ``ftstan.config.limits.Limits``.
    """

    max_channels: int = 100
    channel: ChannelLimits = field(default_factory=ChannelLimits)
    channels: tuple[tuple[str, ChannelLimits], ...] = ()


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
    ``mixed`` says whether original servers may be members; ``allow`` names problems (``FT_ALLOW``) that are not to
    refuse a start, that of routes also where there is no group.
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
class ServerTlsOptions:
    """TLS of the embedded NATS server and of the HTTPS monitor. Files are PEM; ``timeout`` is seconds (0: default)."""

    enabled: bool = False
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    verify: bool = False
    verify_and_map: bool = False
    insecure: bool = False
    timeout: float = 0.0
    cipher_suites: tuple[str, ...] = ()
    curve_preferences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How the streaming server presents itself to NATS on every link of its own: login and TLS, files by path.

    ``user``, ``password`` and ``token`` hold, each by itself, where that of ``NatsOptions`` is empty.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey_seed_file: str = ""
    credentials: str = ""
    secure: bool = False
    client_cert: str = ""
    client_key: str = ""
    client_ca: str = ""
    server_name: str = ""
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Where log lines go and how they look. ``size_limit`` is bytes, 0 for never a new file; ``format`` text, json."""

    file: str = ""
    time: bool = True
    size_limit: int = 0
    format: str = "text"
    syslog: bool = False
    remote_syslog: str = ""
    syslog_name: str = ""


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """The HTTP pages. Ports: 0 for none, -1 for any free one; ``token`` or ``client_ca`` protect them if not empty.

    With ``open_health`` those for load balancers stay open to everybody. ``base_path`` stands in front of the NATS
    server's pages only. ``advertise`` is the ``host`` or ``host:port`` that the pages of other members are told, empty
    for what it listens on. ``metrics_channels`` channels have series of their own in ``/metrics``; ``metrics_nss`` adds
    the names of the retired exporter.
    """

    host: str = ALL_INTERFACES
    http_port: int = 0
    https_port: int = 0
    base_path: str = "/"
    advertise: str = ""
    metrics_channels: int = 100
    metrics_nss: bool = False
    token: str = field(default="", repr=False)
    client_ca: str = ""
    open_health: bool = False


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """The NATS server that is started as a child; with ``ServerOptions.nats_servers`` only the login is used.

    ``port`` -1 is a random one; ``cluster_listen`` and ``routes`` are URLs as written. ``settings`` are more keys of
    its configuration file, by their names there; maps are nested. ``gomaxprocs`` and ``gogc``: settings of its
    runtime; 0 leaves them to the environment, or to us where that says nothing.
    """

    host: str = ALL_INTERFACES
    port: int = DEFAULT_PORT
    cluster_listen: str = ""
    routes: tuple[str, ...] = ()
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    debug: bool = False
    trace: bool = False
    gomaxprocs: int = 0
    gogc: int = 0
    tls: ServerTlsOptions = field(default_factory=ServerTlsOptions)
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Everything that one server needs to know. ``store`` is upper case; times are nanoseconds.

    ``io_sleep_time`` is in microseconds, as its flag is; ``dedup_window`` is a number of publishes, 0 for none;
    ``io_buffer_size``: bytes of the buffer that the data link is read into at first; it grows when more has come.
    ``io_spin``: how long processors are kept awake after an answer, for a client that waits for each; 0: not at all.
    ``partition_wait`` is how long publishes wait for other partitions at a start.
    """

    cluster_id: str = "test-cluster"
    discover_prefix: str = "_STAN.discover"
    store: str = STORE_MEMORY
    dir: str = ""
    ft_group: str = ""
    nats_servers: tuple[str, ...] = field(default=(), repr=False)
    hb_interval: int = 30 * SECOND
    hb_timeout: int = 10 * SECOND
    hb_fail_count: int = 10
    replace_durable: bool = False
    limits: StoreLimits = field(default_factory=StoreLimits)
    file: FileOptions = field(default_factory=FileOptions)
    ft: FtOptions = field(default_factory=FtOptions)
    nats: NatsOptions = field(default_factory=NatsOptions)
    link: LinkOptions = field(default_factory=LinkOptions)
    log: LogOptions = field(default_factory=LogOptions)
    monitor: MonitorOptions = field(default_factory=MonitorOptions)
    partitioning: bool = False
    partition_wait: int = 100 * MILLISECOND
    strict_permissions: bool = False
    admin_key: str = ""
    dedup_window: int = 0
    debug: bool = False
    trace: bool = False
    config_file: str = field(default="", compare=False)
    pid_file: str = ""
    ports_file_dir: str = ""
    io_batch_size: int = 1024
    io_sleep_time: int = 0
    io_spin: int = 0
    io_buffer_size: int = 1_048_576


#: Of TCP.
MOST_PORT = 65535


def check_before_logging(options: ServerOptions) -> None:
    """Refuse what is wrong before a log exists: these texts stand alone on standard error. Raises ``ConfigError``."""
    if options.nats.routes and not options.nats.cluster_listen:
        raise ConfigError(
            "solicited routes require cluster capabilities, e.g. --cluster",
            hint="add -cluster nats://<host>:<port>, the address on which this server accepts routes",
        )
    if options.log.format not in LOG_FORMATS:
        raise ConfigError(f'log_format is "{options.log.format}"', hint="use one of: " + ", ".join(LOG_FORMATS))
    if options.log.size_limit < 0:
        raise ConfigError("log_size_limit cannot be negative", hint="give a number of bytes, or 0 for no limit")


def check_start(options: ServerOptions, kinds: Collection[str] = (STORE_FILE, STORE_MEMORY)) -> None:
    """Refuse what the original refuses at start, in its order and words. Raises ``ConfigError``.

    ``kinds`` are the stores that can be asked for, upper case.
    """
    _check_store(options, kinds)
    check_limits(options.limits)
    if options.store == STORE_FILE:
        _check_file(options)
    if options.admin_key and options.store == STORE_FILE:
        raise ConfigError("admin_key is for memory stores", hint="the datastore has its own: admin.key in -dir")
    if options.partitioning and not options.limits.channels:
        raise ConfigError(
            NO_CHANNEL,
            hint="name the channels that this server serves: store_limits { channels { foo: {} } }",
            option="partitioning",
        )
    if options.ft_group and options.store != STORE_FILE:
        raise ConfigError(
            "ft: only FILE or SQL stores supported in FT mode",
            hint="add -store file -dir <directory shared by the group>",
            option="ft_group",
        )
    if options.ft_group and not _is_subject(options.ft_group):
        raise ConfigError(
            "ft: unable to subscribe on ft subject: nats: invalid subject",
            hint="the group name becomes part of a subject: no blanks, no empty tokens",
            option="ft_group",
        )
    _check_ft(options.ft)
    if options.io_spin < 0:
        raise ConfigError("io_spin cannot be negative", hint="give a duration such as 500us, or 0s for none")
    if options.io_spin > _LONGEST_SPIN:
        raise ConfigError(
            f"io_spin cannot be more than {format_duration(_LONGEST_SPIN)}",
            hint="processors are kept busy all that time; give a duration such as 500us, or 0s for none",
        )
    if options.io_buffer_size < LEAST_BUFFER:
        raise ConfigError(
            f"io_buffer_size must be at least {LEAST_BUFFER} bytes", hint="leave it out, or give a size such as 1MB"
        )
    if min(options.nats.gomaxprocs, options.nats.gogc) < 0:
        raise ConfigError("nats_gomaxprocs and nats_gogc cannot be negative", hint="0 leaves the choice to ftstan")
    _check_ports(options)
    _check_pages(options)
    if options.monitor.client_ca and not options.monitor.https_port and options.monitor.http_port:
        raise ConfigError(
            "monitor_client_ca needs HTTPS: on -m nobody can show a certificate",
            hint="serve the pages with -ms instead of -m, or protect them with monitor_token",
        )
    if options.dedup_window < 0:
        raise ConfigError(
            "dedup_window cannot be negative", hint="give the number of publishes to remember, 0 for none"
        )
    if not _is_subject(options.cluster_id):
        raise ConfigError(
            "could not subscribe to discover subject: nats: invalid subject",
            hint="the cluster id becomes part of a subject: not empty, no blanks, no empty tokens",
            option="cluster_id",
        )
    if ">" in options.cluster_id.split("."):
        raise ConfigError(
            "could not flush the subscriptions, nats: connection closed",
            hint="the cluster id becomes part of a subject that is published to: it cannot have the token '>'",
            option="cluster_id",
        )


def _check_ports(options: ServerOptions) -> None:
    for port, text, key in (
        (
            0 if options.nats_servers else options.nats.port,
            f"Error listening on port: {options.nats.host}:%d, ",
            "port",
        ),
        (options.monitor.http_port, "Can't start monitoring: can't listen to the monitor port: ", "http_port"),
        (options.monitor.https_port, "Can't start monitoring: can't listen to the monitor port: ", "https_port"),
    ):
        if not -1 <= port <= MOST_PORT:
            why = f"listen tcp: address {port}: invalid port"
            raise ConfigError(
                text % port + f'"{why}"' if "%d" in text else text + why,
                hint=f"a port is a number from 1 to {MOST_PORT}; -1 takes any that is free",
                option=key,
            )


def _check_pages(options: ServerOptions) -> None:
    http, https, tls = options.monitor.http_port, options.monitor.https_port, options.nats.tls
    if http and https:
        raise ConfigError(
            f"Can't start monitoring: can't specify both HTTP ({http}) and HTTPs ({https}) ports",
            hint="give -m or -ms, not both; in a file http_port or https_port",
        )
    if https and not (tls.cert_file and tls.key_file):
        raise ConfigError(
            "Can't start monitoring: TLS cert and key required for HTTPS",
            hint="give the certificate and the key of the NATS server with -tlscert and -tlskey, or cert_file and"
            " key_file in tls { }",
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


def check_limits(limits: StoreLimits) -> None:
    """Refuse limits that no store takes, in the original's order and words. Raises ``ConfigError``."""
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
    names = {name for name, _ in limits.channels}
    for name, _ in limits.channels:
        if not is_channel_pattern(name):
            raise ConfigError(
                f"invalid channel name {quote(name)}",
                hint="no empty token, no slash; * and > only as whole tokens, > only as the last",
            )
        if is_reserved(os.fsencode(name)) and "*" not in name and ">" not in name:
            raise ConfigError(f"invalid channel name {quote(name)}", hint=RESERVED_HINT)
    literal = sum("*" not in name and ">" not in name for name in names)
    if limits.max_channels and literal > limits.max_channels:
        raise ConfigError(
            f"too many channels defined ({literal}). The max channels limit is set to {limits.max_channels}",
            hint="raise max_channels (0: unlimited), or list fewer channels; names with wildcards do not count",
        )


def is_channel_pattern(name: str) -> bool:
    """Whether limits can be given for ``name``: a channel, or one with ``*`` and ``>`` as whole tokens, ``>`` last."""
    tokens = name.split(".")
    if "/" in name or not all(tokens):
        return False
    return all(
        t == "*" or ("*" not in t and (">" not in t or (t == ">" and i == len(tokens))))
        for i, t in enumerate(tokens, 1)
    )


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
        if name not in FT_ALLOW:
            raise ConfigError(
                f'ft_allow has no problem of the name "{name}"', hint="use some of: " + ", ".join(FT_ALLOW)
            )
    if ft.mixed not in FT_MIXED:
        raise ConfigError(f'ft_mixed is "{ft.mixed}"', hint="use one of: " + ", ".join(FT_MIXED))


def _is_subject(name: str) -> bool:
    """Whether ``name`` can be the end of a subject: no white space and no empty token."""
    return not any(c in string.whitespace for c in name) and all(name.split("."))
