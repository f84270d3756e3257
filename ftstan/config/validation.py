"""What a start refuses before it touches anything, and what it warns of.

``ConfigError`` has the text that the original prints behind ``Failed to start: ``, if any.

Source: ``docs/compat/config.md`` (options, refused combinations).
"""

from __future__ import annotations

import os
import re
import string
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.base.reserved import RESERVED_HINT, is_reserved
from ftstan.config.declaration import Group
from ftstan.config.limits import Limits
from ftstan.config.member import MAX_MEMBER_NAME
from ftstan.config.nats_limits import warnings_of_nats
from ftstan.config.options import FT_ALLOW, SQL_DRIVERS, STORE_FILE, STORE_MEMORY, STORE_SQL
from ftstan.config.precedence import DEFAULT, field_value
from ftstan.config.table import BY_KEY
from ftstan.config.units import MILLISECOND, SECOND, format_duration, quote

if TYPE_CHECKING:
    from collections.abc import Collection

    from ftstan.config.options import ServerOptions, StoreLimits
    from ftstan.config.precedence import Settings

#: A name or an address, with or without a port.
_ADDRESS = re.compile(r"(?:\[[\da-fA-F:.]+\]|[\w.-]+)(?::\d{1,5})?", re.ASCII)
MOST_PORT = 65535
LEAST_BUFFER = 4096
#: It is memory that is taken at the start.
_MOST_BUFFER = 1 << 30
#: Longer than any client takes for its next publish that waits for the last one.
_LONGEST_SPIN = 10 * MILLISECOND

#: A NATS server that was restarted is found again within this time.
_SHORT_CUT = SECOND
#: What a partitioned server without channels says.
NO_CHANNEL = "stan: no configured channel"
CLUSTERED_PARTITIONING = "stan: channels partitioning in clustering mode is not supported"
CLUSTERED_MEMORY = "stan: clustering mode not supported with MEMORY store type"


class ModeError(ConfigError):
    """Two modes that exclude each other; the original says so on standard output."""


def check_modes(settings: Settings) -> None:
    """Refuse what the original refuses of clustered servers. Raises ``ModeError``."""
    if not settings.value("clustered"):
        return
    hint = ""
    source = settings.get("clustered").source
    if not source.startswith("-"):
        hint = (
            f"{source}: this map makes a server clustered; if it is meant for NATS routes, add: "
            f"streaming {{ }}"
        )
    if settings.value("partitioning"):
        raise ModeError(CLUSTERED_PARTITIONING, hint=hint)
    if settings.value("store").upper() == STORE_MEMORY:
        raise ModeError(CLUSTERED_MEMORY, hint=hint)
    if not settings.value("cluster_preview"):
        raise not_supported(settings, "clustered")


def not_supported(settings: Settings, key: str) -> ConfigError:
    """The refusal of an option that was given, by the name that was used and with its place."""
    setting = settings.get(key)
    named = (
        setting.source
        if setting.source.startswith("-")
        else f'{setting.source}: "{setting.spelled}"'
    )
    return ConfigError(
        f"{named} is not supported by this version of ftstan (planned)",
        hint="start without it; -help and docs/configuration.md show what is supported",
    )


def refuse_unsupported(settings: Settings) -> None:
    """Raise ``ConfigError`` for the first unsupported option that is not at its default."""
    clustered = settings.value("clustered")
    for key, setting in settings.given.items():
        option = BY_KEY[key]
        # Options of a cluster would say nothing to a server that is no node of one.
        supported = option.supported and (clustered or option.group is not Group.CLUSTERING)
        # The original's default, where ours is another one: a file that says it asks for nothing.
        default = False if key == "cluster_sync" else option.default
        if supported or setting.value in (default, ()):
            continue
        raise not_supported(settings, key)


def refuse_empty_token(settings: Settings) -> None:
    """Refuse a token for the pages that is empty: a variable without a value would open them to
    everybody, and nobody would notice. Raises ``ConfigError``.
    """
    setting = settings.get("monitor_token")
    if setting.source != DEFAULT and not setting.value:
        raise ConfigError(
            "monitor_token is empty: the pages would be open to everybody",
            hint=f"{setting.source}: give a token (is its variable set?), or leave the option out",
        )


def check_before_logging(options: ServerOptions) -> None:
    """Refuse what is wrong before a log exists. Raises ``ConfigError``.

    These texts stand alone on standard error.
    """
    if options.nats.routes and not options.nats.cluster_listen:
        raise ConfigError(
            "solicited routes require cluster capabilities, e.g. --cluster",
            hint="add -cluster nats://<host>:<port>, the address on which this server accepts "
            "routes",
        )
    _check_choice(options, "log_format")
    if options.log.size_limit < 0:
        raise ConfigError(
            "log_size_limit cannot be negative", hint="give a number of bytes, or 0 for no limit"
        )


