"""What the declaration of an option says, and how ``options`` and ``table`` write one.

An option with a value of its own is a field of a class in ``options``: ``option`` gives it its
default and its help, its annotation says its kind. ``part`` nests a class and says what its options
have in common. ``fieldless`` declares what a server only hands on, answers or refuses.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")
Value = str | int | bool | float


class ValueKind(enum.Enum):
    """How a text or a value of a file becomes the option's value.

    ``SIZE`` is text for the parser of flags, which evaluates it after it has read all flags.
    ``LIST`` is comma separated there, and an array or such a text in a file. ``FLOAT`` and ``MAP``
    have no flags.
    """

    STRING = "<string>"
    INT = "<int>"
    SIZE = "<size>"
    DURATION = "<duration>"
    BOOL = "<bool>"
    LIST = "<string, ...>"
    FLOAT = "<seconds>"
    MAP = "<map>"


#: Kind of a field by its annotation. ``Duration`` and ``Size`` are the aliases in ``units``.
_KINDS = {
    "str": ValueKind.STRING,
    "int": ValueKind.INT,
    "Size": ValueKind.SIZE,
    "Duration": ValueKind.DURATION,
    "bool": ValueKind.BOOL,
    "tuple[str, ...]": ValueKind.LIST,
    "float": ValueKind.FLOAT,
}

_EMPTY: dict[ValueKind, Value] = {
    ValueKind.INT: 0,
    ValueKind.SIZE: 0,
    ValueKind.DURATION: 0,
    ValueKind.BOOL: False,
    ValueKind.FLOAT: 0.0,
}


class Group(enum.Enum):
    """The titles of the help text, in its order."""

    STREAMING = "Streaming Server Options"
    CLUSTERING = "Streaming Server Clustering Options"
    FT = "Streaming Server Fault Tolerance Options"
    FILE = "Streaming Server File Store Options"
    SQL = "Streaming Server SQL Store Options"
    STREAMING_TLS = "Streaming Server TLS Options"
    STREAMING_LOG = "Streaming Server Logging Options"
    NATS = "Embedded NATS Server Options"
    NATS_LOG = "Logging Options"
    AUTH = "Authorization Options"
    TLS = "TLS Options"
    ROUTES = "NATS Clustering Options"
    HANDED = "Handed to the NATS Server"
    COMMON = "Common Options"


class Section(enum.Enum):
    """The maps of a file in which options stand; the value is what documents call them.

    ``prefix`` begins the keys of options that are called without it in their map.
    """

    STREAMING = "streaming"
    TLS = "streaming.tls", "tls_"
    LIMITS = "streaming.store_limits"
    FILE = "streaming.file_options", "file_"
    SQL = "streaming.sql_options", "sql_"
    CLUSTER = "streaming.cluster", "cluster_"
    NATS = ""
    NATS_TLS = "tls", "tls_"
    AUTHORIZATION = "authorization"
    ROUTES = "cluster", "cluster_"

    prefix: str

    def __new__(cls, value: str, prefix: str = "") -> Self:
        """Make a member of one or two words."""
        made = object.__new__(cls)
        made._value_ = value
        made.prefix = prefix
        return made


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    ``key`` is its name everywhere in the program, ``flags`` what it is called on the command line,
    without dashes, and ``names`` what it is called in its ``section`` of a file, in lower case and
    the one first that documents show. ``field`` is the path of its value in ``ServerOptions``.
    """

    key: str
    kind: ValueKind
    default: Value
    group: Group
    help: str
    """Empty for a flag that the help text does not show."""
    flags: tuple[str, ...] = ()
    section: Section | None = None
    names: tuple[str, ...] = ()
    field: str = ""
    supported: bool = True
    """False for an option that is read, checked, and refused unless it has its default."""
    reloadable: bool = False
    """Whether a running server takes over another value."""
    secret: bool = False
    """Whether its value is shown as ``***``."""
    choices: tuple[str, ...] = ()
    takes: str = ""
    """``file`` or ``directory`` for the path of one."""
    note: str = ""
    """What pages say of an option that the help text does not show."""
    effectless: str = ""
    """Why another value than the default changes nothing."""
    last: bool = False
    """Whether it stands behind the options of all sections where options are listed."""
    after: str = ""
    """Key of the option that it follows, if it does not follow the one declared before it."""
    help_after: str = ""
    """The same for the help text alone."""

    @property
    def path(self) -> str:
        """The name that documents show: with its sections, or with a dash for a flag alone."""
        if not self.names or self.section is None:
            return f"-{self.key}"
        return f"{self.section.value}.{self.names[0]}".removeprefix(".")

    @property
    def short(self) -> str:
        """The flag in the first column of the help text; empty when there is only one."""
        return next((flag for flag in self.flags[1:] if len(flag) < len(self.key)), "")


