"""Which key counts, and what a file of keys may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import ConfigError
from ftstan.config.encryption_keys import keys_of, read_key_file
from ftstan.config.flags import parse, to_settings
from ftstan.config.options import EncryptionOptions, ServerOptions
from ftstan.embed import StanServer
from tests.command_lines import to_options

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {"NATS_STREAMING_ENCRYPTION_KEY": "of the environment"}


def key_file(path: Path, text: bytes, mode: int = 0o600) -> str:
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("", []),
        ("-encryption_cipher DES", []),
        ("-encrypt=false", []),
        ("-encrypt", [b"of the environment"]),
        ("-encryption_key k", [b"of the environment"]),
        ("-encrypt=false -encryption_key k", [b"of the environment"]),
    ],
)
def test_the_environments_key_goes_before_every_other_and_switches_nothing_on(
    words: str, keys: list[bytes]
) -> None:
    options = to_options(parse(words.split()))
    assert keys_of(options.encryption, ENVIRONMENT) == keys


def test_any_bytes_are_a_key() -> None:
    odd = 'schlüssel "quoted" 日本 ' + "x" * 500
    assert keys_of(EncryptionOptions(enabled=True, key=odd), {}) == [odd.encode()]
    raw = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert keys_of(EncryptionOptions(enabled=True, key=raw), {}) == [b"\xff\xfe"]


def test_a_key_or_a_file_of_keys_switches_encryption_on(tmp_path: Path) -> None:
    for words in (["-encryption_key", "k"], ["-encryption_key_file", "f"]):
        assert to_options(parse(words)).encryption.enabled
    for name in ("encryption_key", "encryption_key_file"):
        config = tmp_path / "s.conf"
        config.write_text(f'{name}: ""\n')
        assert to_settings(parse(["-c", str(config)])).value("encrypt") is True


def test_the_lines_of_a_file_are_its_keys_in_their_order(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", b"# new\n second \r\n\n\xff\xfe #\nfirst", 0o640)
    assert read_key_file(path) == [b" second ", b"\xff\xfe #", b"first"]
    options = EncryptionOptions(enabled=True, key_file=path)
    assert keys_of(options, {}) == read_key_file(path)
    # It writes, and what the file names is still read.
    assert keys_of(options, ENVIRONMENT) == [b"of the environment", *read_key_file(path)]


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        (b"k", 0o602, "is open to everybody (mode 0602)"),
        (b"k", 0o644, "is open to everybody (mode 0644)"),
        (b"\n# k\n\r\n", 0o600, "holds no key"),
        (b"", 0o600, "holds no key"),
        (b"k" * (1 << 20) + b"k", 0o600, "is too large for a file of keys"),
    ],
)
def test_a_file_that_cannot_be_one_of_keys_is_refused_with_its_name(
    text: bytes, mode: int, complaint: str, tmp_path: Path
) -> None:
    path = key_file(tmp_path / "keys", text, mode)
    with pytest.raises(ConfigError) as caught:
        read_key_file(path)
    assert caught.value.text == f"encryption_key_file {path} {complaint}"
    assert caught.value.hint


@pytest.mark.parametrize("given", [EncryptionOptions(key="k"), EncryptionOptions(key_file="/f")])
def test_a_program_that_gives_a_key_and_no_switch_is_refused(given: EncryptionOptions) -> None:
    server = StanServer(ServerOptions(encryption=given))
    with pytest.raises(ConfigError, match="key is given, and encryption is not enabled"):
        server.start()


def test_what_a_flag_takes_back_is_not_encrypted(tmp_path: Path) -> None:
    config = tmp_path / "s.conf"
    config.write_text('encryption_key: "k"\n')
    options = to_options(parse(["-c", str(config), "-encrypt=false"]))
    assert keys_of(options.encryption, ENVIRONMENT) == []


def test_a_key_stands_in_no_repr_of_options() -> None:
    assert "sesame" not in repr(EncryptionOptions(enabled=True, key="sesame"))
