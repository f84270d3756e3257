"""What is committed in ``ftstan/wire/pb`` is what ``proto/`` says."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from tools import gen_proto

if TYPE_CHECKING:
    from pathlib import Path

COMMITTED = gen_proto.ROOT / gen_proto.PACKAGE


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("pb")
    gen_proto.generate(scratch)
    return scratch / gen_proto.PACKAGE


def descriptor(path: Path) -> bytes:
    """The serialized file descriptor, the only part of a generated module that differs from one to
    another.
    """
    found = [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    ]
    (serialized,) = [
        value for value in found if isinstance(value, bytes) and path.stem.encode()[:4] in value
    ]
    return serialized


def declared(path: Path) -> dict[str, set[str]]:
    """The classes of a type stub and the names declared in each."""
    return {
        node.name: {
            f"{item.target.id}: {ast.unparse(item.annotation)}"
            for item in node.body
            if isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and item.target.id[0].islower()
        }
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


# Compared by meaning: another release of the compiler may lay out the same classes differently.


@pytest.mark.parametrize("name", [name for name in gen_proto.outputs() if name.endswith(".py")])
def test_committed_classes_are_those_of_the_proto_files(name: str, generated: Path) -> None:
    assert descriptor(COMMITTED / name) == descriptor(generated / name)


@pytest.mark.parametrize("name", [name for name in gen_proto.outputs() if name.endswith(".pyi")])
def test_committed_stubs_declare_the_fields_of_the_proto_files(name: str, generated: Path) -> None:
    assert declared(COMMITTED / name) == declared(generated / name)


def test_nothing_is_committed_that_no_proto_file_gives() -> None:
    assert sorted(path.name for path in COMMITTED.glob("*_pb2.py*")) == gen_proto.outputs()


@pytest.mark.parametrize("name", [name for name in gen_proto.outputs() if name.endswith(".py")])
def test_classes_ask_for_the_oldest_runtime_we_support(name: str) -> None:
    assert "# Protobuf Python Version: 6.31.1\n" in (COMMITTED / name).read_text()
