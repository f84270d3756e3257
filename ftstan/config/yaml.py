"""The same keys in YAML, for people whose tools write that: a ``.yaml`` or ``.yml`` file to the
tree of ``grammar``.

Plain words mean what they mean in the other language (``10MB`` is a size, ``yes`` a boolean, ``1m``
a million), quoted ones are strings, and an empty value is the empty string. Anchors and merge keys
work; variables and includes are not looked for. PyYAML's safe loader reads the file, so no tag
makes an object.

Source: ``docs/compat/config.md`` (YAML).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from ftstan.base.errors import ConfigError
from ftstan.config.scanner import BLANKS, NEWLINES, Scanner, Variable
from ftstan.config.tree import Document, Node, Place, Repeated, Value

if TYPE_CHECKING:
    from yaml.nodes import Node as YamlNode

#: Maps and lists in each other; more is a mistake, or worse.
_MAX_DEPTH = 100

_MERGE = "tag:yaml.org,2002:merge"


def parse(text: str, file: str) -> Document:
    """Parse a YAML text. Raises ``ConfigError`` with file, line and column."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return Document({})
            if not isinstance(root, yaml.MappingNode):
                raise ConfigError(
                    f"{file}:1:1: expected keys and values", hint="write key: value, one a line"
                )
            reader = _Reader(loader, file)
            entries = reader.value(root, 0)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise ConfigError(
            f"{where}: {error.problem or error.context}",
            hint="this is not YAML; look at the line and the one above",
        ) from error
    except yaml.YAMLError as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(
            f"{file}: {first}", hint="this is not YAML: a character may not be there"
        ) from error
    except RecursionError:
        raise _too_deep(file) from None
    assert isinstance(entries, dict)
    return Document(entries, repeated=tuple(reader.repeated))


def _too_deep(file: str) -> ConfigError:
    return ConfigError(
        f"{file}: more than {_MAX_DEPTH} maps and lists in each other", hint="close some"
    )


class _Reader:
    def __init__(self, loader: yaml.SafeLoader, file: str) -> None:
        self._loader = loader
        self._file = file
        self._known: dict[int, Value] = {}
        self.repeated: list[Repeated] = []

    def value(self, node: YamlNode, depth: int) -> Value:
        """The value of a node; one that stands behind several aliases is made once."""
        if depth > _MAX_DEPTH:
            raise _too_deep(self._file)
        if id(node) not in self._known:
            self._known[id(node)] = self._make(node, depth)
        return self._known[id(node)]

    def _make(self, node: YamlNode, depth: int) -> Value:
        if isinstance(node, yaml.MappingNode):
            # Before maps are merged: what a merged map says may be said anew on purpose.
            self._note_repeated(node)
            self._loader.flatten_mapping(node)
            entries: dict[str, Node] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise ConfigError(
                        f"{self._place(key)}: a key must be a word", hint="put it in quotes"
                    )
                entries[key.value] = Node(self.value(value, depth + 1), self._place(key))
            return entries
        if isinstance(node, yaml.SequenceNode):
            return [Node(self.value(item, depth + 1), self._place(item)) for item in node.value]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node.value, self._place(node), plain=node.style is None)

    def _note_repeated(self, node: yaml.MappingNode) -> None:
        seen: dict[str, Place] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            place = self._place(key)
            if key.value in seen:
                self.repeated.append(Repeated(key.value, seen[key.value], place))
            seen[key.value] = place

    def _place(self, node: YamlNode) -> Place:
        return Place(self._file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _scalar(self, text: str, place: Place, *, plain: bool) -> Value:
        if not plain or any(char in text for char in BLANKS + NEWLINES + "\\'"):
            return text
        if text in ("", "~"):
            return ""
        scanner = Scanner(text, self._file)
        try:
            value = scanner.scalar()
        except ConfigError as error:
            if text.lstrip("-")[:1].isdigit() and "range" in error.text:
                raise ConfigError(error.text, hint=f"look at {place}") from error
            return text
        return text if isinstance(value, Variable) or not scanner.at_end() else value
