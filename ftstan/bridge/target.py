"""The streams: made, compared with what is wanted, and looked into.

Everything here is a request with an answer, and none of it writes a message.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import ConfigError, NatsError
from ftstan.bridge import names
from ftstan.bridge.errors import BridgeError
from ftstan.bridge.marks import Mark, mark_of
from ftstan.nats.jetstream import ApiError, JetStream, headers_of
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Iterator

ASK_S: Final = 5.0
_NO_MESSAGE: Final = 10037
_NO_ROOM: Final = frozenset((10002, 10023, 10025, 10026, 10027, 10028, 10047, 10074))
"""Codes of JetStream for storage, memory, streams or peers that are used up."""
_OLDEST: Final = (2, 11)
_NANOSECONDS: Final = 1_000_000_000
_CHANNEL_KEY: Final = "ftstan-channel"
_CLUSTER_KEY: Final = "ftstan-cluster"
#: In the inlet of a channel: what new publishers send.
_INLET_KEY: Final = "ftstan-inlet"
#: Of a stream that the channel has moved to: the channel's last sequence.
_MOVED_KEY: Final = "ftstan-moved"
_ACCOUNT_HINT: Final = (
    "enable JetStream in the NATS servers (jetstream {}), for the account of this login"
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How streams are made, and what one that exists must be.

    Limits: 0 for none; ``max_age`` in seconds.
    """

    replicas: int = 1
    storage: str = "file"
    max_msgs: int = 0
    max_bytes: int = 0
    max_age: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a stream holds: ``first`` and ``last`` sequence, how many messages.

    ``first_ns``: when the first of them was stored (Unix ns), 0 without one.
    """

    first: int
    last: int
    messages: int
    config: dict[str, Any]
    first_ns: int = 0

    @property
    def has_dropped(self) -> bool:
        """Whether messages that it had are gone."""
        return self.first > max(int(self.config.get("first_seq", 0)), 1)

    @property
    def channel(self) -> str:
        """The channel that is mirrored into it; empty if it is of no bridge."""
        return str((self.config.get("metadata") or {}).get(_CHANNEL_KEY, ""))

    @property
    def is_inlet(self) -> bool:
        """Whether it takes what new publishers send."""
        return bool(self.inlet_id)

    @property
    def inlet_id(self) -> str:
        """What tells an inlet from one of the same name that was there before; empty for others."""
        return str((self.config.get("metadata") or {}).get(_INLET_KEY, ""))

    @property
    def is_two_way(self) -> bool:
        """Whether the channel's name is not its subject, but that of an inlet."""
        return self.config.get("subjects") == [names.private_subject(self.channel)]

    @property
    def is_closed(self) -> bool:
        """Whether an inlet takes nothing now."""
        return self.config.get("subjects") == [names.closed_subject(self.channel)]

    @property
    def moved(self) -> int | None:
        """The channel's last sequence if it has moved into the stream."""
        told = str((self.config.get("metadata") or {}).get(_MOVED_KEY, ""))
        return int(told) if told.isdigit() else None

    @property
    def cluster(self) -> str:
        """The cluster id of the channel's servers."""
        return str((self.config.get("metadata") or {}).get(_CLUSTER_KEY, ""))


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message of a stream; ``mark``: ``None`` for one that no bridge brought."""

    sequence: int
    data: bytes
    mark: Mark | None


class Target:
    """The JetStream that ``js`` is connected to."""

    def __init__(self, js: JetStream, cluster_id: str, options: StreamOptions) -> None:
        self.js = js
        self._cluster_id = cluster_id
        self._options = options

    def check(self) -> None:
        """Whether there is a JetStream for us. Raises ``ConfigError``, ``NatsError``."""
        said = str(self.js.link.info.get("version", ""))
        numbers = re.match(r"(\d+)\.(\d+)", said)
        if numbers is not None and (int(numbers[1]), int(numbers[2])) < _OLDEST:
            raise ConfigError(
                f"nats-server {said} cannot do what the bridge needs of JetStream",
                hint="use nats-server 2.11 or later",
            )
        try:
            self.js.api("INFO", {}, ASK_S)
        except ApiError as error:
            raise NatsError(error.text, hint=_ACCOUNT_HINT) from error

    def look(self, stream: str) -> StreamState | None:
        """The stream as it is; ``None`` if there is none. Raises ``NatsError``."""
        try:
            told = self.js.api(f"STREAM.INFO.{stream}", {}, ASK_S)
        except ApiError as error:
            if error.is_missing:
                return None
            raise
        return _state(told)

    def is_of(self, state: StreamState, channel: str) -> bool:
        """Whether the stream mirrors that channel of this cluster."""
        return (state.channel, state.cluster, state.is_inlet) == (channel, self._cluster_id, False)

    def check_subject(self, stream: str, channel: str) -> None:
        """Whether another stream has the subject. Raises ``BridgeError``, ``NatsError``."""
        told = self.js.api("STREAM.NAMES", {"subject": channel}, ASK_S)
        own = {stream, names.inlet_name(stream)}
        others = [name for name in told.get("streams") or [] if name not in own]
        if others:
            raise BridgeError(
                f'the stream "{others[0]}" has the subject "{channel}" already',
                hint="a subject belongs to one stream: take it out of that one first",
            )

    def ours(self) -> Iterator[tuple[str, StreamState]]:
        """Every stream that mirrors a channel of this cluster id. Raises ``NatsError``."""
        offset = 0
        while True:
            told = self.js.api("STREAM.LIST", {"offset": offset}, ASK_S)
            streams = told.get("streams") or []
            for one in streams:
                state = _state(one)
                if state.channel and state.cluster == self._cluster_id and not state.is_inlet:
                    yield str(one["config"]["name"]), state
            offset += len(streams)
            if not streams or offset >= int(told.get("total", 0)):
                return

    def wanted(
        self, stream: str, channel: str, first: int, *, two_way: bool = False
    ) -> dict[str, Any]:
        """The settings of a new stream that begins at sequence ``first``."""
        options = self._options
        return {
            "name": stream,
            **_subjects(channel, two_way=two_way),
            "retention": "limits",
            "discard": "old",
            "storage": options.storage,
            "num_replicas": options.replicas,
            "max_msgs": options.max_msgs or -1,
            "max_bytes": options.max_bytes or -1,
            "max_age": int(options.max_age * _NANOSECONDS),
            "allow_direct": True,
            "first_seq": first,
            "metadata": {_CHANNEL_KEY: channel, _CLUSTER_KEY: self._cluster_id},
        }

    def differences(
        self, stream: str, channel: str, state: StreamState, *, two_way: bool = False
    ) -> list[str]:
        """In which settings the stream is not what is wanted, in words.

        ``two_way``: it may be a stream of either kind, else of one way only.
        """
        wanted = self.wanted(stream, channel, 0, two_way=state.is_two_way)
        found = state.config
        if not state.channel:
            return ["it was not made by a bridge"]
        if state.is_inlet:
            return ["it takes what new publishers send"]
        if (state.channel, state.cluster) != (channel, self._cluster_id):
            return [f'it mirrors the channel "{state.channel}" of "{state.cluster}"']
        if state.is_two_way and not two_way:
            return [f"new publishers' messages come back from {names.inlet_name(stream)}: --back"]
        told = [
            f"{key} is {_shown(key, found.get(key))}, not {_shown(key, wanted[key])}"
            for key in _COMPARED
            if found.get(key, _DEFAULTS.get(key)) != wanted[key]
        ]
        return told + [
            f"{key} is set"
            for key in _REFUSED
            if found.get(key) and found.get(key) != wanted.get(key)
        ]

    def create(self, stream: str, channel: str, first: int, *, two_way: bool = False) -> None:
        """Make the stream. Raises ``BridgeError`` for what JetStream refuses, ``NatsError``."""
        self._make(channel, stream, self.wanted(stream, channel, first, two_way=two_way))

    def set_moved(self, state: StreamState, stream: str, last: int | None) -> None:
        """Note that the channel has moved into the stream, whose subject is the channel's name from
        now on; ``last``: the channel's last sequence, ``None``: it has not moved.

        Raises ``NatsError``.
        """
        metadata = _without(state, _MOVED_KEY)
        if last is None:
            self._update(stream, state.config | {"metadata": metadata})
            return
        metadata[_MOVED_KEY] = str(last)
        config = {k: v for k, v in state.config.items() if k != "subject_transform"}
        self._update(
            stream, config | _subjects(state.channel, two_way=False) | {"metadata": metadata}
        )

    def set_two_way(self, state: StreamState, stream: str) -> None:
        """Let nobody but the bridge append to the stream: the channel's name is not its subject any
        more. Raises ``NatsError``.
        """
        config = state.config | _subjects(state.channel, two_way=True)
        self._update(stream, config | {"metadata": _without(state)})

    def open_inlet(self, stream: str, channel: str) -> None:
        """Let new publishers publish to the channel's name; the inlet is made if there is none.

        Raises ``BridgeError``, ``NatsError``.
        """
        self.make_inlet(stream, channel)
        inlet = names.inlet_name(stream)
        state = self.look(inlet)
        if state is not None and state.is_closed:
            self._update(inlet, state.config | {"subjects": [channel], "metadata": _without(state)})

    def check_inlet(self, stream: str, channel: str) -> None:
        """Whether the inlet is another stream. Raises ``BridgeError``, ``NatsError``."""
        inlet = names.inlet_name(stream)
        state = self.look(inlet)
        if state is not None and (state.channel, state.cluster, state.is_inlet) != (
            *(channel, self._cluster_id),
            True,
        ):
            raise _other_inlet(inlet, channel)

    def make_inlet(self, stream: str, channel: str) -> None:
        """Make the inlet, open, unless it is there. Raises ``BridgeError``, ``NatsError``."""
        self.check_inlet(stream, channel)
        inlet = names.inlet_name(stream)
        if self.look(inlet) is not None:
            return
        config = self.wanted(inlet, channel, 1) | {"max_msgs": -1, "max_bytes": -1, "max_age": 0}
        config["metadata"] = config["metadata"] | {_INLET_KEY: Nuid().next()}
        self._make(channel, inlet, config)

    def close_inlet(self, stream: str, channel: str) -> StreamState | None:
        """Let the inlet take nothing more; gives it as it is, ``None`` if there is none.

        Raises ``NatsError``.
        """
        inlet = names.inlet_name(stream)
        state = self.look(inlet)
        if state is not None and not state.is_closed:
            self._update(
                inlet,
                state.config
                | {"subjects": [names.closed_subject(channel)], "metadata": _without(state)},
            )
            state = self.look(inlet)
        return state

    def _update(self, stream: str, config: dict[str, Any]) -> None:
        self.js.api(f"STREAM.UPDATE.{stream}", config, ASK_S)

    def _make(self, channel: str, stream: str, config: dict[str, Any]) -> None:
        try:
            self.js.api(f"STREAM.CREATE.{stream}", config, ASK_S)
        except ApiError as error:
            raise BridgeError(
                f'channel "{channel}": {error.text}',
                hint=_no_room() if error.code in _NO_ROOM else "see --stream and --replicas",
            ) from error

    def purge_to(self, stream: str, sequence: int) -> None:
        """Let the stream begin at ``sequence``, as its channel does. Raises ``NatsError``."""
        self.js.api(f"STREAM.PURGE.{stream}", {"seq": sequence}, ASK_S)

    def message(self, stream: str, sequence: int) -> StreamMessage | None:
        """One message, ``None`` if it is not there. Raises ``NatsError``."""
        try:
            told = self.js.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence}, ASK_S)
        except ApiError as error:
            if error.code == _NO_MESSAGE:
                return None
            raise
        row = told.get("message") or {}
        try:
            headers = headers_of(base64.b64decode(row.get("hdrs") or ""))[1]
            data = base64.b64decode(row.get("data") or "")
        except (binascii.Error, ValueError) as error:
            raise NatsError(f"JetStream's message {sequence} of {stream} is unreadable") from error
        return StreamMessage(sequence, data, mark_of(headers))


#: Settings that decide what a stream holds.
_COMPARED: Final = (
    *("subjects", "retention", "discard", "storage", "num_replicas"),
    *("max_msgs", "max_bytes", "max_age"),
)
_DEFAULTS: Final = {"max_age": 0, "max_msgs": -1, "max_bytes": -1, "discard": "old"}
#: Settings that a mirror cannot live with.
_REFUSED: Final = ("mirror", "sources", "sealed", "no_ack", "subject_transform")


def _subjects(channel: str, *, two_way: bool) -> dict[str, Any]:
    """Where a stream listens. Of two ways its messages have the channel's name all the same."""
    if not two_way:
        return {"subjects": [channel]}
    private = names.private_subject(channel)
    return {
        "subjects": [private],
        "subject_transform": {"src": private, "dest": channel},
    }


