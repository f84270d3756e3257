"""The ledger of drills under the name that the demo and its readers know it by."""

from __future__ import annotations

from ftstan.drill.ledger import (
    SUFFIX,
    Ack,
    Delivery,
    Failure,
    Fault,
    LedgerError,
    Publish,
    Read,
    Record,
    Tail,
    Takeover,
    Writer,
    encode,
    parse,
    read,
    read_file,
)

__all__ = [
    "SUFFIX",
    "Ack",
    "Delivery",
    "Failure",
    "Fault",
    "LedgerError",
    "Publish",
    "Read",
    "Record",
    "Tail",
    "Takeover",
    "Writer",
    "encode",
    "parse",
    "read",
    "read_file",
]
