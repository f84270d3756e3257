"""What operators and members say to each other: requests, answers and the status of a node, as
JSON.

Bytes in, frozen values out; no socket, clock or file. Two subjects carry them
(``ftstan.ft.subjects``): a *who* on the group's subject, which every member of ours answers with
its status, and requests on the subject of one member. Fields that we do not know are ignored, so
that releases can be mixed; a message above ``MAX_SIZE`` is none.

A request that changes something is sealed (``admin/signing.py``): the request is then a string
inside the message, so that what is authenticated are bytes and not somebody's idea of how JSON is
written.
"""

from __future__ import annotations

import enum
import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, TypeVar

from ftstan.base.errors import WireError
from ftstan.base.states import Clustering, Lag, NodeStatus, Recovery

T = TypeVar("T")

MAX_SIZE = 64 << 10
"""Bytes of a request or an answer; NATS servers take at least 1 MiB unless told otherwise."""

MAX_REQUEST = 4 << 10
"""Bytes of a request: what a member reads from strangers."""

MAX_HISTORY = 200
"""Epochs in one answer."""

_ROOM = 256
"""Bytes of an answer around its rows."""

_WHO = b'{"type":"who"}'


class Verb(enum.StrEnum):
    """What a member can be asked."""

    STATUS = "status"
    HISTORY = "history"
    SWITCHOVER = "switchover"
    PLAN = "switchover-plan"
    PAUSE = "pause"
    RESUME = "resume"
    MIXED = "mixed"
    CHANNELS = "channels"
    CHANNEL = "channel"
    CREATE = "channel-create"
    DELETE = "channel-delete"
    PURGE = "channel-purge"
    MOVED = "channel-moved"
    MOVES = "channel-moves"
    MOVE_OUT = "channel-move-out"
    MOVE_IN = "channel-move-in"
    MOVE_UNDO = "channel-move-undo"
    MOVE_CLEAN = "channel-move-clean"
    CLIENTS = "clients"
    CLIENT = "client"
    KICK = "client-kick"
    SUBS = "subs"
    SUB = "sub"
    RELOAD = "reload"
    DRAIN = "drain"
    ROTATE = "key-rotate"
    STEP_DOWN = "cluster-stepdown"
    ADD_NODE = "cluster-add"
    REMOVE_NODE = "cluster-remove"

    @property
    def changes(self) -> bool:
        """Whether it has to be sealed with the group's key."""
        return self not in _LOOKS

    @property
    def administers(self) -> bool:
        """Whether it is about what a server serves, or the server itself, and not about its
        group.
        """
        return self in _ADMINISTERS


_LOOKS = frozenset(
    {
        Verb.STATUS,
        Verb.HISTORY,
        Verb.CHANNELS,
        Verb.CHANNEL,
        Verb.MOVES,
        Verb.CLIENTS,
        Verb.CLIENT,
        Verb.SUBS,
        Verb.SUB,
    }
)
_ADMINISTERS = frozenset(Verb) - {
    Verb.STATUS,
    Verb.HISTORY,
    Verb.SWITCHOVER,
    Verb.PLAN,
    Verb.PAUSE,
    Verb.RESUME,
    Verb.MIXED,
}


