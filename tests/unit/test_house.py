"""The house: every room imports only from rooms below it, no files import each other, no module outgrows a reader.

Reads the sources as text, imports nothing of them. The floors are those of ``docs/architecture.md``; an import under
``TYPE_CHECKING`` counts like any other, because it says as much about who knows whom.
"""

from __future__ import annotations

import ast
import re
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ftstan"

#: Floor of each room: a package below ``ftstan``, or a module beside them.
FLOORS = {
    "clock": 0,
    "collecting": 0,
    "disk": 0,
    "errors": 0,
    "histogram": 0,
    "log": 0,
    "promise": 0,
    "ratelimit": 0,
    "reserved": 0,
    "version": 0,
    "notify": 1,
    "config": 1,
    "wire": 1,
    "nats": 2,
    "starts": 2,
    "stores": 2,
    "broker": 3,
    "ft": 3,
    "monitor": 4,
    "administration": 5,
    "bridge": 5,
    "context": 5,
    "dataplane": 5,
    "embed": 6,
    "ending": 5,
    "handlers": 5,
    "host": 5,
    "group": 5,
    "overview": 5,
    "pages": 5,
    "partition": 5,
    "peers": 5,
    "protection": 5,
    "reception": 5,
    "reload": 5,
    "rival": 5,
    "member": 5,
    "server": 5,
    "serving": 5,
    "status": 5,
    "awake": 5,
    "storecheck": 5,
    "succession": 5,
    "supervised": 5,
    "client": 6,
    "drill": 6,
    "load": 6,
    "spark": 6,
    "cli": 7,
    "__init__": 7,
}

#: Rooms beside the server: what they may import; the server imports none of them. The face of the package is one: what
#: it shows of a room is loaded when it is asked for. ``spark`` asks it where the package lies, nobody else imports it.
BESIDE = {
    "__init__": {"embed", "version"},
    "client": {"errors", "nats", "wire"},
    "drill": {"client", "config", "errors", "ft", "nats", "promise", "supervised"},
    "load": {"clock", "config", "errors", "nats", "wire"},
    "spark": {"__init__", "client", "config", "disk", "errors", "ft", "promise", "stores", "wire"},
    "storecheck": {"clock", "disk", "errors", "ft"},
    "supervised": {"errors"},
}

#: Rooms that are several modules: the pieces of one node's life, and the ground that everybody stands on.
TOGETHER = (
    {
        "administration",
        "awake",
        "bridge",
        "context",
        "dataplane",
        "ending",
        "group",
        "handlers",
        "host",
        "member",
        "overview",
        "pages",
        "partition",
        "peers",
        "protection",
        "reception",
        "reload",
        "rival",
        "server",
        "serving",
        "status",
        "succession",
    },
    {"clock", "disk", "errors", "log", "ratelimit"},
)

MAX_LINES = 520

#: Modules that may be longer, and why.
LONG: dict[str, str] = {
    "broker/core.pyx": "the road of a publish and of an ack, one class that the compiler joins with its base",
    "ft/epoch.py": "the only module that knows the epoch file: taking a number, going on to one, confirming it",
    "stores/file/channel.py": "one channel: what it stages, writes, mends behind a refused batch, and recovers",
    "stores/file/store.py": "the face of the file store: what it hands on to whom, and the order of a commit",
    "stores/file/slices.py": "the only module that makes, fills and shows slices",
}

_GENERATED = "wire/pb/"
_CYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<of>[\w.]+)[ \t]+c?import[ \t]+(?P<names>\([^)]*\)|[^\n]*)"
    r"|c?import[ \t]+(?P<whole>[^\n]*))",
    re.MULTILINE,
)


def sources(package: Path) -> list[Path]:
    """Every module of the package, stubs and declarations of extensions too."""
    return sorted(p for ext in ("py", "pyi", "pyx", "pxd") for p in package.rglob(f"*.{ext}"))


def room_of(path: str) -> str:
    """The room of a source, given its path below the package."""
    return path.partition("/")[0].partition(".")[0]


def imports(text: str, *, cython: bool) -> list[tuple[str, str]]:
    """Module and name (empty: the module itself) of everything that a source imports."""
    return _cython_imports(text) if cython else _python_imports(text)


