"""One declaration of an option is enough: parsing, help, completion, pages and settings follow from
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from ftstan.config import flags, usage
from ftstan.config.declaration import (
    Group,
    Option,
    Section,
    ValueKind,
    declared,
    in_order,
    option,
    part,
)
from ftstan.config.options import ServerOptions
from ftstan.config.precedence import Settings, field_value
from ftstan.config.table import BY_FLAG, BY_KEY, CONFIGURED, FLAGS, OPTIONS, RELOADABLE, names_of
from ftstan.config.units import SECOND
from ftstan.config.usage import completion, help_text
from tools.gen_docs import pages
from tools.roff import roff

if TYPE_CHECKING:
    from ftstan.config.declaration import Traits
    from ftstan.config.units import Duration, Size

PAGES = pages()
SCRIPTS = {shell: completion(shell) for shell in ("bash", "zsh", "fish")}
BASH_WORDS = set(SCRIPTS["bash"].replace('"', " ").split())


@dataclass(frozen=True)
class Waves:
    """Options that no server has."""

    pause: Duration = option(
        SECOND, "Time between two waves", flags="wave_pause wp", reloadable=True
    )
    height: Size = option(7, "Size of a wave", names="height size")
    shape: str = option("", "Look of a wave", flags="", section=Section.STREAMING, secret=True)
    colours: tuple[str, ...] = option((), "Colours of a wave", choices=("red", "blue"))
    heard: int = 0


@dataclass(frozen=True)
class Sea:
    """A class with those as a part of it."""

    waves: Waves = part(Waves, "wave_", group=Group.FILE, section=Section.FILE)


INHERITED: Traits = {"group": Group.STREAMING, "section": Section.STREAMING}


def test_a_field_says_everything_about_its_option() -> None:
    pause, height, shape, colours = declared(Sea, INHERITED)
    assert pause == Option(
        "wave_pause",
        ValueKind.DURATION,
        SECOND,
        Group.FILE,
        "Time between two waves",
        flags=("wave_pause", "wp"),
        section=Section.FILE,
        names=("wave_pause",),
        field="waves.pause",
        reloadable=True,
    )
    assert (height.kind, height.flags, height.names) == (
        ValueKind.SIZE,
        ("wave_height",),
        ("height", "size"),
    )
    assert (shape.key, shape.flags, shape.path, shape.secret) == (
        "wave_shape",
        (),
        "streaming.wave_shape",
        True,
    )
    assert (colours.kind, colours.default, colours.choices) == (ValueKind.LIST, "", ("red", "blue"))


def test_the_class_has_the_defaults_that_were_declared_and_hides_secrets() -> None:
    assert Sea().waves == Waves(pause=SECOND, height=7, shape="", colours=(), heard=0)
    assert "hidden" not in repr(Waves(shape="hidden"))


def test_a_new_declaration_is_parsed_and_shown_without_another_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = tuple(declared(Sea, INHERITED))
    monkeypatch.setattr(usage, "FLAGS", tuple(one for one in made if one.flags))
    for one in made:
        for flag in one.flags:
            monkeypatch.setitem(BY_FLAG, flag, one)
    assert flags.parse(["-wp", "3s", "--wave_colours=red"]).given == {
        "wave_pause": 3 * SECOND,
        "wave_colours": "red",
    }
    assert help_text() == (
        "\nUsage: nats-streaming-server [options]\n\nStreaming Server File Store Options:\n"
        "    -wp,  --wave_pause <duration>                 Time between two waves (default: 1s)\n"
        "          --wave_height <size>                    Size of a wave (default: 7)\n"
        "          --wave_colours <string, ...>            Colours of a wave\n\n"
    )
    assert "--wave_colours[Colours of a wave]:value:(red blue)" in completion("zsh")
    assert "-l wave_pause -l wp -x -d 'Time between two waves'" in completion("fish")
    assert (
        '-wave_colours|--wave_colours) COMPREPLY=($(compgen -W "red blue" -- "$word"))'
        in completion("bash")
    )


def test_an_option_stands_behind_the_one_that_it_names() -> None:
    def made(key: str, after: str = "") -> Option:
        return Option(key, ValueKind.INT, 0, Group.FILE, "", after=after)

    moved = in_order(
        [made("c", "a"), made("a"), made("b"), made("d", "c"), made("e", "a")], "after"
    )
    assert "".join(one.key for one in moved) == "aecdb"
    with pytest.raises(ValueError, match="nobody"):
        in_order([made("a", "nobody")], "after")


@pytest.mark.parametrize("one", OPTIONS, ids=lambda one: one.key)
def test_an_option_is_in_help_pages_completion_and_settings(one: Option) -> None:
    assert BY_KEY[one.key] is one
    assert Settings().value(one.key) == one.default
    assert (f" --{one.key}" in help_text()) or not (one.flags and one.help)
    for flag in one.flags:
        dashed = f"--{flag}" if len(flag) > 1 else f"-{flag}"
        assert BY_FLAG[flag] is one
        assert f"`-{flag}`" in PAGES["docs/configuration.md"]
        assert rf"\fB\-{roff(flag)}\fR" in PAGES["docs/man/ftstan.8"]
        assert dashed in BASH_WORDS
        assert f"'{dashed}[" in SCRIPTS["zsh"]
        assert f" -l {flag} " in SCRIPTS["fish"] or f" -s {flag} " in SCRIPTS["fish"]
    for name in one.names:
        assert one.section is not None
        assert names_of(one.section)[name] is one
        assert f"`{name}`" in PAGES["docs/configuration.md"]
        assert rf"\fB{roff(name)}\fR" in PAGES["docs/man/ftstan.conf.5"]


def test_no_flag_no_key_and_no_field_is_declared_twice() -> None:
    every = [flag for one in FLAGS for flag in one.flags]
    assert len(every) == len(set(every))
    assert len(OPTIONS) == len(BY_KEY)
    fields = [one.field for one in CONFIGURED if one.field]
    assert len(fields) == len(set(fields))


def test_what_a_reload_takes_over_has_a_field() -> None:
    for path in RELOADABLE - {"limits.channels", "limits.deliveries", "nats.settings"}:
        one = next(one for one in CONFIGURED if one.field == path)
        assert path.startswith("nats.settings.") or field_value(ServerOptions(), one) is not None