def _without(state: StreamState, *keys: str) -> dict[str, str]:
    """The metadata of a stream without these keys, and without those of the NATS server."""
    told = state.config.get("metadata") or {}
    return {k: v for k, v in told.items() if k not in keys and not k.startswith("_nats.")}


def _other_inlet(inlet: str, channel: str) -> BridgeError:
    return BridgeError(
        f'the stream "{inlet}" is not the one that takes new messages for "{channel}"',
        hint="name another stream for the channel: --stream CHANNEL=NAME",
    )


def problem_of(answer: bytes, sequence: int) -> tuple[int, str]:
    """Code and text of an append's answer that does not say that ``sequence`` is in the stream; 0
    and nothing for one that does.
    """
    try:
        told = json.loads(answer)
        error = told.get("error") or {}
        code = int(error.get("err_code", 0))
        text = str(error.get("description", ""))
        if error or told.get("seq") == sequence:
            return code, text
    except (ValueError, AttributeError, TypeError):
        pass
    return 0, f"{answer[:80]!r}, which is no answer to message {sequence}"


def hint_of(code: int) -> str:
    """What to do about an append that JetStream does not take."""
    return _no_room() if code in _NO_ROOM else "see the log of the NATS server"


def _no_room() -> str:
    return "raise the limits of JetStream or of its account, or free room there"


def _shown(key: str, value: object) -> str:
    if key == "max_age" and isinstance(value, int):
        return f"{value / _NANOSECONDS:g} s"
    return json.dumps(value)


def _state(told: dict[str, Any]) -> StreamState:
    state = told.get("state") or {}
    return StreamState(
        int(state.get("first_seq", 0)),
        int(state.get("last_seq", 0)),
        int(state.get("messages", 0)),
        told.get("config") or {},
        _nanoseconds(str(state.get("first_ts", ""))),
    )


def _nanoseconds(text: str) -> int:
    """A time of JetStream, to the microsecond; 0 for what is none, and for its year 1."""
    try:
        return max(int(datetime.fromisoformat(text).timestamp() * 1_000_000) * 1000, 0)
    except (ValueError, OverflowError):
        return 0
