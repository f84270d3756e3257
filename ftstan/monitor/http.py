"""The monitoring pages: what a running server says about itself, over HTTP, in the original's layout.

Views only: nothing here changes a server, waits for storage or looks at the method of a request. Answers come from
``Views``, which must be ready at any time, recovery and standby included.

Source: ``docs/compat/monitoring.md``.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from ftstan.errors import FtstanError, NatsError
from ftstan.log import errno_text

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Keys of ``/streaming/serverz`` in the order in which they are sent.
SERVERZ_KEYS = (
    "cluster_id",
    "server_id",
    "version",
    "go",
    "state",
    "role",
    "node_id",
    "now",
    "start_time",
    "uptime",
    "clients",
    "subscriptions",
    "channels",
    "total_msgs",
    "total_bytes",
    "in_msgs",
    "in_bytes",
    "out_msgs",
    "out_bytes",
    "open_fds",
    "max_fds",
    # Ours, behind those of the original, and for members of a group only.
    "ft_phase",
)
#: Keys that are left out when their value is empty or 0.
_OMITTED_WHEN_EMPTY = frozenset({"role", "node_id", "open_fds", "max_fds", "ft_phase"})

_YEAR = 365 * 86_400


class Views(Protocol):
    """What the pages show. Called on the control loop: none may wait for storage."""

    async def serverz(self) -> dict[str, object]:
        """Values for ``SERVERZ_KEYS``, in any order; see ``format_time`` and ``format_uptime``."""
        ...

    async def ftz(self) -> dict[str, object]:
        """What the node says of itself as a member, for ``/streaming/ftz``."""
        ...

    def is_ft_active(self) -> bool:
        """Whether this node is the active member of a fault-tolerant group."""
        ...


class Monitor:
    """The HTTP listener. Lives on the control loop, from before recovery until the end of the process."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (port -1: any free one) and return the port.

        Raises ``NatsError`` in the original's words when the address is taken or cannot be used.
        """
        app = web.Application()
        app.router.add_route("*", "/streaming/serverz", self._serverz)
        app.router.add_route("*", "/streaming/ftz", self._ftz)
        app.router.add_route("*", "/streaming/isFTActive", self._is_ft_active)
        app.router.add_route("*", "/{path:.*}", _not_found)
        app.on_response_prepare.append(_trim_headers)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, max(port, 0)).start()
        except (OSError, OverflowError) as error:
            await runner.cleanup()
            raise NatsError(
                f"Can't start monitoring: can't listen to the monitor port: {_listen_error(host, port, error)}",
                hint="stop what uses the port (ss -ltnp shows it), or choose another with -m",
            ) from error
        self._runner = runner
        bound: int = runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Close the listener; does nothing when it is not open."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _serverz(self, request: web.Request) -> web.Response:
        try:
            values = await self._views.serverz()
        except FtstanError as error:
            return _error(500, f"Error getting information about channels state: {error}")
        return _json(
            request,
            {k: values[k] for k in SERVERZ_KEYS if k in values and (values[k] or k not in _OMITTED_WHEN_EMPTY)},
        )

    async def _ftz(self, request: web.Request) -> web.Response:
        # A page of ours: the original has none of that name.
        return _json(request, await self._views.ftz())

    async def _is_ft_active(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self._views.is_ft_active() else 204)


def format_time(wall_ns: int) -> str:
    """RFC 3339 in the process's time zone, nanoseconds without trailing zeros: ``2026-11-20T09:24:04.262261069Z``."""
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    local = datetime.fromtimestamp(seconds).astimezone()
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    zone = f"{local:%z}"
    zone = "Z" if zone == "+0000" else f"{zone[:3]}:{zone[3:5]}"
    return f"{local:%Y-%m-%dT%H:%M:%S}{fraction}{zone}"


def format_uptime(seconds: float) -> str:
    """Whole seconds as ``1y2d3h4m5s``, leading zero units dropped; a year is 365 days."""
    years, rest = divmod(int(seconds), _YEAR)
    days, rest = divmod(rest, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    units = ((years, "y"), (days, "d"), (hours, "h"), (minutes, "m"), (secs, "s"))
    first = next((i for i, (value, _) in enumerate(units) if value), len(units) - 1)
    return "".join(f"{value}{unit}" for value, unit in units[first:])


def _json(request: web.Request, values: Mapping[str, object]) -> web.Response:
    body = json.dumps(values, indent=2, ensure_ascii=False)
    # These can only stand inside strings; readers of the original see them escaped.
    for char in "<>&\u2028\u2029":
        body = body.replace(char, f"\\u{ord(char):04x}")
    callback = request.query.get("callback", "")
    if callback:
        # JSONP has no CORS header: it exists for pages that cannot use one.
        return _response(200, f"{callback}({body})", "application/javascript")
    return _response(200, body, "application/json", **{"Access-Control-Allow-Origin": "*"})


def _error(status: int, text: str) -> web.Response:
    return _response(status, f"{text}\n", "text/plain; charset=utf-8", **{"X-Content-Type-Options": "nosniff"})


async def _not_found(_request: web.Request) -> web.Response:
    return _error(404, "404 page not found")


def _response(status: int, body: str, content_type: str, **headers: str) -> web.Response:
    # As a header and bytes: given as arguments, aiohttp adds a charset of its own to the type.
    data = body.encode("utf-8", "surrogateescape")
    return web.Response(status=status, body=data, headers={"Content-Type": content_type, **headers})


async def _trim_headers(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Take out what aiohttp adds and the original does not send."""
    response.headers.popall("Server", None)
    if isinstance(response, web.Response) and not response.body:
        response.headers.popall("Content-Type", None)


def _listen_error(host: str, port: int, error: OSError | OverflowError) -> str:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(error, OverflowError):
        return f"listen tcp: address {port}: invalid port"
    return f"listen tcp {address}: bind: {errno_text(error)}"
