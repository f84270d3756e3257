"""Which limits hold for a channel: entries with wildcards, and what each inherits.

The entries of the per-channel map stand in a tree of tokens. ``matching`` walks it with the tokens
of a name and gives the entries that cover the name, from the widest to the narrowest; an entry that
does not say a limit has that of the one before it in this list, the first that of the global
limits. What holds for a channel is the narrowest entry that covers it. All of that is computed when
the limits are made; ``of`` is asked once for each channel, never for a message.

Source: ``docs/limits.md`` (inheritance), ``docs/compat/config.md`` (store limits).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from ftstan.base.sizes import size_of
from ftstan.config.options import ChannelLimits, DeliveryRules, StoreLimits
from ftstan.config.units import format_bytes, format_duration, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNLIMITED = "unlimited"
_INHERITED = "inherited"

#: An entry of the per-channel map that says nothing: what an entry is written from.
INHERIT = ChannelLimits(max_msgs=0, max_bytes=0, max_subs=0)


def count(value: int) -> str:
    """A number of something, 0 for no limit."""
    return str(value) if value else UNLIMITED


def _bytes(value: int) -> str:
    return format_bytes(value) if value else UNLIMITED


def _duration(value: int) -> str:
    return format_duration(value) if value else UNLIMITED


#: The limits of a channel as operators see them, in their order: field, label, and how a value is
#: shown.
SHOWN: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("max_subs", "Subscriptions", count),
    ("max_msgs", "Messages", count),
    ("max_bytes", "Bytes", _bytes),
    ("max_age", "Age", _duration),
    ("max_inactivity", "Inactivity", _duration),
)


#: An entry that says nothing of deliveries.
_NO_RULES = DeliveryRules()


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the per-channel map, resolved: ``level`` entries are wider, the next of them has
    ``parent``.
    """

    name: str
    level: int
    limits: ChannelLimits
    parent: ChannelLimits


@dataclass(slots=True)
class _Node:
    """A token of the tree; ``name`` is that of the entry that ends here, empty if none does."""

    name: str = ""
    rest: str = ""
    """Name of the entry that goes on with ``>`` from here."""
    star: _Node | None = None
    children: dict[str, _Node] = field(default_factory=dict)


class Limits:
    """Limits of a store, resolved.

    ``channel`` are the global ones of each channel, ``max_channels`` 0 is unlimited.

    ``entries`` are in the order in which they are shown: wildcards before names, names sorted, each
    before what is below it.
    """

    def __init__(self, limits: StoreLimits | None = None) -> None:
        limits = limits or StoreLimits()
        self.max_channels = limits.max_channels
        self.channel = limits.channel
        self._root = _Node()
        written: dict[str, ChannelLimits] = {}
        for name, own in limits.channels:
            written[name] = own
            self._insert(name)
        self._rules = dict(limits.deliveries)
        for name in self._rules:
            if name not in written:
                written[name] = INHERIT
                self._insert(name)
        self.dead_letter_channels = frozenset(
            rules.dead_letter for rules in self._rules.values() if rules.max_deliveries > 0
        )
        """Channels that an entry names for its dead letters."""
        self._resolved: dict[str, ChannelLimits] = {}
        names = list(_in_order(self._root))
        for name in names:
            parent = self.channel
            for covering in self.matching(name):
                if covering not in self._resolved:
                    self._resolved[covering] = _inherit(written[covering], parent)
                parent = self._resolved[covering]
        self.entries = tuple(self._entry(name) for name in names)

    @classmethod
    def same(cls, limits: ChannelLimits) -> Limits:
        """The same limits for every channel."""
        return cls(StoreLimits(channel=limits))

    def of(self, name: bytes) -> ChannelLimits:
        """What holds for the channel of that name."""
        narrowest = None
        if self._resolved:
            for covering in self.matching(name.decode("utf-8", "surrogateescape")):
                narrowest = covering
        return self.channel if narrowest is None else self._resolved[narrowest]

    def rules_of(self, name: bytes) -> DeliveryRules | None:
        """What holds for deliveries of the channel of that name; ``None``: nothing special.

        A channel that takes dead letters has none of its own: a wildcard may cover it, and its
        messages would go round in circles.
        """
        if not self._rules:
            return None
        shown = name.decode("utf-8", "surrogateescape")
        most = 0
        target = ""
        waits: tuple[int, ...] = ()
        for covering in self.matching(shown):
            rules = self._rules.get(covering, _NO_RULES)
            if rules.max_deliveries >= 0:
                most = rules.max_deliveries
                target = rules.dead_letter
            if rules.redelivery is not None:
                waits = rules.redelivery
        if shown in self.dead_letter_channels:
            most = 0
        return DeliveryRules(most, target if most else "", waits) if most or waits else None

    def matching(self, name: str) -> Iterator[str]:
        """Names of the entries that cover ``name``, from the widest to the narrowest.

        Wildcards in it are literal.
        """
        tokens = name.split(".")
        # A stack instead of recursion: the next node is the last.
        walk = [(self._root, 0)]
        while walk:
            node, at = walk.pop()
            if at == len(tokens):
                if node.name:
                    yield node.name
                continue
            if node.rest:
                yield node.rest
            literal = node.children.get(tokens[at])
            if literal is not None:
                walk.append((literal, at + 1))
            if node.star is not None:
                walk.append((node.star, at + 1))

    def _insert(self, name: str) -> None:
        node = self._root
        for part in name.split("."):
            if part == ">":
                node.rest = name
                return
            if part == "*":
                node.star = node.star or _Node()
                node = node.star
            else:
                node = node.children.setdefault(part, _Node())
        node.name = name

    def _entry(self, name: str) -> Entry:
        covering = list(self.matching(name))
        level = covering.index(name)
        parent = self._resolved[covering[level - 1]] if level else self.channel
        return Entry(name, level, self._resolved[name], parent)


