"""Some channels of a store that opens each of them when it is first needed.

A key that is wrong for all of them must not look right until somebody reads, and a missing one not
like none that is needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import StoreError

if TYPE_CHECKING:
    from ftstan.stores.interface import Recovered, Store

#: Channels that are opened.
_SAMPLED: Final = 8


def with_some_opened(store: Store, recovered: Recovered) -> Recovered:
    """What ``store`` has recovered, and some of the channels that it has left for later."""
    later = list(recovered.later)
    for name in recovered.later[:_SAMPLED]:
        try:
            opened = store.open_channel(name)
        except StoreError:
            # Whoever asks for it will be told, and nobody else has to wait.
            continue
        later.remove(name)
        recovered = replace(
            recovered,
            channels=[*recovered.channels, *opened.channels],
            refused=recovered.refused | opened.refused,
            remembered=recovered.remembered | opened.remembered,
        )
    return replace(recovered, later=later)
