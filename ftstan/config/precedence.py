"""The values of all options while they are collected, and the server's options made of them.

A later ``put`` wins: the file first, then the flags that were given. What nobody put has its
default.

Source: ``docs/compat/config.md`` (precedence).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftstan.config.declaration import ValueKind
from ftstan.config.options import ServerOptions
from ftstan.config.table import BY_KEY, CONFIGURED, SETTINGS, names_of
from ftstan.config.units import format_duration

if TYPE_CHECKING:
    from ftstan.config.declaration import Option, Section
    from ftstan.config.options import ChannelLimits, DeliveryRules

DEFAULT = "default"


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
    deliveries: tuple[tuple[str, DeliveryRules], ...] = ()
    """What entries of the same map say of deliveries."""
    warnings: list[str] = field(default_factory=list)
    unknown_keys: list[str] = field(default_factory=list)
    """Those of the warnings that are about keys nobody knows."""
    repeated_keys: list[str] = field(default_factory=list)
    """Those that are about keys that stand twice."""

    def put(self, key: str, value: object, source: str, spelled: str = "") -> None:
        """Set an option by its key."""
        assert key in BY_KEY
        self.given[key] = Setting(value, source, spelled)

    def forget(self, section: Section) -> None:
        """Take back what was said about the options of a section."""
        for option in names_of(section).values():
            self.given.pop(option.key, None)

    def warn_of_key(self, text: str) -> None:
        """Warn of a key that nobody reads."""
        self.unknown_keys.append(text)
        self.warnings.append(text)

    def warn_of_repeat(self, key: str, first: object, second: object) -> None:
        """Warn of a key that was said before, at another place of the same map."""
        text = f'{second}: the key "{key}" was already said at {first}; this one counts'
        self.repeated_keys.append(text)
        self.warnings.append(text)

    def get(self, key: str) -> Setting:
        """What an option is, and why."""
        return self.given.get(key) or Setting(BY_KEY[key].default, DEFAULT)

    def value(self, key: str) -> Any:
        """What an option is."""
        return self.get(key).value

    def options(self) -> ServerOptions:
        """The server's options."""
        tree: dict[str, Any] = {"config_file": self.file}
        for option in CONFIGURED:
            setting = self.given.get(option.key)
            if option.field and setting is not None:
                plant(tree, option.field, _shaped(option, setting.value))
        _settle(tree)
        if self.channels:
            plant(tree, "limits.channels", self.channels)
        if self.deliveries:
            plant(tree, "limits.deliveries", self.deliveries)
        made = _replaced(ServerOptions(), tree)
        assert isinstance(made, ServerOptions)
        return made


def _settle(tree: dict[str, Any]) -> None:
    """Carry out what one option says about another."""
    usual = ServerOptions()
    nats = tree.get("nats", {})
    link = tree.get("link", {})
    users = nats.get("settings", {}).get("authorization", {}).get("users")
    if users and nats.get("user"):
        # It says which of the users the server is, and makes no user.
        login = {name: nats.pop(name, "") for name in ("user", "password")}
        tree["link"] = link = link | {name: value for name, value in login.items() if value}
    for name in ("user", "password", "token"):
        # The NATS half's login is the streaming half's too, each part by itself.
        if nats.get(name):
            link.pop(name, None)
    for name in ("host", "port"):
        if name in nats:
            nats[name] = nats[name] or getattr(usual.nats, name)
    if not tree.get("monitor", {}).get("host"):
        # The pages are where clients connect unless somebody says otherwise.
        plant(tree, "monitor.host", nats.get("host", usual.nats.host))


def _shaped(option: Option, value: Any) -> Any:
    """The value as its field has it, or as the NATS server's own file has it."""
    if option.field.startswith(SETTINGS):
        return format_duration(value) if option.kind is ValueKind.DURATION else value
    if option.key == "store":
        return value.upper()
    if option.kind is ValueKind.LIST and isinstance(value, str):
        return tuple(item.strip() for item in value.split(",")) if value else ()
    return value


def field_value(options: ServerOptions, option: Option) -> Any:
    """The value of an option in finished ``options``.

    ``None`` if it has no field, or if the NATS server's default holds.
    """
    value: Any = options if option.field else None
    for name in option.field.split("."):
        if value is None:
            break
        value = value.get(name) if isinstance(value, dict) else getattr(value, name)
    return value


def plant(tree: dict[str, Any], path: str, value: object) -> None:
    """Put a value into nested maps; the names in ``path`` have points between them."""
    *maps, last = path.split(".")
    for name in maps:
        tree = tree.setdefault(name, {})
    tree[last] = value


def _replaced(options: Any, tree: dict[str, Any]) -> Any:
    """``options`` with these fields; a map stands for fields of the value that is there."""
    changes = {}
    for name, value in tree.items():
        there = getattr(options, name)
        changes[name] = _replaced(there, value) if dataclasses.is_dataclass(there) else value
    return dataclasses.replace(options, **changes)
