"""Which kinds of stores there are: those that installed packages register in the entry-point group ``ftstan.stores``.

The name of an entry point is what operators write after ``-store``, in any case; what it names is called with a
``StoreContext`` and gives a ``StoreAccess`` (``docs/store-interface.md``). Our own kinds are registered the same way. A
kind's code is imported only when it is asked for.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, cast

from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from ftstan.stores.interface import StoreKind

GROUP = "ftstan.stores"


def names() -> list[str]:
    """Names of the kinds that can be asked for, upper case, sorted."""
    return sorted(_registered())


def load(name: str) -> StoreKind:
    """The kind of that name. Raises ``ConfigError`` if there is none, or if its package cannot be imported."""
    found = _registered().get(name.upper())
    if found is None:
        raise ConfigError(
            f"unsupported store type: {name}", hint="use " + " or ".join(f"-store {n.lower()}" for n in names())
        )
    try:
        return cast("StoreKind", found.load())
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"store type {name}: {found.value} cannot be loaded: {error}",
            hint="reinstall the package that provides it, with what it needs",
        ) from error


def _registered() -> dict[str, EntryPoint]:
    return {point.name.upper(): point for point in entry_points(group=GROUP)}
