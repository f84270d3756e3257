"""How the pages are written: JSON, JSONP, plain errors, in the layout and with the headers that
readers know.

``docs/compat/monitoring.md`` (requests and answers) has the rules.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import parse_qsl

from aiohttp import HttpVersion11, web

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

#: Rows that are rendered before the other tasks of the loop, and with them the data plane's thread,
#: have their turn.
_ROWS_A_TURN: Final = 32
JAVASCRIPT: Final = "application/javascript"
#: On every answer.
NOSNIFF: Final = {"X-Content-Type-Options": "nosniff"}
#: Larger bodies are sent in chunks, as readers have always seen them.
_CHUNKED_ABOVE: Final = 2048

#: Identifiers with dots between them; ASCII, because the page names no charset.
_FUNCTION: Final = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*", re.ASCII)

_quoted = json.encoder.encode_basestring
# The last range is what bytes became that are no UTF-8.
_ESCAPED = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def shown(name: bytes) -> str:
    """A name from the wire as text.

    What is no UTF-8 can be told apart and is written as the original writes it.
    """
    return name.decode("utf-8", "surrogateescape")


def write(value: object, indent: str = "") -> str:
    """``value`` (dicts, lists, strings, numbers, booleans) as JSON, two blanks a level.

    ``Written`` stays as it is.

    Keys stand in the order of the dict. ``indent``: the blanks in front of the line that the value
    begins on.
    """
    if isinstance(value, str):
        return value if isinstance(value, Written) else write_text(value)
    deeper = indent + "  "
    if isinstance(value, dict):
        rows = [f"{deeper}{write_text(key)}: {write(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}" if rows else "{}"
    if isinstance(value, list):
        rows = [deeper + write(item, deeper) for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]" if rows else "[]"
    return json.dumps(value)


class Written(str):
    """JSON already, with the indentation of the place where it will stand."""

    __slots__ = ()


def write_text(text: str) -> str:
    """A JSON string with the escapes of the original."""
    quoted: str = _quoted(text)
    return _ESCAPED.sub(_escape, quoted)


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    return "\\ufffd" if "\ud800" <= char <= "\udfff" else f"\\u{ord(char):04x}"


async def write_all(rows: Iterable[T], make: Callable[[T], object], indent: str) -> list[Written]:
    """Each row as JSON for a place with ``indent``. Long lists leave time to everybody else."""
    written = []
    for number, row in enumerate(rows, 1):
        written.append(Written(write(make(row), indent)))
        if number % _ROWS_A_TURN == 0:
            await asyncio.sleep(0)
    return written


class Query:
    """The parameters of a request; the first of several values counts."""

    def __init__(self, request: web.Request) -> None:
        self._values: dict[str, str] = {}
        # Not aiohttp's: bytes that are no UTF-8 must come back in the answer as they were.
        for name, value in parse_qsl(
            request.rel_url.raw_query_string, keep_blank_values=True, errors="surrogateescape"
        ):
            self._values.setdefault(name, value)

    def text(self, name: str) -> str:
        """The value, empty if there is none."""
        return self._values.get(name, "")

    def number(self, name: str, default: int, *, least: int) -> int:
        """An integer, or ``default`` if it is none or below ``least``."""
        value = _integer(self.text(name))
        return default if value is None or value < least else value

    @property
    def wants_subs(self) -> bool:
        """Whether subscriptions are asked for: with an integer equal to 1, whatever it looks
        like.
        """
        return _integer(self.text("subs")) == 1


_MAX = (1 << 63) - 1


def _integer(text: str) -> int | None:
    """A plain decimal with an optional sign, held to 64 bits."""
    found = re.fullmatch(r"([+-]?)0*([0-9]*)", text, re.ASCII)
    if found is None or not text.strip("+-"):
        return None
    # Python refuses to read numbers of thousands of digits.
    value = int(found[2][:20] or "0")
    return max(-value, -_MAX - 1) if found[1] == "-" else min(value, _MAX)


def callback_refusal(request: web.Request, *, guarded: bool) -> web.Response | None:
    """The answer to a request whose ``callback`` is refused, ``None`` for every other request.

    A script of another site that loads a page as JSONP has the login that the browser keeps for it:
    ``guarded`` pages, which ask for one, are never written so. Names are those of JavaScript
    functions, because the page is run as it is.
    """
    callback = Query(request).text("callback")
    if not callback:
        return None
    if guarded:
        return error_answer(
            403,
            "403 forbidden: no callback is taken where the pages ask for a token or a certificate",
        )
    if _FUNCTION.fullmatch(callback) is None:
        return error_answer(400, "400 bad request: callback is no name of a JavaScript function")
    return None


def json_answer(request: web.Request, values: Mapping[str, object]) -> web.Response:
    """A JSON page, or JSONP if a ``callback`` is given."""
    body = write(dict(values))
    callback = Query(request).text("callback")
    if callback:
        # JSONP has no CORS header: it exists for pages that cannot use one.
        return answer(200, f"{callback}({body})", JAVASCRIPT)
    return answer(200, body, "application/json", **{"Access-Control-Allow-Origin": "*"})


def error_answer(status: int, text: str) -> web.Response:
    """An error page."""
    return answer(status, f"{text}\n", "text/plain; charset=utf-8")


def answer(status: int, body: str | bytes, content_type: str, **headers: str) -> web.Response:
    """Any page."""
    # As a header and bytes: given as arguments, aiohttp adds a charset of its own to the type.
    data = body if isinstance(body, bytes) else body.encode("utf-8", "surrogateescape")
    return web.Response(status=status, body=data, headers={"Content-Type": content_type, **headers})


def sent_in_chunks(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """The same page, a large one in chunks; HTTP/1.0 knows none."""
    body = response.body if isinstance(response, web.Response) else None
    if isinstance(body, bytes) and len(body) > _CHUNKED_ABOVE and request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    return response


async def not_found(_request: web.Request) -> web.StreamResponse:
    """The page for every path that is none."""
    return error_answer(404, "404 page not found")
