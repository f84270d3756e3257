"""What a server was asked to do; each field declares one option, once.

A declaration says all there is to say about an option: name, type, default, help, flags, names in a
file, and whether a reload takes it over. ``table`` collects the declarations. Parsing, ``--help``,
pages, completion, ``-check_config``, ``-dump_config`` and reload read them from there. ``table``
also declares the options that have no value here.

Defaults are the original's. 0 means unlimited for every limit.

Source: ``docs/compat/config.md`` (options, flags, keys).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.config.declaration import Group, Section, option, part
from ftstan.config.units import MILLISECOND, MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.units import Duration, Size

STORE_MEMORY = "MEMORY"
STORE_FILE = "FILE"
STORE_SQL = "SQL"
SQL_DRIVERS = ("mysql", "postgres")

FT_MIXED_AUTO = "auto"
"""As the datastore says: on while no server of ours has written to an original's datastore."""
FT_MIXED = (FT_MIXED_AUTO, "on", "off")


class MountRisk(enum.StrEnum):
    """Ways to mount a datastore with which a group's member refuses to start.

    The values are the names that ``-ft_allow`` takes. What each can do: ``docs/ft.md``, Mounts.
    """

    NOLOCK = "nolock"
    LOCAL_LOCK = "local_lock"
    NFS3 = "nfs3"
    SOFT = "soft"
    NOCTO = "nocto"
    RECOVER_LOST_LOCKS = "recover_lost_locks"
    GLUSTER = "gluster"
    DIRECT_IO = "direct_io"


#: Allows a listener for routes that asks nobody for a login (``docs/security.md``, Routes).
OPEN_ROUTES = "open_routes"
#: Every name that ``-ft_allow`` takes.
FT_ALLOW = (*MountRisk, OPEN_ROUTES)

ALL_INTERFACES = "0.0.0.0"  # noqa: S104  # the original's default, which operators expect
DEFAULT_PORT = 4222
LOG_FORMATS = ("text", "json")
CRC32_IEEE = 0xEDB88320
_NO_BATCHES = "a batch is what one read of the link brings"

