"""Which kinds of stores there are: our own, and those that installed packages register in the
entry-point group ``ftstan.stores``.

The name of an entry point is what operators write after ``-store``, in any case; what it names is
called with a ``StoreContext`` and gives a ``StoreAccess`` (``docs/store-interface.md``). A kind's
code is imported only when it is asked for, and what is installed is looked through only for a kind
that is not our own: a start on one of ours does not wait for that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ftstan.stores.interface import StoreKind

GROUP = "ftstan.stores"

#: Module and name of each kind of ours.
OURS = {
    "FILE": ("ftstan.ft.access", "FileAccess"),
    "MEMORY": ("ftstan.stores.memory", "MemoryAccess"),
    "SQL": ("ftstan.ft.sqlaccess", "SqlAccess"),
}


def names(wanted: str = "") -> list[str]:
    """Names of the kinds that can be asked for, upper case, sorted.

    Only ours where ``wanted`` is one of them: nobody has to look for others then.
    """
    return sorted(OURS) if wanted in OURS else sorted({*OURS, *_registered()})


def load(name: str) -> StoreKind:
    """The kind of that name.

    Raises ``ConfigError`` if there is none, or if its package cannot be imported.
    """
    if ours := OURS.get(name.upper()):
        module, kind = ours
        return cast("StoreKind", getattr(importlib.import_module(module), kind))
    found = _registered().get(name.upper())
    if found is None:
        raise ConfigError(
            f"unsupported store type: {name}",
            hint="use " + " or ".join(f"-store {n.lower()}" for n in names()),
        )
    try:
        return cast("StoreKind", found.load())
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"store type {name}: {found.value} cannot be loaded: {error}",
            hint="reinstall the package that provides it, with what it needs",
        ) from error


def _registered() -> dict[str, EntryPoint]:
    # Late: it reads the metadata of every installed package, with the parsers of e-mail.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return {point.name.upper(): point for point in entry_points(group=GROUP)}
