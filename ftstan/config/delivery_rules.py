"""What an entry of the per-channel map says of messages that are not acknowledged in time.

    dead_letter: { max_deliveries: 5, channel: "orders.dead" }
    redelivery: ["1s", "10s", "1m"]

Neither is the original's: whatever is wrong here is refused, unknown keys included, because a
message might be given up otherwise that nobody wanted to be.

Source: ``docs/dead-letters.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from ftstan.base.errors import ConfigError
from ftstan.base.reserved import is_reserved
from ftstan.config.units import MILLISECOND, format_duration, parse_duration, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.config.options import DeliveryRules, StoreLimits
    from ftstan.config.tree import Node

#: The most deliveries that can be asked for: the count of resends of the protocol has 32 bits.
MOST_DELIVERIES = 1_000_000_000
#: The most waits of a list, and the bounds of each. Messages that expire within 15 ms of each other
#: are sent together, so a shorter wait would say nothing.
MOST_WAITS = 64
LEAST_WAIT = 100 * MILLISECOND
MOST_WAIT = 30 * 24 * 3_600_000 * MILLISECOND
#: Bytes of a channel's name, as requests have them.
_MOST_NAME = 255

_MAP_HINT = 'write dead_letter: { max_deliveries: 5, channel: "orders.dead" }'
_LIST_HINT = 'write durations in quotes: redelivery: ["1s", "10s", "1m"]'


class DeadLetterRules(TypedDict):
    """The part of ``DeliveryRules`` that ``dead_letter`` says."""

    max_deliveries: int
    dead_letter: str


def dead_letter(key: str, node: Node) -> DeadLetterRules:
    """What the map ``dead_letter`` says. Raises ``ConfigError``."""
    if not isinstance(node.value, dict):
        raise _wrong(node, f"{key} is expected to be a map", _MAP_HINT)
    entries = {name.lower(): item for name, item in node.value.items()}
    for name, item in entries.items():
        if name not in ("max_deliveries", "channel"):
            raise _wrong(item, f'unknown key "{name}" in {key}', _MAP_HINT)
    if "max_deliveries" not in entries:
        raise _wrong(node, f"{key} needs max_deliveries", _MAP_HINT)
    most = entries["max_deliveries"].value
    if isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= MOST_DELIVERIES:
        raise _wrong(
            entries["max_deliveries"],
            f"max_deliveries of {key} is expected to be a number from 0 to {MOST_DELIVERIES}",
            "0 is none: messages are redelivered for ever",
        )
    target = entries["channel"].value if "channel" in entries else ""
    if not isinstance(target, str) or (most and not target):
        raise _wrong(
            entries.get("channel", node), f"{key} needs the channel of the dead letters", _MAP_HINT
        )
    return DeadLetterRules(max_deliveries=most, dead_letter=target if most else "")


def redelivery(key: str, node: Node) -> tuple[int, ...]:
    """The waits that the list ``redelivery`` says, in ns. Raises ``ConfigError``."""
    if isinstance(node.value, str):
        texts = [part.strip() for part in node.value.split(",")]
    elif isinstance(node.value, list):
        texts = []
        for item in node.value:
            if not isinstance(item.value, str):
                # Without quotes 1m is a million in this language.
                raise _wrong(item, f"{item.value} in {key} is no duration", _LIST_HINT)
            texts.append(item.value)
    else:
        raise _wrong(node, f"{key} is expected to be a list of durations", _LIST_HINT)
    if len(texts) > MOST_WAITS:
        raise _wrong(node, f"{key} has more than {MOST_WAITS} durations", _LIST_HINT)
    return tuple(_wait(key, node, text) for text in texts)


def _wait(key: str, node: Node, text: str) -> int:
    try:
        wait = parse_duration(text)
    except ConfigError as error:
        raise _wrong(node, f"{key}: {error.text}", _LIST_HINT) from error
    if not LEAST_WAIT <= wait <= MOST_WAIT:
        raise _wrong(
            node,
            f"{key}: {text} is not between {format_duration(LEAST_WAIT)} and "
            f"{format_duration(MOST_WAIT)}",
            _LIST_HINT,
        )
    return wait


def _wrong(node: Node, text: str, hint: str) -> ConfigError:
    return ConfigError(text, hint=f"{node.place}: {hint}")


def check_rules(
    limits: StoreLimits, *, partitioning: bool, is_served: Callable[[str], bool]
) -> None:
    """Refuse dead-letter channels that cannot take anything. Raises ``ConfigError``.

    ``is_served``: whether an entry of the per-channel map covers a name, which is what a
    partitioned server serves.
    """
    targets = {rules.dead_letter for _, rules in limits.deliveries if rules.max_deliveries > 0}
    for name, rules in limits.deliveries:
        _check_numbers(name, rules)
        if rules.max_deliveries <= 0:
            continue
        shown = quote(rules.dead_letter)
        if not is_plain_channel(rules.dead_letter):
            raise ConfigError(
                f"dead_letter of {quote(name)}: {shown} cannot name a channel",
                hint="tokens between dots, none of them empty; no blanks, /, * or >, at most 255 "
                "bytes, not a reserved name",
            )
        if name in targets:
            raise ConfigError(
                f"dead_letter of {quote(name)}: the channel takes dead letters itself",
                hint="give it max_deliveries 0, or name another channel for the dead letters",
            )
        if partitioning and not is_served(rules.dead_letter):
            raise ConfigError(
                f"dead_letter of {quote(name)}: this partition does not serve channel {shown}",
                hint="list it under channels { } of this server: a dead letter is stored with the "
                "acknowledgement, by the same server",
            )


def _check_numbers(name: str, rules: DeliveryRules) -> None:
    """Check what no file can say but a program that embeds the server."""
    if not -1 <= rules.max_deliveries <= MOST_DELIVERIES:
        raise ConfigError(
            f"dead_letter of {quote(name)}: max_deliveries cannot be {rules.max_deliveries}",
            hint=f"a number from 0 (none) to {MOST_DELIVERIES}",
        )
    waits = rules.redelivery or ()
    if len(waits) > MOST_WAITS or not all(LEAST_WAIT <= wait <= MOST_WAIT for wait in waits):
        raise ConfigError(
            f"redelivery of {quote(name)}: not at most {MOST_WAITS} durations of "
            f"{format_duration(LEAST_WAIT)} to {format_duration(MOST_WAIT)}",
            hint=_LIST_HINT,
        )


def is_plain_channel(name: str) -> bool:
    """Whether ``name`` can be that of one channel that is published to."""
    encoded = name.encode("utf-8", "surrogateescape")
    return (
        0 < len(encoded) <= _MOST_NAME
        and all(name.split("."))
        and not any(c in "/*>\0" or c.isspace() for c in name)
        and not is_reserved(encoded)
    )
