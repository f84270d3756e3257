"""One value of a file, checked against the kind of its option.

The two halves of the original complain differently. The streaming half says ``parameter "<key>"
value is expected to be <type>, got <type>``; the NATS half begins with the place and names types as
its language does.

Source: ``docs/compat/config.md`` (keys).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.declaration import ValueKind
from ftstan.config.tree import Node, Value, type_name
from ftstan.config.units import SECOND, parse_duration

if TYPE_CHECKING:
    from ftstan.config.declaration import Option

#: What to write for each kind.
EXPECTED = {
    ValueKind.STRING: 'a text, in quotes if it looks like something else: "abc"',
    ValueKind.BOOL: "true or false, without quotes",
    ValueKind.INT: "a whole number, such as 1000, 10k or 64MB, without quotes",
    ValueKind.SIZE: "a number of bytes, such as 1024, 64KB or 1GB, without quotes",
    ValueKind.DURATION: 'a duration in quotes, such as "30s", "1m" or "1h30m"',
    ValueKind.LIST: 'a list, such as ["a", "b"]',
    ValueKind.FLOAT: "a number of seconds, such as 2 or 0.5",
    ValueKind.MAP: "a map { }",
}

_STREAMING_TYPES = {
    ValueKind.STRING: "string",
    ValueKind.DURATION: "string",
    ValueKind.BOOL: "bool",
    ValueKind.INT: "int64",
    ValueKind.SIZE: "int64",
}
_NATS_TYPES = {
    **_STREAMING_TYPES,
    ValueKind.LIST: "[]interface {}",
    ValueKind.MAP: "map[string]interface {}",
}
_GO_NAMES = {"slice": "[]interface {}", "map": "map[string]interface {}", "struct": "time.Time"}

#: The list that may only be an array, and the one that the original knows as a text.
_ARRAY_ONLY = ("cluster_peers",)
_TEXT_ONLY = ("nats_server",)

STORES = ("MEMORY", "FILE", "SQL")


def hint(key: str, node: Node, kind: ValueKind) -> str:
    """What should stand there."""
    return f"{node.place}: {key} takes {EXPECTED[kind]}"


def streaming_value(option: Option, key: str, node: Node) -> object:
    """The value of an option of the streaming half; ``key`` as written. Raises ``ConfigError``."""
    value = node.value
    kind = option.kind
    if kind is ValueKind.LIST:
        return _streaming_list(option, key, node)
    wanted = _STREAMING_TYPES[kind]
    if type_name(value) != wanted:
        raise _wrong_type(key, wanted, node, kind)
    if kind is ValueKind.DURATION:
        assert isinstance(value, str)
        try:
            return parse_duration(value)
        except ConfigError as error:
            raise ConfigError(error.text, hint=hint(key, node, kind)) from error
    if option.key == "store" and str(value).upper() not in STORES:
        raise ConfigError(
            f"unknown store type: {value}", hint=f"{node.place}: {key} is memory or file"
        )
    return value


def _wrong_type(key: str, wanted: str, node: Node, kind: ValueKind) -> ConfigError:
    return ConfigError(
        f'parameter "{key}" value is expected to be {wanted}, got {type_name(node.value)}',
        hint=hint(key, node, kind),
    )


def _streaming_list(option: Option, key: str, node: Node) -> object:
    value = node.value
    if isinstance(value, str) and option.key not in _ARRAY_ONLY:
        return value
    if not isinstance(value, list) or option.key in _TEXT_ONLY:
        raise _wrong_type(
            key, "string" if option.key in _TEXT_ONLY else "slice", node, ValueKind.LIST
        )
    for item in value:
        if not isinstance(item.value, str):
            raise ConfigError(
                f'item of "{key}" is expected to be string, got {type_name(item.value)}',
                hint=hint(key, item, ValueKind.LIST),
            )
    return tuple(item.value for item in value)


def go_name(value: Value) -> str:
    """Name of a value's type in messages of the NATS half."""
    name = type_name(value)
    return _GO_NAMES.get(name, name)


def conversion_error(key: str, node: Node, wanted: str, kind: ValueKind) -> ConfigError:
    """A value of the wrong type in the NATS half."""
    return ConfigError(
        f"{node.place}: interface conversion: interface {{}} is {go_name(node.value)}, not "
        f"{wanted}",
        hint=hint(key, node, kind),
    )


def nats_value(option: Option, key: str, node: Node, warnings: list[str]) -> object:
    """The value of an option of the NATS half. Raises ``ConfigError``, or adds to ``warnings``."""
    value = node.value
    kind = option.kind
    if kind is ValueKind.DURATION:
        return _nats_duration(option.key, key, node, warnings)
    if kind is ValueKind.MAP or (option.key == "jetstream" and not isinstance(value, bool)):
        return plain(value)
    if kind is ValueKind.FLOAT:
        return seconds(f"{node.place}: ", key, node, hint(key, node, kind))
    wanted = _NATS_TYPES[kind]
    if go_name(value) != wanted:
        raise conversion_error(key, node, wanted, kind)
    if isinstance(value, list):
        return tuple(str(item.value) for item in value)
    return value


def _nats_duration(name: str, key: str, node: Node, warnings: list[str]) -> int:
    value = node.value
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ConfigError as error:
            raise ConfigError(
                f"{node.place}: error parsing {name}: {error.text}",
                hint=hint(key, node, ValueKind.DURATION),
            ) from error
    misuse = f'{node.place}: invalid use of field "{key}": {name} should be converted to a duration'
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(misuse, hint=hint(key, node, ValueKind.DURATION))
    warnings.append(f'{misuse}; write "{value}s"')
    return value * SECOND


def seconds(wrong: str, key: str, node: Node, hint: str) -> float:
    """A number of seconds, or a duration.

    Raises ``ConfigError`` with a text that begins with ``wrong``.
    """
    value = node.value
    if isinstance(value, str):
        try:
            return parse_duration(value) / SECOND
        except ConfigError as error:
            raise ConfigError(f"{wrong}'{key}' {error.text}", hint=hint) from error
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{wrong}'{key}' wrong type", hint=hint)
    return float(value)


def plain(value: Value) -> object:
    """The value without its places, as it is handed to the NATS server."""
    if isinstance(value, dict):
        return {key: plain(node.value) for key, node in value.items()}
    if isinstance(value, list):
        return [plain(node.value) for node in value]
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
