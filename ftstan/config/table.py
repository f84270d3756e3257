"""Every option by key, flag and section.

Most are declared as fields in ``options``. Those without a field are declared here: keys that are
handed to the NATS server, options that are read and refused, and commands.

Source: ``docs/compat/config.md`` (flags, keys).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.config.declaration import (
    Group,
    Option,
    Section,
    ValueKind,
    declared,
    fieldless,
    in_order,
)
from ftstan.config.options import ServerOptions
from ftstan.config.units import MILLISECOND, SECOND

if TYPE_CHECKING:
    from typing import Unpack

    from ftstan.config.declaration import Traits

#: Where ``ServerOptions`` keeps the keys of the NATS server's own file.
SETTINGS = "nats.settings."

_S = ValueKind.STRING
_I = ValueKind.INT
_B = ValueKind.BOOL

_D = ValueKind.DURATION
_F = ValueKind.FLOAT
_M = ValueKind.MAP


def _handed(key: str, kind: ValueKind, text: str, /, **traits: Unpack[Traits]) -> Option:
    """A key of the NATS server's own file, where it has the first of its names."""
    usual: Traits = {"section": Section.NATS, "group": Group.HANDED}
    made = fieldless(key, kind, text, usual, {"flags": "", "reloadable": True}, traits)
    return made if made.field else replace(made, field=SETTINGS + made.path)


