"""What every manual page is written with."""

from __future__ import annotations

from ftstan import __version__


def roff(text: str) -> str:
    """Plain text as the typesetter wants it; marks of Markdown go."""
    text = (
        text.replace("\\|", "|")
        .replace("*", "")
        .replace("`", "")
        .replace("\\", "\\e")
        .replace("-", "\\-")
    )
    return f"\\&{text}" if text.startswith((".", "'")) else text


def head(title: str, section: int, summary: str, source: str) -> list[str]:
    """How a page begins; ``source``: what it is made from."""
    return [
        f'.\\" Made by tools/gen_docs.py from {source}; do not edit.',
        f'.TH {title} {section} "" "ftstan {__version__}" "ftstan"',
        ".SH NAME",
        f"{roff(title.lower())} \\- {roff(summary)}",
    ]