def check_start(
    options: ServerOptions, kinds: Collection[str] = (STORE_FILE, STORE_MEMORY, STORE_SQL)
) -> None:
    """Refuse what the original refuses at start, in its order and words. Raises ``ConfigError``.

    ``kinds`` are the stores that can be asked for, upper case.
    """
    _check_store(options, kinds)
    check_limits(options.limits, partitioning=options.partitioning)
    if options.store == STORE_FILE:
        _check_file(options)
    if options.store == STORE_SQL:
        _check_sql(options)
    if options.cluster.log_max_bytes < 1:
        raise ConfigError(
            "cluster_log_max_bytes must be at least 1",
            hint="leave it out, or give a size such as 4GB; the log needs no bound while all nodes "
            "are up",
            option="cluster_log_max_bytes",
        )
    if options.admin_key and options.store == STORE_FILE:
        raise ConfigError(
            "admin_key is for memory stores", hint="the datastore has its own: admin.key in -dir"
        )
    if options.partitioning and not options.limits.channels:
        raise ConfigError(
            NO_CHANNEL,
            hint="name the channels that this server serves: store_limits { channels { foo: {} } }",
            option="partitioning",
        )
    if options.ft_group and options.store not in (STORE_FILE, STORE_SQL):
        raise ConfigError(
            "ft: only FILE or SQL stores supported in FT mode",
            hint="add -store file -dir <directory shared by the group>, or -store sql",
            option="ft_group",
        )
    if options.ft_group and not _is_subject(options.ft_group):
        raise ConfigError(
            "ft: unable to subscribe on ft subject: nats: invalid subject",
            hint="the group name becomes part of a subject: no blanks, no empty tokens",
            option="ft_group",
        )
    _check_ft(options)
    if options.io_spin < 0:
        raise ConfigError(
            "io_spin cannot be negative", hint="give a duration such as 500us, or 0s for none"
        )
    if options.io_spin > _LONGEST_SPIN:
        raise ConfigError(
            f"io_spin cannot be more than {format_duration(_LONGEST_SPIN)}",
            hint="processors are kept busy all that time; give a duration such as 500us, or 0s "
            "for none",
        )
    if options.io_buffer_size < LEAST_BUFFER:
        raise ConfigError(
            f"io_buffer_size must be at least {LEAST_BUFFER} bytes",
            hint="leave it out, or give a size such as 1MB",
        )
    if options.io_buffer_size > _MOST_BUFFER:
        raise ConfigError(
            f"io_buffer_size must be at most {_MOST_BUFFER} bytes",
            hint="leave it out, or give a size such as 1MB",
        )
    if min(options.nats.gomaxprocs, options.nats.gogc) < 0:
        raise ConfigError(
            "nats_gomaxprocs and nats_gogc cannot be negative", hint="0 leaves the choice to ftstan"
        )
    _check_ports(options)
    _check_pages(options)
    if options.monitor.client_ca and not options.monitor.https_port and options.monitor.http_port:
        raise ConfigError(
            "monitor_client_ca needs HTTPS: on -m nobody can show a certificate",
            hint="serve the pages with -ms instead of -m, or protect them with monitor_token",
        )
    if options.dedup_window < 0:
        raise ConfigError(
            "dedup_window cannot be negative",
            hint="give the number of publishes to remember, 0 for none",
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
            hint="the cluster id becomes part of a subject that is published to: it cannot have "
            "the token '>'",
            option="cluster_id",
        )


def _check_ports(options: ServerOptions) -> None:
    for port, text, key in (
        (
            0 if options.nats_servers else options.nats.port,
            f"Error listening on port: {options.nats.host}:%d, ",
            "port",
        ),
        (
            options.monitor.http_port,
            "Can't start monitoring: can't listen to the monitor port: ",
            "http_port",
        ),
        (
            options.monitor.https_port,
            "Can't start monitoring: can't listen to the monitor port: ",
            "https_port",
        ),
    ):
        if not -1 <= port <= MOST_PORT:
            why = f"listen tcp: address {port}: invalid port"
            raise ConfigError(
                text % port + f'"{why}"' if "%d" in text else text + why,
                hint=f"a port is a number from 1 to {MOST_PORT}; -1 takes any that is free",
                option=key,
            )


def _check_pages(options: ServerOptions) -> None:
    http = options.monitor.http_port
    https = options.monitor.https_port
    tls = options.nats.tls
    if http and https:
        raise ConfigError(
            f"Can't start monitoring: can't specify both HTTP ({http}) and HTTPs ({https}) ports",
            hint="give -m or -ms, not both; in a file http_port or https_port",
        )
    if https and not (tls.cert_file and tls.key_file):
        raise ConfigError(
            "Can't start monitoring: TLS cert and key required for HTTPS",
            hint="give the certificate and the key of the NATS server with -tlscert and -tlskey,"
            " or cert_file and key_file in tls { }",
        )


def _check_store(options: ServerOptions, kinds: Collection[str]) -> None:
    if options.store in kinds:
        return
    raise ConfigError(
        f"unsupported store type: {options.store}",
        hint="use " + " or ".join(f"-store {k.lower()}" for k in sorted(kinds)),
    )


