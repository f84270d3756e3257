"""Mixed histories of every variant, and how often each fault and path of the store was met in them.

``run`` is one round: kills anywhere, faults in most histories, the same for the same seed.
``REQUIRED`` names what a fair number of rounds must have met at least once; a name that stays at
zero means that the histories prove nothing about it. Run as a module (``make soak-store``) it goes
on until it is stopped, and ends with what it found.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

from ftstan.base import log
from ftstan.stores.file import deletion
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.log import exact, purge_mark, purging
from ftstan.stores.file.log.retention import RetainedSlices
from ftstan.stores.file.log.slices import SliceLog
from ftstan.stores.file.recovery import judging
from ftstan.stores.file.state import checkpoint, state_recovery
from ftstan.stores.file.state.clients import Clients
from ftstan.stores.file.state.statefile import StateFile
from tests.sim.history import Fault, run_history
from tests.sim.model import Violation
from tests.sim.variants import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: What is counted when the store comes by: (where, name, what the table calls it).
_PATHS: tuple[tuple[Any, str, str], ...] = (
    (SliceLog, "_open_slice", "path: slice opened"),
    (SliceLog, "_roll", "path: slice rolled"),
    (SliceLog, "copy_tail", "path: tail copied"),
    (SliceLog, "fail", "path: slice given up"),
    (RetainedSlices, "remove", "path: slices removed"),
    (RetainedSlices, "_advance", "path: limits applied"),
    (RetainedSlices, "_set_aside", "path: slice set aside"),
    (StateFile, "replace", "path: state file replaced"),
    (StateFile, "distrust", "path: state file distrusted"),
    (FileChannel, "_compact", "path: subs.dat compacted"),
    (Clients, "_compact", "path: clients.dat compacted"),
    (judging, "end_what_was_torn", "path: torn end ended"),
    (state_recovery, "cut_subs", "path: subs.dat cut"),
    (deletion, "declare", "path: deletion declared"),
    (deletion, "carry_out", "path: deletion carried out"),
    (deletion, "retract", "path: deletion retracted"),
    (purge_mark, "write", "path: purge marked"),
    (purging, "_carry_over", "path: purged slice carried over"),
    (purging, "_put_again", "path: purged slice put again"),
    (checkpoint, "save", "path: checkpoint written"),
    (checkpoint.Entry, "adopt", "path: checkpoint believed"),
    (judging, "settle", "path: channel read in full"),
    (exact, "make_channel_exact", "path: channel made exact"),
)

_CALLS = (
    "open",
    "pread",
    "pwrite",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "close",
    "fstat",
    "listdir",
    "mkdir",
    "link",
)
_CODES = (errno.EIO, errno.EIO, errno.ENOSPC)
_FATES = (
    "killed",
    "processes-killed",
    "power-cuts",
    "stopped-cleanly",
    "gave-up",
    "writes-interrupted",
    "data-lost",
    "data-torn",
    "data-reordered",
    "data-zeros-inside",
    "names-lost",
    "names-kept",
    "names-reordered",
    "sync-dropped",
    "no-space",
    "failed-channels",
    "links-refused",
    "deletions",
    "deletions-refused",
    "slices-archived",
    "purges",
    "purges-refused",
)
REQUIRED = (*_FATES, *(f"EIO {name}" for name in _CALLS), *(label for _, _, label in _PATHS))


@contextlib.contextmanager
def counted(met: Counter[str]) -> Iterator[None]:
    """Count the store's paths in ``met``."""

    def counting(work: Callable[..., Any], label: str) -> Callable[..., Any]:
        def counted_work(*args: Any, **kwargs: Any) -> Any:
            met[label] += 1
            return work(*args, **kwargs)

        return counted_work

    with contextlib.ExitStack() as stack:
        for where, name, label in _PATHS:
            stack.enter_context(
                mock.patch.object(where, name, counting(getattr(where, name), label))
            )
        yield


def run(seed: int, histories: int = 4) -> Counter[str]:
    """One round: ``histories`` of every variant. Raises ``Violation``."""
    rng = Random(f"census {seed}")
    met: Counter[str] = Counter()
    with counted(met):
        for variant in VARIANTS:
            for _ in range(histories):
                kills = [rng.choice((None, rng.randint(1, 250))) for _ in range(rng.randint(1, 4))]
                faults = [
                    Fault(
                        rng.randrange(len(kills)),
                        rng.randint(1, 200),
                        rng.choice((errno.EIO, errno.EIO, errno.ENOSPC)),
                    )
                    for _ in range(rng.choice((0, 1, 1, 2)))
                ]
                try:
                    met += run_history(
                        variant.open_store,
                        seed,
                        kills=kills,
                        faults=faults,
                        shape=variant.shape,
                        judge=variant.judge,
                    ).met
                except Violation as violation:
                    raise Violation(f"{variant}: {violation}") from violation
                met[f"variant: {variant}"] += 1
    return met


def table(met: Counter[str], required: Iterable[str] = REQUIRED) -> str:
    """How often each was met."""
    names = sorted({*required, *met})
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {met[name]:>9}" for name in names)


def soak(what: str, one: Callable[[int], Counter[str]], required: Iterable[str] = REQUIRED) -> int:
    """Rounds of ``one`` seed until Ctrl-C, behind which the present one is still finished; the
    table every minute.

    Returns 1 if a promise was broken.
    """
    met: Counter[str] = Counter()
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else time.time_ns() % 1_000_000_000
    shown = time.monotonic()
    stops: list[int] = []

    def stop(number: int, _frame: object) -> None:
        stops.append(number)
        signal.signal(number, signal.default_int_handler)

    # An interrupt inside a round would look like a process of it that ended without need.
    signal.signal(signal.SIGINT, stop)
    print(f"soak of {what} from seed {seed} on; stop it with Ctrl-C", flush=True)
    while not stops:
        try:
            met += one(seed)
        except Violation as violation:
            print(f"{table(met, required)}\nBROKEN: {violation}")
            return 1
        seed += 1
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(f"{table(met, required)}\nseed {seed}: no promise broken", flush=True)
    print(f"{table(met, required)}\nstopped at seed {seed}: no promise broken")
    return 0


if __name__ == "__main__":
    # The store reports every death that it finds: a million lines of it tell nothing.
    log.configure(file=os.devnull)
    sys.exit(soak("the file store", run))
