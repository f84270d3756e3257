"""The pages below ``/streaming``: serverz, storez, clientsz, channelsz, isFTActive and their index
as the original has them, and our ftz.

Keys, order, omissions and paging are those of ``docs/compat/monitoring.md``. What is shown comes as
rows from ``node/pages.py``; here they become text, a few at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from ftstan.base.errors import FtstanError
from ftstan.monitor.answers import (
    Query,
    Written,
    answer,
    error_answer,
    json_answer,
    shown,
    write,
    write_all,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web
    from aiohttp.typedefs import Handler

    from ftstan.broker.views import ChannelRow, ClientRow, SubRow
    from ftstan.config.options import ChannelLimits, StoreLimits

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
    # Ours, behind those of the original: of members of a group, and until a server serves; and
    # where clients connect to our listener.
    "ft_phase",
    "recovering",
    "direct_road",
)
#: Keys that are left out when their value is empty or 0.
_OMITTED_WHEN_EMPTY = frozenset(
    {"role", "node_id", "open_fds", "max_fds", "ft_phase", "recovering", "direct_road"}
)

DEFAULT_LIMIT: Final = 1024
_RETRY_AFTER_S: Final = "1"
_SECOND: Final = 1_000_000_000
_YEAR: Final = 365 * 86_400


@dataclass(frozen=True, slots=True)
class Heading:
    """What most pages begin with. ``now``: see ``format_time``."""

    cluster_id: str
    server_id: str
    now: str

    def fields(self) -> dict[str, object]:
        """As they stand in a page."""
        return {"cluster_id": self.cluster_id, "server_id": self.server_id, "now": self.now}


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store. ``kind`` is upper case.

    ``limits`` are what counts, or what was written while there is no store yet.
    """

    kind: str
    limits: StoreLimits
    msgs: int
    size: int


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a sorted list: ``total`` is the length of all of it."""

    total: int
    names: list[bytes]


class StreamingViews(Protocol):
    """What the pages show. Called on the control loop: none may wait for storage."""

    def heading(self) -> Heading:
        """Who answers, and when."""
        ...

    async def serverz(self) -> dict[str, object]:
        """Values for ``SERVERZ_KEYS``, in any order; see ``format_time`` and ``format_uptime``."""
        ...

    async def recovered(self) -> str:
        """Empty when the store can be looked at, or there is none yet to look at (a standby).

        Else what the server does, after a wait of a moment for the end of its recovery.
        """
        ...

    async def store(self) -> StoreView:
        """The store. Raises ``FtstanError``."""
        ...

    async def clients(self, offset: int, limit: int) -> Page:
        """Some of the ids of all clients, sorted bytewise."""
        ...

    async def client_rows(self, names: Sequence[bytes]) -> list[ClientRow]:
        """These clients, in this order, without those that are gone."""
        ...

    async def channels(self, offset: int, limit: int) -> Page:
        """Some of the names of all channels, sorted bytewise."""
        ...

    async def channel_rows(self, names: Sequence[bytes], *, subs: bool) -> list[ChannelRow]:
        """These channels, in this order, without those that are gone.

        Raises ``FtstanError`` for a channel that exists and cannot be shown.
        """
        ...

    async def sub_rows(self, row: ChannelRow | ClientRow) -> list[tuple[bytes, SubRow]]:
        """The subscriptions of a row, each with the name of its channel."""
        ...

    def is_ft_active(self) -> bool:
        """Whether this node is the active member of a fault-tolerant group."""
        ...

    async def ftz(self) -> dict[str, object]:
        """What the node says of itself as a member of its group."""
        ...


class StreamingPages:
    """The handlers, ``routes`` by path."""

    def __init__(self, views: StreamingViews) -> None:
        self._views = views
        self.routes = {
            "/streaming": self._index,
            "/streaming/serverz": self._serverz,
            "/streaming/storez": self._when_recovered(self._storez),
            "/streaming/clientsz": self._when_recovered(self._clientsz),
            "/streaming/channelsz": self._when_recovered(self._channelsz),
            "/streaming/isFTActive": self._is_ft_active,
            "/streaming/ftz": self._ftz,
        }

    def _when_recovered(self, page: Handler) -> Handler:
        """The page, which must not deny what is still being read."""

        async def handle(request: web.Request) -> web.StreamResponse:
            doing = await self._views.recovered()
            if doing:
                refusal = error_answer(503, f"This server does not serve yet: {doing}")
                refusal.headers["Retry-After"] = _RETRY_AFTER_S
                return refusal
            return await page(request)

        return handle

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return answer(200, INDEX, "text/html; charset=utf-8")

    async def _ftz(self, request: web.Request) -> web.StreamResponse:
        return json_answer(request, await self._views.ftz())

    async def _serverz(self, request: web.Request) -> web.StreamResponse:
        try:
            values = await self._views.serverz()
        except FtstanError as error:
            return _no_state(error)
        return json_answer(
            request,
            {
                k: values[k]
                for k in SERVERZ_KEYS
                if k in values and (values[k] or k not in _OMITTED_WHEN_EMPTY)
            },
        )

    async def _storez(self, request: web.Request) -> web.StreamResponse:
        try:
            store = await self._views.store()
        except FtstanError as error:
            return _no_state(error)
        values = self._views.heading().fields()
        values |= {
            "type": store.kind,
            "limits": _limits(store.limits),
            "total_msgs": store.msgs,
            "total_bytes": store.size,
        }
        return json_answer(request, values)

    # ---- clients
    # ----------------------------------------------------------------------------------------------

    async def _clientsz(self, request: web.Request) -> web.StreamResponse:
        query = Query(request)
        client_id = query.text("client")
        if client_id:
            rows = await self._views.client_rows([client_id.encode("utf-8", "surrogateescape")])
            if not rows:
                return error_answer(404, f"Client {client_id} not found")
            return json_answer(request, await self._client(rows[0], "", subs=query.wants_subs))
        offset, limit = _slice(query)
        page = await self._views.clients(offset, limit)
        rows = await self._views.client_rows(page.names)
        indent = " " * 4
        if query.wants_subs:
            clients = [
                Written(write(await self._client(row, indent, subs=True), indent)) for row in rows
            ]
        else:
            clients = await write_all(rows, _client_fields, indent)
        return json_answer(
            request, self._listing(offset, limit, len(rows), page.total) | {"clients": clients}
        )

    async def _client(self, row: ClientRow, indent: str, *, subs: bool) -> dict[str, object]:
        values = _client_fields(row)
        if subs and row.subs:
            deep = indent + " " * 6
            listed = await self._views.sub_rows(row)
            written = await write_all([sub for _, sub in listed], _sub_fields, deep)
            by_channel: dict[bytes, list[Written]] = {}
            for (name, _), text in zip(listed, written, strict=True):
                by_channel.setdefault(name, []).append(text)
            values["subscriptions"] = {shown(name): by_channel[name] for name in sorted(by_channel)}
        return values

    # ---- channels
    # ----------------------------------------------------------------------------------------------

    async def _channelsz(self, request: web.Request) -> web.StreamResponse:
        query = Query(request)
        name = query.text("channel")
        subs = query.wants_subs
        try:
            if name:
                rows = await self._views.channel_rows(
                    [name.encode("utf-8", "surrogateescape")], subs=subs
                )
                if not rows:
                    return error_answer(404, f"Channel {name} not found")
                return json_answer(request, await self._channel(rows[0], ""))
            offset, limit = _slice(query)
            page = await self._views.channels(offset, limit)
            rows = await self._views.channel_rows(page.names, subs=True) if subs else []
        except FtstanError as error:
            return error_answer(500, f'Error getting information about channel "{name}": {error}')
        count = len(rows) if subs else len(page.names)
        values = self._listing(offset, limit, count, page.total)
        if rows:
            indent = " " * 4
            values["channels"] = [
                Written(write(await self._channel(row, indent), indent)) for row in rows
            ]
        elif page.names and not subs:
            values["names"] = [shown(name) for name in page.names]
        return json_answer(request, values)

    async def _channel(self, row: ChannelRow, indent: str) -> dict[str, object]:
        values: dict[str, object] = {
            "name": shown(row.name),
            "msgs": row.msgs,
            "bytes": row.size,
            "first_seq": row.first,
            "last_seq": row.last,
            "subs_count": row.stored_subs,
        }
        if row.subs:
            listed = await self._views.sub_rows(row)
            values["subscriptions"] = await write_all(
                [sub for _, sub in listed], _sub_fields, indent + " " * 4
            )
        return values

    def _listing(self, offset: int, limit: int, count: int, total: int) -> dict[str, object]:
        numbers = {"offset": offset, "limit": limit, "count": count, "total": total}
        return self._views.heading().fields() | numbers

    async def _is_ft_active(self, _request: web.Request) -> web.StreamResponse:
        return answer(200 if self._views.is_ft_active() else 204, b"", "text/plain")


def _client_fields(row: ClientRow) -> dict[str, object]:
    return {
        "id": shown(row.client_id),
        "hb_inbox": shown(row.hb_inbox),
        "subs_count": len(row.subs),
    }


def _sub_fields(row: SubRow) -> dict[str, object]:
    values: dict[str, object] = {
        "client_id": shown(row.client_id),
        "inbox": shown(row.inbox),
        "ack_inbox": shown(row.ack_inbox),
    }
    if row.durable:
        values["durable_name"] = shown(row.durable)
    if row.queue:
        values["queue_name"] = shown(row.queue)
    return values | {
        "is_durable": row.is_durable,
        "is_offline": row.is_offline,
        "max_inflight": row.max_in_flight,
        "ack_wait": row.ack_wait // _SECOND,
        "last_sent": row.last_sent,
        "pending_count": row.pending,
        "is_stalled": row.stalled,
    }


def _limits(limits: StoreLimits) -> dict[str, object]:
    values: dict[str, object] = {
        "max_channels": limits.max_channels,
        **_channel_limits(limits.channel),
    }
    if limits.channels:
        values["channels"] = {
            name: _channel_limits(own)
            for name, own in sorted(limits.channels, key=lambda item: item[0].encode())
        }
    return values


def _channel_limits(limits: ChannelLimits) -> dict[str, object]:
    return {
        "max_msgs": limits.max_msgs,
        "max_bytes": limits.max_bytes,
        "max_age": limits.max_age,
        "max_subscriptions": limits.max_subs,
        "max_inactivity": limits.max_inactivity,
    }


def _slice(query: Query) -> tuple[int, int]:
    return query.number("offset", 0, least=0), query.number("limit", DEFAULT_LIMIT, least=1)


def _no_state(error: FtstanError) -> web.StreamResponse:
    return error_answer(500, f"Error getting information about channels state: {error}")


def format_time(wall_ns: int) -> str:
    """RFC 3339 in the process's time zone, nanoseconds without trailing zeros:
    ``2026-11-20T09:24:04.262261069Z``.
    """
    seconds, nanos = divmod(wall_ns, _SECOND)
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


#: The links of the original, and ours behind them; without its pictures, which come from somewhere
#: else.
INDEX: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Streaming server</title>
<style>
:root { color-scheme: light dark }
body { font: 1rem/1.6 system-ui, sans-serif; margin: 2rem auto; max-width: 40rem; padding: 0 1rem }
</style>
</head>
<body>
<h1>Streaming server</h1>
<ul>
<li><a href="./streaming/serverz">server</a></li>
<li><a href="./streaming/storez">store</a></li>
<li><a href="./streaming/clientsz">clients</a></li>
<li><a href="./streaming/channelsz">channels</a></li>
<li><a href="./dashboard">dashboard</a></li>
<li><a href="./metrics">metrics</a></li>
<li><a href="https://docs.nats.io/legacy/stan/intro/monitoring/">help</a></li>
</ul>
</body>
</html>"""