@dataclass(frozen=True, slots=True)
class Request:
    """``to``: the successor's server id, empty for any.

    ``grace_s`` is for ``ROTATE``: for how many seconds the former key counts as well.

    ``at_ns`` is for ``PLAN``: when to hand over (Unix nanoseconds), 0 or less to end such a plan. A
    verb of its own: a member that does not know it must not hand over at once.

    ``on`` is for ``mixed``, ``MOVED``, ``MOVE_OUT`` and ``MOVE_IN`` (where it is off, they only say
    what would be done), ``count`` for ``history``. ``transfer`` and ``secret``: of the last two,
    the name of a move and what its servers prove themselves to each other with, hexadecimal; ``to``
    is the other server. ``to`` of ``STEP_DOWN`` is the
    id of a node of the cluster, as ``name`` of ``ADD_NODE`` and ``REMOVE_NODE``.

    ``by`` says who asks, for the log; nobody checks it. ``name``: a channel, or the client of
    ``CLIENT`` and ``KICK``; ``client`` and ``sub_id``: of ``SUBS`` and ``SUB``; ``client`` of
    ``MOVED``: who may still publish. Lists go on behind
    ``after``: a name, with ``after_id`` in a list of subscriptions. ``force``: delete a channel
    with its subscriptions; of ``MOVE_UNDO`` and ``MOVE_CLEAN``, the other server has agreed.
    ``ages``: of ``SUBS``, also how old things are. ``keep`` and ``up_to``:
    purge all but so many of the newest messages, or up to that sequence; 0: without that bound.
    Names have bytes that are no UTF-8 as surrogates.
    """

    verb: Verb
    to: str = ""
    on: bool = False
    count: int = MAX_HISTORY
    by: str = ""
    name: str = ""
    client: str = ""
    sub_id: int = 0
    after: str = ""
    after_id: int = 0
    force: bool = False
    keep: int = 0
    up_to: int = 0
    at_ns: int = 0
    grace_s: int = 0
    ages: bool = False
    transfer: str = ""
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """One line of the history: who owned the store from ``since_ns`` (Unix nanoseconds) until the
    next epoch began.

    ``name`` is the member's, empty from releases that had none. ``ended_ns``: its last sign of
    life, 0 if none is known. ``left``: how the owner before it said that it ends, the name of an
    ``ftstan.ft.epoch_records.Ending`` in lower case.

    ``cause`` is the name of an ``ftstan.ft.epoch_records.Cause`` in lower case, or ``unreadable``;
    ``after`` as there. ``until_ns`` 0: it is the newest one, or when the next one began is not
    known. Of a record that cannot be read there is only the epoch's number.
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
    name: str = ""
    ended_ns: int = 0
    left: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it stands in messages and in ``--output json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member answers. Not ``ok``: ``error`` and ``hint`` say why nothing was done.

    ``rows``: a piece of a list, ``more``: others come behind its last one; ``note``: what was done,
    for people. ``elsewhere``: the channel belongs to another partition, which should be asked.
    """

    ok: bool
    error: str = ""
    hint: str = ""
    status: NodeStatus | None = None
    history: tuple[EpochEntry, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    more: bool = False
    note: str = ""
    elsewhere: bool = False


# ---- who
# --------------------------------------------------------------------------------------------------


def encode_who() -> bytes:
    """Build the question to all members."""
    return _WHO


def is_who(payload: bytes) -> bool:
    """Whether a message on the group's subject asks for everybody's status."""
    return len(payload) <= MAX_REQUEST and _object(payload).get("type") == "who"


# ---- requests
# --------------------------------------------------------------------------------------------------


def encode_request(request: Request) -> dict[str, Any]:
    """Name the fields of a message."""
    return asdict(request)


def decode_request(values: dict[str, Any]) -> Request:
    """Read a request. Raises ``WireError``."""
    try:
        verb = Verb(str(values.get("verb")))
    except ValueError:
        raise WireError(
            f"unknown request {str(values.get('verb'))[:40]!r}",
            hint="use an ftstanctl of the servers' release",
        ) from None
    request = Request(verb)
    known = {
        f.name: values.get(f.name, getattr(request, f.name))
        for f in fields(Request)
        if f.name != "verb"
    }
    if not all(_CHECKS[str(f.type)](known[f.name]) for f in fields(Request) if f.name != "verb"):
        raise WireError(
            f"a field of the request {verb} has a wrong type",
            hint="use an ftstanctl of this release",
        )
    if not (known["to"].isprintable() and known["by"].isprintable()):
        raise WireError(
            "a name in the request has control characters", hint="server ids and hosts have none"
        )
    return Request(verb, **(known | {"count": min(max(known["count"], 0), MAX_HISTORY)}))


# ---- answers
# --------------------------------------------------------------------------------------------------


def encode_answer(answer: Answer) -> bytes:
    """Build the payload; of a history that is too long for one message the oldest are left out."""
    if answer.rows:
        return _encode_rows(answer)
    entries = list(answer.history)
    while True:
        values: dict[str, Any] = {"ok": answer.ok}
        if answer.error:
            values |= {"error": answer.error, "hint": answer.hint}
        if answer.note:
            values["note"] = answer.note
        if answer.elsewhere:
            values["elsewhere"] = True
        if answer.status is not None:
            values["status"] = answer.status.to_json()
        if entries:
            values["history"] = [entry.to_json() for entry in entries]
        data = json.dumps(values, separators=(",", ":")).encode()
        if len(data) <= MAX_SIZE or not entries:
            return data
        del entries[len(entries) // 2 :]


def _encode_rows(answer: Answer) -> bytes:
    """As many of the rows as one message holds; the rest is asked for again."""
    pieces: list[str] = []
    size = _ROOM
    for row in answer.rows:
        piece = json.dumps(row, separators=(",", ":"))
        size += len(piece) + 1
        if size > MAX_SIZE:
            break
        pieces.append(piece)
    if not pieces:
        error = f"a row of more than {MAX_SIZE} bytes cannot be sent"
        return encode_answer(Answer(ok=False, error=error, hint="see the monitoring pages for it"))
    more = answer.more or len(pieces) < len(answer.rows)
    note = f'"note":{json.dumps(answer.note)},' if answer.note else ""
    return f'{{"ok":true,"more":{json.dumps(more)},{note}"rows":[{",".join(pieces)}]}}'.encode()


def decode_answer(payload: bytes) -> Answer:
    """Read an answer. Raises ``WireError`` if it is none."""
    values = _object(payload) if len(payload) <= MAX_SIZE else {}
    ok = values.get("ok")
    error = values.get("error", "")
    hint = values.get("hint", "")
    status = values.get("status")
    history = values.get("history", [])
    rows = values.get("rows", [])
    note = values.get("note", "")
    more = values.get("more", False)
    elsewhere = values.get("elsewhere", False)
    texts = all(isinstance(text, str) for text in (error, hint, note))
    flags = all(isinstance(flag, bool) for flag in (ok, more, elsewhere))
    lists = (
        isinstance(history, list)
        and isinstance(rows, list)
        and all(isinstance(row, dict) for row in rows)
    )
    if not (texts and flags and lists):
        raise WireError(
            "an answer cannot be understood", hint="use an ftstanctl of the servers' release"
        )
    return Answer(
        ok=bool(ok),
        error=error,
        hint=hint,
        status=None if status is None else _status(status),
        history=tuple(_build(EpochEntry, entry) for entry in history),
        rows=tuple(rows),
        more=more,
        note=note,
        elsewhere=elsewhere,
    )


def _status(values: object) -> NodeStatus:
    if not isinstance(values, dict):
        raise WireError(
            "an answer's status cannot be understood",
            hint="use an ftstanctl of the servers' release",
        )
    parts = {
        name: _build(kind, values[name])
        for name, kind in (
            *(("warm_lag", Lag), ("recovery", Recovery)),
            ("clustering", Clustering),
        )
        if values.get(name) is not None
    }
    return _build(NodeStatus, values | parts)


def _is_int(value: object) -> bool:
    """Whether it is a number of 64 bits: larger ones, which anybody may send, are no dates and no
    floats.
    """
    # bool is an int in Python.
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 64


def _is_float(value: object) -> bool:
    """Whether it is a number; JSON as Python reads it also has NaN and Infinity."""
    return (isinstance(value, float) and math.isfinite(value)) or _is_int(value)


_CHECKS: dict[str, Any] = {
    "str": lambda v: isinstance(v, str),
    "int": _is_int,
    "bool": lambda v: isinstance(v, bool),
    "float": _is_float,
    "float | None": lambda v: v is None or _is_float(v),
    "Lag | None": lambda v: v is None or isinstance(v, Lag),
    "Recovery": lambda v: isinstance(v, Recovery),
    "Clustering | None": lambda v: v is None or isinstance(v, Clustering),
    "tuple[str, ...]": lambda v: isinstance(v, list) and all(isinstance(w, str) for w in v),
}


def _build(kind: type[T], values: object) -> T:
    """Make a value of its fields.

    Others are ignored, missing ones without a default or wrong ones a ``WireError``.
    """
    known = {f.name: str(f.type) for f in fields(kind)}  # type: ignore[arg-type]
    needed = {f.name for f in fields(kind) if f.default is MISSING}  # type: ignore[arg-type]
    if isinstance(values, dict):
        found = {name: values[name] for name in known if name in values}
        if needed <= set(found) and all(
            _CHECKS[known[name]](value) for name, value in found.items()
        ):
            return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
    raise WireError(
        "an answer lacks fields, or has them in another type",
        hint="use an ftstanctl of the same release",
    )


def load_object(payload: bytes) -> dict[str, Any]:
    """Read a JSON object of a request's size. Raises ``WireError``."""
    values = _object(payload) if len(payload) <= MAX_REQUEST else {}
    if not values:
        raise WireError(
            f"a request is a JSON object of at most {MAX_REQUEST} bytes", hint="use ftstanctl ft"
        )
    return values


def _object(payload: bytes) -> dict[str, Any]:
    try:
        values = json.loads(payload)
        # Half of a surrogate pair is no text: it could neither be logged nor be looked for. Bytes
        # that are no UTF-8 are written as the other halves.
        json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
