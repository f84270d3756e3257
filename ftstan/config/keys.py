"""What options are called in a file, and where their values go.

Each row: the option's key in ``table``, the field of ``ServerOptions`` that takes its value (empty: none, the option is
only read), and its names in a file, the first of which is the one that documents show. Names are matched without case.

Source: ``docs/compat/config.md`` (keys).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.config.table import BY_KEY, Option

if TYPE_CHECKING:
    from collections.abc import Iterator


class Section(enum.Enum):
    """The maps of a file in which options stand; the value is what documents call them."""

    STREAMING = "streaming"
    TLS = "streaming.tls"
    LIMITS = "streaming.store_limits"
    FILE = "streaming.file_options"
    SQL = "streaming.sql_options"
    CLUSTER = "streaming.cluster"
    NATS = ""
    NATS_TLS = "tls"
    AUTHORIZATION = "authorization"
    ROUTES = "cluster"


#: Maps in the streaming half: names, and what messages of the original call them.
STREAMING_MAPS: dict[Section, tuple[tuple[str, ...], str]] = {
    Section.TLS: (("tls",), "TLS"),
    Section.LIMITS: (("store_limits", "limits", "storelimits"), "store limits"),
    Section.FILE: (("file_options", "file"), "file options"),
    Section.SQL: (("sql_options", "sql"), "SQL options"),
    Section.CLUSTER: (("cluster",), "cluster"),
}

#: Names of the map of single channels inside ``store_limits``.
CHANNELS = ("channels", "channels_limits", "channelslimits", "per_channel", "per_channel_limits")

#: Names that a channel's own map knows, by field of its limits.
CHANNEL_LIMITS = ("max_subs", "max_msgs", "max_bytes", "max_age", "max_inactivity")

#: Keys of old releases that say nothing to this server, and why. They are taken with a warning.
RETIRED: dict[Section, dict[str, str]] = {
    Section.STREAMING: dict.fromkeys(
        ("ack_subs_pool_size", "ack_subscriptions_pool_size"), "acknowledgements need no subscriptions of their own"
    ),
    Section.NATS: {
        "nodelay": "every connection is without delay",
        "max_conn_backlog": "the kernel decides",
        "logfile_max_num": "log files are kept until somebody removes them",
        "logtime_utc": "log lines have local time",
    },
}


@dataclass(frozen=True, slots=True)
class Binding:
    """How one option is called in one section, and the field that takes its value."""

    option: Option
    section: Section
    field: str
    names: tuple[str, ...]

    @property
    def path(self) -> str:
        """The name that documents show, with its sections."""
        return f"{self.section.value}.{self.names[0]}" if self.section.value else self.names[0]


def _bind(section: Section, *rows: tuple[str, str, str]) -> Iterator[Binding]:
    for option, field, names in rows:
        yield Binding(BY_KEY[option], section, field, tuple(names.split()))


BINDINGS: tuple[Binding, ...] = (
    *_bind(
        Section.STREAMING,
        ("cluster_id", "cluster_id", "cluster_id cid id"),
        ("discover_prefix", "discover_prefix", "discover_prefix"),
        ("store", "store", "store st store_type storetype"),
        ("dir", "dir", "dir datastore"),
        ("stan_debug", "debug", "stan_debug sd stand_debug"),
        ("stan_trace", "trace", "stan_trace sv"),
        ("nats_server", "nats_servers", "nats_server_url nats_server ns"),
        ("hb_interval", "hb_interval", "hb_interval hbi server_to_client_hb_interval"),
        ("hb_timeout", "hb_timeout", "hb_timeout hbt server_to_client_hb_timeout"),
        ("hb_fail_count", "hb_fail_count", "hb_fail_count hbf server_to_client_hb_fail_count"),
        ("ft_group", "ft_group", "ft_group ft_group_name"),
        ("ft_hb_interval", "ft.hb_interval", "ft_hb_interval"),
        ("ft_hb_missed_interval", "ft.hb_missed_interval", "ft_hb_missed_interval"),
        ("ft_poll_interval", "ft.poll_interval", "ft_poll_interval"),
        ("ft_nats_timeout", "ft.nats_timeout", "ft_nats_timeout"),
        ("ft_probe_interval", "ft.probe_interval", "ft_probe_interval"),
        ("ft_steal_after", "ft.steal_after", "ft_steal_after"),
        ("ft_mixed", "ft.mixed", "ft_mixed"),
        ("ft_allow", "ft.allow", "ft_allow"),
        ("dedup_window", "dedup_window", "dedup_window"),
        ("io_spin", "io_spin", "io_spin"),
        ("io_buffer_size", "io_buffer_size", "io_buffer_size"),
        ("nats_gomaxprocs", "nats.gomaxprocs", "nats_gomaxprocs"),
        ("nats_gogc", "nats.gogc", "nats_gogc"),
        ("partitioning", "partitioning", "partitioning"),
        ("partition_wait", "partition_wait", "partition_wait"),
        ("admin_key", "admin_key", "admin_key"),
        ("strict_permissions", "strict_permissions", "strict_permissions"),
        (
            "replace_durable",
            "replace_durable",
            "replace_durable replace_durables replace_duplicate_durable replace_duplicate_durables",
        ),
        ("username", "link.user", "username user"),
        ("password", "link.password", "password pass"),
        ("token", "link.token", "token"),
        ("nkey_seed_file", "link.nkey_seed_file", "nkey_seed_file"),
        ("credentials", "link.credentials", "credentials"),
        ("secure", "link.secure", "secure"),
        ("syslog_name", "log.syslog_name", "syslog_name"),
        ("log_format", "log.format", "log_format"),
        ("http_advertise", "monitor.advertise", "http_advertise"),
        ("metrics_channels", "monitor.metrics_channels", "metrics_channels"),
        ("metrics_nss", "monitor.metrics_nss", "metrics_nss"),
        ("monitor_token", "monitor.token", "monitor_token"),
        ("monitor_client_ca", "monitor.client_ca", "monitor_client_ca"),
        ("monitor_open_health", "monitor.open_health", "monitor_open_health"),
        ("encrypt", "", "encrypt"),
        ("encryption_cipher", "", "encryption_cipher"),
        ("encryption_key", "", "encryption_key"),
    ),
    *_bind(
        Section.TLS,
        ("tls_client_cert", "link.client_cert", "client_cert"),
        ("tls_client_key", "link.client_key", "client_key"),
        ("tls_client_cacert", "link.client_ca", "client_ca client_cacert"),
        ("server_hostname", "link.server_name", "server_name server_hostname"),
        ("skip_verify", "link.insecure", "skip_verify insecure"),
    ),
    *_bind(
        Section.LIMITS,
        ("max_channels", "limits.max_channels", "max_channels mc maxchannels"),
        ("max_subs", "limits.channel.max_subs", "max_subs msu max_subscriptions maxsubscriptions max_sybs"),
        ("max_msgs", "limits.channel.max_msgs", "max_msgs mm maxmsgs max_count maxcount"),
        ("max_bytes", "limits.channel.max_bytes", "max_bytes mb maxbytes"),
        ("max_age", "limits.channel.max_age", "max_age ma maxage"),
        ("max_inactivity", "limits.channel.max_inactivity", "max_inactivity mi maxinactivity"),
    ),
    *_bind(
        Section.FILE,
        ("file_compact_enabled", "file.compact_enabled", "compact_enabled compact"),
        ("file_compact_frag", "file.compact_fragmentation", "compact_fragmentation compact_frag compact_fragmemtation"),
        ("file_compact_interval", "file.compact_interval", "compact_interval"),
        ("file_compact_min_size", "file.compact_min_size", "compact_min_size"),
        ("file_buffer_size", "file.buffer_size", "buffer_size"),
        ("file_crc", "file.crc", "crc do_crc"),
        ("file_crc_poly", "file.crc_poly", "crc_poly"),
        ("file_sync", "file.sync", "sync do_sync sync_on_flush"),
        ("file_slice_max_msgs", "file.slice_max_msgs", "slice_max_msgs slice_max_count slice_msgs slice_count"),
        ("file_slice_max_bytes", "file.slice_max_bytes", "slice_max_bytes slice_max_size slice_bytes slice_size"),
        ("file_slice_max_age", "file.slice_max_age", "slice_max_age slice_age slice_max_time slice_time_limit"),
        (
            "file_slice_archive_script",
            "file.slice_archive_script",
            "slice_archive_script slice_archive slice_script",
        ),
        ("file_fds_limit", "file.fds_limit", "file_descriptors_limit fds_limit"),
        ("file_parallel_recovery", "file.parallel_recovery", "parallel_recovery"),
        ("file_read_buffer_size", "file.read_buffer_size", "read_buffer_size file_read_buffer_size"),
        ("file_auto_sync", "file.auto_sync", "auto_sync file_auto_sync"),
        ("file_sync_index", "file.sync_index", "sync_index"),
        ("file_sync_subs", "file.sync_subs", "sync_subs"),
    ),
    *_bind(
        Section.SQL,
        ("sql_driver", "", "driver"),
        ("sql_source", "", "source"),
        ("sql_no_caching", "", "no_caching"),
        ("sql_max_open_conns", "", "max_open_conns max_conns"),
        ("sql_bulk_insert_limit", "", "bulk_insert_limit"),
    ),
    *_bind(
        Section.CLUSTER,
        ("cluster_node_id", "", "node_id"),
        ("cluster_bootstrap", "", "bootstrap"),
        ("cluster_peers", "", "peers"),
        ("cluster_log_path", "", "log_path"),
        ("cluster_log_cache_size", "", "log_cache_size"),
        ("cluster_log_snapshots", "", "log_snapshots"),
        ("cluster_trailing_logs", "", "trailing_logs"),
        ("cluster_sync", "", "sync"),
        ("cluster_raft_logging", "", "raft_logging"),
        ("cluster_proceed_on_restore_failure", "", "proceed_on_restore_failure"),
        ("cluster_allow_add_remove_node", "", "allow_add_remove_node"),
        ("raft_heartbeat_timeout", "", "raft_heartbeat_timeout"),
        ("raft_election_timeout", "", "raft_election_timeout"),
        ("raft_lease_timeout", "", "raft_lease_timeout"),
        ("raft_commit_timeout", "", "raft_commit_timeout"),
        ("bolt_free_list_sync", "", "bolt_free_list_sync"),
        ("bolt_free_list_map", "", "bolt_free_list_map"),
        ("nodes_connections", "", "nodes_connections"),
    ),
    *_bind(
        Section.NATS,
        ("addr", "nats.host", "host net"),
        ("port", "nats.port", "port"),
        ("client_advertise", "nats.settings.client_advertise", "client_advertise"),
        ("debug", "nats.debug", "debug"),
        ("trace", "nats.trace", "trace"),
        ("VV", "nats.settings.trace_verbose", "trace_verbose"),
        ("logtime", "log.time", "logtime"),
        ("log", "log.file", "log_file logfile"),
        ("log_size_limit", "log.size_limit", "log_size_limit logfile_size_limit"),
        ("syslog", "log.syslog", "syslog"),
        ("remote_syslog", "log.remote_syslog", "remote_syslog"),
        ("pid", "pid_file", "pid_file pidfile"),
        ("ports_file_dir", "ports_file_dir", "ports_file_dir"),
        ("profile", "nats.settings.prof_port", "prof_port"),
        ("http_port", "monitor.http_port", "http_port monitor_port"),
        ("https_port", "monitor.https_port", "https_port"),
        ("http_base_path", "monitor.base_path", "http_base_path"),
        ("name", "nats.settings.server_name", "server_name"),
        ("jetstream", "nats.settings.jetstream", "jetstream"),
        ("store_dir", "nats.settings.store_dir", "store_dir"),
        ("max_traced_msg_len", "nats.settings.max_traced_msg_len", "max_traced_msg_len"),
        ("max_payload", "nats.settings.max_payload", "max_payload"),
        ("max_pending", "nats.settings.max_pending", "max_pending"),
        ("max_control_line", "nats.settings.max_control_line", "max_control_line"),
        ("max_connections", "nats.settings.max_connections", "max_connections max_conn"),
        ("max_nats_subscriptions", "nats.settings.max_subscriptions", "max_subscriptions max_subs"),
        ("ping_interval", "nats.settings.ping_interval", "ping_interval"),
        ("ping_max", "nats.settings.ping_max", "ping_max"),
        ("write_deadline", "nats.settings.write_deadline", "write_deadline"),
        *(
            (name, f"nats.settings.{name}", names)
            for name, names in (
                ("accounts", "accounts"),
                ("system_account", "system_account system"),
                ("no_auth_user", "no_auth_user"),
                ("mappings", "mappings maps"),
                ("leafnodes", "leafnodes leaf"),
                ("gateway", "gateway"),
                ("websocket", "websocket ws"),
                ("mqtt", "mqtt"),
                ("operator", "operator operators roots root"),
                ("trusted_keys", "trusted_keys trusted"),
                ("resolver", "resolver account_resolver"),
                ("resolver_preload", "resolver_preload"),
                ("resolver_tls", "resolver_tls"),
                ("lame_duck_duration", "lame_duck_duration"),
                ("lame_duck_grace_period", "lame_duck_grace_period"),
                ("max_subscription_tokens", "max_subscription_tokens max_sub_tokens"),
                ("max_closed_clients", "max_closed_clients"),
                ("connect_error_reports", "connect_error_reports"),
                ("reconnect_error_reports", "reconnect_error_reports"),
                ("disable_sublist_cache", "disable_sublist_cache no_sublist_cache"),
                ("no_header_support", "no_header_support"),
                ("no_system_account", "no_system_account no_system no_sys_acc"),
                ("no_fast_producer_stall", "no_fast_producer_stall"),
                ("allow_non_tls", "allow_non_tls"),
                ("server_tags", "server_tags"),
                ("trace_headers", "trace_headers"),
                ("prof_block_rate", "prof_block_rate"),
            )
        ),
    ),
    *_bind(
        Section.NATS_TLS,
        ("tlscert", "nats.tls.cert_file", "cert_file"),
        ("tlskey", "nats.tls.key_file", "key_file"),
        ("tlscacert", "nats.tls.ca_file", "ca_file"),
        ("tlsverify", "nats.tls.verify", "verify"),
        ("tls_verify_and_map", "nats.tls.verify_and_map", "verify_and_map"),
        ("tls_insecure", "nats.tls.insecure", "insecure"),
        ("tls_timeout", "nats.tls.timeout", "timeout"),
        ("cipher_suites", "nats.tls.cipher_suites", "cipher_suites"),
        ("curve_preferences", "nats.tls.curve_preferences", "curve_preferences"),
    ),
    *_bind(
        Section.AUTHORIZATION,
        ("user", "nats.user", "user username"),
        ("pass", "nats.password", "password pass"),
        ("auth", "nats.token", "token"),
        ("auth_timeout", "nats.settings.authorization.timeout", "timeout"),
        ("users", "nats.settings.authorization.users", "users"),
        (
            "default_permissions",
            "nats.settings.authorization.default_permissions",
            "default_permissions default_permission permissions",
        ),
        ("auth_callout", "nats.settings.authorization.auth_callout", "auth_callout"),
    ),
    *_bind(
        Section.ROUTES,
        ("cluster", "nats.cluster_listen", ""),
        ("routes", "nats.routes", "routes"),
        ("cluster_advertise", "nats.settings.cluster.cluster_advertise", "cluster_advertise advertise"),
        ("no_advertise", "nats.settings.cluster.no_advertise", "no_advertise"),
        ("connect_retries", "nats.settings.cluster.connect_retries", "connect_retries"),
        ("cluster_name", "nats.settings.cluster.name", "name"),
        ("cluster_auth_timeout", "nats.settings.cluster.authorization.timeout", ""),
        ("cluster_tls", "nats.settings.cluster.tls", "tls"),
        ("cluster_permissions", "nats.settings.cluster.permissions", "permissions"),
        ("cluster_pool_size", "nats.settings.cluster.pool_size", "pool_size"),
        ("cluster_compression", "nats.settings.cluster.compression", "compression"),
        ("cluster_accounts", "nats.settings.cluster.accounts", "accounts"),
        ("cluster_ping_interval", "nats.settings.cluster.ping_interval", "ping_interval"),
        ("cluster_write_deadline", "nats.settings.cluster.write_deadline", "write_deadline"),
    ),
    # What only the command line can say, and still is a value of the server's.
    *_bind(
        Section.STREAMING,
        ("io_batch_size", "io_batch_size", "io_batch_size"),
        ("io_sleep_time", "io_sleep_time", "io_sleep_time"),
        ("file_truncate_bad_eof", "file.truncate_bad_eof", ""),
        ("clustered", "", ""),
    ),
    *_bind(
        Section.NATS,
        ("http_host", "monitor.host", ""),
        ("tls", "nats.tls.enabled", ""),
    ),
)

#: Bindings of an option, by its key.
BY_OPTION: dict[str, Binding] = {binding.option.key: binding for binding in BINDINGS}


def names_of(section: Section) -> dict[str, Binding]:
    """Every name that a section knows, in lower case."""
    return {name: binding for binding in BINDINGS if binding.section is section for name in binding.names}
