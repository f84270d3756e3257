"""Hosts from an Ansible inventory, INI or YAML: names and plain variables, which is what commands
put into braces.

Patterns, ranges and inventory plugins are Ansible's business: for those write the output of
``ansible-inventory --list --yaml`` into a file. Reads one file, and runs nothing.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from ftstan.base.errors import ConfigError

_SECTION = re.compile(r"\[([^\]:]+)(?::(\w+))?\]")
_HINT = "name an inventory that ansible-inventory can read, and a group of it"


def read_inventory(path: str, group: str) -> list[dict[str, str]]:
    """The hosts of ``group`` with their variables, ``name`` and ``ansible_host`` always among them.

    Raises ``ConfigError``.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"inventory {path}: {error}", hint=_HINT) from error
    hosts = (
        _from_yaml(text, path, group)
        if path.endswith((".yml", ".yaml"))
        else _from_ini(text, group)
    )
    if not hosts:
        raise ConfigError(f"inventory {path} has no hosts in group {group!r}", hint=_HINT)
    return [{"ansible_host": name, **words, "name": name} for name, words in hosts.items()]


def _from_ini(text: str, group: str) -> dict[str, dict[str, str]]:
    members: dict[str, list[str]] = {}
    children: dict[str, list[str]] = {}
    group_words: dict[str, dict[str, str]] = {}
    words: dict[str, dict[str, str]] = {}
    section = "ungrouped"
    kind = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if match := _SECTION.fullmatch(line):
            section = match[1]
            kind = match[2] or ""
        elif kind == "children":
            children.setdefault(section, []).append(line)
        elif kind == "vars":
            key, _, value = line.partition("=")
            group_words.setdefault(section, {})[key.strip()] = value.strip().strip("\"'")
        else:
            name, *rest = shlex.split(line, comments=True)
            members.setdefault(section, []).append(name)
            pairs = (word.partition("=") for word in rest)
            words.setdefault(name, {}).update({key: value for key, _, value in pairs})
    wanted = _below(group, children) if group != "all" else [*members]
    inherited = [
        group_words.get("all", {}),
        *(group_words.get(name, {}) for name in reversed(wanted)),
    ]
    usual = {key: value for row in inherited for key, value in row.items()}
    return {name: {**usual, **words[name]} for part in wanted for name in members.get(part, [])}


def _below(group: str, children: dict[str, list[str]]) -> list[str]:
    found = [group]
    for name in found:
        found += [child for child in children.get(name, []) if child not in found]
    return found


def _from_yaml(text: str, path: str, group: str) -> dict[str, dict[str, str]]:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"inventory {path}: {str(error).partition(chr(10))[0]}", hint=_HINT
        ) from error
    hosts: dict[str, dict[str, str]] = {}
    _walk(tree, {}, group, hosts, inside=False)
    return hosts


def _walk(
    tree: Any, usual: dict[str, str], group: str, hosts: dict[str, dict[str, str]], *, inside: bool
) -> None:
    for name, body in tree.items() if isinstance(tree, dict) else ():
        entries = body if isinstance(body, dict) else {}
        here = inside or name == group
        words = {**usual, **_plain(entries.get("vars"))}
        for host, own in (entries.get("hosts") or {}).items() if here else ():
            hosts[str(host)] = {**hosts.get(str(host), {}), **words, **_plain(own)}
        _walk(entries.get("children"), words, group, hosts, inside=here)


def _plain(words: Any) -> dict[str, str]:
    items = words.items() if isinstance(words, dict) else ()
    return {str(key): str(value) for key, value in items if isinstance(value, str | int | float)}
