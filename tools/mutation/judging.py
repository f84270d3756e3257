"""Judging mutants: one function of a loaded module is given other code in a fork of this process,
which runs the tests until one fails.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import traceback
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutation"

#: Processor seconds that a mutant may take beyond five times those of the module as it is.
_PATIENCE_S = 20
#: Seconds after which a test that waits for something has failed, on a machine that is busy.
_HANGS_S = 600
#: Exit status of a child that did not get as far as its tests; pytest's own are below 10.
_UNFIT = 77
#: inspect.CO_NEWLOCALS: the code is a function's, not a class's.
_NEW_LOCALS = 2


class Fate(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    #: It ran for ever; whoever runs the tests notices.
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change: the whole text, and its lines that differ."""

    module: str
    text: str
    change: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the change of a module."""

    module: str
    change: str
    fate: Fate


def source_of(module: str) -> str:
    """The text of a module."""
    return (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def changed_code(before: str, after: str, module: str) -> tuple[CodeType, CodeType] | None:
    """The one function that differs: its code before, and after; ``None`` if none does."""
    file = f"{ROOT}/{module.replace('.', '/')}.py"
    old = compile(before, file, "exec", dont_inherit=True)
    new = compile(after, file, "exec", dont_inherit=True)
    for one, other in zip(_codes(old), _codes(new), strict=True):
        if not _is_same(one, other):
            return one, other
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module and its classes; what is within a function belongs to it."""
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        if constant.co_flags & _NEW_LOCALS:
            yield constant
        else:
            yield from _codes(constant)


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Whether both do the same, wherever they stand."""
    if one.co_code != other.co_code or len(one.co_consts) != len(other.co_consts):
        return False
    names = ("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable")
    return all(getattr(one, name) == getattr(other, name) for name in names) and all(
        _is_same(a, b)
        if isinstance(a, CodeType) and isinstance(b, CodeType)
        else type(a) is type(b) and a == b
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


def exchange(module: str, before: CodeType, after: CodeType) -> None:
    """Give the function whose code is ``before`` the code ``after``, for everybody who has it.

    Raises ``LookupError`` if the loaded module has no such function.
    """
    loaded = import_module(module)
    for function in _loaded(vars(loaded), module, set()):
        code = function.__code__
        if code.co_qualname == before.co_qualname and _is_same(code, before):
            function.__code__ = after
            return
    raise LookupError(f"{module}: {before.co_qualname} is not loaded")


def _loaded(names: Any, module: str, seen: set[int]) -> Iterator[FunctionType]:
    """The functions that a module or a class of it has defined, also behind what decorates them."""
    for value in list(names.values()):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            if value.__module__ == module:
                yield from _loaded(vars(value), module, seen)
            continue
        for name in (None, "__func__", "__wrapped__", "fget", "fset", "func"):
            inner = value if name is None else getattr(value, name, None)
            while isinstance(inner, FunctionType):
                if inner.__module__ == module:
                    yield inner
                inner = getattr(inner, "__wrapped__", None)


def judge(module: str, tests: list[str], work: Path) -> list[Verdict]:
    """Judge the mutants of one module that ``work`` names by these tests, each in a fork.

    Raises ``RuntimeError`` if the tests fail without any change, or a mutant cannot be run.
    """
    options = [
        "-q",
        "-x",
        "-p",
        "no:xdist",
        "--timeout",
        str(_HANGS_S),
        "--tb=no",
        "-p",
        "no:randomly",
    ]
    log = work.with_suffix(".log")
    if pytest.main(["--collect-only", "-qq", *options, *tests]) != 0:
        raise RuntimeError(f"{module}: its tests cannot be collected")
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    if _fork(None, [*options, *tests], log, limit=None) is not Fate.SURVIVED:
        raise RuntimeError(f"{module}: its tests fail without any change: see {log}")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    limit = int(5 * (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime))
    verdicts = []
    for line in work.read_text(encoding="utf-8").splitlines():
        mutant = Mutant(**json.loads(line))
        fate = _fork(mutant, [*options, *tests], log, limit=limit + _PATIENCE_S)
        verdicts.append(Verdict(module, mutant.change, fate))
    return verdicts


def _fork(mutant: Mutant | None, words: list[str], log: Path, *, limit: int | None) -> Fate:
    child = os.fork()
    if not child:
        status = _UNFIT
        try:
            status = _run_tests(mutant, words, log, limit)
        except (LookupError, ValueError, OSError):
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Fate.TIMED_OUT
    if os.WEXITSTATUS(status) == _UNFIT:
        raise RuntimeError(f"a mutant could not be run: see {log}")
    return Fate.SURVIVED if os.WEXITSTATUS(status) == 0 else Fate.KILLED


def _run_tests(mutant: Mutant | None, words: list[str], log: Path, limit: int | None) -> int:
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    if mutant is not None:
        codes = changed_code(source_of(mutant.module), mutant.text, mutant.module)
        if codes is None:
            raise LookupError(f"{mutant.module}: nothing of it differs")
        exchange(mutant.module, *codes)
    scratch = PLACE / f"tmp-{os.getpid()}"
    scratch.mkdir(parents=True)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch / "hypothesis")
    try:
        return int(pytest.main([*words, f"--basetemp={scratch / 'pytest'}"]))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
