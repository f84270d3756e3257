"""Pages that the original does not have: health for supervisors and load balancers, dashboard.

``/streaming/ftz`` is in ``zpages.py``.

Health answers depend on nothing but memory: they come while storage hangs, because whoever asks has
to know.

Source: ``docs/monitoring.md``.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, Protocol

from ftstan.monitor.answers import Query, answer, json_answer

if TYPE_CHECKING:
    from aiohttp import web

    from ftstan.base.states import NodeStatus

_TEXT: Final = "text/plain; charset=utf-8"
#: The page loads its script and nothing else, and may ask other members for their figures.
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; img-src data:; "
    "connect-src *; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class OwnViews(Protocol):
    """What the pages show. Called on the control loop: none may wait for storage."""

    def status(self) -> NodeStatus:
        """How the node is now, from memory alone."""
        ...

    async def dashboard(self) -> dict[str, object]:
        """What the dashboard shows (``docs/monitoring.md``, figures of the dashboard)."""
        ...

    def history(self, since_ms: int) -> dict[str, object]:
        """What its plots show of the last hour: points behind ``since_ms``, Unix milliseconds."""
        ...

    async def keep_history(self) -> None:
        """Take note of what ``history`` shows, until cancelled."""
        ...


class OwnPages:
    """The handlers, ``routes`` by path."""

    def __init__(self, views: OwnViews) -> None:
        self._views = views
        self.routes = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/active": self._active,
            "/standby": self._standby,
            "/dashboard": self._dashboard,
            "/dashboard.js": self._script,
            "/dashboard/data": self._data,
            "/dashboard/history": self._history,
        }

    async def _livez(self, _request: web.Request) -> web.StreamResponse:
        # That the control loop answers is all there is to say; what it protects itself from ends
        # the process.
        return _health(self._views.status(), good=True)

    async def _readyz(self, _request: web.Request) -> web.StreamResponse:
        status = self._views.status()
        return _health(status, good=status.serving or status.can_take_over)

    async def _active(self, _request: web.Request) -> web.StreamResponse:
        status = self._views.status()
        return _health(status, good=status.serving)

    async def _standby(self, _request: web.Request) -> web.StreamResponse:
        status = self._views.status()
        return _health(status, good=status.can_take_over)

    async def _dashboard(self, _request: web.Request) -> web.StreamResponse:
        return answer(200, _file("dashboard.html"), "text/html; charset=utf-8", **_HEADERS)

    async def _script(self, _request: web.Request) -> web.StreamResponse:
        return answer(200, _file("dashboard.js"), "text/javascript; charset=utf-8", **_HEADERS)

    async def _data(self, request: web.Request) -> web.StreamResponse:
        response = json_answer(request, await self._views.dashboard())
        response.headers["Cache-Control"] = "no-store"
        return response

    async def _history(self, request: web.Request) -> web.StreamResponse:
        since_ms = Query(request).number("since", 0, least=0)
        response = json_answer(request, self._views.history(since_ms))
        response.headers["Cache-Control"] = "no-store"
        return response


@cache
def _file(name: str) -> bytes:
    return resources.files("ftstan.monitor").joinpath(name).read_bytes()


def _health(status: NodeStatus, *, good: bool) -> web.Response:
    # A load balancer must ask again each time.
    return answer(200 if good else 503, f"{status.phase}\n", _TEXT, **{"Cache-Control": "no-store"})