def check_limits(limits: StoreLimits, *, partitioning: bool = False) -> None:
    """Refuse limits that no store takes, as the original does. Raises ``ConfigError``."""
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
            raise ConfigError(
                f"{name} limit cannot be negative ({shown})", hint="0 means unlimited"
            )
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
            f"too many channels defined ({literal}). The max channels limit is set to "
            f"{limits.max_channels}",
            hint="raise max_channels (0: unlimited), or list fewer channels; names with "
            "wildcards do not count",
        )
    if not limits.deliveries:
        return
    # Late: most servers have none.
    from ftstan.config.delivery_rules import check_rules  # noqa: PLC0415

    covering = Limits(limits)
    check_rules(
        limits,
        partitioning=partitioning,
        is_served=lambda name: any(True for _ in covering.matching(name)),
    )


def is_channel_pattern(name: str) -> bool:
    """Whether limits can be given for ``name``.

    It is a channel, or has ``*`` and ``>`` as whole tokens, ``>`` as the last.
    """
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
        raise ConfigError(
            "for FILE stores, root directory must be specified", hint="add -dir <directory>"
        )
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


def _check_sql(options: ServerOptions) -> None:
    if options.sql.driver not in SQL_DRIVERS:
        raise ConfigError(
            f'sql: unknown driver "{options.sql.driver}" (forgotten import?)',
            hint="add -sql_driver mysql or -sql_driver postgres",
            option="sql_driver",
        )


def _check_choice(options: ServerOptions, key: str) -> None:
    option = BY_KEY[key]
    value = field_value(options, option)
    if value not in option.choices:
        raise ConfigError(f'{key} is "{value}"', hint="use one of: " + ", ".join(option.choices))


def _check_ft(options: ServerOptions) -> None:
    """Check what no original has. ``FtTiming`` compares the two heartbeat intervals."""
    ft = options.ft
    for name in ("hb_interval", "hb_missed_interval", "probe_interval"):
        if getattr(ft, name) <= 0:
            raise ConfigError(
                f"ft_{name} must be longer than zero", hint="give a duration such as 1s"
            )
    for name in ("nats_timeout", "poll_interval", "steal_after"):
        if getattr(ft, name) < 0:
            raise ConfigError(
                f"ft_{name} cannot be negative", hint="give a duration such as 1s, or 0s for none"
            )
    if 0 < ft.steal_after < ft.hb_missed_interval:
        raise ConfigError(
            f"ft_steal_after ({format_duration(ft.steal_after)}) is shorter than the silence "
            "that makes a standby "
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
                f'ft_allow has no problem of the name "{name}"',
                hint="use some of: " + ", ".join(FT_ALLOW),
            )
    _check_choice(options, "ft_mixed")
    _check_member_name(ft.member)


def _check_member_name(name: str) -> None:
    fits = len(name.encode("utf-8", "surrogateescape")) <= MAX_MEMBER_NAME
    if not (fits and name.isprintable() and " " not in name):
        raise ConfigError(
            f"ft_member {name!r} is no name",
            hint=f"give at most {MAX_MEMBER_NAME} bytes without spaces, such as node-a",
            option="ft_member",
        )


def _is_subject(name: str) -> bool:
    """Whether ``name`` can be the end of a subject: no white space and no empty token."""
    return not any(c in string.whitespace for c in name) and all(name.split("."))


def warnings_of(options: ServerOptions) -> list[str]:
    """Values that are taken, as by the original, and that nobody can want; one warning each.

    A start, a reload and ``-check_config`` show them.
    """
    warnings = []
    if options.hb_interval <= 0:
        warnings.append(
            f"hb_interval is {format_duration(options.hb_interval)}: clients are asked again as "
            "soon as they answered"
        )
    if options.hb_timeout <= 0:
        warnings.append(
            f"hb_timeout is {format_duration(options.hb_timeout)}: no client can answer a "
            "heartbeat in time, so all of "
            "them will be closed"
        )
    if options.hb_fail_count < 0:
        warnings.append(
            f"hb_fail_count is {options.hb_fail_count}: one failed heartbeat closes a client, as "
            "with 0"
        )
    script = options.file.slice_archive_script
    if script and not _is_program(script):
        why = "may not be run by this user" if os.path.exists(script) else "is not there"
        warnings.append(
            f"file_slice_archive_script {script!r} {why}: slices will be set aside and not archived"
        )
    if options.ft.steal_after and not options.ft_group:
        warnings.append("ft_steal_after has no effect without ft_group: nobody could take over")
    if 0 < options.ft.nats_timeout < _SHORT_CUT:
        warnings.append(
            f"ft_nats_timeout is {format_duration(options.ft.nats_timeout)}: a restart of the NATS "
            "server takes longer, and would end the active server"
        )
    advertised = options.monitor.advertise
    if advertised and not _ADDRESS.fullmatch(advertised):
        warnings.append(
            f"http_advertise {advertised!r} is no host and no host:port: dashboards of other "
            "members will not find these pages"
        )
    if not options.nats_servers:
        warnings += warnings_of_nats(options.nats)
    return warnings


def _is_program(name: str) -> bool:
    import shutil  # noqa: PLC0415  # late: few servers have a script

    return shutil.which(name) is not None
