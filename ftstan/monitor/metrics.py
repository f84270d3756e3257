"""``/metrics``: the node in the formats of Prometheus and OpenMetrics, made afresh for each scrape.

Base units, and labels whose values cannot grow without bound: of the channels a configured number
have series of their own, by name, and all others together are the channel ``>``, which no channel
can be called. ``METRICS`` is the whole list; ``docs/monitoring.md`` has it as a table. The names of
the exporter that read the original's pages can be added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client import PROCESS_COLLECTOR, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ftstan.base.states import NodeState, Phase
from ftstan.monitor.answers import answer, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aiohttp import web
    from prometheus_client.metrics_core import Metric as Family

    from ftstan.base.disk import Space
    from ftstan.base.histogram import Histogram
    from ftstan.base.states import NodeStatus
    from ftstan.broker.views import CensusRow, Counters, SubRow
    from ftstan.config.options import MonitorOptions
    from ftstan.front.listener import FrontStatus

#: In place of a name: all channels without series of their own.
OTHERS: Final = ">"


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """One node at one moment. Times in seconds; ``None`` where there is nothing to say.

    Counters count since its start.

    ``takeovers`` by cause, ``takeover_tries`` by result, ``lock_attempts`` by outcome,
    ``reconnects`` and ``connected`` by connection, ``refused`` by kind. ``now`` is the wall clock;
    ``room`` that of the datastore's file system; ``front`` the listener of clients, where there is
    one.
    """

    status: NodeStatus
    compatible: str
    go: str
    start_time: float
    now: float
    probes: Histogram | None
    room: Space | None
    commits: Histogram | None
    failed_commits: int
    undecryptable: int
    unanswered: int
    counters: Counters
    channels: Sequence[CensusRow]
    max_channels: int
    takeovers: Mapping[str, int] = field(default_factory=dict)
    takeover_tries: Mapping[str, int] = field(default_factory=dict)
    lock_attempts: Mapping[str, int] = field(default_factory=dict)
    reconnects: Mapping[str, int] = field(default_factory=dict)
    connected: Mapping[str, bool] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    front: FrontStatus | None = None


class MetricsViews(Protocol):
    """What is shown. Called on the control loop: none may wait for storage."""

    async def figures(self) -> NodeFigures:
        """The node as of now."""
        ...

    async def channel_subs(self, names: Sequence[bytes]) -> list[tuple[bytes, SubRow]]:
        """The subscriptions of these channels, each with its channel's name."""
        ...


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the list. ``kind``: counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


def _m(name: str, kind: str, text: str, *labels: str) -> Metric:
    return Metric(f"ftstan_{name}", kind, text, labels)