# One option after the other, like rows of a table.
# fmt: off


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Limits of one channel."""

    max_msgs: int = option(
        1_000_000, "Messages kept per channel (0: unlimited)", flags="max_msgs mm",
        names="max_msgs mm maxmsgs max_count maxcount")
    max_bytes: Size = option(
        1_024_000_000, "Bytes of messages kept per channel (0: unlimited)", flags="max_bytes mb",
        names="max_bytes mb maxbytes")
    max_age: Duration = option(
        0, "How long a message is kept, such as 24h (0s: for ever)", flags="max_age ma",
        names="max_age ma maxage")
    max_subs: int = option(
        1000, "Subscriptions per channel (0: unlimited)", flags="max_subs msu",
        names="max_subs msu max_subscriptions maxsubscriptions max_sybs", after="max_channels")
    max_inactivity: Duration = option(
        0, "Remove a channel unused for this long (0s: never)", flags="max_inactivity mi",
        names="max_inactivity mi maxinactivity")


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """What an entry of the per-channel map says of messages that are not acknowledged in time.

    ``max_deliveries`` 0: no dead letters; -1: inherited, and ``dead_letter`` with it, the channel
    that they go to. ``redelivery``: waits (ns) after the first delivery, the second one and so on,
    the last one for all that follow; empty: the ack wait of each subscription, ``None``: inherited.
    ``ftstan.config.limits.Limits.rules_of`` says what holds for a channel in the end.
    """

    max_deliveries: int = -1
    dead_letter: str = ""
    redelivery: tuple[Duration, ...] | None = None


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of the store: number of channels, limits of every channel, limits of single channels.

    ``channels`` are the entries of the per-channel map in its order, names with wildcards included,
    values as written: there 0 inherits and a negative number is unlimited (in a file, 0 is read as
    unlimited and a missing key as 0). The last of several entries of one name counts. Start one
    from ``ftstan.config.limits.INHERIT``: what is left out of a ``ChannelLimits`` is the default.
    ``ftstan.config.limits.Limits`` says what holds for a channel in the end. ``deliveries`` are
    entries of the same map, by their names, with what they say of deliveries.
    """

    max_channels: int = option(
        100, "Channels that may exist (0: unlimited)", flags="max_channels mc",
        names="max_channels mc maxchannels")
    channel: ChannelLimits = part(ChannelLimits)
    channels: tuple[tuple[str, ChannelLimits], ...] = ()
    deliveries: tuple[tuple[str, DeliveryRules], ...] = ()


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Options of the file store."""

    compact_enabled: bool = option(
        True, "Rewrite files that hold much that is dead", names="compact_enabled compact")
    compact_fragmentation: int = option(
        50, "Dead share of a file, in percent, that makes it worth rewriting",
        flags="file_compact_frag", names="compact_fragmentation compact_frag compact_fragmemtation")
    compact_interval: int = option(300, "Seconds between two rewrites of a file, at least")
    compact_min_size: Size = option(1_048_576, "Smallest file that is rewritten")
    buffer_size: Size = option(
        2_097_152, "Taken and checked; a batch is written at once here",
        effectless="a batch is one write per channel")
    crc: bool = option(True, "Check the checksum of every record that is read", names="crc do_crc")
    crc_poly: int = option(CRC32_IEEE, "Polynomial of the checksum")
    sync: bool = option(
        True, "Sync files before publishers are acknowledged", names="sync do_sync sync_on_flush")
    slice_max_msgs: int = option(
        0, "Messages in a slice of a channel's log (0: no limit)",
        names="slice_max_msgs slice_max_count slice_msgs slice_count")
    slice_max_bytes: Size = option(
        67_108_864, "Bytes in a slice (0: no limit)",
        names="slice_max_bytes slice_max_size slice_bytes slice_size")
    slice_max_age: Duration = option(
        0, "Time covered by a slice (0s: no limit)",
        names="slice_max_age slice_age slice_max_time slice_time_limit")
    slice_archive_script: str = option(
        "", "Program that gets a slice when it is removed",
        names="slice_archive_script slice_archive slice_script", takes="file")
    fds_limit: int = option(
        0, "File descriptors that the store tries to stay below (0: by the process limit)",
        names="file_descriptors_limit fds_limit")
    parallel_recovery: int = option(1, "Channels that are recovered at the same time")
    truncate_bad_eof: bool = option(
        False, "Once: cut files whose last record is incomplete", section=Section.STREAMING,
        names="", last=True)
    read_buffer_size: Size = option(
        2_097_152, "Most that is read ahead in a file (0: one message at a time)",
        names="read_buffer_size file_read_buffer_size")
    auto_sync: Duration = option(
        MINUTE, "Sync files this often when -file_sync=false (0s: never)",
        names="auto_sync file_auto_sync")
    sync_index: bool = option(
        False, "Sync the index of messages, too, before publishers are acknowledged")
    sync_subs: bool = option(
        False, "Sync what was sent and acknowledged with every batch, not every second")


@dataclass(frozen=True, slots=True)
class SqlOptions:
    """Options of the SQL store.

    ``source`` and ``source_file`` exclude each other; the source of the environment goes before
    both (``ftstan.config.sql_source``).
    """

    driver: str = option("", "Driver of the SQL store: mysql or postgres")
    source: str = option(
        "", "How to connect to the database; prefer a file, or the environment, to this flag",
        secret=True)
    source_file: str = option("", "File with the source in its only line", takes="file")
    no_caching: bool = option(False, "Write what is pending for subscribers row by row")
    max_open_conns: int = option(
        0, "Taken; the server has two connections, one of them for the lock",
        names="max_open_conns max_conns", effectless="the server has two connections, always")
    bulk_insert_limit: int = option(
        0, "Taken; a batch is one transaction of few statements here",
        effectless="a batch is one transaction of few statements")


@dataclass(frozen=True, slots=True)
class EncryptionOptions:
    """Encryption of the payloads that are stored, in every kind of store.

    A key, or a file of keys, switches it on. ``key`` and ``key_file`` exclude each other; the key
    of the environment goes before both (``ftstan.config.encryption_keys``).
    """

    enabled: bool = option(
        False, "Encrypt the payloads of stored messages", key="encrypt", flags="encrypt",
        names="encrypt", help_after="io_buffer_size")
    cipher: str = option(
        "", "Cipher of the encryption: AES or CHACHA (default: AES on x86 processors)",
        help_after="encrypt")
    key: str = option(
        "", "Key of the encryption; prefer the environment, or a file, to this flag", secret=True,
        help_after="encryption_cipher")
    key_file: str = option(
        "", "File of keys, one a line: the first one encrypts, all of them decrypt", takes="file",
        help_after="encryption_key")
    accept_unreadable: bool = option(
        False, "Start also where the newest message of a channel cannot be decrypted",
        help_after="encryption_key_file")
    accept_mixed: bool = option(
        False, "Serve an encrypted store without its key: readers get what is stored",
        help_after="encryption_accept_unreadable")
    refuse_plain: bool = option(
        False, "Refuse messages that were stored plain, once all are encrypted",
        help_after="encryption_accept_mixed")


@dataclass(frozen=True, slots=True)
class FtOptions:
    """A fault-tolerant group's timing and rules.

    With ``poll_interval`` 0 the kind of file system chooses. ``allow`` names problems of
    ``FT_ALLOW``; the one of routes counts without a group, too.
    """

    hb_interval: Duration = option(SECOND, "Time between two heartbeats of the active server")
    hb_missed_interval: Duration = option(
        1_250 * MILLISECOND, "Silence after which a standby tries the store lock")
    poll_interval: Duration = option(
        0, "Time between two looks at the store lock (default: 50ms, 500ms on a network)")
    nats_timeout: Duration = option(
        5 * SECOND, "How long an active server may be cut off from NATS (0s: for ever)")
    probe_interval: Duration = option(
        SECOND, "Time between two probes of the storage by the active server")
    steal_after: Duration = option(
        0, "Take a silent owner's store without its lock after this long (0s: never)")
    member: str = option(
        "", "Name of this member, for people (default: host name and port)")
    mixed: str = option(
        FT_MIXED_AUTO, "Whether original servers are members of the group: auto, on or off",
        choices=FT_MIXED)
    allow: tuple[str, ...] = option(
        (), "Problems of mounts and routes that shall not refuse a start, comma separated",
        choices=FT_ALLOW)


@dataclass(frozen=True, slots=True)
class ServerTlsOptions:
    """TLS of the embedded NATS server and of the HTTPS monitor. Files are PEM."""

    enabled: bool = option(False, "Require TLS of clients", flags="tls", names="", last=True)
    cert_file: str = option(
        "", "Certificate of the server", flags="tlscert", names="cert_file", takes="file")
    key_file: str = option(
        "", "Private key of that certificate", flags="tlskey", names="key_file", takes="file")
    ca_file: str = option(
        "", "Authorities that clients' certificates are checked with", flags="tlscacert",
        names="ca_file", takes="file", help_after="tlsverify")
    verify: bool = option(
        False, "Ask clients for a certificate too", flags="tlsverify", names="verify")
    verify_and_map: bool = option(
        False, "The same, and take the user from the certificate", key="tls_verify_and_map",
        flags="")
    insecure: bool = option(
        False, "Check no certificates of other servers", key="tls_insecure", flags="")
    timeout: float = option(
        0.0, "Seconds that a TLS handshake may take (0: 2)", key="tls_timeout", flags="")
    cipher_suites: tuple[str, ...] = option(
        (), "Ciphers that may be used; -help_tls lists them", flags="")
    curve_preferences: tuple[str, ...] = option(
        (), "Curves that may be used, best first; -help_tls lists them", flags="")


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How the streaming server presents itself to NATS on every link of its own: login and TLS.

    ``user``, ``password`` and ``token`` hold, each by itself, where that of ``NatsOptions`` is
    empty.
    """

    user: str = option(
        "", "User that the streaming server names to NATS", key="username", flags="",
        names="username user")
    password: str = option(
        "", "Password that goes with it", flags="", names="password pass", secret=True)
    token: str = option("", "Token that the streaming server shows to NATS", flags="", secret=True)
    nkey_seed_file: str = option(
        "", "File with the seed that the streaming server signs with, for NATS", flags="")
    credentials: str = option("", "Credentials file of the streaming server, for NATS", flags="")
    secure: bool = option(False, "Connect to the NATS server with TLS")
    client_cert: str = option(
        "", "Certificate shown to the NATS server", section=Section.TLS, flags="tls_client_cert",
        takes="file")
    client_key: str = option(
        "", "Private key of that certificate", section=Section.TLS, flags="tls_client_key",
        takes="file")
    client_ca: str = option(
        "", "Authorities that the NATS server's certificate is checked with", section=Section.TLS,
        flags="tls_client_cacert", names="client_ca client_cacert", takes="file")
    server_name: str = option(
        "", "Name that the NATS server's certificate must have", section=Section.TLS,
        key="server_hostname", flags="", names="server_name server_hostname")
    insecure: bool = option(
        False, "Check neither the NATS server's certificate nor its name", section=Section.TLS,
        key="skip_verify", flags="", names="skip_verify insecure")
    of_child: bool = False
    """Whether the NATS server is a child of this process, so that its socket must be of our
    account; nobody configures it.
    """


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Where log lines go and how they look."""

    time: bool = option(
        True, "Date and time in log lines", flags="logtime T", names="logtime", reloadable=True,
        help_after="log")
    file: str = option(
        "", "Write the log to this file, appending", flags="log l", names="log_file logfile",
        takes="file")
    size_limit: int = option(
        0, "Put the log file aside when it has more bytes (0: never)", flags="log_size_limit",
        names="log_size_limit logfile_size_limit")
    syslog: bool = option(False, "Log to the local syslog", flags="syslog s")
    remote_syslog: str = option(
        "", "Log to the syslog at this URL: udp://host:port, tcp://host:port",
        flags="remote_syslog r")
    syslog_name: str = option(
        "", "Name in syslog messages instead of the program's", group=Group.STREAMING_LOG,
        section=Section.STREAMING)
    format: str = option(
        LOG_FORMATS[0], "Look of log lines: text or json", flags="log_format",
        section=Section.STREAMING, choices=LOG_FORMATS, help_after="log_size_limit")


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """The HTTP pages. Port 0 is none, -1 any free one.

    ``token`` or ``client_ca`` protects them if it is not empty. ``base_path`` stands in front of
    the NATS server's pages only. An empty ``advertise`` is what the server listens on.
    """

    http_port: int = option(
        0, "Serve monitoring pages on this port", flags="http_port m", section=Section.NATS,
        names="http_port monitor_port")
    advertise: str = option(
        "", "host or host:port at which other members' dashboards find these pages",
        flags="http_advertise")
    metrics_channels: int = option(100, "Channels with series of their own in /metrics")
    metrics_nss: bool = option(False, "Add the metric names of the retired NATS exporter")
    https_port: int = option(
        0, "Serve monitoring pages on this port with TLS", flags="https_port ms",
        section=Section.NATS)
    host: str = option(
        ALL_INTERFACES, "Address of the monitoring pages, if it is another than that of clients",
        key="http_host", flags="", names="", section=Section.NATS, last=True)
    base_path: str = option(
        "/", "Beginning of the paths of the monitoring pages", key="http_base_path", flags="",
        section=Section.NATS)
    token: str = option(
        "", "Token that the monitoring pages ask for", flags="monitor_token", secret=True)
    client_ca: str = option(
        "", "Authorities of the certificates that the monitoring pages ask for",
        flags="monitor_client_ca", takes="file")
    open_health: bool = option(
        False, "Let everybody see the pages that load balancers ask for",
        flags="monitor_open_health")


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """The NATS server that runs as a child; ``ServerOptions.nats_servers`` leaves only the login.

    ``cluster_listen`` and ``routes`` are URLs as written. ``settings`` are more keys of its
    configuration file, by their names there; maps are nested. ``gomaxprocs`` and ``gogc`` are
    settings of its runtime; 0 leaves them to the environment, or to us if that says nothing.
    """

    host: str = option(
        ALL_INTERFACES, "Address that clients connect to (also --net)", flags="addr a net",
        names="host net")
    gomaxprocs: int = option(
        0, "GOMAXPROCS of the NATS server (0: 1 on one or two processors, else its own)",
        flags="nats_gomaxprocs", section=Section.STREAMING)
    gogc: int = option(
        0, "GOGC of the NATS server (0: 400 on one or two processors, else its own)",
        flags="nats_gogc", section=Section.STREAMING)
    port: int = option(
        DEFAULT_PORT, "Port that clients connect to (-1: any free one)", flags="port p")
    debug: bool = option(
        False, "Debug lines of the NATS server", flags="debug D", group=Group.NATS_LOG,
        reloadable=True, help_after="remote_syslog")
    trace: bool = option(
        False, "Trace lines of the NATS server", flags="trace V", group=Group.NATS_LOG,
        reloadable=True, help_after="debug")
    cluster_listen: str = option(
        "", "URL on which other NATS servers may connect, nats://host:port",
        flags="cluster cluster_listen", group=Group.ROUTES, section=Section.ROUTES, names="")
    routes: tuple[str, ...] = option(
        (), "URLs of other NATS servers to connect to, comma separated", group=Group.ROUTES,
        section=Section.ROUTES, reloadable=True)
    user: str = option(
        "", "User that clients must name", group=Group.AUTH, section=Section.AUTHORIZATION,
        names="user username", reloadable=True)
    password: str = option(
        "", "Password that goes with it", flags="pass", group=Group.AUTH,
        section=Section.AUTHORIZATION, names="password pass", reloadable=True, secret=True)
    token: str = option(
        "", "Token that clients must show", flags="auth", group=Group.AUTH,
        section=Section.AUTHORIZATION, names="token", reloadable=True, secret=True)
    tls: ServerTlsOptions = part(
        ServerTlsOptions, group=Group.TLS, section=Section.NATS_TLS, reloadable=True)
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)


_BY_JETSTREAM = "JetStream is the log, and keeps it in its own way"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options of a node of a replicated cluster."""

    preview: bool = option(
        False, "Let -clustered run although it is a preview (docs/clustering.md)", names="preview")
    node_id: str = option("", "Id of this node, unique in its cluster")
    bootstrap: bool = option(False, "Let this node found the cluster")
    peers: tuple[str, ...] = option((), "Ids of the other nodes, comma separated")
    log_path: str = option("", "Directory of the replication log", takes="directory")
    log_cache_size: int = option(512, "Log entries kept in memory", effectless=_BY_JETSTREAM)
    log_snapshots: int = option(2, "Snapshots kept", effectless=_BY_JETSTREAM)
    trailing_logs: int = option(
        10_240, "Log entries kept behind a snapshot", effectless=_BY_JETSTREAM)
    allow_add_remove_node: bool = option(False, "Allow nodes to be added and removed by request")
    log_max_bytes: Size = option(
        1 << 30, "Bytes of the log above which no node is waited for that is away")
    sync: bool = option(True, "Sync the log with every write")
    raft_logging: bool = option(
        False, "Log what the replication layer does", effectless=_BY_JETSTREAM)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Everything that one server needs to know.

    ``store`` is upper case. ``io_sleep_time`` is in microseconds, as its flag is.
    """

    cluster_id: str = option(
        "test-cluster", "Name of the streaming cluster that clients connect to",
        flags="cluster_id cid", names="cluster_id cid id")
    discover_prefix: str = option(
        "_STAN.discover", "Beginning of the subject that clients connect on", flags="")
    store: str = option(
        STORE_MEMORY, "Where messages rest: MEMORY, FILE or SQL", flags="store st",
        names="store st store_type storetype", choices=("memory", "file", "sql"))
    dir: str = option(
        "", "Root directory of a FILE store", names="dir datastore", takes="directory")
    limits: StoreLimits = part(StoreLimits, section=Section.LIMITS, reloadable=True)
    debug: bool = option(
        False, "Streaming debug lines", flags="stan_debug SD", group=Group.STREAMING_LOG,
        names="stan_debug sd stand_debug", reloadable=True)
    trace: bool = option(
        False, "Streaming trace lines, some for every message", flags="stan_trace SV",
        group=Group.STREAMING_LOG, names="stan_trace sv", reloadable=True)
    nats_servers: tuple[str, ...] = option(
        (), "Use the NATS servers at these URLs instead of starting one", flags="nats_server ns",
        names="nats_server_url nats_server ns", shown=False)
    hb_interval: Duration = option(
        30 * SECOND, "Time between heartbeats sent to a client", flags="hb_interval hbi",
        names="hb_interval hbi server_to_client_hb_interval")
    hb_timeout: Duration = option(
        10 * SECOND, "How long to wait for a client's answer to a heartbeat",
        flags="hb_timeout hbt", names="hb_timeout hbt server_to_client_hb_timeout")
    hb_fail_count: int = option(
        10, "Heartbeats that may fail in a row before a client is closed",
        flags="hb_fail_count hbf", names="hb_fail_count hbf server_to_client_hb_fail_count")
    ft_group: str = option(
        "", "Name of the fault-tolerant group; members share one datastore",
        flags="ft_group ft_group_name", names="ft_group ft_group_name")
    ft: FtOptions = part(FtOptions, "ft_", group=Group.FT)
    dedup_window: int = option(
        0, "Publishes of our own client whose repeats are recognised (0: none)", group=Group.FT)
    io_batch_size: int = option(
        1024, "", note=f"No effect: {_NO_BATCHES}", effectless=_NO_BATCHES, last=True)
    io_sleep_time: int = option(
        0, "", note="No effect, in microseconds", effectless=_NO_BATCHES, last=True)
    io_spin: Duration = option(
        0, "How long to spin after an answer, for a client that waits for each")
    direct: bool = option(
        True, "Hand messages between clients and this server past the NATS server, where it may be")
    io_buffer_size: Size = option(
        1_048_576, "Buffer that NATS is read into, at first; it grows to 4 MiB, or a message")
    clustered: bool = option(
        False, "Run as a node of a replicated cluster", group=Group.CLUSTERING,
        names="", last=True)
    cluster: ClusterOptions = part(
        ClusterOptions, "cluster_", group=Group.CLUSTERING, section=Section.CLUSTER)
    file: FileOptions = part(FileOptions, "file_", group=Group.FILE, section=Section.FILE)
    sql: SqlOptions = part(SqlOptions, "sql_", group=Group.SQL, section=Section.SQL)
    nats: NatsOptions = part(NatsOptions, group=Group.NATS, section=Section.NATS)
    partitioning: bool = option(
        False, "Serve only the channels listed under store_limits, with other servers", flags="")
    partition_wait: Duration = option(
        100 * MILLISECOND, "How long publishes wait for the other partitions at a start")
    admin_key: str = option(
        "", "File with the key for ftstanctl, made if missing; for memory stores")
    allow_channel_move: bool = option(
        False, "Let ftstanctl mark channels as moved, and move them between partitions",
        reloadable=True)
    strict_permissions: bool = option(
        False, "Refuse to start on a datastore that everybody may write to")
    replace_durable: bool = option(
        False, "Let a new durable take the place of a duplicate",
        names="replace_durable replace_durables replace_duplicate_durable"
        " replace_duplicate_durables",
        help_after="io_buffer_size")
    encryption: EncryptionOptions = part(EncryptionOptions, "encryption_")
    link: LinkOptions = part(LinkOptions, group=Group.STREAMING_TLS, reloadable=True)
    log: LogOptions = part(LogOptions, group=Group.NATS_LOG, section=Section.NATS)
    pid_file: str = option(
        "", "Write the process id to this file", flags="pid P", group=Group.NATS,
        section=Section.NATS, names="pid_file pidfile", takes="file")
    ports_file_dir: str = option(
        "", "Write a file with the ports in use to this directory", group=Group.NATS,
        section=Section.NATS, takes="directory", help_after="monitor_open_health")
    monitor: MonitorOptions = part(MonitorOptions, group=Group.NATS)
    config_file: str = field(default="", compare=False)
