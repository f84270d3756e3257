"""The house: the layers of ``pyproject.toml`` hold in every kind of source, and no files import
each other in a circle.

``make lint`` runs import-linter, which reads Python and nothing else. Here the same contracts are
held against the Cython sources, too. Reads the sources as text, imports nothing of them. An import
under ``TYPE_CHECKING`` counts like any other, because it says as much about who knows whom.
"""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "ftstan"
CONTRACTS: list[dict[str, Any]] = tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)["tool"]["importlinter"]["contracts"]

#: The contract that keeps the server from knowing what is beside it.
BESIDE = "The server knows nothing of what stands beside it"

_GENERATED = "wire/pb/"
_CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<of>[\w.]+)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^\n]*)"
    r"|c?import[ \t]+(?P<whole>[^\n]*))",
    re.MULTILINE,
)


def sources(package: Path) -> list[Path]:
    """Every module of the package, stubs and declarations of extensions too."""
    return sorted(p for ext in ("py", "pyi", "pyx", "pxd") for p in package.rglob(f"*.{ext}"))


def imports(text: str, *, cython: bool) -> list[tuple[str, str]]:
    """Module and name (empty: the module itself) of everything that a source imports."""
    return _cython_imports(text) if cython else _python_imports(text)


def _python_imports(text: str) -> list[tuple[str, str]]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "" if node.level else node.module or ""
            found += [(module, alias.name) for alias in node.names]
    return found


def _cython_imports(text: str) -> list[tuple[str, str]]:
    found = []
    for match in _CYTHON_IMPORT.finditer(text):
        if match["whole"] is not None:
            found += [(word.split()[0], "") for word in match["whole"].split(",") if word.split()]
            continue
        names = match["names"].strip("()").split(",")
        found += [(match["of"].lstrip("."), name.split()[0]) for name in names if name.split()]
    return found


def module_of(path: str) -> str:
    """The name of the module of a source, given its path below the package."""
    return ".".join(["ftstan", *Path(path).with_suffix("").parts]).removesuffix(".__init__")


