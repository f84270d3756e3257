"""The pages of the NATS server on the monitoring port, as if both halves were still one process.

A child answers on a private loopback port; its answers are passed on as they are, but for what
would name that port. Without a child (``-ns``) the pages are those of a NATS server that nobody
uses, as the original shows them.

Source: ``docs/compat/monitoring.md`` (pages of the NATS server).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, Protocol

import aiohttp
from aiohttp import web
from yarl import URL

from ftstan.monitor.answers import JAVASCRIPT, Query, answer, error_answer, json_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.nats.embedded import NatsServerChild

PATHS: Final = (
    "/",
    "/varz",
    "/connz",
    "/routez",
    "/gatewayz",
    "/leafz",
    "/subsz",
    "/subscriptionsz",
    "/accountz",
    "/accstatz",
    "/jsz",
    "/healthz",
    "/ipqueuesz",
    "/stacksz",
)
_WITHIN_S: Final = 10.0
#: What NATS servers do not know of, in the looks of their own links and before the first of them.
_OWN_LINKS: Final = b"".join(
    b'<a href="/%s">%s<span class="endpoint"> /%s</span></a>\n\t' % (path, text, path)
    for path, text in (
        (b"dashboard", b"Dashboard"),
        (b"streaming", b"Streaming"),
        (b"metrics", b"Metrics"),
    )
)
_FIRST_LINK: Final = re.compile(rb"<a href=[\"']?\.?/varz|</body>")
_PASSED_ON: Final = ("Access-Control-Allow-Origin",)
_VARZ = re.compile(
    rb'^(  "(http_host|http_port|https_port|http_base_path)": )[^,\n]*', re.MULTILINE
)
#: Its total, and the part of it that clients are.
_SLOW = re.compile(
    rb'^(  "slow_consumers": |  "slow_consumer_stats": \{\s*"clients": )(\d+)', re.MULTILINE
)


class NatsViews(Protocol):
    """What is known without a child. Called on the control loop."""

    def idle_nats(self) -> Mapping[str, Mapping[str, object]]:
        """The pages by path, see ``idle_pages``."""
        ...

    def slow_clients(self) -> int:
        """Clients that the listener in front of the child has ended because they did not read."""
        ...


class Passthrough:
    """Handlers for ``PATHS``.

    ``where`` takes the place of what a child says of its own HTTP listener.
    """

    def __init__(
        self, views: NatsViews, where: Mapping[str, object], child: NatsServerChild | None
    ) -> None:
        self._views = views
        self._child = child
        self._where = {key.encode(): json.dumps(value).encode() for key, value in where.items()}
        self._session: aiohttp.ClientSession | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one of the paths; ``request.match_info["page"]`` is its name."""
        page = request.match_info.get("page", "")
        if self._child is None:
            idle = self._views.idle_nats()
            if not page:
                return answer(200, _index(idle), "text/html; charset=utf-8")
            values = idle.get(f"/{page}")
            return (
                error_answer(404, "404 page not found")
                if values is None
                else json_answer(request, values)
            )
        port = self._child.monitor_port
        query = request.rel_url.raw_query_string
        url = f"http://127.0.0.1:{port}/{page}" + (f"?{query}" if query else "")
        try:
            return await self._pass_on(url, page, Query(request).text("callback"))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return error_answer(
                503, "the embedded nats-server does not answer now: it is being started again"
            )

    async def close(self) -> None:
        """Let go of the connections to the child."""
        if self._session is not None:
            session = self._session
            self._session = None
            await session.close()

    async def _pass_on(self, url: str, page: str, callback: str) -> web.StreamResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_WITHIN_S), auto_decompress=False
            )
        async with self._session.get(
            URL(url, encoded=True),
            allow_redirects=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
        ) as theirs:
            body = await theirs.read()
            if not page:
                body = _FIRST_LINK.sub(lambda found: _OWN_LINKS + found[0], body, count=1)
            if page == "varz":
                body = _VARZ.sub(lambda found: found[1] + self._where.get(found[2], b'""'), body)
                if slow := self._views.slow_clients():
                    # Whom the listener has ended the child counts as gone, and no more.
                    body = _SLOW.sub(lambda found: b"%b%d" % (found[1], int(found[2]) + slow), body)
            content_type = theirs.headers.get("Content-Type", "text/plain")
            if (
                callback
                and theirs.status == 200
                and content_type == "application/json"
                and body[:1] in b"{["
            ):
                # NATS servers of today have forgotten JSONP.
                return answer(
                    200,
                    callback.encode("utf-8", "surrogateescape") + b"(" + body + b")",
                    JAVASCRIPT,
                )
            headers = {name: theirs.headers[name] for name in _PASSED_ON if name in theirs.headers}
            return answer(theirs.status, body, content_type, **headers)


def _index(pages: Mapping[str, object]) -> str:
    links = "\n".join(
        f'<a href="{path}">{path.removeprefix(".")[1:]}</a><br/>'
        for path in ("/dashboard", "/streaming", "/metrics", *(f".{path}" for path in pages))
    )
    return (
        '<html lang="en">\n<head><title>NATS '
        f"server</title></head>\n<body>\n{links}\n</body>\n</html>"
    )


def idle_pages(
    server_id: str, *, version: str, now: str, start: str, uptime: str, host: str, port: int
) -> dict[str, dict[str, object]]:
    """The pages of a NATS server that has never had a connection.

    Times as ``format_time`` writes them.
    """
    head: dict[str, object] = {"server_id": server_id, "now": now}
    return {
        "/varz": {
            "server_id": server_id,
            "server_name": server_id,
            "version": version,
            "proto": 1,
            "host": host,
            "port": port,
            "max_connections": 65536,
            "ping_interval": 120_000_000_000,
            "ping_max": 2,
            "auth_timeout": 2,
            "max_control_line": 4096,
            "max_payload": 1_048_576,
            "max_pending": 67_108_864,
            "cluster": {},
            "gateway": {},
            "leaf": {},
            "jetstream": {},
            "tls_timeout": 2,
            "write_deadline": 10_000_000_000,
            "start": start,
            "now": now,
            "uptime": uptime,
            "connections": 0,
            "total_connections": 0,
            "routes": 0,
            "remotes": 0,
            "leafnodes": 0,
            "in_msgs": 0,
            "out_msgs": 0,
            "in_bytes": 0,
            "out_bytes": 0,
            "slow_consumers": 0,
            "subscriptions": 0,
        },
        "/connz": head
        | {"num_connections": 0, "total": 0, "offset": 0, "limit": 1024, "connections": []},
        "/routez": head | {"num_routes": 0, "routes": []},
        "/gatewayz": head | {"outbound_gateways": {}, "inbound_gateways": {}},
        "/leafz": head | {"leafnodes": 0, "leafs": []},
        "/subsz": dict.fromkeys(
            (
                "num_subscriptions",
                "num_cache",
                "num_inserts",
                "num_removes",
                "num_matches",
                "cache_hit_rate",
                "max_fanout",
                "avg_fanout",
            ),
            0,
        ),
        "/healthz": {"status": "ok"},
    }
