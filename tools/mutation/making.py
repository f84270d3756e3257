"""Every mutant of a module: the changes of mutmut, made on the syntax tree of libcst.

Not changed: what is said to people (calls of ``log``, sentences), constants of modules and classes,
defaults of arguments, annotations, decorators.
"""

from __future__ import annotations

import difflib
import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst
from mutmut.mutation.mutators import mutation_operators

from tools.mutation.judging import Mutant, changed_code, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change of a module, of which no text has been made yet: that takes its time."""

    module: str
    source: str
    tree: Any
    node: Any
    changed: Any

    def mutant(self) -> Mutant | None:
        """The mutant; ``None`` if it changes nothing that is run."""
        text = self.tree.deep_replace(self.node, self.changed).code
        if changed_code(self.source, text, self.module) is None:
            return None
        return Mutant(self.module, text, _difference(self.source, text))


def candidates(module: str) -> Iterator[Candidate]:
    """Every change of a module, in the order of the text."""
    source = source_of(module)
    tree = cst.parse_module(source)
    for function in _functions(tree.body):
        for node, changed in _changes(function.body):
            yield Candidate(module, source, tree, node, changed)


def _functions(statements: Iterable[Any]) -> Iterator[Any]:
    for statement in statements:
        if isinstance(statement, cst.FunctionDef):
            yield statement
        elif isinstance(statement, cst.ClassDef):
            yield from _functions(statement.body.body)


def _changes(node: Any) -> Iterator[tuple[Any, Any]]:
    """Each node below this one that can be changed, with what takes its place."""
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Parameters) or _is_said(node):
        return
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            for changed in operator(node):
                if not _changes_words_alone(node, changed):
                    yield node, changed
    for child in node.children:
        yield from _changes(child)


def _is_said(node: Any) -> bool:
    """Whether it is for people: a line of the log, or a sentence."""
    if isinstance(node, cst.Call):
        function = node.func
        return (
            isinstance(function, cst.Attribute)
            and isinstance(function.value, cst.Name)
            and function.value.value == "log"
        )
    if isinstance(node, cst.ConcatenatedString | cst.FormattedString):
        return True
    return isinstance(node, cst.SimpleString) and " " in node.value


def _changes_words_alone(node: Any, changed: Any) -> bool:
    """Whether a call loses nothing but words for people."""
    if not (isinstance(node, cst.Call) and isinstance(changed, cst.Call)):
        return False
    kept = [id(argument) for argument in changed.args]
    lost = [argument for argument in node.args if id(argument) not in kept]
    return bool(lost) and all(_is_said(argument.value) for argument in lost)


def _difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


def drawn(every: list[Candidate], count: int, seed: int) -> list[Mutant]:
    """So many of them, chosen at random, that change what is run."""
    order = list(every)
    random.Random(seed).shuffle(order)
    found = (candidate.mutant() for candidate in order)
    return list(itertools.islice((mutant for mutant in found if mutant is not None), count))
