"""Configuration files on the disk: their language, and which half reads which, in what order.

Source: ``docs/compat/config.md`` (which half reads what).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config import grammar, natsfile, streamfile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.precedence import Settings
    from ftstan.config.tree import Document

_YAML = (".yaml", ".yml")


def load(path: str, environment: Mapping[str, str] | None = None) -> Document:
    """Read a file, YAML if its name ends so. Raises ``ConfigError``."""
    if os.path.splitext(path)[1].lower() in _YAML:
        from ftstan.config import yaml  # noqa: PLC0415  # late: most files are none

        return yaml.parse(grammar.read_text(path), path)
    text = grammar.read_text(path)
    try:
        return grammar.parse(text, path, environment)
    except ConfigError as error:
        if _is_yaml(text, path):
            error.hint = (
                f"this reads as YAML: let the name of {path} end in .yaml; else: {error.hint}"
            )
        raise


def _is_yaml(text: str, path: str) -> bool:
    """Whether a text that is wrong in the language of NATS servers is right in YAML."""
    from ftstan.config import yaml  # noqa: PLC0415  # late, as above

    try:
        # "streaming { store: file" is a key and its value there.
        entries = yaml.parse(text, path).entries
        return bool(entries) and not any("{" in key for key in entries)
    except ConfigError:
        return False


def apply_files(
    settings: Settings, both: str, streaming: str, environment: Mapping[str, str] | None = None
) -> None:
    """Put what files say into ``settings``: ``both`` that of ``-c``, ``streaming`` that of ``-sc``.

    An empty path is none. If there is one, both halves read it. If there are two, the NATS half
    reads the first and the streaming half the second. Raises ``ConfigError``.
    """
    if not both and not streaming:
        return
    settings.file = both or streaming
    document = _read(settings.file, settings, environment)
    shared = not both or not streaming
    natsfile.read(document, settings, streams=shared)
    if not shared:
        try:
            document = _read(streaming, settings, environment)
        except ConfigError as error:
            if error.text.startswith("open "):
                raise ConfigError(
                    f"error opening config file: {error.text}", hint=error.hint
                ) from error
            raise
        _warn_of_nats_keys(document, settings)
    streamfile.read(document, settings)


def _read(path: str, settings: Settings, environment: Mapping[str, str] | None) -> Document:
    document = load(path, environment)
    settings.warnings += document.warnings
    for one in document.repeated:
        settings.warn_of_repeat(one.key, one.first, one.second)
    return document


def _warn_of_nats_keys(document: Document, settings: Settings) -> None:
    """With two files, keys of the NATS half in the second are read by nobody."""
    if streamfile.streaming_map(document) is not None:
        return
    for key, node in document.entries.items():
        if (
            key.lower() not in streamfile.known_names()
            and node.place not in document.used
            and key != "}"
        ):
            settings.warn_of_key(
                f'{node.place}: the key "{key}" is ignored: the NATS half reads only the file of -c'
            )