METRICS: Final = {
    metric.name: metric
    for metric in (
        _m(
            "build_info",
            "gauge",
            "Always 1; this release, and that of the original",
            "version",
            "compatible",
        ),
        _m("server_info", "gauge", "Always 1; who this is", "cluster_id", "server_id", "group"),
        _m("start_time_seconds", "gauge", "When the process started, since the epoch"),
        _m("time_seconds", "gauge", "The clock of the node, since the epoch"),
        _m("state", "gauge", "1 for the present state, 0 for the others", "state"),
        _m("phase", "gauge", "1 for what the node is doing, 0 for all else", "phase"),
        _m("serving", "gauge", "Whether clients are answered"),
        _m("standing_by", "gauge", "Whether it stands by, or follows, and would take over"),
        _m("paused", "gauge", "Whether an operator keeps this member from taking over"),
        _m("mixed", "gauge", "Whether original servers may be members of the group"),
        _m(
            "fit",
            "gauge",
            "Whether the group is mixed and an original server could follow this owner now",
        ),
        _m("epoch", "gauge", "The epoch that this node owns, or leads with, 0 for none"),
        _m(
            "holder_epoch",
            "gauge",
            "The newest epoch of the datastore, or of the cluster, as far as this node knows",
        ),
        _m("cluster_entry", "gauge", "The last entry of the cluster's log that this node has read"),
        _m(
            "cluster_stored_entry",
            "gauge",
            "Up to which entry of the cluster's log the store of this node is complete and synced",
        ),
        _m(
            "cluster_copies",
            "gauge",
            "Whole copies of the cluster's log, as its leader saw them last; 0 before",
        ),
        _m("takeovers", "counter", "Epochs that this process took, by cause", "cause"),
        _m(
            "takeover_tries",
            "counter",
            "Tries to take over, by what came of the store lock",
            "result",
        ),
        _m("lock_attempts", "counter", "Attempts at the store lock, by outcome", "outcome"),
        _m("probe_age_seconds", "gauge", "Time since storage last answered"),
        _m("probe_seconds", "histogram", "How long storage took to answer a probe of the owner"),
        _m(
            "commit_seconds",
            "histogram",
            "From the first publish of a batch until it is durable and confirmed",
        ),
        _m(
            "failed_commits",
            "counter",
            "Times that storage refused a batch of a channel: its publishers got errors",
        ),
        _m(
            "datastore_free_bytes",
            "gauge",
            "Room on the datastore's file system, as the owner's last probe saw it",
        ),
        _m("datastore_size_bytes", "gauge", "Size of that file system"),
        _m("warm_lag_messages", "gauge", "Messages that a standby has not read ahead"),
        _m("warm_lag_seconds", "gauge", "For how long a standby has been behind"),
        _m("recovery_channels_found", "gauge", "Channels that the last recovery found"),
        _m("recovery_channels_done", "gauge", "Channels that the last recovery has read"),
        _m(
            "nats_connected",
            "gauge",
            "Whether a connection to NATS stands (general: of clients)",
            "connection",
        ),
        _m(
            "nats_reconnects",
            "counter",
            "Connections to NATS that were lost and made again",
            "connection",
        ),
        _m(
            "client_connections",
            "gauge",
            "Connections of clients by the road of their messages (direct, passed)",
            "road",
        ),
        _m(
            "client_messages",
            "counter",
            "Messages by road (direct: between clients and this server; passed: through NATS)",
            "road",
            "direction",
        ),
        _m("client_slow", "counter", "Clients that were ended because they did not read"),
        _m("client_tls", "gauge", "Connections of clients whose TLS ends in this server"),
        _m("client_tls_failed", "counter", "TLS handshakes of clients that failed"),
        _m(
            "handover_unanswered",
            "counter",
            "Publishes that came during a hand-over and got no answer",
        ),
        _m("clients", "gauge", "Registered clients"),
        _m("channels", "gauge", "Channels"),
        _m("max_channels", "gauge", "How many channels there may be, 0 for no limit"),
        _m(
            "quarantined_channels",
            "gauge",
            "Channels that take nothing new because their files are damaged",
        ),
        _m(
            "moved_channels",
            "gauge",
            "Channels whose publishers are refused because an operator has marked them as moved",
        ),
        _m("subscriptions", "gauge", "Subscriptions, offline durables among them"),
        _m(
            "stalled_subscriptions",
            "gauge",
            "Subscriptions and queue groups that wait for acknowledgements",
        ),
        _m("pending_messages", "gauge", "Messages sent and not acknowledged"),
        _m("stored_messages", "gauge", "Messages in the store"),
        _m("stored_bytes", "gauge", "Bytes of those messages as the store counts them"),
        _m("received_messages", "counter", "Publish requests"),
        _m("received_bytes", "counter", "Bytes of publish requests"),
        _m("sent_messages", "counter", "Messages sent to subscribers, repeated ones among them"),
        _m("sent_bytes", "counter", "Bytes of those messages"),
        _m(
            "redelivered_messages", "counter", "Messages sent again because no acknowledgement came"
        ),
        _m(
            "skipped_deliveries",
            "counter",
            "Deliveries left out because the NATS server does not carry a message of that size",
        ),
        _m(
            "dead_letters",
            "counter",
            "Messages given up and stored in a dead-letter channel, by the channel they come from",
            "channel",
        ),
        _m(
            "dead_letters_refused",
            "counter",
            "Times that a dead letter could not be stored: the message is delivered again",
        ),
        _m(
            "undecryptable_messages",
            "counter",
            "Stored messages met that no encryption key decrypts, or plain ones that are refused: "
            "their readers wait",
        ),
        _m("refused", "counter", "What was not carried out, or not taken, by kind", "kind"),
        _m("channel_messages", "gauge", "Messages in the channel", "channel"),
        _m("channel_bytes", "gauge", "Bytes of those messages", "channel"),
        _m("channel_last_sequence", "gauge", "Sequence of the last message", "channel"),
        _m(
            "channel_subscriptions",
            "gauge",
            "Subscriptions, offline durables among them",
            "channel",
        ),
        _m("channel_pending_messages", "gauge", "Messages sent and not acknowledged", "channel"),
        _m(
            "channel_stalled_subscriptions",
            "gauge",
            "Stalled subscriptions and queue groups",
            "channel",
        ),
        _m(
            "channel_lag_messages",
            "gauge",
            "Messages that the slowest subscription has not been sent",
            "channel",
        ),
        _m("channel_max_messages", "gauge", "The limit of messages, 0 for none", "channel"),
        _m("channel_max_bytes", "gauge", "The limit of bytes, 0 for none", "channel"),
        _m(
            "channel_max_subscriptions",
            "gauge",
            "The limit of subscriptions, 0 for none",
            "channel",
        ),
    )
}

