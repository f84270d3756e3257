"""What a service of systemd gives its server: the environment and the words of the command.

The one reader of it, for whoever asks what a start by systemd would do: ``-check_config -unit`` and
``ftstanctl systemd-dropin``. It reads the files of the unit and of its drop-ins; systemd itself is
not asked, so it also works before a ``daemon-reload`` and on hosts without it.

Source: systemd.exec(5) (``Environment``, ``EnvironmentFile``, ``ReadWritePaths``),
systemd.service(5) (``Command lines``), systemd.unit(5) (where units and drop-ins are, specifiers
``%i``, ``%n``, ``%%``).
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Where units are; the first that has one wins, and so does the first that has a drop-in of a name.
UNIT_PLACES: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_PARENTS: Final = {
    "RuntimeDirectory": "/run",
    "StateDirectory": "/var/lib",
    "LogsDirectory": "/var/log",
}
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
#: What systemd gives every service; whoever asks may have it otherwise.
_EVERYWHERE: Final = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """A service: ``environment`` is all that its server sees, ``words`` those behind its name.

    ``directories`` are those that systemd makes before a start, ``writable`` others that have to be
    there: without one of them systemd does not start it. ``confined``: it may write to these, below
    them, and to little else.
    """

    environment: Mapping[str, str]
    words: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    confined: bool = False


def read_unit(
    unit: str,
    places: Sequence[str] = UNIT_PLACES,
    environment: Mapping[str, str] | None = None,
) -> ServiceUnit | None:
    """The service of that name, ``None`` if there is none.

    ``environment`` (default: that of the process): where search paths and the like come from.
    Raises ``ConfigError`` for files that cannot be read.
    """
    files = _files(unit, places)
    if not files:
        return None
    around = os.environ if environment is None else environment
    found = {name: around[name] for name in _EVERYWHERE if name in around}
    commands: list[str] = []
    said: dict[str, str] = {}
    listed: list[str] = []
    directories: list[str] = []
    writable: list[str] = []
    confined = False
    for key, value in _service_lines(files):
        text = _specified(value, unit)
        match key:
            case "Environment" if not text:
                said.clear()
            case "Environment":
                said |= _assigned(text, unit)
            case "EnvironmentFile" if not text:
                listed.clear()
            case "EnvironmentFile":
                listed.append(text)
            case "RuntimeDirectory" | "StateDirectory" | "LogsDirectory":
                directories += [os.path.join(_PARENTS[key], name) for name in text.split()]
            case "ReadWritePaths" if not text:
                writable.clear()
            case "ReadWritePaths":
                writable += _split(text, unit)
            case "ProtectSystem":
                confined = text == "strict"
            case "ExecStart" if not text:
                commands.clear()
            case "ExecStart":
                commands.append(text)
    # Files win over what the unit says itself, later ones over earlier ones.
    found |= said
    for path in listed:
        found |= _environment_file(path)
    words = _command(commands[-1], found, unit) if commands else []
    # With a minus a path may be missing.
    places = tuple(path.lstrip("+") for path in writable if not path.startswith("-"))
    optional = tuple(path.lstrip("-+") for path in writable if path.startswith("-"))
    there = tuple(path for path in optional if os.path.exists(path))
    return ServiceUnit(
        found, tuple(words[1:]), tuple(directories), (*places, *there), confined=confined
    )


def environment_of(text: str) -> dict[str, str]:
    """The variables of an ``EnvironmentFile``.

    ``#`` and ``;`` begin comments, a backslash joins lines, quotes may go around a value; nothing
    is replaced.
    """
    found = {}
    for line in text.replace("\\\n", "").split("\n"):
        stripped = line.strip()
        name, equals, value = stripped.partition("=")
        if stripped[:1] in ("", "#", ";") or not equals or not _NAME.fullmatch(name.strip()):
            continue
        try:
            found[name.strip()] = _value(value.strip())
        except ValueError:
            # A quote that nothing closes: systemd goes on with the next line.
            continue
    return found


def _value(text: str) -> str:
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace = ""
    lexer.commenters = ""
    lexer.whitespace_split = True
    return "".join(lexer)


def _files(unit: str, places: Sequence[str]) -> list[str]:
    """The unit's own file, and its drop-ins in the order of their names."""
    template = re.sub(r"@.*(?=\.service$)", "@", unit)
    names = list(dict.fromkeys((unit, template)))
    own = next(
        (
            path
            for name in names
            for place in places
            if os.path.isfile(path := os.path.join(place, name))
        ),
        "",
    )
    if not own:
        return []
    dropins: dict[str, str] = {}
    for name in names:
        for place in places:
            for path in glob.glob(os.path.join(glob.escape(os.path.join(place, name)) + ".d", "*")):
                if path.endswith(".conf"):
                    dropins.setdefault(os.path.basename(path), path)
    return [own, *(dropins[name] for name in sorted(dropins))]


def _service_lines(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in files:
        section = ""
        for line in _read(path).replace("\\\n", " ").split("\n"):
            stripped = line.strip()
            if stripped[:1] in ("", "#", ";"):
                continue
            if stripped.startswith("["):
                section = stripped
            elif section == "[Service]":
                key, _, value = stripped.partition("=")
                yield key.strip(), value.strip()


def _specified(text: str, unit: str) -> str:
    instance = unit.partition("@")[2].removesuffix(".service")
    values = {"%%": "%", "%i": instance, "%I": instance.replace("-", "/"), "%n": unit}
    return re.sub(r"%.", lambda found: values.get(found[0], found[0]), text)


def _assigned(text: str, unit: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in _split(text, unit))
    return {name: value for name, equals, value in pairs if equals and _NAME.fullmatch(name)}


def _environment_file(path: str) -> dict[str, str]:
    optional = path.startswith("-")
    name = path.removeprefix("-")
    if optional and not os.path.exists(name):
        return {}
    return environment_of(_read(name))


def _command(text: str, environment: Mapping[str, str], unit: str) -> list[str]:
    """``$NAME`` as a word of its own is any number of words, ``${NAME}`` is a part of one."""
    words: list[str] = []
    for word in _split(text, unit):
        if word.startswith("$") and _NAME.fullmatch(word[1:]):
            words += _split(environment.get(word[1:], ""), unit)
        else:
            words.append(_VARIABLE.sub(lambda found: environment.get(found[1], ""), word))
    return words


def _split(text: str, unit: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"{unit}: {text!r} cannot be split into words: {error}",
            hint="close the quote, in the unit or in its environment file",
        ) from error


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}",
            hint="ask as root: the environment of a service may hold secrets",
        ) from error
