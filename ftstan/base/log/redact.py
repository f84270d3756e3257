"""Secrets in texts that are about to be written to a log: every form in which a login can be there
is replaced.

URLs carry user info; the trace of ``nats-server`` shows the CONNECT and INFO lines of clients and
routes as JSON; an error can quote a line of a configuration. ``log`` passes every line through
``redact``, and ``nats/childlog.py`` what another program wrote through ``redact_pairs``, too.
"""

from __future__ import annotations

import re

HIDDEN = "[REDACTED]"

# Greedy up to the last "@" before the next "://": a password may hold "@", "/" or ",".
_USER_INFO = re.compile(r"(://|^)(?:(?!://).)*@", re.DOTALL)

# In a sentence a URL ends at a blank or a quote; what was redacted already stays as it is.
_URL_IN_TEXT = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://)(?:(?!://|\[REDACTED\]@)[^\s\"'])*@", re.IGNORECASE
)

#: What a key of JSON or of a configuration is called that holds a secret.
_KEYS = "auth_token|token|user|username|pass|password|passwd|jwt|nkey|sig|nonce|seed|secret"
_PAIR = re.compile(
    rf"""(?P<key>(?P<mark>\\*["']?)\b(?:{_KEYS})\b(?P=mark)\s*[:=]\s*)"""
    r"""(?:(?P<quote>\\*["'])(?:\\.|(?!(?P=quote)).)*(?P=quote)|[^\s,;}\]"']+)""",
    re.IGNORECASE | re.DOTALL,
)
#: How nats-server names who was not let in.
_SAID = re.compile(r"\b((?:Nkey|Token|JWT) )\"[^\"]*\"", re.IGNORECASE)
#: Private keys and seeds of the nkeys alphabet, wherever they stand.
_SEED = re.compile(r"\bS[AUNCOX][A-Z2-7]{56}\b")
_SEED_SIZE = 57


def redact_url(url: str) -> str:
    """``url`` (or a comma separated list of them) with user info replaced by ``[REDACTED]``."""
    return _USER_INFO.sub(rf"\1{HIDDEN}@", url)


def redact(text: str) -> str:
    """``text`` without user info of URLs and without private nkeys: for every line."""
    if "@" in text and "://" in text:
        text = _URL_IN_TEXT.sub(rf"\1{HIDDEN}@", text)
    return _SEED.sub(HIDDEN, text) if len(text) > _SEED_SIZE else text


def redact_pairs(text: str) -> str:
    """``text`` without the values of keys that hold a secret, in JSON or in a configuration: for
    foreign lines.
    """
    text = _SAID.sub(rf'\1"{HIDDEN}"', text)
    return _PAIR.sub(
        lambda found: f"{found['key']}{found['quote'] or ''}{HIDDEN}{found['quote'] or ''}", text
    )
