"""The table of constants on the protocol page says what the code does."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from ftstan.broker import constants
from ftstan.broker.broker import BrokerOptions
from tests.compat.driver import Driver

PAGE = Path(__file__).parents[3] / "docs/compat/protocol.md"
ROW = re.compile(r"\| (?P<what>[^|]+) \| (?P<value>[^|]+) \| `(?P<name>[\w.]+)` \|")
UNITS = {"ms": 10**6, "s": 10**9, "MiB": 1 << 20, "bytes": 1, "characters": 1, "": 1}


def table() -> list[tuple[str, str, str]]:
    section = PAGE.read_text(encoding="utf-8").partition("## Constants")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    rows = [ROW.fullmatch(line) for line in lines]
    assert None not in rows, "a row without a value or a name"
    return [(row["what"], row["value"], row["name"]) for row in rows if row is not None]


def named(name: str) -> float:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(f"ftstan.{module}"), attribute)
    assert isinstance(value, int | float)
    return value


@pytest.mark.parametrize(
    ("what", "value", "name"), [pytest.param(*row, id=row[2]) for row in table()]
)
def test_a_constant_has_the_value_of_the_page(what: str, value: str, name: str) -> None:
    number, _, unit = value.removesuffix(" (none)").partition(" ")
    scale = UNITS[unit] / (10**9 if name.endswith("_S") else 1)
    assert named(name) == float(number) * scale, what


def test_the_page_names_every_constant_of_the_broker_that_is_a_number() -> None:
    listed = {
        name.rpartition(".")[2] for _, _, name in table() if name.startswith("broker.constants.")
    }
    have = {
        n
        for n, v in vars(constants).items()
        if isinstance(v, int) and n.isupper() and not n.startswith("SID_")
    }
    assert listed == {n for n in have if not n.startswith("_")} - {
        "SECOND",
        "MILLISECOND",
        "LATEST",
    }


def test_the_defaults_of_the_broker_are_those_of_the_options() -> None:
    options = BrokerOptions()
    assert (options.hb_interval, options.hb_timeout, options.hb_fail_count) == (
        constants.HB_INTERVAL,
        constants.HB_TIMEOUT,
        constants.HB_FAIL_COUNT,
    )
    assert (options.max_channels, options.limits.max_subs) == (
        constants.MAX_CHANNELS,
        constants.MAX_SUBS,
    )
    assert Driver().broker.budget == constants.EMIT_BUDGET


def test_an_ack_inbox_has_the_length_that_clients_have_always_seen() -> None:
    assert len(Driver().broker.new_inbox()) == constants.ACK_INBOX_LENGTH
