"""Whether an archive or a spool says that it holds encrypted payloads."""

from __future__ import annotations

from ftstan.spark.archive import spool
from ftstan.spark.archive.table import ENCRYPTED, identity_of


def is_marked(path: str, kind: str) -> bool:
    """``kind``: as ``places.kind_of`` says. Raises ``ArchiveError``."""
    if kind == "spool":
        return any(s.manifest.encrypted for s in spool.slices(path).slices)
    known = identity_of(path)
    return known is not None and known.payloads == ENCRYPTED
