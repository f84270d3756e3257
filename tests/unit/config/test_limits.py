"""Limits of single channels: which entry holds, what it inherits, and the table that operators
read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError
from ftstan.config.banner import limits_table
from ftstan.config.flags import parse
from ftstan.config.limits import INHERIT, Limits, changes
from ftstan.config.options import ChannelLimits, ServerOptions, StoreLimits
from ftstan.config.units import HOUR, MILLISECOND, MINUTE, SECOND
from ftstan.config.validation import check_limits, check_start
from tests.command_lines import to_options

UNLIMITED = -1


def entry(name: str, **limits: int) -> tuple[str, ChannelLimits]:
    """An entry as a file gives it: what it does not say is inherited."""
    return name, replace(INHERIT, **limits)


FIRST = StoreLimits(
    10,
    ChannelLimits(max_msgs=10_000, max_bytes=10 << 20, max_age=HOUR),
    (
        entry("foo", max_msgs=300, max_subs=50),
        entry("bar", max_msgs=50, max_bytes=1024),
        entry("baz", max_msgs=UNLIMITED, max_bytes=1 << 20, max_age=2 * HOUR),
        entry("bozo"),
        entry("foo.>", max_msgs=400),
        entry("foo.bar.>", max_age=2 * HOUR),
        entry("temp.>", max_inactivity=HOUR),
    ),
)

# Names among each other are sorted; the original prints them in an order of its own in every run.
FIRST_TABLE = """\
---------- Store Limits ----------
Channels:                   10
--------- Channels Limits --------
  Subscriptions:          1000 *
  Messages     :         10000
  Bytes        :      10.00 MB
  Age          :        1h0m0s
  Inactivity   :     unlimited *
-------- List of Channels ---------
bar
 |-> Messages                    50
 |-> Bytes                  1.00 KB
baz
 |-> Messages             unlimited
 |-> Bytes                  1.00 MB
 |-> Age                     2h0m0s
bozo
foo
 |-> Subscriptions               50
 |-> Messages                   300
foo.>
 |-> Messages                   400
 foo.bar.>
  |-> Age                    2h0m0s
temp.>
 |-> Inactivity              1h0m0s
-----------------------------------"""

FIRST_LIMITS = {
    "foo": ChannelLimits(300, 10 << 20, HOUR, 50, 0),
    "foo.>": ChannelLimits(400, 10 << 20, HOUR, 1000, 0),
    "foo.bar.>": ChannelLimits(400, 10 << 20, 2 * HOUR, 1000, 0),
    "bar": ChannelLimits(50, 1024, HOUR, 1000, 0),
    "baz": ChannelLimits(0, 1 << 20, 2 * HOUR, 1000, 0),
    "bozo": ChannelLimits(10_000, 10 << 20, HOUR, 1000, 0),
    "temp.>": ChannelLimits(10_000, 10 << 20, HOUR, 1000, HOUR),
}

SECOND_EXAMPLE = StoreLimits(
    channels=(
        entry(">", max_msgs=5000),
        entry("*", max_subs=7),
        entry("a.*", max_bytes=1500),
        entry("a.>", max_age=90 * SECOND),
        entry("a.*.c", max_msgs=10),
        entry("a.b.c", max_inactivity=MINUTE + 30 * SECOND + 500 * MILLISECOND),
        entry("a.b.>", max_msgs=UNLIMITED),
        entry("a.b", max_bytes=1023),
        entry(
            "a.b.c.d.e.f.g",
            max_msgs=99,
            max_subs=1,
            max_bytes=123_456_789_012,
            max_age=8760 * HOUR,
            max_inactivity=1,
        ),
    )
)

SECOND_TABLE = """\
---------- Store Limits ----------
Channels:                  100 *
--------- Channels Limits --------
  Subscriptions:          1000 *
  Messages     :       1000000 *
  Bytes        :     976.56 MB *
  Age          :     unlimited *
  Inactivity   :     unlimited *