def _in_order(root: _Node) -> Iterator[str]:
    walk = [root]
    while walk:
        node = walk.pop()
        if node.name:
            yield node.name
        if node.rest:
            yield node.rest
        walk += [node.children[token] for token in sorted(node.children, reverse=True)]
        if node.star is not None:
            walk.append(node.star)


def _inherit(own: ChannelLimits, parent: ChannelLimits) -> ChannelLimits:
    """Limits as written, completed: 0 is the parent's value, a negative number unlimited."""
    values = {f.name: getattr(own, f.name) for f in fields(ChannelLimits)}
    return replace(parent, **{name: max(value, 0) for name, value in values.items() if value})


def changes(old: StoreLimits, new: StoreLimits) -> list[str]:
    """What is written differently, a line for the number of channels, each limit and each entry.

    Empty if nothing is.

    Limits that an entry inherits are not repeated for it.
    """
    lines = []
    if old.max_channels != new.max_channels:
        lines.append(f"Channels: {count(old.max_channels)} -> {count(new.max_channels)}")
    lines += _differences(old.channel, new.channel, UNLIMITED)
    before = dict(old.channels)
    after = dict(new.channels)
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            lines.append(f"{quote(name)}: no limits of its own any more")
            continue
        found = _differences(before.get(name, INHERIT), after[name], _INHERITED)
        if found or name not in before:
            lines.append(f"{quote(name)}: {', '.join(found) or 'listed, all inherited'}")
    return lines + _changed_rules(dict(old.deliveries), dict(new.deliveries))


def shown_rules(rules: DeliveryRules) -> dict[str, object]:
    """What an entry says of deliveries, as a file has it; nothing for what it inherits."""
    said: dict[str, object] = {}
    if rules.max_deliveries >= 0:
        said["dead_letter"] = (
            {"max_deliveries": rules.max_deliveries, "channel": rules.dead_letter}
            if rules.max_deliveries
            else {"max_deliveries": 0}
        )
    if rules.redelivery is not None:
        said["redelivery"] = [format_duration(wait) for wait in rules.redelivery]
    return said


def _changed_rules(before: dict[str, DeliveryRules], after: dict[str, DeliveryRules]) -> list[str]:
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old = _rules_text(before.get(name, _NO_RULES))
        new = _rules_text(after.get(name, _NO_RULES))
        if old != new:
            lines.append(f"{quote(name)}: {old} -> {new}")
    return lines


def _rules_text(rules: DeliveryRules) -> str:
    """What an entry says of deliveries, in a line of the log."""
    said = []
    if rules.max_deliveries > 0:
        target = quote(rules.dead_letter)
        said.append(f"dead letters to {target} after {rules.max_deliveries} deliveries")
    elif rules.max_deliveries == 0:
        said.append("no dead letters")
    if rules.redelivery:
        said.append("redelivery " + ", ".join(map(format_duration, rules.redelivery)))
    elif rules.redelivery is not None:
        said.append("redelivery after the ack wait")
    return ", ".join(said) or "no rules of deliveries"


def _differences(old: ChannelLimits, new: ChannelLimits, zero: str) -> list[str]:
    """``zero``: what a 0 means where these limits are written."""
    out = []
    for name, label, show in SHOWN:
        values = (getattr(old, name), getattr(new, name))
        tell = size_of if name == "max_bytes" else show
        before, after = (
            zero if value == 0 else tell(value) if value > 0 else UNLIMITED for value in values
        )
        if before != after:
            out.append(f"{label}: {before} -> {after}")
        elif min(values) > 0 and values[0] != values[1]:
            # Two sizes that differ by less than what is shown of them.
            out.append(f"{label}: {values[0]} -> {values[1]}")
    return out
