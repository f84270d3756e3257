"""``make mutate``: the code of one function is exchanged for everybody who has that function, and a
mutant that changes nothing that is run is none.
"""

from __future__ import annotations

import secrets
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from tools.mutation.judging import changed_code, exchange
from tools.mutation.table import JUDGES, UNJUDGED

UNIT = Path(__file__).resolve().parents[1]

TEXT = textwrap.dedent(
    '''
    """A module."""

    from contextlib import contextmanager
    from functools import cached_property

    LIMIT = 3


    def plain(x):
        return x + 1


    @contextmanager
    def held(x):
        yield x + 2


    class Thing:
        base = 4

        @property
        def size(self):
            return self.base + 3

        @cached_property
        def area(self):
            return self.base + 4

        @staticmethod
        def made():
            return 0 + 5

        def outer(self):
            def inner():
                return 0 + 6

            return inner()
    '''
)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"mutated_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(TEXT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(
    ("old", "new", "shown", "values"),
    [
        ("x + 1", "x - 1", "plain(7)", (8, 6)),
        ("x + 2", "x - 2", "held(7).__enter__()", (9, 5)),
        ("self.base + 3", "self.base - 3", "Thing().size", (7, 1)),
        ("self.base + 4", "self.base - 4", "Thing().area", (8, 0)),
        ("0 + 5", "0 - 5", "Thing.made()", (5, -5)),
        ("0 + 6", "0 - 6", "Thing().outer()", (6, -6)),
    ],
)
def test_whoever_has_the_function_runs_the_changed_code(
    module: str, old: str, new: str, shown: str, values: tuple[int, int]
) -> None:
    names = dict(vars(import_module(module)))
    assert eval(shown, names) == values[0]
    codes = changed_code(TEXT, TEXT.replace(old, new), module)
    assert codes is not None
    exchange(module, *codes)
    assert eval(shown, names) == values[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [('"""A module."""', '"""Another."""'), ("LIMIT = 3", "LIMIT = 4"), ("\n\n\ndef", "\n\ndef")],
)
def test_what_no_function_runs_is_no_mutant(old: str, new: str) -> None:
    assert old in TEXT
    assert changed_code(TEXT, TEXT.replace(old, new), "mutated") is None


def test_every_judge_is_there() -> None:
    tests = {file for files in JUDGES.values() for file in files}
    assert [file for file in tests if not (UNIT / file).is_file()] == []


def test_every_module_of_both_packages_has_judges_or_a_reason_to_have_none() -> None:
    root = UNIT.parents[1]
    modules = {
        ".".join(file.relative_to(root).with_suffix("").parts)
        for package in ("ft", "stores/file/recovery")
        for file in (root / "ftstan" / package).glob("*.py")
        if file.name != "__init__.py"
    }
    assert modules == JUDGES.keys() | UNJUDGED.keys()
    assert not JUDGES.keys() & UNJUDGED.keys()
