"""Every flag of the original, once: names, kind, default, help, and whether this version carries it out.

The parser, the help text and the refusals are all read from here; nothing else may know a flag's name except
``flags.to_options``, which turns values into options.

Source: ``docs/compat/config.md`` (flags).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.config.options import ALL_INTERFACES, DEFAULT_PORT, FT_MIXED_AUTO
from ftstan.config.units import MILLISECOND, MINUTE, SECOND, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

Value = str | int | bool


class Kind(enum.Enum):
    """How a flag's text becomes a value. ``SIZE`` is text for the parser and evaluated after all flags are read."""

    STRING = "<string>"
    INT = "<int>"
    SIZE = "<size>"
    DURATION = "<duration>"
    BOOL = "<bool>"


class Group(enum.Enum):
    """The titles of the help text, in its order."""

    STREAMING = "Streaming Server Options"
    CLUSTERING = "Streaming Server Clustering Options"
    FT = "Streaming Server Fault Tolerance Options"
    FILE = "Streaming Server File Store Options"
    SQL = "Streaming Server SQL Store Options"
    STREAMING_TLS = "Streaming Server TLS Options"
    STREAMING_LOG = "Streaming Server Logging Options"
    NATS = "Embedded NATS Server Options"
    NATS_LOG = "Logging Options"
    AUTH = "Authorization Options"
    TLS = "TLS Options"
    ROUTES = "NATS Clustering Options"
    COMMON = "Common Options"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. ``names[0]`` is its key; all names are equal on the command line, without their dashes.

    ``help`` is empty for a flag that the help text does not show; ``supported`` is false for one that is read, checked
    and then refused unless it has its default value.
    """

    names: tuple[str, ...]
    kind: Kind
    default: Value
    group: Group
    help: str
    supported: bool = True

    @property
    def short(self) -> str:
        """The name in the first column of the help text; empty when the flag has only one."""
        others = [name for name in self.names[1:] if len(name) < len(self.names[0])]
        return others[0] if others else ""


def _flags(group: Group, *rows: tuple[str, Kind, Value, str]) -> Iterator[Flag]:
    """Rows of one group. Names are separated by blanks; a leading ``!`` marks what this version does not carry out."""
    for names, kind, default, text in rows:
        yield Flag(
            names=tuple(names.removeprefix("!").split()),
            kind=kind,
            default=default,
            group=group,
            help=text,
            supported=not names.startswith("!"),
        )


_S, _I, _Z, _D, _B = Kind.STRING, Kind.INT, Kind.SIZE, Kind.DURATION, Kind.BOOL

FLAGS: tuple[Flag, ...] = (
    *_flags(
        Group.STREAMING,
        ("cluster_id cid", _S, "test-cluster", "Name of the streaming cluster that clients connect to"),
        ("store st", _S, "MEMORY", "Where messages rest: MEMORY or FILE"),
        ("dir", _S, "", "Root directory of a FILE store"),
        ("max_channels mc", _I, 100, "Channels that may exist (0: unlimited)"),
        ("max_subs msu", _I, 1000, "Subscriptions per channel (0: unlimited)"),
        ("max_msgs mm", _I, 1_000_000, "Messages kept per channel (0: unlimited)"),
        ("max_bytes mb", _Z, 1_024_000_000, "Bytes of messages kept per channel (0: unlimited)"),
        ("max_age ma", _D, 0, "How long a message is kept, such as 24h (0s: for ever)"),
        ("!max_inactivity mi", _D, 0, "Remove a channel unused for this long (0s: never)"),
        ("nats_server ns", _S, "", "Use the NATS servers at these URLs instead of starting one"),
        ("!stan_config sc", _S, "", "File with streaming options"),
        ("hb_interval hbi", _D, 30 * SECOND, "Time between heartbeats sent to a client"),
        ("hb_timeout hbt", _D, 10 * SECOND, "How long to wait for a client's answer to a heartbeat"),
        ("hb_fail_count hbf", _I, 10, "Heartbeats that may fail in a row before a client is closed"),
        ("ft_group ft_group_name", _S, "", "Name of the fault-tolerant group; members share one datastore"),
        ("io_batch_size", _I, 1024, ""),
        ("io_sleep_time", _I, 0, ""),
        ("signal sl", _S, "", "Send <signal>=<pid or pid file>: stop, quit, term, reopen, reload, ldm"),
        ("!encrypt", _B, False, "Encrypt stored messages"),
        ("!encryption_cipher", _S, "", "Cipher of the encryption: AES or CHACHA"),
        ("!encryption_key", _S, "", "Key of the encryption; prefer the environment to this flag"),
        ("!replace_durable", _B, False, "Let a new durable take the place of a duplicate"),
    ),
    *_flags(
        Group.CLUSTERING,
        ("!clustered", _B, False, "Run as a node of a replicated cluster"),
        ("!cluster_node_id", _S, "", "Id of this node, unique in its cluster"),
        ("!cluster_bootstrap", _B, False, "Let this node found the cluster"),
        ("!cluster_peers", _S, "", "Ids of the other nodes, comma separated"),
        ("!cluster_log_path", _S, "", "Directory of the replication log"),
        ("!cluster_log_cache_size", _I, 512, "Log entries kept in memory"),
        ("!cluster_log_snapshots", _I, 2, "Snapshots kept"),
        ("!cluster_trailing_logs", _I, 10_240, "Log entries kept behind a snapshot"),
        ("!cluster_sync", _B, False, "Sync the log with every write"),
        ("!cluster_raft_logging", _B, False, "Log what the replication layer does"),
        ("!cluster_allow_add_remove_node", _B, False, "Allow nodes to be added and removed by request"),
        ("!cluster_proceed_on_restore_failure", _B, False, ""),
    ),
    *_flags(
        Group.FT,
        ("ft_hb_interval", _D, SECOND, "Time between two heartbeats of the active server"),
        ("ft_hb_missed_interval", _D, 1_250 * MILLISECOND, "Silence after which a standby tries the store lock"),
        ("ft_poll_interval", _D, 0, "Time between two looks at the store lock (default: 50ms, 500ms on a network)"),
        ("!ft_nats_timeout", _D, 5 * SECOND, "How long an active server may be cut off from NATS (0s: for ever)"),
        ("!ft_probe_interval", _D, SECOND, "Time between two probes of the storage by the active server"),
        ("ft_steal_after", _D, 0, "Take a silent owner's store without its lock after this long (0s: never)"),
        ("!ft_mixed", _S, FT_MIXED_AUTO, "Whether original servers are members of the group: auto, on or off"),
        ("ft_allow", _S, "", "Mount problems that shall not refuse a start, comma separated"),
        ("dedup_window", _I, 0, "Publishes of our own client whose repeats are recognised (0: none)"),
    ),
    *_flags(
        Group.FILE,
        ("file_compact_enabled", _B, True, "Rewrite files that hold much that is dead"),
        ("file_compact_frag", _I, 50, "Dead share of a file, in percent, that makes it worth rewriting"),
        ("file_compact_interval", _I, 300, "Seconds between two rewrites of a file, at least"),
        ("file_compact_min_size", _Z, 1_048_576, "Smallest file that is rewritten"),
        ("file_buffer_size", _Z, 2_097_152, "Taken and checked; a batch is written at once here"),
        ("file_crc", _B, True, "Check the checksum of every record that is read"),
        ("file_crc_poly", _I, 3_988_292_384, "Polynomial of the checksum"),
        ("file_sync", _B, True, "Sync files before publishers are acknowledged"),
        ("file_slice_max_msgs", _I, 0, "Messages in a slice of a channel's log (0: no limit)"),
        ("file_slice_max_bytes", _Z, 67_108_864, "Bytes in a slice (0: no limit)"),
        ("file_slice_max_age", _D, 0, "Time covered by a slice (0s: no limit)"),
        ("file_slice_archive_script", _S, "", "Program that gets a slice when it is removed"),
        ("file_fds_limit", _I, 0, "File descriptors that the store tries to stay below (0: by the process limit)"),
        ("file_parallel_recovery", _I, 1, "Channels that are recovered at the same time"),
        ("file_truncate_bad_eof", _B, False, "Once: cut files whose last record is incomplete"),
        ("file_read_buffer_size", _Z, 2_097_152, "Most that is read ahead in a file (0: one message at a time)"),
        ("file_auto_sync", _D, MINUTE, "Sync files this often when -file_sync=false (0s: never)"),
        ("file_sync_index", _B, False, "Sync the index of messages, too, before publishers are acknowledged"),
        ("file_sync_subs", _B, False, "Sync what was sent and acknowledged with every batch, not every second"),
    ),
    *_flags(
        Group.SQL,
        ("!sql_driver", _S, "", "Driver of the SQL store"),
        ("!sql_source", _S, "", "How to connect to the database"),
        ("!sql_no_caching", _B, False, "Write every message by itself"),
        ("!sql_max_open_conns", _I, 0, "Connections to the database (0: unlimited)"),
        ("!sql_bulk_insert_limit", _I, 0, "Messages in one insert (0: one each)"),
    ),
    *_flags(
        Group.STREAMING_TLS,
        ("!secure", _B, False, "Connect to the NATS server with TLS"),
        ("!tls_client_cert", _S, "", "Certificate shown to the NATS server"),
        ("!tls_client_key", _S, "", "Private key of that certificate"),
        ("!tls_client_cacert", _S, "", "Authorities that the NATS server's certificate is checked with"),
    ),
    *_flags(
        Group.STREAMING_LOG,
        ("stan_debug SD", _B, False, "Streaming debug lines"),
        ("stan_trace SV", _B, False, "Streaming trace lines, some for every message"),
        ("SDV", _B, False, "Both of them"),
        ("syslog_name", _S, "", ""),
    ),
    *_flags(
        Group.NATS,
        ("addr a net", _S, ALL_INTERFACES, "Address that clients connect to (also --net)"),
        ("port p", _I, DEFAULT_PORT, "Port that clients connect to (-1: any free one)"),
        ("!client_advertise", _S, "", "Address that clients are told"),
        ("pid P", _S, "", "Write the process id to this file"),
        ("http_port m", _I, 0, "Serve monitoring pages on this port"),
        ("!https_port ms", _I, 0, "Serve monitoring pages on this port with TLS"),
        ("!config c", _S, "", "File with options of both halves"),
        ("!t", _B, False, ""),
        ("!ports_file_dir", _S, "", "Write a file with the ports in use to this directory"),
        ("!profile", _I, 0, ""),
        ("!name n server_name", _S, "", ""),
        ("!jetstream js", _B, False, ""),
        ("!store_dir sd", _S, "", ""),
    ),
    *_flags(
        Group.NATS_LOG,
        ("log l", _S, "", "Write the log to this file, appending"),
        ("logtime T", _B, True, "Date and time in log lines"),
        ("!log_size_limit", _I, 0, "Start a new log file at this size (0: never)"),
        ("!syslog s", _B, False, "Log to the local syslog"),
        ("!remote_syslog r", _S, "", "Log to the syslog at this URL"),
        ("debug D", _B, False, "Debug lines of the NATS server"),
        ("trace V", _B, False, "Trace lines of the NATS server"),
        ("DV", _B, False, "Both of them"),
        ("!VV", _B, False, ""),
        ("!DVV", _B, False, ""),
        ("!max_traced_msg_len", _I, 0, "Bytes of a message shown in trace lines"),
    ),
    *_flags(
        Group.AUTH,
        ("user", _S, "", "User that clients and routes must name"),
        ("pass", _S, "", "Password that goes with it"),
        ("auth", _S, "", "Token that clients must show"),
    ),
    *_flags(
        Group.TLS,
        ("!tls", _B, False, "Require TLS of clients"),
        ("!tlscert", _S, "", "Certificate of the server"),
        ("!tlskey", _S, "", "Private key of that certificate"),
        ("!tlsverify", _B, False, "Ask clients for a certificate too"),
        ("!tlscacert", _S, "", "Authorities that clients' certificates are checked with"),
    ),
    *_flags(
        Group.ROUTES,
        ("cluster cluster_listen", _S, "", "URL on which other NATS servers may connect, nats://host:port"),
        ("routes", _S, "", "URLs of other NATS servers to connect to, comma separated"),
        ("!cluster_advertise", _S, "", "Address that other NATS servers are told"),
        ("!no_advertise", _B, False, "Tell clients nothing about other servers"),
        ("!connect_retries", _I, 0, "Attempts to reach a route that is not there at start"),
        ("!cluster_name", _S, "", ""),
    ),
    *_flags(
        Group.COMMON,
        ("help h", _B, False, "Show this text"),
        ("version v", _B, False, "Show the version"),
        ("!help_tls", _B, False, "Show help about TLS"),
    ),
)

#: Every name on the command line, without dashes.
BY_NAME: dict[str, Flag] = {name: flag for flag in FLAGS for name in flag.names}

_DESCRIPTION_COLUMN = 50


def help_text() -> str:
    """Return the help text: an empty line, usage, titled groups, an empty line at the end."""
    lines = ["", "Usage: nats-streaming-server [options]", ""]
    for group in Group:
        lines.append(f"{group.value}:")
        lines += [_help_line(flag) for flag in FLAGS if flag.group is group and flag.help]
        lines.append("")
    return "\n".join(lines) + "\n"


def _help_line(flag: Flag) -> str:
    name = flag.names[0]
    if flag.kind is Kind.BOOL and flag.default is True:
        form = f"--{name}={flag.kind.value}"
    elif flag.kind is Kind.BOOL:
        form = f"--{name}"
    else:
        form = f"--{name} {flag.kind.value}"
    short = f"-{flag.short}," if flag.short else ""
    notes = "" if flag.supported else " [not supported yet]"
    return f"    {short:<6}{form}".ljust(_DESCRIPTION_COLUMN - 1) + " " + flag.help + _default(flag) + notes


def _default(flag: Flag) -> str:
    """Show the default where it says something that the description does not."""
    if flag.kind is Kind.BOOL or flag.default in ("", 0):
        return " (default: true)" if flag.default is True else ""
    if flag.kind is Kind.DURATION and isinstance(flag.default, int):
        return f" (default: {format_duration(flag.default)})"
    return f" (default: {flag.default})"