def imported_rooms(text: str, *, cython: bool) -> set[str]:
    """The rooms that a source imports from. Imports are absolute here; a relative one is an error."""
    rooms = set()
    for module, name in imports(text, cython=cython):
        package, _, rest = module.partition(".")
        assert module, "imports are absolute in this package"
        if package != "ftstan":
            continue
        # "from ftstan import log" names a room, "from ftstan import __version__" the package itself.
        room = rest.partition(".")[0] or (name if name in FLOORS else "__init__")
        rooms.add(room)
    return rooms


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
    inside = [{other for other in reached[module] if module in reached[other]} for module in sorted(edges)]
    return [found for i, found in enumerate(inside) if found and found not in inside[:i]]


def _reached(edges: dict[str, set[str]], module: str) -> set[str]:
    """Where the imports of a module lead to, itself included only if they lead back."""
    found: set[str] = set()
    following = edges[module]
    while following:
        found |= following
        following = set(chain.from_iterable(edges[other] for other in following)) - found
    return found


def may_import(room: str, other: str) -> bool:
    """Whether ``room`` may know ``other``."""
    if room in BESIDE:
        return other == room or other in BESIDE[room]
    if room == other or any({room, other} <= pieces for pieces in TOGETHER):
        return True
    return FLOORS[other] < FLOORS[room]


def test_every_room_has_a_floor() -> None:
    assert {room_of(str(p.relative_to(PACKAGE))) for p in sources(PACKAGE)} == set(FLOORS)


def test_a_room_imports_only_from_rooms_below_it() -> None:
    upward = []
    for path in sources(PACKAGE):
        name = path.relative_to(PACKAGE).as_posix()
        rooms = imported_rooms(path.read_text(encoding="utf-8"), cython=path.suffix in {".pyx", ".pxd"})
        upward += [f"{name} imports {other}" for other in sorted(rooms) if not may_import(room_of(name), other)]
    assert upward == []


def test_no_files_import_each_other_in_a_circle() -> None:
    texts = {
        name: path.read_text(encoding="utf-8")
        for path in sources(PACKAGE)
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(_GENERATED)
    }
    assert circles(graph(texts)) == []


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
    assert circles(graph(texts)) == [{"ftstan.a.one", "ftstan.a.two", "ftstan.b"}, {"ftstan.c", "ftstan.d"}]


def test_no_module_outgrows_a_reader() -> None:
    lengths = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for path in sources(PACKAGE)
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(_GENERATED)
    }
    assert {name: n for name, n in lengths.items() if n > MAX_LINES and name not in LONG} == {}


def test_a_listed_long_module_is_still_long() -> None:
    short = [name for name in LONG if len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) <= MAX_LINES]
    assert short == []


@pytest.mark.parametrize(
    ("text", "cython", "rooms"),
    [
        ("from ftstan.wire.block import MsgBlock\nimport os\n", False, {"wire"}),
        ("from ftstan import log, __version__\n", False, {"log", "__init__"}),
        ("import ftstan.nats.link\n", False, {"nats"}),
        ("if TYPE_CHECKING:\n    from ftstan.node.node import Node\n", False, {"server"}),
        ("def f():\n    from ftstan.node.node import run\n", False, {"server"}),
        ("from ftstan.wire.codec cimport (\n    Ack,\n    Span,\n)\n", True, {"wire"}),
        ("from ftstan cimport log\nfrom libc.string cimport memcpy\n", True, {"log"}),
        ("cimport ftstan.broker.core\nimport secrets\n", True, {"broker"}),
    ],
)
def test_every_form_of_an_import_is_seen(text: str, cython: bool, rooms: set[str]) -> None:
    assert imported_rooms(text, cython=cython) == rooms


def test_the_ground_floor_knows_nobody_above() -> None:
    assert not may_import("errors", "wire")
    assert not may_import("wire", "config")
    assert not may_import("ft", "monitor")
    assert not may_import("broker", "ft")
    assert may_import("serving", "broker")


def test_the_server_knows_nobody_beside_it_and_they_know_little_of_it() -> None:
    users = {"client", "drill", "spark", "cli"}
    assert [room for room in FLOORS if room not in users and may_import(room, "client")] == []
    assert [room for room in FLOORS if room not in {"cli", "spark"} and may_import(room, "spark")] == []
    assert may_import("drill", "client")
    assert not may_import("server", "drill")
    assert may_import("cli", "client")
    assert may_import("client", "wire")
    assert not may_import("client", "config")
    assert not may_import("client", "log")
