"""HTML reports from one set of templates: each a page that needs nothing else to be read.

No script, no font, no picture from anywhere. Templates decide nothing; whatever comes from data is
escaped by Jinja2, which is loaded when a report is written.
"""

from __future__ import annotations

import datetime as dt
import math
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Rows that a table shows of what may be any number; other reports have all.
MOST_ROWS = 500


def render(template: str, **values: object) -> str:
    """The page that a template of this directory makes of ``values``."""
    import jinja2  # noqa: PLC0415  only where a report is written

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": _cell, "rows": _rows, "clock": clock}
    environment.globals["most"] = MOST_ROWS
    return environment.get_template(template).render(values)


def _rows(items: Iterable[object], *names: str) -> list[tuple[object, ...]]:
    """These attributes, two or more, of each item."""
    return list(map(attrgetter(*names), items))


def _cell(value: object) -> str:
    """A value as a table shows it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if math.isfinite(value) else "-"
        case tuple():
            return ", ".join(map(_cell, value))
    return str(value)


def clock(t: int) -> str:
    """Microseconds since 1970 as a UTC time; the number itself where there is no such date."""
    try:
        at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=t)
    except OverflowError:
        return f"{t} us"
    return at.strftime("%Y-%m-%d %H:%M:%S")
