"""What operators and members say to each other: requests, answers and the status of a node, as JSON.

Bytes in, frozen values out; no socket, clock or file. Two subjects carry them (``ftstan.ft.subjects``): a *who* on the
group's subject, which every member of ours answers with its status, and requests on the subject of one member. Fields
that we do not know are ignored, so that releases can be mixed; a message above ``MAX_SIZE`` is none.

A request that changes something is sealed (``ftstan.ft.seal``): the request is then a string inside the message, so
that what is authenticated are bytes and not somebody's idea of how JSON is written.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from ftstan.errors import WireError

T = TypeVar("T")

MAX_SIZE = 64 << 10
"""Bytes of a request or an answer; NATS servers take at least 1 MiB unless told otherwise."""

MAX_REQUEST = 4 << 10
"""Bytes of a request: what a member reads from strangers."""

MAX_HISTORY = 200
"""Epochs in one answer."""

_WHO = b'{"type":"who"}'


class Verb(enum.StrEnum):
    """What a member can be asked."""

    STATUS = "status"
    HISTORY = "history"
    SWITCHOVER = "switchover"
    PAUSE = "pause"
    RESUME = "resume"
    MIXED = "mixed"

    @property
    def changes(self) -> bool:
        """Whether it has to be sealed with the group's key."""
        return self not in {Verb.STATUS, Verb.HISTORY}


