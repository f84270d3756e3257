"""Every option, once: names, kind, default, help, and whether this version carries it out.

The parser of the command line, the readers of files, the refusals, the help text, the configuration reference, the
manual pages and the shells' completions are all made from here and from ``keys``, which says how an option is called in
a file and where its value goes.

Source: ``docs/compat/config.md`` (flags, keys).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.config.options import ALL_INTERFACES, DEFAULT_PORT, FT_MIXED_AUTO, LOG_FORMATS
from ftstan.config.units import MILLISECOND, MINUTE, SECOND, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

Value = str | int | bool | float


class Kind(enum.Enum):
    """How a text or a value of a file becomes the option's value.

    ``SIZE`` is text for the parser of flags and evaluated after all flags are read; ``LIST`` is comma separated there,
    and an array or such a text in a file. ``FLOAT`` and ``MAP`` have no flags.
    """

    STRING = "<string>"
    INT = "<int>"
    SIZE = "<size>"
    DURATION = "<duration>"
    BOOL = "<bool>"
    LIST = "<string, ...>"
    FLOAT = "<seconds>"
    MAP = "<map>"


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
    HANDED = "Handed to the NATS Server"
    COMMON = "Common Options"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``names[0]`` is its key; all names are equal on the command line, without their dashes.

    ``help`` is empty for a flag that the help text does not show; ``supported`` is false for one that is read, checked
    and then refused unless it has its default value; ``is_flag`` is false for what only a file can say.
    """

    names: tuple[str, ...]
    kind: Kind
    default: Value
    group: Group
    help: str
    supported: bool = True
    is_flag: bool = True

    @property
    def key(self) -> str:
        """Its name everywhere in the program."""
        return self.names[0]

    @property
    def short(self) -> str:
        """The name in the first column of the help text; empty when the flag has only one."""
        others = [name for name in self.names[1:] if len(name) < len(self.names[0])]
        return others[0] if others else ""


def _options(group: Group, *rows: tuple[str, Kind, Value, str]) -> Iterator[Option]:
    """Rows of one group. Names are separated by blanks.

    A leading ``!`` marks what this version does not carry out, ``~`` what has no flag.
    """
    for names, kind, default, text in rows:
        marks = names[: len(names) - len(names.lstrip("!~"))]
        yield Option(
            names=tuple(names.removeprefix(marks).split()),
            kind=kind,
            default=default,
            group=group,
            help=text,
            supported="!" not in marks,
            is_flag="~" not in marks,
        )


_S, _I, _Z, _D, _B, _L = Kind.STRING, Kind.INT, Kind.SIZE, Kind.DURATION, Kind.BOOL, Kind.LIST
_F, _M = Kind.FLOAT, Kind.MAP

