"""Makes ``packaging/files/usr/share/ftstan/grafana.json``, a dashboard for Grafana over our
metrics: ``python -m tools.grafana``.

Made and not drawn, so that a metric which is renamed is renamed here too;
``tests/unit/monitor/test_grafana.py`` holds the file to the names that ``/metrics`` has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[1] / "packaging/files/usr/share/ftstan/grafana.json"
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_OURS: Final = 'instance=~"$instance"'
_WIDTH: Final = 12
_HEIGHT: Final = 7
_COMMITS: Final = "rate(ftstan_commit_seconds_bucket{@}[$__rate_interval])"

#: Title, unit of Grafana, and queries with their legends. ``@`` stands for the selected instances.
PANELS: Final = (
    ("Members that serve", "short", (("sum(ftstan_serving{@})", "serve"),)),
    ("Members that stand by", "short", (("sum(ftstan_standing_by{@})", "stand by"),)),
    (
        "Stored messages a second",
        "short",
        (("rate(ftstan_received_messages_total{@}[$__rate_interval])", "{{instance}}"),),
    ),
    (
        "Delivered messages a second",
        "short",
        (
            ("rate(ftstan_sent_messages_total{@}[$__rate_interval])", "{{instance}}"),
            (
                "rate(ftstan_redelivered_messages_total{@}[$__rate_interval])",
                "{{instance}}, again",
            ),
        ),
    ),
    (
        "Readers behind, by channel",
        "short",
        (("topk(10, ftstan_channel_lag_messages{@})", "{{channel}}"),),
    ),
    (
        "Stalled subscriptions",
        "short",
        (("ftstan_stalled_subscriptions{@}", "{{instance}}"),),
    ),
    (
        "Commit to storage",
        "s",
        (
            (
                f"histogram_quantile(0.99, sum by (le, instance) ({_COMMITS}))",
                "{{instance}}, 99 of 100",
            ),
        ),
    ),
    (
        "Answer of storage to a probe",
        "s",
        (("ftstan_probe_age_seconds{@}", "{{instance}}"),),
    ),
    (
        "Free in the datastore",
        "bytes",
        (("ftstan_datastore_free_bytes{@}", "{{instance}}"),),
    ),
    ("Standby behind", "short", (("ftstan_warm_lag_messages{@}", "{{instance}}"),)),
    (
        "Takeovers",
        "short",
        (("increase(ftstan_takeovers_total{@}[1h])", "{{instance}}, {{cause}}"),),
    ),
    (
        "Refused requests a second",
        "short",
        (("rate(ftstan_refused_total{@}[$__rate_interval])", "{{kind}}"),),
    ),
    ("Clients", "short", (("ftstan_clients{@}", "{{instance}}"),)),
    ("Channels out of service", "short", (("ftstan_quarantined_channels{@}", "{{instance}}"),)),
    ("Channels that have moved", "short", (("ftstan_moved_channels{@}", "{{instance}}"),)),
    # These come by node_exporter, whose instance is another one.
    (
        "Streams behind their channels (bridge)",
        "short",
        (("ftstan_bridge_lag_messages", "{{channel}}"),),
    ),
    (
        "Messages that wait for the channel (bridge)",
        "short",
        (("ftstan_bridge_back_waiting_messages", "{{channel}}"),),
    ),
)


def dashboard() -> dict[str, Any]:
    """The whole of it, as Grafana imports it."""
    return {
        "title": "ftstan",
        "uid": "ftstan",
        "tags": ["ftstan"],
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource",
                 "query": "prometheus"},
                {"name": "instance", "label": "Member", "type": "query", "datasource": _SOURCE,
                 "query": "label_values(ftstan_server_info, instance)", "refresh": 2,
                 "multi": True, "includeAll": True, "current": {"text": "All", "value": "$__all"}},
            ]
        },
        "panels": [_panel(number, *panel) for number, panel in enumerate(PANELS)],
    }  # fmt: skip


def _panel(
    number: int, title: str, unit: str, queries: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % 2 * _WIDTH,
            "y": number // 2 * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": expression.replace("@", _OURS),
                "legendFormat": legend,
            }
            for at, (expression, legend) in enumerate(queries)
        ],
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