@dataclass(frozen=True, slots=True)
class Request:
    """``to``: the successor's server id, empty for any. ``on`` is for ``mixed``, ``count`` for ``history``.

    ``by`` says who asks, for the log; nobody checks it.
    """

    verb: Verb
    to: str = ""
    on: bool = False
    count: int = MAX_HISTORY
    by: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the warm standby's knowledge is behind the active's: messages and channels that it has not read ahead."""

    messages: int
    channels: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One member, as it sees itself.

    ``state`` and ``phase`` are the words of ``ftstan.ft.states``. ``serving``: clients are answered now. ``epoch`` is
    the one that it owns (0: none), ``holder`` the newest epoch's record in words. ``probe_age`` is in seconds since
    storage last answered, ``None`` if it never did; ``warm_lag`` is ``None`` unless the node keeps warm.
    ``store_id`` is hexadecimal, empty for a store without one.
    """

    cluster: str
    group: str
    server: str
    host: str
    pid: int
    state: str
    phase: str
    serving: bool
    paused: bool
    mixed: bool
    epoch: int
    holder_epoch: int
    holder: str
    store_id: str
    probe_age: float | None
    warm_lag: Lag | None
    uptime: float
    version: str

    def to_json(self) -> dict[str, Any]:
        """As it stands in messages and in ``--output json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """One line of the history: who owned the store from ``since_ns`` (Unix nanoseconds) until the next epoch began.

    ``cause`` is the name of an ``ftstan.ft.slots.Cause`` in lower case, or ``unreadable``; ``after`` as there.
    ``until_ns`` 0: it is the newest one, or when the next one began is not known. Of a record that cannot be read there
    is only the epoch's number.
    """

    epoch: int
    server: str
    host: str
    pid: int
    since_ns: int
    until_ns: int
    cause: str
    after: int
    mixed: bool

    def to_json(self) -> dict[str, Any]:
        """As it stands in messages and in ``--output json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member answers. Not ``ok``: ``error`` and ``hint`` say why nothing was done."""

    ok: bool
    error: str = ""
    hint: str = ""
    status: NodeStatus | None = None
    history: tuple[EpochEntry, ...] = ()


# ---- who -------------------------------------------------------------------------------------------------------------


def encode_who() -> bytes:
    """Build the question to all members."""
    return _WHO


def is_who(payload: bytes) -> bool:
    """Whether a message on the group's subject asks for everybody's status."""
    return len(payload) <= MAX_REQUEST and _object(payload).get("type") == "who"


# ---- requests --------------------------------------------------------------------------------------------------------


def encode_request(request: Request) -> dict[str, Any]:
    """Name the fields of a message."""
    return asdict(request)


def decode_request(values: dict[str, Any]) -> Request:
    """Read a request. Raises ``WireError``."""
    try:
        verb = Verb(str(values.get("verb")))
    except ValueError:
        raise WireError(
            f"unknown request {str(values.get('verb'))[:40]!r}", hint="use an ftstanctl of the servers' release"
        ) from None
    to, on, by = values.get("to", ""), values.get("on", False), values.get("by", "")
    count = values.get("count", MAX_HISTORY)
    if not (isinstance(to, str) and isinstance(by, str) and isinstance(on, bool) and _is_int(count)):
        raise WireError(f"a field of the request {verb} has a wrong type", hint="use an ftstanctl of this release")
    if not (to.isprintable() and by.isprintable()):
        raise WireError("a name in the request has control characters", hint="server ids and hosts have none")
    return Request(verb, to=to, on=on, count=min(max(count, 0), MAX_HISTORY), by=by)


# ---- answers ---------------------------------------------------------------------------------------------------------


def encode_answer(answer: Answer) -> bytes:
    """Build the payload; of a history that is too long for one message the oldest are left out."""
    entries = list(answer.history)
    while True:
        values: dict[str, Any] = {"ok": answer.ok}
        if answer.error:
            values |= {"error": answer.error, "hint": answer.hint}
        if answer.status is not None:
            values["status"] = answer.status.to_json()
        if entries:
            values["history"] = [entry.to_json() for entry in entries]
        data = json.dumps(values, separators=(",", ":")).encode()
        if len(data) <= MAX_SIZE or not entries:
            return data
        del entries[len(entries) // 2 :]


def decode_answer(payload: bytes) -> Answer:
    """Read an answer. Raises ``WireError`` if it is none."""
    values = _object(payload) if len(payload) <= MAX_SIZE else {}
    ok, error, hint = values.get("ok"), values.get("error", ""), values.get("hint", "")
    status, history = values.get("status"), values.get("history", [])
    if not (isinstance(ok, bool) and isinstance(error, str) and isinstance(hint, str) and isinstance(history, list)):
        raise WireError("an answer cannot be understood", hint="use an ftstanctl of the servers' release")
    return Answer(
        ok=ok,
        error=error,
        hint=hint,
        status=None if status is None else _status(status),
        history=tuple(_build(EpochEntry, entry) for entry in history),
    )


def _status(values: object) -> NodeStatus:
    if not isinstance(values, dict):
        raise WireError("an answer's status cannot be understood", hint="use an ftstanctl of the servers' release")
    lag = values.get("warm_lag")
    return _build(NodeStatus, values | {"warm_lag": None if lag is None else _build(Lag, lag)})


def _is_int(value: object) -> bool:
    # bool is an int in Python.
    return isinstance(value, int) and not isinstance(value, bool)


_CHECKS: dict[str, Any] = {
    "str": lambda v: isinstance(v, str),
    "int": _is_int,
    "bool": lambda v: isinstance(v, bool),
    "float": lambda v: isinstance(v, float) or _is_int(v),
    "float | None": lambda v: v is None or isinstance(v, float) or _is_int(v),
    "Lag | None": lambda v: v is None or isinstance(v, Lag),
}


def _build(kind: type[T], values: object) -> T:
    """Make a value of its fields; others are ignored, missing or wrong ones are a ``WireError``."""
    known = {f.name: str(f.type) for f in fields(kind)}  # type: ignore[arg-type]
    if isinstance(values, dict):
        found = {name: values[name] for name in known if name in values}
        if len(found) == len(known) and all(_CHECKS[known[name]](value) for name, value in found.items()):
            return kind(**found)
    raise WireError("an answer lacks fields, or has them in another type", hint="use an ftstanctl of the same release")


def load_object(payload: bytes) -> dict[str, Any]:
    """Read a JSON object of a request's size. Raises ``WireError``."""
    values = _object(payload) if len(payload) <= MAX_REQUEST else {}
    if not values:
        raise WireError(f"a request is a JSON object of at most {MAX_REQUEST} bytes", hint="use ftstanctl ft")
    return values


def _object(payload: bytes) -> dict[str, Any]:
    try:
        values = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
