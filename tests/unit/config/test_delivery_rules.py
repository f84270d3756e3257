"""``dead_letter`` and ``redelivery`` of the per-channel map: what they say, inherit, and refuse."""

from __future__ import annotations

import pytest

from ftstan.base.errors import ConfigError
from ftstan.config.effective import dump, effective_lines
from ftstan.config.limits import INHERIT, Limits, changes
from ftstan.config.options import DeliveryRules, StoreLimits
from ftstan.config.units import SECOND
from ftstan.config.validation import check_limits
from tests.unit.config.test_files import (
    directory,  # noqa: F401  # a fixture of every test here
    options_of,
    settings_of,
)

WAITS = (SECOND, 10 * SECOND, 60 * SECOND)


def of(rules: str, name: str = "orders.>", more: str = "") -> str:
    return f'streaming {{ store_limits {{ channels {{ "{name}" {{ {rules} }}\n {more} }} }} }}'


def rules_of(text: str) -> DeliveryRules:
    return dict(options_of(text).limits.deliveries).get("orders.>", DeliveryRules())


def test_an_entry_says_both() -> None:
    said = 'dead_letter: { max_deliveries: 5, channel: "dead" }, redelivery: ["1s", "10s", "1m"]'
    assert rules_of(of(said)) == DeliveryRules(5, "dead", WAITS)
    assert options_of(of(said)).limits.channels == (("orders.>", INHERIT),)


@pytest.mark.parametrize("said", ["[1s, 10s, 1m]", '["1s", "10s", "60s"]', '"1s, 10s,1m"'])
def test_waits_are_a_list_or_a_text(said: str) -> None:
    assert rules_of(of(f"redelivery: {said}")) == DeliveryRules(-1, "", WAITS)


def test_what_an_entry_leaves_out_is_inherited_and_what_it_switches_off_is_off() -> None:
    limits = Limits(
        options_of(
            of(
                'dead_letter: { max_deliveries: 5, channel: "dead" }, redelivery: ["1s"]',
                ">",
                '"orders.*" { redelivery: [] }, "orders.eu" { dead_letter: { max_deliveries: 0 } },'
                '"bulk" { dead_letter: { max_deliveries: 0 }, redelivery: [] }',
            )
        ).limits
    )
    assert limits.rules_of(b"any") == DeliveryRules(5, "dead", (SECOND,))
    assert limits.rules_of(b"orders.us") == DeliveryRules(5, "dead", ())
    assert limits.rules_of(b"orders.eu") is None
    assert limits.rules_of(b"bulk") is None
    # Covered, and takes dead letters: only the waits hold.
    assert limits.rules_of(b"dead") == DeliveryRules(0, "", (SECOND,))
    assert Limits().rules_of(b"any") is None


@pytest.mark.parametrize(
    ("rules", "line"),
    [
        ('dead_letter: { channel: "dead" }', "dead_letter needs max_deliveries"),
        ("dead_letter: { max_deliveries: 2 }", "dead_letter needs the channel"),
        ("dead_letter: { max_deliveries: 2, channel: 7 }", "dead_letter needs the channel"),
        ("dead_letter: true", "dead_letter is expected to be a map"),
        ('dead_letter: { max_deliveries: 2, chanel: "d" }', 'unknown key "chanel"'),
        ('dead_letter: { max_deliveries: -1, channel: "d" }', "a number from 0 to"),
        ('dead_letter: { max_deliveries: "2", channel: "d" }', "a number from 0 to"),
        ("redelivery: [1]", "1 in redelivery is no duration"),
        ("redelivery: 5", "redelivery is expected to be a list"),
        ('redelivery: "1"', "missing unit"),
        ('redelivery: ["1ms"]', "1ms is not between 100ms and 720h0m0s"),
        (f"redelivery: [{', '.join(['1s'] * 65)}]", "more than 64 durations"),
    ],
)
def test_one_line_with_its_place_refuses_what_is_no_rule(rules: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        options_of(of(rules))
    assert "s.conf:1:" in refused.value.hint
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["no/channel", "a..b", "", "a.*", "a.>", "with blank", "x" * 256, "\0", "café" * 60]
)
def test_a_dead_letter_channel_is_one_that_can_be_published_to(name: str) -> None:
    limits = StoreLimits(deliveries=(("orders", DeliveryRules(2, name)),))
    with pytest.raises(ConfigError, match="cannot name a channel"):
        check_limits(limits)


def test_a_channel_that_takes_dead_letters_has_none_by_name() -> None:
    limits = StoreLimits(
        deliveries=(("orders", DeliveryRules(2, "dead")), ("dead", DeliveryRules(2, "x")))
    )
    with pytest.raises(ConfigError, match='dead_letter of "dead": the channel takes dead letters'):
        check_limits(limits)


def test_a_partition_refuses_a_dead_letter_channel_that_another_one_serves() -> None:
    rules = (("orders", DeliveryRules(2, "dead")),)
    limits = StoreLimits(channels=(("orders", INHERIT),), deliveries=rules)
    check_limits(limits)
    with pytest.raises(ConfigError, match='this partition does not serve channel "dead"'):
        check_limits(limits, partitioning=True)
    served = StoreLimits(channels=(("orders", INHERIT), ("dead", INHERIT)), deliveries=rules)
    check_limits(served, partitioning=True)


@pytest.mark.parametrize(
    "rules", [DeliveryRules(-2), DeliveryRules(1 << 31, "d"), DeliveryRules(0, "", (5,))]
)
def test_numbers_of_an_embedding_program_are_checked_too(rules: DeliveryRules) -> None:
    with pytest.raises(ConfigError):
        check_limits(StoreLimits(deliveries=(("orders", rules),)))


def test_an_unknown_key_beside_them_is_warned_of_with_the_nearest_name() -> None:
    (warning,) = settings_of(of("dead_leter: { max_deliveries: 2 }")).unknown_keys
    assert 'did you mean "dead_letter"?' in warning


def test_the_effective_configuration_shows_them_and_a_dump_loads_back() -> None:
    text = of('dead_letter: { max_deliveries: 5, channel: "dead" }, redelivery: ["1s", "10s"]')
    options = options_of(text)
    assert options_of(dump(options), name="d.conf").limits == options.limits
    (line,) = [one for one in effective_lines(settings_of(text), options) if "orders" in one]
    assert (
        'channels."orders.>" = { dead_letter: { max_deliveries: 5, channel: "dead" }, '
        'redelivery: ["1s", "10s" ] }' in line
    )


def test_changes_are_told_in_a_line_for_each_entry() -> None:
    old = StoreLimits(deliveries=(("a", DeliveryRules(2, "dead")), ("b", DeliveryRules())))
    new = StoreLimits(
        deliveries=(("a", DeliveryRules(0, "", ())), ("b", DeliveryRules(-1, "", WAITS)))
    )
    assert changes(old, new) == [
        (
            '"a": dead letters to "dead" after 2 deliveries -> '
            "no dead letters, redelivery after the ack wait"
        ),
        '"b": no rules of deliveries -> redelivery 1s, 10s, 1m0s',
    ]
