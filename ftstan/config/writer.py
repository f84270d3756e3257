"""Writing the configuration language: keys, values and maps as text that is read back as what they
were.

Pure functions. What is written is also read by ``nats-server``, whose dialect has traps: arrays end
with a blank before the bracket, floats have no exponent, and every text is in quotes.

Source: ``docs/compat/config.md`` (grammar).
"""

from __future__ import annotations

import re

from ftstan.base.errors import ConfigError

_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def quoted(text: str) -> str:
    """``text`` as a double quoted string, quotes, backslashes and control characters escaped by
    number.
    """
    return '"' + re.sub(r'["\\\x00-\x1f\x7f]', lambda found: f"\\x{ord(found[0]):02x}", text) + '"'


def entry(key: str, value: object, indent: str | None = None) -> str:
    """``key: value``.

    ``indent``: that of this line if maps shall have a line for each entry; else all is one line.

    Raises ``ConfigError`` for a key that cannot be written.
    """
    name = key if _BARE_KEY.fullmatch(key) and key.lower() != "include" else _quoted_key(key)
    if indent is not None and isinstance(value, dict):
        inner = "".join(
            f"{indent}  {entry(name, item, indent + '  ')}\n" for name, item in value.items()
        )
        return f"{name} {{\n{inner}{indent}}}"
    return f"{name}: {written(value)}"


def written(value: object) -> str:
    """A value as text. Raises ``ConfigError`` for a map with a key that cannot be written."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            # Without exponent, which the language does not know.
            return repr(value) if "e" not in repr(value) else f"{value:.9f}"
        case str():
            return quoted(value)
        case dict():
            return "{ " + ", ".join(entry(key, item) for key, item in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(written(item) for item in value) + " ]"
        case _:
            raise TypeError(f"no such value in a configuration: {type(value).__name__}")


def _quoted_key(key: str) -> str:
    """A key in quotes, which know no escapes."""
    for quote in "\"'":
        if quote not in key and "\0" not in key:
            return f"{quote}{key}{quote}"
    raise ConfigError(
        f"the key {key} cannot be written in a configuration",
        hint="leave out one kind of its quotes",
    )