class Traits(TypedDict, total=False):
    """What a declaration may say besides its help, by the names of ``Option``.

    ``flags`` and ``names`` are separated by blanks, empty for none. The key is the first flag if no
    ``key`` is said, the name in a file the key without the prefix of the section. A field says its
    default itself; without a field the default is nothing, as the kind says it.
    """

    default: Value
    key: str
    flags: str
    names: str
    group: Group
    section: Section
    field: str
    supported: bool
    reloadable: bool
    secret: bool
    choices: tuple[str, ...]
    takes: str
    note: str
    effectless: str
    last: bool
    after: str
    help_after: str


def option(default: T, text: str, /, shown: bool = True, **traits: Unpack[Traits]) -> T:
    """Declare an option as a field; ``text`` is its help. ``shown``: its value stands in a repr."""
    return dataclasses.field(
        default=default,
        repr=shown and not traits.get("secret"),
        metadata={"help": text, "traits": traits},
    )


def part(of: type[T], prefix: str = "", **traits: Unpack[Traits]) -> T:
    """Nest a class of options: ``prefix`` begins their keys, and they have these traits, too."""
    return dataclasses.field(
        default_factory=of,
        metadata={"part": of, "prefix": prefix, "traits": traits},
    )


def fieldless(key: str, kind: ValueKind, text: str, *traits: Traits) -> Option:
    """Declare an option without a field. The last of several equal traits counts."""
    return _made(key, kind, text, {name: said for one in traits for name, said in one.items()})


def declared(of: type[Any], inherited: Traits, path: str = "", prefix: str = "") -> list[Option]:
    """The options of a class and of its parts, in the order of their fields.

    ``inherited``: their traits where a declaration says nothing. ``path``: where the class stands,
    and ``prefix``: how its keys begin.
    """
    found: list[Option] = []
    for field in dataclasses.fields(of):
        said = field.metadata
        traits: Traits = {**inherited, **said.get("traits", {})}
        here = path + field.name
        if "part" in said:
            found += declared(said["part"], traits, f"{here}.", prefix + said["prefix"])
        elif "help" in said:
            kind = _KINDS[str(field.type)]
            default = "" if kind is ValueKind.LIST else field.default
            own = {"default": default, "field": here}
            found.append(_made(prefix + field.name, kind, said["help"], {**traits, **own}))
    return found


def _made(key: str, kind: ValueKind, text: str, traits: Mapping[str, Any]) -> Option:
    rest = {"default": _EMPTY.get(kind, ""), **traits}
    flags = tuple(rest.pop("flags", key).split())
    key = rest.pop("key", flags[0] if flags else key)
    section = rest.get("section")
    usual = key.removeprefix(section.prefix) if section else ""
    names = tuple(rest.pop("names", usual).split())
    return Option(key, kind, help=text, flags=flags, names=names, **rest)


def in_order(options: Iterable[Option], place: str) -> list[Option]:
    """``options``, with each moved behind the one that its attribute ``place`` names.

    Of several behind the same one, the last declared stands first.
    """
    every = list(options)
    listed = [one for one in every if not getattr(one, place)]
    for one in every:
        if target := getattr(one, place):
            listed.insert([other.key for other in listed].index(target) + 1, one)
    return listed