OPTIONS: tuple[Option, ...] = (
    *_options(
        Group.STREAMING,
        ("cluster_id cid", _S, "test-cluster", "Name of the streaming cluster that clients connect to"),
        ("store st", _S, "MEMORY", "Where messages rest: MEMORY or FILE"),
        ("dir", _S, "", "Root directory of a FILE store"),
        ("max_channels mc", _I, 100, "Channels that may exist (0: unlimited)"),
        ("max_subs msu", _I, 1000, "Subscriptions per channel (0: unlimited)"),
        ("max_msgs mm", _I, 1_000_000, "Messages kept per channel (0: unlimited)"),
        ("max_bytes mb", _Z, 1_024_000_000, "Bytes of messages kept per channel (0: unlimited)"),
        ("max_age ma", _D, 0, "How long a message is kept, such as 24h (0s: for ever)"),
        ("max_inactivity mi", _D, 0, "Remove a channel unused for this long (0s: never)"),
        ("~discover_prefix", _S, "_STAN.discover", "Beginning of the subject that clients connect on"),
        ("nats_server ns", _L, "", "Use the NATS servers at these URLs instead of starting one"),
        ("stan_config sc", _S, "", "File with streaming options"),
        ("hb_interval hbi", _D, 30 * SECOND, "Time between heartbeats sent to a client"),
        ("hb_timeout hbt", _D, 10 * SECOND, "How long to wait for a client's answer to a heartbeat"),
        ("hb_fail_count hbf", _I, 10, "Heartbeats that may fail in a row before a client is closed"),
        ("ft_group ft_group_name", _S, "", "Name of the fault-tolerant group; members share one datastore"),
        ("io_batch_size", _I, 1024, ""),
        ("io_sleep_time", _I, 0, ""),
        (
            "io_spin",
            _D,
            0,
            "Keep processors awake so long after an answer, for a client that waits for each",
        ),
        (
            "io_buffer_size",
            _Z,
            1_048_576,
            "Buffer that NATS is read into, at first; it grows to 4 MiB, or a message",
        ),
        ("signal sl", _S, "", "Send <signal>=<pid or pid file>: stop, quit, term, reopen, reload, ldm"),
        ("!encrypt", _B, False, "Encrypt stored messages"),
        ("!encryption_cipher", _S, "", "Cipher of the encryption: AES or CHACHA"),
        ("!encryption_key", _S, "", "Key of the encryption; prefer the environment to this flag"),
        ("replace_durable", _B, False, "Let a new durable take the place of a duplicate"),
        ("~partitioning", _B, False, "Serve only the channels listed under store_limits, with other servers"),
        ("partition_wait", _D, 100 * MILLISECOND, "How long publishes wait for the other partitions at a start"),
        ("admin_key", _S, "", "File with the key for ftstanctl, made if missing; for memory stores"),
        ("strict_permissions", _B, False, "Refuse to start on a datastore that everybody may write to"),
    ),
    *_options(
        Group.CLUSTERING,
        ("!clustered", _B, False, "Run as a node of a replicated cluster"),
        ("!cluster_node_id", _S, "", "Id of this node, unique in its cluster"),
        ("!cluster_bootstrap", _B, False, "Let this node found the cluster"),
        ("!cluster_peers", _L, "", "Ids of the other nodes, comma separated"),
        ("!cluster_log_path", _S, "", "Directory of the replication log"),
        ("!cluster_log_cache_size", _I, 512, "Log entries kept in memory"),
        ("!cluster_log_snapshots", _I, 2, "Snapshots kept"),
        ("!cluster_trailing_logs", _I, 10_240, "Log entries kept behind a snapshot"),
        ("!cluster_sync", _B, False, "Sync the log with every write"),
        ("!cluster_raft_logging", _B, False, "Log what the replication layer does"),
        ("!cluster_allow_add_remove_node", _B, False, "Allow nodes to be added and removed by request"),
        ("!cluster_proceed_on_restore_failure", _B, False, ""),
        ("!~raft_heartbeat_timeout", _D, 2 * SECOND, "Silence after which a follower wants to lead"),
        ("!~raft_election_timeout", _D, 2 * SECOND, "How long an election may take"),
        ("!~raft_lease_timeout", _D, SECOND, "How long a leader leads without hearing from the others"),
        ("!~raft_commit_timeout", _D, 100 * MILLISECOND, "Time between two commits without messages"),
        ("!~bolt_free_list_sync", _B, False, "Sync the free list of the replication log"),
        ("!~bolt_free_list_map", _B, False, "Keep that list in a map"),
        ("!~nodes_connections", _B, False, "Connections of their own between the nodes"),
    ),
    *_options(
        Group.FT,
        ("ft_hb_interval", _D, SECOND, "Time between two heartbeats of the active server"),
        ("ft_hb_missed_interval", _D, 1_250 * MILLISECOND, "Silence after which a standby tries the store lock"),
        ("ft_poll_interval", _D, 0, "Time between two looks at the store lock (default: 50ms, 500ms on a network)"),
        ("ft_nats_timeout", _D, 5 * SECOND, "How long an active server may be cut off from NATS (0s: for ever)"),
        ("ft_probe_interval", _D, SECOND, "Time between two probes of the storage by the active server"),
        ("ft_steal_after", _D, 0, "Take a silent owner's store without its lock after this long (0s: never)"),
        ("ft_mixed", _S, FT_MIXED_AUTO, "Whether original servers are members of the group: auto, on or off"),
        ("ft_allow", _L, "", "Problems of mounts and routes that shall not refuse a start, comma separated"),
        ("dedup_window", _I, 0, "Publishes of our own client whose repeats are recognised (0: none)"),
    ),
    *_options(
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
    *_options(
        Group.SQL,
        ("!sql_driver", _S, "", "Driver of the SQL store"),
        ("!sql_source", _S, "", "How to connect to the database"),
        ("!sql_no_caching", _B, False, "Write every message by itself"),
        ("!sql_max_open_conns", _I, 0, "Connections to the database (0: unlimited)"),
        ("!sql_bulk_insert_limit", _I, 0, "Messages in one insert (0: one each)"),
    ),
    *_options(
        Group.STREAMING_TLS,
        ("secure", _B, False, "Connect to the NATS server with TLS"),
        ("tls_client_cert", _S, "", "Certificate shown to the NATS server"),
        ("tls_client_key", _S, "", "Private key of that certificate"),
        ("tls_client_cacert", _S, "", "Authorities that the NATS server's certificate is checked with"),
        ("~server_hostname", _S, "", "Name that the NATS server's certificate must have"),
        ("~skip_verify", _B, False, "Check neither the NATS server's certificate nor its name"),
        ("~credentials", _S, "", "Credentials file of the streaming server, for NATS"),
        ("~nkey_seed_file", _S, "", "File with the seed that the streaming server signs with, for NATS"),
        ("~username", _S, "", "User that the streaming server names to NATS"),
        ("~password", _S, "", "Password that goes with it"),
        ("~token", _S, "", "Token that the streaming server shows to NATS"),
    ),
    *_options(
        Group.STREAMING_LOG,
        ("stan_debug SD", _B, False, "Streaming debug lines"),
        ("stan_trace SV", _B, False, "Streaming trace lines, some for every message"),
        ("SDV", _B, False, "Both of them"),
        ("syslog_name", _S, "", "Name in syslog messages instead of the program's"),
    ),
    *_options(
        Group.NATS,
        ("addr a net", _S, ALL_INTERFACES, "Address that clients connect to (also --net)"),
        ("nats_gomaxprocs", _I, 0, "GOMAXPROCS of the NATS server (0: 1 on one or two processors, else its own)"),
        ("nats_gogc", _I, 0, "GOGC of the NATS server (0: 400 on one or two processors, else its own)"),
        ("port p", _I, DEFAULT_PORT, "Port that clients connect to (-1: any free one)"),
        ("client_advertise", _S, "", "Address that clients are told"),
        ("pid P", _S, "", "Write the process id to this file"),
        ("http_port m", _I, 0, "Serve monitoring pages on this port"),
        ("http_advertise", _S, "", "host or host:port at which other members' dashboards find these pages"),
        ("metrics_channels", _I, 100, "Channels with series of their own in /metrics"),
        ("metrics_nss", _B, False, "Add the metric names of the retired NATS exporter"),
        ("https_port ms", _I, 0, "Serve monitoring pages on this port with TLS"),
        ("~http_host", _S, "", "Address of the monitoring pages, if it is another than that of clients"),
        ("~http_base_path", _S, "/", "Beginning of the paths of the monitoring pages"),
        ("monitor_token", _S, "", "Token that the monitoring pages ask for"),
        ("monitor_client_ca", _S, "", "Authorities of the certificates that the monitoring pages ask for"),
        ("monitor_open_health", _B, False, "Let everybody see the pages that load balancers ask for"),
        ("config c", _S, "", "File with options of both halves"),
        ("t", _B, False, ""),
        ("ports_file_dir", _S, "", "Write a file with the ports in use to this directory"),
        ("profile", _I, 0, ""),
        ("name n server_name", _S, "", ""),
        ("jetstream js", _B, False, ""),
        ("store_dir sd", _S, "", ""),
    ),
    *_options(
        Group.NATS_LOG,
        ("log l", _S, "", "Write the log to this file, appending"),
        ("logtime T", _B, True, "Date and time in log lines"),
        ("log_size_limit", _I, 0, "Put the log file aside when it has more bytes (0: never)"),
        ("log_format", _S, LOG_FORMATS[0], "Look of log lines: text or json"),
        ("syslog s", _B, False, "Log to the local syslog"),
        ("remote_syslog r", _S, "", "Log to the syslog at this URL: udp://host:port, tcp://host:port"),
        ("debug D", _B, False, "Debug lines of the NATS server"),
        ("trace V", _B, False, "Trace lines of the NATS server"),
        ("DV", _B, False, "Both of them"),
        ("VV", _B, False, "Trace lines, those of the NATS server's system account too"),
        ("DVV", _B, False, "Debug lines, and the same trace lines"),
        ("max_traced_msg_len", _I, 0, "Bytes of a message shown in trace lines (0: all)"),
    ),
    *_options(
        Group.AUTH,
        ("user", _S, "", "User that clients must name"),
        ("pass", _S, "", "Password that goes with it"),
        ("auth", _S, "", "Token that clients must show"),
    ),
    *_options(
        Group.TLS,
        ("tls", _B, False, "Require TLS of clients"),
        ("tlscert", _S, "", "Certificate of the server"),
        ("tlskey", _S, "", "Private key of that certificate"),
        ("tlsverify", _B, False, "Ask clients for a certificate too"),
        ("tlscacert", _S, "", "Authorities that clients' certificates are checked with"),
        ("~tls_verify_and_map", _B, False, "The same, and take the user from the certificate"),
        ("~tls_insecure", _B, False, "Check no certificates of other servers"),
        ("~tls_timeout", _F, 0.0, "Seconds that a TLS handshake may take (0: 2)"),
        ("~cipher_suites", _L, "", "Ciphers that may be used; -help_tls lists them"),
        ("~curve_preferences", _L, "", "Curves that may be used, best first; -help_tls lists them"),
    ),
    *_options(
        Group.ROUTES,
        ("cluster cluster_listen", _S, "", "URL on which other NATS servers may connect, nats://host:port"),
        ("routes", _L, "", "URLs of other NATS servers to connect to, comma separated"),
        ("cluster_advertise", _S, "", "Address that other NATS servers are told"),
        ("no_advertise", _B, False, "Tell clients nothing about other servers"),
        ("connect_retries", _I, 0, "Attempts to reach a route that is not there at start"),
        ("cluster_name", _S, "", ""),
    ),
    *_options(
        Group.HANDED,
        ("~max_payload", _I, 0, "Largest message in bytes (0: 1 MiB)"),
        ("~max_pending", _I, 0, "Bytes that may wait for one connection (0: 64 MiB)"),
        ("~max_control_line", _I, 0, "Longest protocol line in bytes (0: 4096)"),
        ("~max_connections", _I, 0, "Connections at a time (0: 65536)"),
        ("~max_nats_subscriptions", _I, 0, "NATS subscriptions of one connection (0: unlimited)"),
        ("~ping_interval", _D, 0, "Time between two pings of a connection (0s: 2m)"),
        ("~ping_max", _I, 0, "Pings that may stay unanswered (0: 2)"),
        ("~write_deadline", _D, 0, "How long a write to a connection may take (0s: 30s)"),
        ("~auth_timeout", _F, 0.0, "Seconds that a login may take (0: 2)"),
        ("~users", _M, "", "Users that may connect, each with its permissions"),
        ("~default_permissions", _M, "", "Permissions of users that have none of their own"),
        ("~auth_callout", _M, "", "Ask a service who may connect"),
        ("~cluster_auth_timeout", _F, 0.0, "Seconds that the login of a route may take (0: 2)"),
        ("~cluster_tls", _M, "", "TLS of routes"),
        ("~cluster_permissions", _M, "", "What routes may exchange"),
        ("~cluster_pool_size", _I, 0, "Connections of one route"),
        ("~cluster_compression", _M, "", "Compression of routes"),
        ("~cluster_accounts", _M, "", "Accounts with a route of their own"),
        ("~cluster_ping_interval", _S, "", "Time between two pings of a route"),
        ("~cluster_write_deadline", _S, "", "How long a write to a route may take"),
        ("~accounts", _M, "", "Accounts of the NATS server"),
        ("~system_account", _S, "", "Its system account"),
        ("~no_auth_user", _S, "", "User of clients that name none"),
        ("~mappings", _M, "", "Subject mappings"),
        ("~leafnodes", _M, "", "Leaf nodes"),
        ("~gateway", _M, "", "Gateways"),
        ("~websocket", _M, "", "WebSocket clients"),
        ("~mqtt", _M, "", "MQTT clients"),
        ("~operator", _M, "", "Operators whose accounts are trusted"),
        ("~trusted_keys", _M, "", "Public keys of such operators"),
        ("~resolver", _M, "", "Where accounts are looked up"),
        ("~resolver_preload", _M, "", "Accounts that need no look-up"),
        ("~resolver_tls", _M, "", "TLS to the resolver"),
        ("~lame_duck_duration", _S, "", "How long a lame duck sends its clients away"),
        ("~lame_duck_grace_period", _S, "", "How long it waits before it begins"),
        ("~max_subscription_tokens", _I, 0, "Tokens in a subject (0: unlimited)"),
        ("~max_closed_clients", _I, 0, "Closed connections that are remembered"),
        ("~connect_error_reports", _I, 0, "Attempts to connect between two complaints, at the start"),
        ("~reconnect_error_reports", _I, 0, "The same later"),
        ("~disable_sublist_cache", _B, False, "No cache of subscriptions"),
        ("~no_header_support", _B, False, "No message headers"),
        ("~no_system_account", _B, False, "No system account"),
        ("~no_fast_producer_stall", _B, False, "Never slow a fast publisher down"),
        ("~allow_non_tls", _B, False, "Take clients without TLS beside those with it"),
        ("~server_tags", _M, "", "Tags of the server"),
        ("~trace_headers", _B, False, "Trace lines of headers only"),
        ("~prof_block_rate", _I, 0, "Rate of the block profile"),
    ),
    *_options(
        Group.COMMON,
        ("help h", _B, False, "Show this text"),
        ("check_config check-config", _B, False, "Show what is configured and where it comes from; start nothing"),
        ("strict", _B, False, "With --check_config: fail if there are keys that nobody knows"),
        ("dump_config dump-config", _B, False, "Print a file that says all of this, secrets included; start nothing"),
        ("completion", _S, "", "Print the completion script of a shell: bash, zsh or fish"),
        ("version v", _B, False, "Show the version"),
        ("help_tls", _B, False, "Show help about TLS"),
    ),
)

#: Those that the command line takes.
FLAGS: tuple[Option, ...] = tuple(option for option in OPTIONS if option.is_flag)

#: Every name on the command line, without dashes.
BY_NAME: dict[str, Option] = {name: flag for flag in FLAGS for name in flag.names}

#: Every option by its key.
BY_KEY: dict[str, Option] = {option.key: option for option in OPTIONS}

#: Options whose values nobody must see: shown as ``***``.
SECRETS = frozenset({"pass", "auth", "password", "token", "monitor_token", "encryption_key", "sql_source"})

_DESCRIPTION_COLUMN = 50


def help_text() -> str:
    """Return the help text: an empty line, usage, titled groups, an empty line at the end."""
    lines = ["", "Usage: nats-streaming-server [options]", ""]
    for group in Group:
        shown = [_help_line(flag) for flag in FLAGS if flag.group is group and flag.help]
        if shown:
            lines += [f"{group.value}:", *shown, ""]
    return "\n".join(lines) + "\n"


def _help_line(flag: Option) -> str:
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


def _default(flag: Option) -> str:
    """Show the default where it says something that the description does not."""
    if flag.kind is Kind.BOOL or flag.default in ("", 0):
        return " (default: true)" if flag.default is True else ""
    if flag.kind is Kind.DURATION and isinstance(flag.default, int):
        return f" (default: {format_duration(flag.default)})"
    return f" (default: {flag.default})"
