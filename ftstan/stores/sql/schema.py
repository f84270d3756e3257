"""The scripts that make the tables: the original's, and ours beside them.

Source: ``docs/compat/sqlstore.md`` (tables).
"""

from __future__ import annotations

import re
from importlib import resources

from ftstan.stores.sql import tables


def script(driver: str) -> str:
    """The whole script for ``postgres`` or ``mysql``; running it again changes nothing."""
    place = resources.files("ftstan.stores.sql") / "scripts" / f"{driver}.sql"
    ours = "".join(f"{statement};\n" for statement in tables.CREATE[driver])
    return f"{place.read_text('utf-8')}\n-- ftstan's own, which the original does not read.\n{ours}"


def statements(driver: str) -> list[str]:
    """The statements of ``script`` one by one, without comments."""
    bare = re.sub(r"^--.*$", "", script(driver), flags=re.MULTILINE)
    return [one.strip() for one in bare.split(";") if one.strip()]