---------- List of Channels -----------
>
 |-> Messages                      5000
 *
  |-> Subscriptions                   7
 a.>
  |-> Age                         1m30s
  a.*
   |-> Bytes                    1.46 KB
  a.*.c
   |-> Messages                      10
   a.b
    |-> Bytes                    1023 B
  a.b.>
   |-> Messages               unlimited
    a.b.c
     |-> Inactivity             1m30.5s
   a.b.c.d.e.f.g
    |-> Subscriptions                 1
    |-> Messages                     99
    |-> Bytes                 114.98 GB
    |-> Age                   8760h0m0s
    |-> Inactivity                  1ns
---------------------------------------"""

SECOND_LIMITS = {
    ">": ChannelLimits(5000, 1_024_000_000, 0, 1000, 0),
    "*": ChannelLimits(5000, 1_024_000_000, 0, 7, 0),
    "a.>": ChannelLimits(5000, 1_024_000_000, 90 * SECOND, 1000, 0),
    "a.*": ChannelLimits(5000, 1500, 90 * SECOND, 1000, 0),
    "a.*.c": ChannelLimits(10, 1_024_000_000, 90 * SECOND, 1000, 0),
    "a.b": ChannelLimits(5000, 1023, 90 * SECOND, 1000, 0),
    "a.b.>": ChannelLimits(0, 1_024_000_000, 90 * SECOND, 1000, 0),
    "a.b.c": ChannelLimits(0, 1_024_000_000, 90 * SECOND, 1000, 90_500_000_000),
    "a.b.c.d.e.f.g": ChannelLimits(99, 123_456_789_012, 31_536_000_000_000_000, 1, 1),
}

LONG_NAME = "this.is.a.very.long.channel.name.with.many.tokens.in.it.really"
THIRD = StoreLimits(
    0,
    ChannelLimits(max_subs=0, max_msgs=0, max_bytes=0, max_age=0),
    (
        entry("x", max_msgs=UNLIMITED, max_subs=10),
        entry("x.>", max_bytes=5 << 30),
        entry(LONG_NAME, max_msgs=1),
    ),
)

THIRD_TABLE = f"""\
---------- Store Limits ----------
Channels:            unlimited
--------- Channels Limits --------
  Subscriptions:     unlimited
  Messages     :     unlimited
  Bytes        :     unlimited
  Age          :     unlimited *
  Inactivity   :     unlimited *
---------------------- List of Channels ----------------------
{LONG_NAME}
 |-> Messages                               1
x
 |-> Subscriptions                         10
x.>
 |-> Bytes                            5.00 GB