def graph(texts: dict[str, str]) -> dict[str, set[str]]:
    """Which module imports which others, given the sources by their paths below the package.

    An extension, its stub and its declarations are one module.
    """
    known: dict[str, set[str]] = {module_of(path): set() for path in texts}
    for path, text in texts.items():
        module = module_of(path)
        for other, name in imports(text, cython=path.endswith((".pyx", ".pxd"))):
            found = f"{other}.{name}" if f"{other}.{name}" in known else other
            if found in known and found != module:
                known[module].add(found)
    return known


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules each of which leads to each other one."""
    reached = {module: _reached(edges, module) for module in edges}
    inside = [
        {other for other in reached[module] if module in reached[other]} for module in sorted(edges)
    ]
    return [found for i, found in enumerate(inside) if found and found not in inside[:i]]


def _reached(edges: dict[str, set[str]], module: str) -> set[str]:
    """Where the imports of a module lead to, itself included only if they lead back."""
    found: set[str] = set()
    following = edges[module]
    while following:
        found |= following
        following = set(chain.from_iterable(edges[other] for other in following)) - found
    return found


def layers() -> list[set[str]]:
    """The packages of the server, the highest first; those of one layer do not know each other."""
    (contract,) = (c for c in CONTRACTS if c["type"] == "layers")
    return [{name.strip("() ") for name in re.split(r"[|]", layer)} for layer in contract["layers"]]


def broken(module: str, other: str) -> list[str]:
    """Names of the contracts that an import of ``other`` by ``module`` breaks."""
    package, target = (".".join(name.split(".")[:2]) for name in (module, other))
    height = {name: -i for i, layer in enumerate(layers()) for name in layer}
    found = []
    if (
        package != target
        and package in height
        and target in height
        and height[target] >= height[package]
    ):
        found.append("layers")
    for contract in CONTRACTS:
        if contract["type"] == "forbidden":
            sources = contract["source_modules"]
            forbidden = contract["forbidden_modules"]
            if any(_is_in(module, s) for s in sources) and any(_is_in(other, f) for f in forbidden):
                found.append(contract["name"])
    return found


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def texts_of_the_package() -> dict[str, str]:
    return {
        name: path.read_text(encoding="utf-8")
        for path in sources(PACKAGE)
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(_GENERATED)
    }


def test_no_source_of_any_kind_breaks_a_contract() -> None:
    edges = graph(texts_of_the_package())
    wrong = [(m, o, why) for m, others in edges.items() for o in others for why in broken(m, o)]
    assert wrong == []


def test_every_package_is_in_a_layer_or_beside_the_server() -> None:
    there = {f"ftstan.{p.stem}" for p in PACKAGE.iterdir() if p.is_dir() or p.suffix == ".py"}
    there = {name for name in there if name.rsplit(".", 1)[1] not in {"__init__", "__pycache__"}}
    (contract,) = (c for c in CONTRACTS if c["name"] == BESIDE)
    assert there == set().union(*layers()) | set(contract["forbidden_modules"])


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(graph(texts_of_the_package())) == []


def test_circles_are_found_through_every_kind_of_source_and_one_module_is_none() -> None:
    texts = {
        "__init__.py": "from ftstan.a import A\n",
        "a/__init__.py": "",
        "a/one.py": "if TYPE_CHECKING:\n    from ftstan.a import two\n",
        "a/two.pyx": "from ftstan.b cimport B\n",
        "a/two.pxd": "from ftstan.a.two cimport C\n",
        "b.py": "def late():\n    import ftstan.a.one\n",
        "c.py": "from ftstan import d\nimport ftstan\n",
        "d.py": "from ftstan.c import C\n",
        "e.py": "from ftstan.d import D\nimport os\n",
    }
    assert circles(graph(texts)) == [
        {"ftstan.a.one", "ftstan.a.two", "ftstan.b"},
        {"ftstan.c", "ftstan.d"},
    ]


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("a.py", "from ftstan.wire.block import MsgBlock\nimport os\n", {"ftstan.wire.block"}),
        ("a.py", "from ftstan import base, __version__\n", {"ftstan.base", "ftstan"}),
        ("a.py", "import ftstan.nats.link\n", {"ftstan.nats.link"}),
        (
            "a.py",
            "if TYPE_CHECKING:\n    from ftstan.wire.block import Node\n",
            {"ftstan.wire.block"},
        ),
        ("a.py", "def f():\n    from ftstan.wire.block import run\n", {"ftstan.wire.block"}),
        (
            "a.pyx",
            "from ftstan.wire.block cimport (\n    Ack,\n    Span,\n)\n",
            {"ftstan.wire.block"},
        ),
        ("a.pyx", "from ftstan cimport base\nfrom libc.string cimport memcpy\n", {"ftstan.base"}),
        ("a.pyx", "cimport ftstan.nats.link\nimport secrets\n", {"ftstan.nats.link"}),
    ],
)
def test_every_form_of_an_import_is_seen(path: str, text: str, found: set[str]) -> None:
    known = dict.fromkeys(("__init__.py", "base/__init__.py", "wire/block.pyx", "nats/link.py"), "")
    assert graph({**known, path: text})["ftstan.a"] == found


def test_the_layers_say_who_knows_whom() -> None:
    assert broken("ftstan.base.errors", "ftstan.wire.codec") == ["layers"]
    assert broken("ftstan.wire.codec", "ftstan.config.options") == ["layers"]
    assert broken("ftstan.ft.standby", "ftstan.monitor.http") == ["layers"]
    assert broken("ftstan.node.pipeline", "ftstan.broker.publishing") == []
    assert broken("ftstan.node.node", "ftstan.drill.play") == [BESIDE]
    assert broken("ftstan.cli.drill", "ftstan.drill.play") == []
    assert broken("ftstan.client.connection", "ftstan.broker.publishing") != []
    assert broken("ftstan.stores.file.store", "ftstan.stores.file.tools.repairing") != []


# ---- density
# --------------------------------------------------------------------------------------------------

#: Where sources are: ruff, which keeps Python at this width, reads nothing else.
_OTHER_SOURCES = ("*.pyx", "*.pxd", "*.h")
WIDTH = 100


def tracked(*patterns: str) -> list[Path]:
    """The files of the package of these patterns."""
    return sorted(path for pattern in patterns for path in PACKAGE.rglob(pattern))


def test_no_line_of_a_source_in_cython_or_c_is_wider_than_one_in_python() -> None:
    files = tracked(*_OTHER_SOURCES)
    assert len(files) > 20
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > WIDTH
    ]
    assert wide == []


def in_one_line(text: str) -> list[str]:
    """Assignments of several values to several places that do not depend on each other."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=places)], value=ast.Tuple(elts=values)):
                names = {ast.unparse(place) for place in places}
                used = {ast.unparse(part) for value in values for part in ast.walk(value)}
                nested = any(isinstance(part, ast.Tuple | ast.Starred) for part in places)
                if not nested and len(places) == len(values) and not names & used:
                    found.append(ast.unparse(node))
    return found


def test_every_assignment_has_a_line_of_its_own() -> None:
    packed = {
        str(path.relative_to(ROOT)): found
        for path in tracked("*.py")
        if (found := in_one_line(path.read_text(encoding="utf-8")))
    }
    assert packed == {}


def test_assignments_that_depend_on_each_other_stay_together() -> None:
    assert in_one_line("a, b = 1, 2") == ["a, b = (1, 2)"]
    assert in_one_line("a, b = b, a\nfirst, (x, y) = rest, pair\n") == []
