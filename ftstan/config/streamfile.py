"""The streaming half's pass over a file: keys of a ``streaming`` map, or of the top level.

Errors are those of the original; nothing is read but what the tree has.

Source: ``docs/compat/config.md`` (keys, which half reads what).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config import delivery_rules
from ftstan.config.declaration import Section, ValueKind
from ftstan.config.options import ChannelLimits, DeliveryRules
from ftstan.config.table import (
    BY_KEY,
    CHANNEL_LIMITS,
    DEAD_LETTER,
    REDELIVERY,
    RETIRED,
    names_of,
)
from ftstan.config.tree import shown
from ftstan.config.units import quote
from ftstan.config.unknown_keys import warn_unknown
from ftstan.config.validation import is_channel_pattern
from ftstan.config.values import EXPECTED, streaming_value

if TYPE_CHECKING:
    from ftstan.config.precedence import Settings
    from ftstan.config.tree import Document, Node

STREAMING = "streaming"

#: Maps in the streaming half: names, and what messages of the original call them.
STREAMING_MAPS: dict[Section, tuple[tuple[str, ...], str]] = {
    Section.TLS: (("tls",), "TLS"),
    Section.LIMITS: (("store_limits", "limits", "storelimits"), "store limits"),
    Section.FILE: (("file_options", "file"), "file options"),
    Section.SQL: (("sql_options", "sql"), "SQL options"),
    Section.CLUSTER: (("cluster",), "cluster"),
}
#: Names of the map of single channels inside ``store_limits``.
CHANNELS = ("channels", "channels_limits", "channelslimits", "per_channel", "per_channel_limits")


def streaming_map(document: Document) -> dict[str, Node] | None:
    """The ``streaming`` map, ``None`` without such a key.

    Raises ``ConfigError`` if it is no map.
    """
    for key, node in document.entries.items():
        if key.lower() == STREAMING:
            return _map_of(node, "streaming section", "write streaming { ... }")
    return None


def _map_of(node: Node, what: str, hint: str) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        raise ConfigError(
            f"expected {what} to be a map/struct, got {shown(node.value)}",
            hint=f"{node.place}: {hint}",
        )
    return node.value


def read(document: Document, settings: Settings) -> None:
    """Put what the streaming half finds into ``settings``. Raises ``ConfigError``."""
    section = streaming_map(document)
    entries = document.entries if section is None else section
    _Reader(settings, document).level(entries, alone=section is not None)


def known_names() -> set[str]:
    """Every name that the streaming half knows at its first level."""
    maps = {name for names, _ in STREAMING_MAPS.values() for name in names}
    return {*names_of(Section.STREAMING), *maps, *RETIRED[Section.STREAMING], STREAMING}


class _Reader:
    def __init__(self, settings: Settings, document: Document) -> None:
        self._settings = settings
        self._used = document.used

    def level(self, entries: dict[str, Node], *, alone: bool) -> None:
        """Read the first level; ``alone``: it is a map of its own, no other half reads its keys."""
        maps = {name: section for section, (names, _) in STREAMING_MAPS.items() for name in names}
        known = names_of(Section.STREAMING)
        for key, node in entries.items():
            name = key.lower()
            if name in maps:
                self._map(maps[name], key, node, shared=not alone)
            elif name in RETIRED[Section.STREAMING]:
                why = RETIRED[Section.STREAMING][name]
                self._settings.warnings.append(
                    f'{node.place}: the key "{key}" of old releases has no effect: {why}'
                )
            elif name in known:
                self._put(known[name].key, key, node)
            elif alone and node.place not in self._used:
                warn_unknown(self._settings, node.place, key, known_names(), STREAMING)

    def _put(self, option: str, key: str, node: Node) -> None:
        written = key.lower() if option.startswith("sql_") else key
        value = streaming_value(BY_KEY[option], written, node)
        former = self._settings.given.get(option)
        if former is not None and former.spelled != key and self._is_name(option, former.spelled):
            self._settings.warn_of_repeat(f"{former.spelled} or {key}", former.source, node.source)
        self._settings.put(option, value, node.source, key)
        is_key = option in ("encryption_key", "encryption_key_file")
        if is_key and not self._settings.value("encrypt"):
            # A key switches encryption on, an empty one too.
            self._settings.put("encrypt", True, node.source, key)

    @staticmethod
    def _is_name(option: str, spelled: str) -> bool:
        """Whether a key of that spelling is the option itself, not another one that implies it."""
        return spelled.lower() in BY_KEY[option].names

    def _map(self, section: Section, key: str, node: Node, *, shared: bool) -> None:
        entries = _map_of(
            node, STREAMING_MAPS[section][1], f"{key} takes {EXPECTED[ValueKind.MAP]}"
        )
        if section is Section.CLUSTER:
            self._settings.put("clustered", True, node.source, key)
        known = names_of(section)
        channels = CHANNELS if section is Section.LIMITS else ()
        for inner, item in entries.items():
            name = inner.lower()
            if name in channels:
                self._channels(item)
            elif name in known:
                self._put(known[name].key, inner, item)
            elif item.place not in self._used and not (
                shared and section in (Section.TLS, Section.CLUSTER)
            ):
                warn_unknown(self._settings, item.place, inner, {*known, *channels}, key)

    # ---- limits of single channels
    # -------------------------------------------------------------------------------

    def _channels(self, node: Node) -> None:
        entries = _map_of(node, "per channel limits", 'write channels { "name" { max_msgs: 10 } }')
        read = [(name, self._channel(name, item)) for name, item in entries.items()]
        self._settings.channels = tuple((name, limits) for name, (limits, _) in read)
        self._settings.deliveries = tuple(
            (name, rules) for name, (_, rules) in read if rules != DeliveryRules()
        )
        self._settings.channels_source = node.source

    def _channel(self, channel: str, node: Node) -> tuple[ChannelLimits, DeliveryRules]:
        entries = _map_of(node, "channel limits", f"write {quote(channel)} {{ max_msgs: 10 }}")
        if not is_channel_pattern(channel):
            raise ConfigError(
                f"invalid channel name {quote(channel)}",
                hint=f"{node.place}: tokens with a point between them, not empty; no /; * and > "
                "only as whole tokens,"
                " > only as the last",
            )
        limits = {option.key: 0 for option in CHANNEL_LIMITS}
        known = {name: option for option in CHANNEL_LIMITS for name in option.names}
        rules = DeliveryRules()
        for key, item in entries.items():
            if key.lower() == DEAD_LETTER:
                rules = replace(rules, **delivery_rules.dead_letter(key, item))
            elif key.lower() == REDELIVERY:
                rules = replace(rules, redelivery=delivery_rules.redelivery(key, item))
            elif key.lower() in known:
                option = known[key.lower()]
                value = streaming_value(option, key, item)
                assert isinstance(value, int)
                # Written as 0 it is unlimited, and left out it is inherited.
                limits[option.key] = value or -1
            elif item.place not in self._used:
                names = {*known, DEAD_LETTER, REDELIVERY}
                warn_unknown(self._settings, item.place, key, names, f"channel {quote(channel)}")
        return ChannelLimits(**limits), rules
