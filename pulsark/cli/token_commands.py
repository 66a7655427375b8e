"""The commands of ``pulsark tokens``, with the names and options of Pulsar's."""

from __future__ import annotations

from typing import Annotated

import typer

from pulsark.cli.terminal.arguments import named

tokens = typer.Typer(help="Make keys and tokens, and look into tokens.", no_args_is_help=True)

SecretKey = Annotated[
    str, typer.Option("--secret-key", "-sk", metavar="KEY", help="Where the secret is.")
]
Token = Annotated[
    str,
    typer.Argument(
        metavar="[TOKEN]", help="The token; without it, or with -, stdin.", show_default=False
    ),
]
Algorithm = Annotated[
    str,
    typer.Option(
        "--signature-algorithm", "-a", metavar="NAME", help="HS256, RS256, ES384, PS512, ..."
    ),
]


@tokens.command("create-secret-key")
def create_secret_key(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="A new file; else stdout.")
    ] = "",
    algorithm: Algorithm = "HS256",
    base64: Annotated[bool, typer.Option("--base64", "-b", help="As text in base64.")] = False,
) -> None:
    """Make a secret that signs tokens and verifies them."""
    from pulsark.cli.tokens import write_secret_key

    write_secret_key(output, algorithm, as_text=base64)


@tokens.command("create-key-pair")
def create_key_pair(
    private: Annotated[
        str, typer.Option("--output-private-key", metavar="FILE", help="A new file.")
    ],
    public: Annotated[str, typer.Option("--output-public-key", metavar="FILE", help="A new file.")],
    algorithm: Algorithm = "RS256",
) -> None:
    """Make a private key that signs tokens, and the public one that verifies them."""
    from pulsark.cli.tokens import write_key_pair

    write_key_pair(private, public, algorithm)


@tokens.command("create")
def create(
    subject: Annotated[
        str, typer.Option("--subject", "-s", metavar="ROLE", help="Whom the token is for.")
    ],
    secret_key: SecretKey = "",
    private_key: Annotated[
        str, typer.Option("--private-key", "-pk", metavar="KEY", help="Where the private key is.")
    ] = "",
    expires: Annotated[
        str,
        typer.Option("--expiry-time", "-e", metavar="TIME", help="1y, 30d, 12h, 5m, 20s; or none."),
    ] = "",
    algorithm: Algorithm = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--headers", "-h", metavar="NAME=VALUE", help="More for its header."),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FILE", help="A new file that only you read; else stdout."
        ),
    ] = "",
) -> None:
    """Make a token and print it, or write it to a file."""
    from pulsark.cli.tokens import print_token

    print_token(subject, secret_key, private_key, expires, algorithm, named(header), output)


@tokens.command("show")
def show(token: Token = "-") -> None:
    """Print what is in a token, without verifying it."""
    from pulsark.cli.tokens import show_token

    show_token(token)


@tokens.command("validate")
def validate(
    token: Token = "-",
    secret_key: SecretKey = "",
    public_key: Annotated[
        str, typer.Option("--public-key", "-pk", metavar="KEY", help="Where the public key is.")
    ] = "",
    algorithm: Algorithm = "RS256",
) -> None:
    """Verify a token as a broker does, and print what it claims; code 1 if it is not good."""
    from pulsark.cli.tokens import validate_token

    validate_token(token, secret_key, public_key, algorithm)