--------------------------------------------------------------"""


@pytest.mark.parametrize(
    ("limits", "table"),
    [(FIRST, FIRST_TABLE), (SECOND_EXAMPLE, SECOND_TABLE), (THIRD, THIRD_TABLE)],
    ids=["worked example 1", "worked example 2", "worked example 3"],
)
def test_the_table_of_a_worked_example_is_that_of_a_running_original(
    limits: StoreLimits, table: str
) -> None:
    check_limits(limits)
    assert limits_table(limits) == table.split("\n")


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [(FIRST, FIRST_LIMITS), (SECOND_EXAMPLE, SECOND_LIMITS)],
    ids=["worked example 1", "worked example 2"],
)
def test_the_limits_of_a_worked_example_are_inherited_as_by_the_original(
    limits: StoreLimits, wanted: dict[str, ChannelLimits]
) -> None:
    assert {e.name: e.limits for e in Limits(limits).entries} == wanted


@pytest.mark.parametrize(
    ("channel", "holds"),
    [
        ("a.x.c", "a.*.c"),
        ("a.b.z", "a.b.>"),
        ("q", "*"),
        ("q.r", ">"),
        ("a.b", "a.b"),
        ("a.b.c", "a.b.c"),
        ("a.x", "a.*"),
    ],
)
def test_the_narrowest_entry_that_covers_a_channel_holds_for_it(channel: str, holds: str) -> None:
    limits = Limits(SECOND_EXAMPLE)
    assert list(limits.matching(channel))[-1] == holds
    assert limits.of(channel.encode()) == SECOND_LIMITS[holds]


def test_a_channel_that_no_entry_covers_has_the_global_limits() -> None:
    limits = Limits(FIRST)
    assert limits.of(b"nobody") == FIRST.channel
    assert limits.of(b"temp") == FIRST.channel
    assert Limits().of(b"anything") == ChannelLimits()


def test_a_name_that_begins_another_inherits_too() -> None:
    """Releases of the original before 0.19 left its missing limits unlimited."""
    limits = Limits(
        StoreLimits(
            channel=ChannelLimits(max_msgs=7, max_age=9),
            channels=(entry("foo", max_subs=1), entry("foo.>")),
        )
    )
    assert limits.of(b"foo") == ChannelLimits(max_msgs=7, max_age=9, max_subs=1)
    assert [e.name for e in limits.entries] == ["foo", "foo.>"]


def test_names_are_bytes_of_any_kind() -> None:
    limits = Limits(
        StoreLimits(
            channels=(
                entry("caf\N{LATIN SMALL LETTER E WITH ACUTE}", max_msgs=1),
                entry("raw.*", max_msgs=2),
            )
        )
    )
    assert limits.of("caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode()).max_msgs == 1
    assert limits.of(b"raw.\xff\xfe").max_msgs == 2


def test_the_last_of_several_entries_of_one_name_counts() -> None:
    limits = Limits(
        StoreLimits(channels=(entry("foo", max_msgs=1, max_subs=5), entry("foo", max_msgs=2)))
    )
    assert limits.of(b"foo") == ChannelLimits(max_msgs=2)
    assert len(limits.entries) == 1


def test_a_name_of_thousands_of_tokens_is_no_trouble() -> None:
    deep = ".".join(["a"] * 5000)
    limits = Limits(
        StoreLimits(channels=(entry(deep, max_msgs=1), entry(".".join(["*"] * 5000), max_subs=2)))
    )
    assert limits.of(deep.encode()) == ChannelLimits(max_msgs=1, max_subs=2)


# ---- written in a file
# ---------------------------------------------------------------------------------------------

FIRST_FILE = """\
store_limits {
  max_channels: 10, max_msgs: 10000, max_bytes: 10MB, max_age: "1h"
  channels {
    foo { max_msgs: 300, max_subs: 50 }
    bar { max_msgs: 50, max_bytes: 1KB }
    baz { max_msgs: 0, max_bytes: 1MB, max_age: "2h" }
    bozo {}
    "foo.>" { max_msgs: 400 }
    "foo.bar.>" { max_age: "2h" }
    "temp.>" { max_inactivity: "1h" }
  }
}
"""

SECOND_FILE = """\
store_limits { channels {
  ">" { max_msgs: 5000 }
  "*" { max_subs: 7 }
  "a.*" { max_bytes: 1500 }
  "a.>" { max_age: "90s" }
  "a.*.c" { max_msgs: 10 }
  "a.b.c" { max_inactivity: "1m30s500ms" }
  "a.b.>" { max_msgs: 0 }
  "a.b" { max_bytes: 1023 }
  "a.b.c.d.e.f.g" { max_msgs: 99, max_subs: 1, max_bytes: 123456789012, max_age: "8760h", max_inactivity: "1ns" }
} }
"""  # noqa: E501

THIRD_FILE = f"""\
streaming {{ limits {{
  mc: 0, msu: 0, mm: 0, mb: 0, ma: "0s"
  per_channel {{
    "x" {{ max_count: -7, max_subscriptions: 10 }}
    "x.>" {{ mb: 5GB }}
    "{LONG_NAME}" {{ mm: 1 }}
  }}
}} }}
"""


def from_file(directory: Path, text: str, *flags: str) -> StoreLimits:
    path = directory / "server.conf"
    path.write_text(text, encoding="utf-8")
    return to_options(parse([*flags, "-sc", str(path)])).limits


@pytest.mark.parametrize(
    ("text", "table"),
    [(FIRST_FILE, FIRST_TABLE), (SECOND_FILE, SECOND_TABLE), (THIRD_FILE, THIRD_TABLE)],
    ids=["worked example 1", "worked example 2", "worked example 3"],
)
def test_the_file_of_a_worked_example_gives_its_table(
    text: str, table: str, tmp_path: Path
) -> None:
    assert limits_table(from_file(tmp_path, text)) == table.split("\n")


def test_flags_replace_global_limits_of_a_file_and_entries_inherit_the_flags(
    tmp_path: Path,
) -> None:
    limits = Limits(from_file(tmp_path, FIRST_FILE, "-mm", "7", "-max_age", "3h"))
    assert limits.of(b"bozo") == ChannelLimits(7, 10 << 20, 3 * HOUR, 1000, 0)
    assert limits.of(b"foo") == ChannelLimits(300, 10 << 20, 3 * HOUR, 50, 0)
    assert limits.of(b"foo.bar.x") == ChannelLimits(400, 10 << 20, 2 * HOUR, 1000, 0)


def test_the_example_of_the_page_gives_the_list_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "limits.md").read_text(encoding="utf-8")
    written, shown = page.split("```\n")[1:4:2]
    table = limits_table(from_file(tmp_path, written))
    assert table[table.index(shown.splitlines()[0]) :] == shown.splitlines()


def test_the_table_of_the_page_about_inheritance_is_true() -> None:
    limits = Limits(
        StoreLimits(
            channels=(
                entry(">", max_msgs=5000),
                entry("*", max_subs=7),
                entry("a.>", max_age=90 * SECOND),
                entry("a.*.c", max_msgs=10),
                entry("a.b.>", max_msgs=UNLIMITED),
            )
        )
    )
    holds = {"q": "*", "q.r": ">", "a.x": "a.>", "a.x.c": "a.*.c", "a.b.z": "a.b.>"}
    assert {name: list(limits.matching(name))[-1] for name in holds} == holds
    assert limits.of(b"q") == ChannelLimits(max_msgs=5000, max_subs=7)
    assert limits.of(b"a.x.c") == ChannelLimits(max_msgs=10, max_age=90 * SECOND)
    assert limits.of(b"a.b.z") == ChannelLimits(max_msgs=0, max_age=90 * SECOND)


# ---- against an independent reading of the rule
# --------------------------------------------------------------------

TOKENS = st.sampled_from(["a", "b", "*"])
PATTERNS = st.builds(
    lambda tokens, rest: ".".join([*tokens, ">"] if rest or not tokens else tokens),
    st.lists(TOKENS, max_size=4),
    st.booleans(),
)


def covers(pattern: list[str], name: list[str]) -> bool:
    if not pattern or not name:
        return not pattern and not name
    if pattern[0] == ">":
        return True
    return pattern[0] in ("*", name[0]) and covers(pattern[1:], name[1:])


@given(
    st.dictionaries(PATTERNS, st.integers(-1, 5), max_size=12),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5),
)
def test_entries_are_ordered_by_the_first_token_in_which_one_is_wider(
    written: dict[str, int], name: list[str]
) -> None:
    limits = Limits(StoreLimits(channels=tuple(entry(n, max_msgs=v) for n, v in written.items())))
    covering = sorted(
        (n for n in written if covers(n.split("."), name)),
        key=lambda n: [{">": 0, "*": 1}.get(token, 2) for token in n.split(".")],
    )
    assert list(limits.matching(".".join(name))) == covering
    wanted = 1_000_000
    for e in covering:
        wanted = {e.name: e.limits for e in limits.entries}[e].max_msgs
    assert limits.of(".".join(name).encode()).max_msgs == wanted


@given(st.dictionaries(PATTERNS, st.integers(-1, 5), max_size=12))
def test_every_entry_is_resolved_and_listed_once(written: dict[str, int]) -> None:
    limits = Limits(StoreLimits(channels=tuple(entry(n, max_msgs=v) for n, v in written.items())))
    assert sorted(e.name for e in limits.entries) == sorted(written)
    for e in limits.entries:
        wanted = e.parent.max_msgs if written[e.name] == 0 else max(written[e.name], 0)
        assert e.limits == replace(ChannelLimits(), max_msgs=wanted)


# ---- what is refused
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        ".foo",
        "foo.",
        "foo*",
        "foo.*.",
        "foo.>.bar",
        "foo/bar",
        "foo..bar",
        "a.>>",
        ">.a",
        "*foo",
    ],
)
def test_a_name_that_cannot_be_a_channel_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_limits(StoreLimits(channels=(entry("fine"), entry(name))))
    assert refused.value.text == f'invalid channel name "{name}"'
    assert "whole tokens" in refused.value.hint


@pytest.mark.parametrize("name", ["foo", "foo bar", "*", ">", "foo.*", "*.foo.>", "FOO", "a-b_c"])
def test_a_name_that_covers_channels_is_taken(name: str) -> None:
    check_limits(StoreLimits(channels=(entry(name),)))


def test_listed_channels_count_against_the_limit_of_channels_and_wildcards_do_not() -> None:
    entries = (entry("a"), entry("b"), entry("b"), entry("c.*"), entry("d.>"))
    check_limits(StoreLimits(2, channels=entries))
    check_limits(StoreLimits(0, channels=(*entries, entry("e"))))
    with pytest.raises(ConfigError) as refused:
        check_limits(StoreLimits(2, channels=(*entries, entry("e"))))
    assert refused.value.text == "too many channels defined (3). The max channels limit is set to 2"
    assert "0: unlimited" in refused.value.hint


def test_what_is_wrong_is_refused_in_the_order_of_the_original() -> None:
    entries = (entry("a"), entry("b"))
    with pytest.raises(ConfigError, match="max messages limit cannot be negative"):
        check_start(
            ServerOptions(
                limits=StoreLimits(1, ChannelLimits(max_msgs=-1), (*entries, entry("c.")))
            )
        )
    with pytest.raises(ConfigError, match="invalid channel name"):
        check_start(ServerOptions(limits=StoreLimits(1, channels=(*entries, entry("c.")))))
    with pytest.raises(ConfigError, match="too many channels defined"):
        check_start(ServerOptions(limits=StoreLimits(1, channels=entries)))


# ---- changes
# --------------------------------------------------------------------------------------------------


def test_the_same_limits_are_no_change() -> None:
    assert changes(FIRST, FIRST) == []


def test_each_change_is_told_once_in_the_words_of_the_table() -> None:
    old = StoreLimits(
        10,
        ChannelLimits(max_age=HOUR),
        (entry("a", max_msgs=5), entry("b"), entry("gone", max_msgs=1)),
    )
    new = StoreLimits(
        0,
        ChannelLimits(max_age=0, max_bytes=1024),
        (
            entry("a", max_msgs=UNLIMITED, max_subs=3),
            entry("b"),
            entry("new.*", max_age=MINUTE),
            entry("plain"),
        ),
    )
    assert changes(old, new) == [
        "Channels: 10 -> unlimited",
        "Bytes: 976.6 MiB -> 1.0 KiB",
        "Age: 1h0m0s -> unlimited",
        '"a": Subscriptions: inherited -> 3, Messages: 5 -> unlimited',
        '"gone": no limits of its own any more',
        '"new.*": Age: inherited -> 1m0s',
        '"plain": listed, all inherited',
    ]
