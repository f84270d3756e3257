"""How a command of ``ftstanctl`` reaches NATS: the login and TLS flags, the same for every command
that asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from ftstan.config.options import LinkOptions


def add_link_options(parser: argparse.ArgumentParser, *, enforce_tls: bool = True) -> None:
    """Add the flags that ``link_options`` reads.

    Without ``enforce_tls`` not ``--tls``, which nats-py cannot do.
    """
    group = parser.add_argument_group("login and TLS")
    for flag, name, metavar, text in (
        ("--user", "user", "USER", "for the NATS server, with --pass"),
        ("--pass", "password", "PASSWORD", "that goes with --user"),
        ("--auth", "token", "TOKEN", "instead of --user and --pass"),
        ("--nkey", "nkey_seed_file", "FILE", "a user's nkey seed, bare or decorated"),
        ("--creds", "credentials", "FILE", "a credentials file: user JWT and seed"),
        (
            "--tlsca",
            "client_ca",
            "FILE",
            "authorities that the NATS server's certificate is checked with",
        ),
        ("--tlscert", "client_cert", "FILE", "our certificate, with --tlskey"),
        ("--tlskey", "client_key", "FILE", "the private key of --tlscert"),
        (
            "--tlsname",
            "server_name",
            "NAME",
            "what the NATS server's certificate must be valid for, instead of its host",
        ),
    ):
        group.add_argument(flag, default="", dest=name, metavar=metavar, help=text)
    if enforce_tls:
        group.add_argument(
            "--tls", action="store_true", dest="secure", help="refuse a NATS server without TLS"
        )
    group.add_argument(
        "--tlsinsecure",
        action="store_true",
        dest="insecure",
        help="do not verify the server's certificate; for tests",
    )


def link_options(arguments: argparse.Namespace) -> LinkOptions:
    """What those flags say."""
    # Late: words and help need no options of a server.
    from ftstan.config.options import LinkOptions  # noqa: PLC0415

    return LinkOptions(
        user=arguments.user,
        password=arguments.password,
        token=arguments.token,
        nkey_seed_file=arguments.nkey_seed_file,
        credentials=arguments.credentials,
        secure=arguments.secure,
        client_cert=arguments.client_cert,
        client_key=arguments.client_key,
        client_ca=arguments.client_ca,
        server_name=arguments.server_name,
        insecure=arguments.insecure,
    )