_HANDED = (
    _handed(
        "client_advertise", _S, "Address that clients are told", flags="client_advertise",
        group=Group.NATS, after="port"),
    _handed(
        "VV", _B, "Trace lines, those of the NATS server's system account too", flags="VV",
        group=Group.NATS_LOG, names="trace_verbose", after="trace", help_after="trace"),
    _handed(
        "profile", _I, "", flags="profile", group=Group.NATS, names="prof_port",
        note="Port of the NATS server's profiler", after="ports_file_dir",
        help_after="ports_file_dir"),
    _handed(
        "name", _S, "", flags="name n server_name", group=Group.NATS, names="server_name",
        note="Name of the NATS server"),
    _handed(
        "jetstream", _B, "", flags="jetstream js", group=Group.NATS,
        note="Switch JetStream of the NATS server on"),
    _handed(
        "store_dir", _S, "", flags="store_dir sd", group=Group.NATS, note="Directory of JetStream",
        takes="directory"),
    _handed(
        "max_traced_msg_len", _I, "Bytes of a message shown in trace lines (0: all)",
        flags="max_traced_msg_len", group=Group.NATS_LOG),
    _handed("max_payload", _I, "Largest message in bytes (0: 1 MiB)"),
    _handed("max_pending", _I, "Bytes that may wait for one connection (0: 64 MiB)"),
    _handed("max_control_line", _I, "Longest protocol line in bytes (0: 4096)"),
    _handed(
        "max_connections", _I, "Connections at a time (0: 65536)",
        names="max_connections max_conn"),
    _handed(
        "max_nats_subscriptions", _I,
        "NATS subscriptions of one connection, also the streaming server's (0: unlimited)",
        names="max_subscriptions max_subs"),
    _handed("ping_interval", _D, "Time between two pings of a connection (0s: 2m)"),
    _handed("ping_max", _I, "Pings that may stay unanswered (0: 2)"),
    _handed("write_deadline", _D, "How long a write to a connection may take (0s: 30s)"),
    _handed("accounts", _M, "Accounts of the NATS server"),
    _handed("system_account", _S, "Its system account", names="system_account system"),
    _handed("no_auth_user", _S, "User of clients that name none"),
    _handed("mappings", _M, "Subject mappings", names="mappings maps"),
    _handed("leafnodes", _M, "Leaf nodes", names="leafnodes leaf"),
    _handed("gateway", _M, "Gateways"),
    _handed("websocket", _M, "WebSocket clients", names="websocket ws"),
    _handed("mqtt", _M, "MQTT clients"),
    _handed(
        "operator", _M, "Operators whose accounts are trusted",
        names="operator operators roots root"),
    _handed("trusted_keys", _M, "Public keys of such operators", names="trusted_keys trusted"),
    _handed("resolver", _M, "Where accounts are looked up", names="resolver account_resolver"),
    _handed("resolver_preload", _M, "Accounts that need no look-up"),
    _handed("resolver_tls", _M, "TLS to the resolver"),
    _handed("lame_duck_duration", _S, "How long a lame duck sends its clients away"),
    _handed("lame_duck_grace_period", _S, "How long it waits before it begins"),
    _handed(
        "max_subscription_tokens", _I, "Tokens in a subject (0: unlimited)",
        names="max_subscription_tokens max_sub_tokens"),
    _handed("max_closed_clients", _I, "Closed connections that are remembered"),
    _handed(
        "connect_error_reports", _I, "Attempts to connect between two complaints, at the start"),
    _handed("reconnect_error_reports", _I, "The same later"),
    _handed(
        "disable_sublist_cache", _B, "No cache of subscriptions",
        names="disable_sublist_cache no_sublist_cache"),
    _handed("no_header_support", _B, "No message headers"),
    _handed(
        "no_system_account", _B, "No system account",
        names="no_system_account no_system no_sys_acc"),
    _handed("no_fast_producer_stall", _B, "Never slow a fast publisher down"),
    _handed("allow_non_tls", _B, "Take clients without TLS beside those with it"),
    _handed("server_tags", _M, "Tags of the server"),
    _handed("trace_headers", _B, "Trace lines of headers only"),
    _handed("prof_block_rate", _I, "Rate of the block profile"),
    _handed(
        "auth_timeout", _F, "Seconds that a login may take (0: 2)", section=Section.AUTHORIZATION,
        names="timeout"),
    _handed(
        "users", _M, "Users that may connect, each with its permissions",
        section=Section.AUTHORIZATION),
    _handed(
        "default_permissions", _M, "Permissions of users that have none of their own",
        section=Section.AUTHORIZATION, names="default_permissions default_permission permissions"),
    _handed("auth_callout", _M, "Ask a service who may connect", section=Section.AUTHORIZATION),
    _handed(
        "cluster_advertise", _S, "Address that other NATS servers are told", section=Section.ROUTES,
        flags="cluster_advertise", group=Group.ROUTES, names="cluster_advertise advertise"),
    _handed(
        "no_advertise", _B, "Tell clients nothing about other servers", section=Section.ROUTES,
        flags="no_advertise", group=Group.ROUTES),
    _handed(
        "connect_retries", _I, "Attempts to reach a route that is not there at start",
        section=Section.ROUTES, flags="connect_retries", group=Group.ROUTES),
    _handed(
        "cluster_name", _S, "", section=Section.ROUTES, flags="cluster_name", group=Group.ROUTES,
        note="Name of the NATS cluster"),
    _handed(
        "cluster_auth_timeout", _F, "Seconds that the login of a route may take (0: 2)",
        section=Section.ROUTES, names="", field=f"{SETTINGS}cluster.authorization.timeout"),
    _handed("cluster_tls", _M, "TLS of routes", section=Section.ROUTES),
    _handed("cluster_permissions", _M, "What routes may exchange", section=Section.ROUTES),
    _handed("cluster_pool_size", _I, "Connections of one route", section=Section.ROUTES),
    _handed("cluster_compression", _M, "Compression of routes", section=Section.ROUTES),
    _handed("cluster_accounts", _M, "Accounts with a route of their own", section=Section.ROUTES),
    _handed(
        "cluster_ping_interval", _S, "Time between two pings of a route", section=Section.ROUTES),
    _handed(
        "cluster_write_deadline", _S, "How long a write to a route may take",
        section=Section.ROUTES),
)  # fmt: skip


def _refused(key: str, kind: ValueKind, text: str, /, **traits: Unpack[Traits]) -> Option:
    """An option that this version does not carry out."""
    usual: Traits = {"section": Section.CLUSTER, "group": Group.CLUSTERING, "supported": False}
    return fieldless(key, kind, text, usual, traits)


_REFUSED = (
    _refused(
        "cluster_proceed_on_restore_failure", _B, "",
        note="Go on when a snapshot cannot be restored",
        help_after="cluster_allow_add_remove_node"),
    _refused(
        "raft_heartbeat_timeout", _D, "Silence after which a follower wants to lead",
        default=2 * SECOND, flags=""),
    _refused(
        "raft_election_timeout", _D, "How long an election may take", default=2 * SECOND, flags=""),
    _refused(
        "raft_lease_timeout", _D, "How long a leader leads without hearing from the others",
        default=SECOND, flags=""),
    _refused(
        "raft_commit_timeout", _D, "Time between two commits without messages",
        default=100 * MILLISECOND, flags=""),
    _refused("bolt_free_list_sync", _B, "Sync the free list of the replication log", flags=""),
    _refused("bolt_free_list_map", _B, "Keep that list in a map", flags=""),
    _refused("nodes_connections", _B, "Connections of their own between the nodes", flags=""),
)  # fmt: skip