_NSS_SERVER: Final = ("server_id",)
_NSS_CHANNEL: Final = (*_NSS_SERVER, "channel")
_NSS_SUB: Final = (
    *_NSS_CHANNEL,
    "client_id",
    "inbox",
    "queue_name",
    "durable_name",
    "is_durable",
    "is_offline",
)
#: Names of the retired exporter with its labels; its totals are gauges, which no lint accepts.
NSS_LABELS: Final = {
    "nss_server_info": ("cluster_id", "server_id", "version", "go_version", "state", "start_time"),
    "nss_server_clients": _NSS_SERVER,
    "nss_server_channels": _NSS_SERVER,
    "nss_server_subscriptions": _NSS_SERVER,
    "nss_server_msgs_total": _NSS_SERVER,
    "nss_server_bytes_total": _NSS_SERVER,
    "nss_chan_msgs_total": _NSS_CHANNEL,
    "nss_chan_bytes_total": _NSS_CHANNEL,
    "nss_chan_last_seq": _NSS_CHANNEL,
    "nss_chan_subs_last_sent": _NSS_SUB,
    "nss_chan_subs_pending_count": _NSS_SUB,
    "nss_chan_subs_max_inflight": _NSS_SUB,
}


class MetricsPage:
    """The handler, ``routes`` by path."""

    def __init__(self, views: MetricsViews, options: MonitorOptions) -> None:
        self._views = views
        self._options = options
        self.routes = {"/metrics": self._metrics}

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        figures = await self._views.figures()
        kept = max(self._options.metrics_channels, 0)
        families = list(node_families(figures, kept))
        families += PROCESS_COLLECTOR.collect()
        if self._options.metrics_nss:
            shown_channels = sorted(figures.channels)[:kept]
            subs = await self._views.channel_subs([row.name for row in shown_channels])
            families += nss_families(figures, shown_channels, subs)
        encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))
        return answer(200, encode(Scrape(families)), content_type)


