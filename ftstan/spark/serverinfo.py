"""What a datastore's ``server.dat`` says to its readers, who do not check it: its servers do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.stores.file.log import records

if TYPE_CHECKING:
    from ftstan.wire.pb import stan_internal_pb2 as pb


def cluster_of(root: str) -> str:
    """The cluster id that a datastore names, or nothing."""
    info = _info_of(root)
    return "" if info is None else info.cluster_id.decode("utf-8", "surrogateescape")


def is_encrypted(root: str) -> bool:
    """Whether a datastore says that its payloads are encrypted."""
    info = _info_of(root)
    return info is not None and info.encrypted


def _info_of(root: str) -> pb.ServerInfo | None:
    try:
        with open(os.path.join(root, "server.dat"), "rb") as file:
            payload = file.read()[records.VERSION_SIZE + records.HEADER_SIZE :]
    except OSError:
        return None
    from google.protobuf.message import DecodeError  # noqa: PLC0415  # most of the time of a call, without a need

    from ftstan.wire.pb import stan_internal_pb2 as pb  # noqa: PLC0415

    try:
        return pb.ServerInfo.FromString(payload)
    except DecodeError:
        return None
