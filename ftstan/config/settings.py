"""The values of all options while they are collected, each with where it came from; and the options made of them.

A later ``put`` wins: the file first, then the flags that were given. What nobody put has its default.

Source: ``docs/compat/config.md`` (precedence).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ftstan.config.keys import BINDINGS, BY_OPTION, Binding, Section, names_of
from ftstan.config.options import ChannelLimits, ServerOptions
from ftstan.config.table import BY_KEY, Kind, Option
from ftstan.config.units import format_duration

DEFAULT = "default"

#: Prefix of the fields that are keys of the NATS server's own file.
_HANDED = "nats.settings."


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from: a place in a file, a flag with its dash, or ``default``."""

    value: object
    source: str
    spelled: str = ""
    """How the option was called there."""


@dataclass(slots=True)
class Settings:
    """What was said about each option, by its key in ``table``."""

    given: dict[str, Setting] = field(default_factory=dict)
    file: str = ""
    """The file that the NATS half read, as it was named."""
    channels: tuple[tuple[str, ChannelLimits], ...] = ()
    channels_source: str = DEFAULT
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Those of the warnings that are about keys nobody knows."""

    def put(self, key: str, value: object, source: str, spelled: str = "") -> None:
        """Set an option; ``key`` is that of ``table``."""
        assert key in BY_KEY
        self.given[key] = Setting(value, source, spelled)

    def forget(self, section: Section) -> None:
        """Take back what was said about the options of a section."""
        for binding in names_of(section).values():
            self.given.pop(binding.option.key, None)

    @staticmethod
    def option(key: str) -> Option:
        """The option of that key."""
        return BY_KEY[key]

    def get(self, key: str) -> Setting:
        """What an option is, and why."""
        return self.given.get(key) or Setting(BY_KEY[key].default, DEFAULT)

    def value(self, key: str) -> Any:
        """What an option is."""
        return self.get(key).value

    def options(self) -> ServerOptions:
        """The server's options."""
        fields: dict[str, Any] = {"config_file": self.file}
        settings: dict[str, Any] = {}
        for binding in BINDINGS:
            setting = self.given.get(binding.option.key)
            if not binding.field or setting is None:
                continue
            if binding.field.startswith(_HANDED):
                _plant(settings, binding.field.removeprefix(_HANDED).split("."), _handed(binding, setting.value))
            else:
                _plant(fields, binding.field.split("."), shaped(binding, setting.value))
        self._settle(fields, settings)
        if settings:
            fields.setdefault("nats", {})["settings"] = settings
        if self.channels:
            fields.setdefault("limits", {})["channels"] = self.channels
        made = _replaced(ServerOptions(), fields)
        assert isinstance(made, ServerOptions)
        return made

    def _settle(self, fields: dict[str, Any], settings: dict[str, Any]) -> None:
        """Carry out what one option says about another."""
        usual = ServerOptions()
        nats, link = fields.get("nats", {}), fields.get("link", {})
        users = settings.get("authorization", {}).get("users")
        if users and nats.get("user"):
            # It says which of the users the server is, and makes no user.
            login = {name: nats.pop(name, "") for name in ("user", "password")}
            fields["link"] = link = link | {name: value for name, value in login.items() if value}
        for name in ("user", "password", "token"):
            # The NATS half's login is the streaming half's too, each part by itself.
            if nats.get(name):
                link.pop(name, None)
        if "host" in nats:
            nats["host"] = nats["host"] or usual.nats.host
        monitor = fields.get("monitor", {})
        if not monitor.get("host"):
            # The pages are where clients connect unless somebody says otherwise.
            fields["monitor"] = monitor | {"host": nats.get("host", usual.nats.host)}
        if "port" in nats:
            nats["port"] = nats["port"] or usual.nats.port


def shaped(binding: Binding, value: Any) -> Any:
    """The value as its field has it."""
    if binding.option.key == "store":
        return value.upper()
    if binding.option.kind is Kind.LIST and isinstance(value, str):
        return tuple(item.strip() for item in value.split(",")) if value else ()
    return value


def _handed(binding: Binding, value: Any) -> object:
    """The value as the NATS server's own file has it."""
    return format_duration(value) if binding.option.kind is Kind.DURATION else value


def field_value(options: ServerOptions, key: str) -> Any:
    """The value of an option in finished ``options``; ``None`` if it has no field or the NATS server's default."""
    path = BY_OPTION[key].field if key in BY_OPTION else ""
    if not path:
        return None
    value: Any = options
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name)
        if value is None:
            return None
    return value


def _plant(tree: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _replaced(options: Any, fields: dict[str, Any]) -> Any:
    """``options`` with these fields; a map stands for fields of the value that is there."""
    changes = {}
    for name, value in fields.items():
        there = getattr(options, name)
        changes[name] = _replaced(there, value) if dataclasses.is_dataclass(there) else value
    return dataclasses.replace(options, **changes)