def _command(flags: str, kind: ValueKind, text: str, /, **traits: Unpack[Traits]) -> Option:
    """A flag that says what to do, which files to read, or what several options are."""
    return fieldless(flags, kind, text, {"group": Group.COMMON, "flags": flags}, traits)


_COMMANDS = (
    _command(
        "stan_config sc", _S, "File with streaming options", group=Group.STREAMING,
        help_after="nats_server", takes="file"),
    _command(
        "signal sl", _S, "Send <signal>=<pid or pid file>: stop, quit, term, reopen, reload, ldm",
        group=Group.STREAMING, help_after="io_buffer_size",
        choices=("stop", "quit", "term", "reopen", "reload", "ldm")),
    _command("SDV", _B, "Both of them", group=Group.STREAMING_LOG, help_after="stan_trace"),
    _command(
        "config c", _S, "File with options of both halves", group=Group.NATS,
        help_after="monitor_open_health", takes="file"),
    _command(
        "t", _B, "", group=Group.NATS,
        note="No effect, as in the original, but that this host alone is served;"
        " `-check_config` checks",
        help_after="config"),
    _command("DV", _B, "Both of them", group=Group.NATS_LOG, help_after="trace"),
    _command(
        "DVV", _B, "Debug lines, and the same trace lines", group=Group.NATS_LOG, help_after="VV"),
    _command("help h", _B, "Show this text"),
    _command(
        "check_config check-config", _B,
        "Show what is configured and where it comes from; start nothing"),
    _command(
        "unit", _S,
        "With --check_config: with the environment and the flags of this systemd unit",
        takes="unit"),
    _command("strict", _B, "With --check_config: fail for what a start would suffer from, too"),
    _command(
        "dump_config dump-config", _B,
        "Print a file that says all of this, secrets included; start nothing"),
    _command(
        "completion", _S, "Print the completion script of a shell: bash, zsh or fish",
        choices=("bash", "zsh", "fish")),
    _command("version v", _B, "Show the version"),
    _command("help_tls", _B, "Show help about TLS"),
)  # fmt: skip

_USUAL: Traits = {"group": Group.STREAMING, "section": Section.STREAMING}
_ALL = (*declared(ServerOptions, _USUAL), *_HANDED, *_REFUSED, *_COMMANDS)
_DECLARED = in_order(_ALL, place="after")
_SHOWN = in_order(_DECLARED, place="help_after")

#: Every option, in the order of the help text.
OPTIONS = tuple(one for group in Group for one in _SHOWN if one.group is group)

#: Those that the command line takes.
FLAGS = tuple(one for one in OPTIONS if one.flags)

#: Every name on the command line, without dashes.
BY_FLAG = {flag: one for one in FLAGS for flag in one.flags}

#: Every option by its key.
BY_KEY = {one.key: one for one in OPTIONS}

_FILED = [one for section in Section for one in _DECLARED if one.section is section]

#: What a file says, or a flag of the same kind: everything but commands, in the order of a file.
CONFIGURED = tuple(sorted(_FILED, key=lambda one: one.last))

#: Those of a single channel, too.
CHANNEL_LIMITS = tuple(one for one in CONFIGURED if one.field.startswith("limits.channel."))

#: Keys of a single channel that say what becomes of messages that are not acknowledged.
DEAD_LETTER = "dead_letter"
REDELIVERY = "redelivery"

#: Keys of old releases that say nothing to this server, and why. They are taken with a warning.
RETIRED: dict[Section, dict[str, str]] = {
    Section.STREAMING: dict.fromkeys(
        ("ack_subs_pool_size", "ack_subscriptions_pool_size"),
        "acknowledgements need no subscriptions of their own",
    ),
    Section.NATS: {
        "nodelay": "every connection is without delay",
        "max_conn_backlog": "the kernel decides",
        "logfile_max_num": "log files are kept until somebody removes them",
        "logtime_utc": "log lines have local time",
    },
}

#: Paths of the values that a running server takes over, with the maps that hold any number.
RELOADABLE = {one.field for one in OPTIONS if one.reloadable} | {
    "limits.channels",
    "limits.deliveries",
    "nats.settings",
}


def names_of(section: Section) -> dict[str, Option]:
    """Every name that a section knows, in lower case."""
    return {name: one for one in CONFIGURED if one.section is section for name in one.names}