class Scrape:
    """The families of one scrape, as an encoder wants them."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Family]:
        """All of them."""
        return self._families


def node_families(f: NodeFigures, kept: int) -> Iterator[Family]:
    """Every family of ``METRICS`` that has something to say.

    ``kept`` channels have series of their own.
    """
    status = f.status
    yield _samples("build_info", {(status.version, f.compatible): 1})
    yield _samples("server_info", {(status.cluster, status.server, status.group): 1})
    yield _samples("state", {(state,): state == status.state for state in NodeState})
    yield _samples("phase", {(phase,): phase == status.phase for phase in Phase})
    for name, by in (
        ("takeovers", f.takeovers),
        ("takeover_tries", f.takeover_tries),
        ("lock_attempts", f.lock_attempts),
        ("nats_reconnects", f.reconnects),
        ("nats_connected", f.connected),
        ("refused", f.refused),
    ):
        yield _samples(name, {(value,): count for value, count in by.items()})
    if f.front is not None:
        yield from _front(f.front)
    for name, histogram in (("probe_seconds", f.probes), ("commit_seconds", f.commits)):
        if histogram is not None:
            yield _histogram(name, histogram)
    for name, number in _numbers(f).items():
        if number is not None:
            yield _samples(name, {(): number})
    yield from _dead_letters(f.counters.dead_letters, kept)
    yield from _channels(sorted(f.channels), kept)


def _front(front: FrontStatus) -> Iterator[Family]:
    direct = front.connections - front.passing
    yield _samples("client_connections", {("direct",): direct, ("passed",): front.passing})
    yield _samples(
        "client_messages",
        {
            ("direct", "in"): front.direct_in,
            ("direct", "out"): front.direct_out,
            ("passed", "in"): front.passed_in,
            ("passed", "out"): front.passed_out,
        },
    )
    yield _samples("client_slow", {(): front.slow})
    yield _samples("client_tls", {(): front.encrypted})
    yield _samples("client_tls_failed", {(): front.not_shaken})


def _numbers(f: NodeFigures) -> dict[str, float | None]:
    status = f.status
    log = status.clustering
    counters = f.counters
    channels = f.channels
    return {
        "start_time_seconds": f.start_time,
        "time_seconds": f.now,
        "serving": status.serving,
        "standing_by": status.can_take_over,
        "paused": status.paused,
        "mixed": status.mixed,
        "fit": status.fit,
        # In a cluster the log decides who leads, and the epochs of a datastore are its node's own.
        "epoch": status.epoch if log is None else log.epoch * status.serving,
        "holder_epoch": status.holder_epoch if log is None else log.epoch,
        "cluster_entry": log.read if log is not None else None,
        "cluster_stored_entry": log.stored if log is not None else None,
        "cluster_copies": log.copies if log is not None and status.serving else None,
        "probe_age_seconds": status.probe_age,
        "failed_commits": f.failed_commits,
        "datastore_free_bytes": f.room.free_bytes if f.room else None,
        "datastore_size_bytes": f.room.total_bytes if f.room else None,
        "warm_lag_messages": status.warm_lag.messages if status.warm_lag else None,
        "warm_lag_seconds": status.warm_lag.seconds if status.warm_lag else None,
        "recovery_channels_done": status.recovery.channels,
        "recovery_channels_found": status.recovery.of,
        "handover_unanswered": f.unanswered,
        "clients": counters.clients,
        "channels": counters.channels,
        "max_channels": f.max_channels,
        "quarantined_channels": sum(row.quarantined for row in channels),
        "moved_channels": sum(row.moved for row in channels),
        "subscriptions": sum(row.subs for row in channels),
        "stalled_subscriptions": sum(row.stalled for row in channels),
        "pending_messages": sum(row.pending for row in channels),
        "stored_messages": sum(row.msgs for row in channels),
        "stored_bytes": sum(row.size for row in channels),
        "received_messages": counters.in_msgs,
        "received_bytes": counters.in_bytes,
        "sent_messages": counters.out_msgs,
        "sent_bytes": counters.out_bytes,
        "redelivered_messages": counters.redelivered,
        "skipped_deliveries": counters.skipped,
        "dead_letters_refused": counters.dead_letters_refused,
        "undecryptable_messages": f.undecryptable,
    }


def _dead_letters(stored: Mapping[bytes, int], kept: int) -> Iterator[Family]:
    """The dead letters of channels, the first ``kept`` of them with series of their own."""
    names = sorted(stored)
    samples: dict[tuple[str, ...], float] = {(_label(one),): stored[one] for one in names[:kept]}
    if names[kept:]:
        samples[(OTHERS,)] = sum(stored[one] for one in names[kept:])
    yield _samples("dead_letters", samples)


def _channels(rows: Sequence[CensusRow], kept: int) -> Iterator[Family]:
    own = rows[:kept]
    others = rows[kept:]
    columns = {
        "messages": ([row.msgs for row in own], sum(row.msgs for row in others)),
        "bytes": ([row.size for row in own], sum(row.size for row in others)),
        "last_sequence": ([row.last for row in own], sum(row.last for row in others)),
        "subscriptions": ([row.subs for row in own], sum(row.subs for row in others)),
        "pending_messages": ([row.pending for row in own], sum(row.pending for row in others)),
        "stalled_subscriptions": ([row.stalled for row in own], sum(row.stalled for row in others)),
        "lag_messages": ([row.lag for row in own], max((row.lag for row in others), default=0)),
    }
    names = [_label(row.name) for row in own]
    limits = {
        "max_messages": [row.limits.max_msgs for row in own],
        "max_bytes": [row.limits.max_bytes for row in own],
        "max_subscriptions": [row.limits.max_subs for row in own],
    }
    for name, each in limits.items():
        yield _samples(
            f"channel_{name}", {(label,): limit for label, limit in zip(names, each, strict=True)}
        )
    for name, (values, rest) in columns.items():
        samples: dict[tuple[str, ...], float] = {
            (label,): value for label, value in zip(names, values, strict=True)
        }
        if others:
            samples[(OTHERS,)] = rest
        yield _samples(f"channel_{name}", samples)


def nss_families(
    f: NodeFigures, channels: Sequence[CensusRow], subs: Sequence[tuple[bytes, SubRow]]
) -> Iterator[Family]:
    """The families of the retired exporter, for ``channels``."""
    status = f.status
    server = (status.server,)
    cluster = status.cluster if status.serving else ""
    info = (cluster, *server, f.compatible, f.go, status.state, f"{f.start_time:.0f}")
    yield _nss("nss_server_info", {info: 1})
    yield _nss("nss_server_clients", {server: f.counters.clients})
    yield _nss("nss_server_channels", {server: f.counters.channels})
    yield _nss("nss_server_subscriptions", {server: sum(row.subs for row in f.channels)})
    yield _nss("nss_server_msgs_total", {server: sum(row.msgs for row in f.channels)})
    yield _nss("nss_server_bytes_total", {server: sum(row.size for row in f.channels)})
    yield _nss("nss_chan_msgs_total", {(*server, _label(row.name)): row.msgs for row in channels})
    yield _nss("nss_chan_bytes_total", {(*server, _label(row.name)): row.size for row in channels})
    yield _nss("nss_chan_last_seq", {(*server, _label(row.name)): row.last for row in channels})
    labelled = {(*server, *_sub_labels(name, row)): row for name, row in subs}
    yield _nss(
        "nss_chan_subs_last_sent", {labels: row.last_sent for labels, row in labelled.items()}
    )
    yield _nss(
        "nss_chan_subs_pending_count", {labels: row.pending for labels, row in labelled.items()}
    )
    yield _nss(
        "nss_chan_subs_max_inflight",
        {labels: row.max_in_flight for labels, row in labelled.items()},
    )


def _sub_labels(channel: bytes, row: SubRow) -> tuple[str, ...]:
    flags = ("true" if flag else "false" for flag in (row.is_durable, row.is_offline))
    return (
        *(_label(name) for name in (channel, row.client_id, row.inbox, row.queue, row.durable)),
        *flags,
    )


def _label(name: bytes) -> str:
    # A label is UTF-8 whatever a client called its channel.
    return shown(name).encode("utf-8", "replace").decode()


def _samples(name: str, samples: Mapping[tuple[str, ...], float]) -> Family:
    metric = METRICS[f"ftstan_{name}"]
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples.items():
        family.add_metric(labels, float(value))
    return family


def _histogram(name: str, histogram: Histogram) -> Family:
    metric = METRICS[f"ftstan_{name}"]
    family = HistogramMetricFamily(metric.name, metric.help)
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    family.add_metric(
        [],
        [(b, float(n)) for b, n in zip(bounds, histogram.cumulative(), strict=True)],
        histogram.sum,
    )
    return family


def _nss(name: str, samples: Mapping[tuple[str, ...], float]) -> Family:
    family = GaugeMetricFamily(name, "As the exporter for NATS named it", labels=NSS_LABELS[name])
    for labels, value in samples.items():
        family.add_metric(labels, float(value))
    return family
