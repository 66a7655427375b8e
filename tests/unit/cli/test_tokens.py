"""``pulsark tokens``: keys and tokens, in Pulsar's formats."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key

from pulsark.cli import main
from pulsark.config.settings import Settings
from pulsark.runtime import Runtime
from pulsark.security.provider import Credentials
from pulsark.security.tokens import TokenProvider
from tests.support.logging_in import ec_key, inline, private_der, public_pem

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; its code and what it printed."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pulsark", "tokens", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        text = capfd.readouterr()
        return code, text.out, text.err

    return call


def claims(token: str) -> dict[str, object]:
    body = token.strip().split(".")[1]
    found: dict[str, object] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return found


@pytest.mark.parametrize(("alg", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_is_its_bytes(run: Run, tmp_path: Path, alg: str, size: int) -> None:
    file = tmp_path / "secret.key"
    assert run("create-secret-key", "--output", file, "-a", alg) == (0, "", "")
    assert len(file.read_bytes()) == size
    assert file.stat().st_mode & 0o777 == 0o600
    code, out, _ = run("create-secret-key", "-a", alg, "-b")
    assert code == 0
    assert len(base64.b64decode(out)) == size


def test_a_token_is_written_for_its_owner_alone(run: Run, tmp_path: Path) -> None:
    key, file = tmp_path / "secret.key", tmp_path / "orders.token"
    run("create-secret-key", "-o", key)
    words = ("create", "-sk", key, "-s", "orders", "-o", file)
    assert run(*words) == (0, "", "")
    assert claims(file.read_text())["sub"] == "orders"
    assert file.stat().st_mode & 0o777 == 0o600
    assert run(*words)[0] == 1


def test_a_key_is_never_written_over_another(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(b"precious")
    code, _, error = run("create-secret-key", "--output", file)
    assert (code, "File exists" in error, file.read_bytes()) == (1, True, b"precious")


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "ES384", "ES512"])
def test_a_pair_is_in_der_and_verifies_what_it_signed(run: Run, tmp_path: Path, alg: str) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    made = ("--output-private-key", private, "--output-public-key", public, "-a", alg)
    assert run("create-key-pair", *made) == (0, "", "")
    assert private.stat().st_mode & 0o777 == 0o600
    load_der_private_key(private.read_bytes(), None)
    load_der_public_key(public.read_bytes())
    code, token, _ = run("create", "-pk", f"file://{private}", "-s", "orders", "-a", alg)
    assert code == 0
    settings = Settings(tokenPublicKey=f"file://{public}", tokenPublicAlg=alg)
    shown = Credentials("token", token.strip().encode())
    assert TokenProvider(settings, Runtime()).log_in(shown).role == "orders"
    code, out, _ = run("validate", token.strip(), "-pk", public, "-a", alg)
    assert (code, json.loads(out)) == (0, {"sub": "orders"})


def test_the_algorithm_of_a_curve_is_known(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "private.key"
    file.write_bytes(private_der(ec_key()))
    code, token, _ = run("create", "-pk", file, "-s", "orders")
    assert code == 0
    out = run("show", token.strip())[1].splitlines()
    assert (json.loads(out[0])["alg"], out[1], out[2]) == ("ES256", "---", '{"sub":"orders"}')
    pem = inline(public_pem(ec_key()))
    assert run("validate", token.strip(), "-pk", pem, "-a", "ES256")[0] == 0


def test_a_token_is_made_shown_and_validated(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret.key"
    run("create-secret-key", "--output", file)
    before = Runtime().clock.now_ms() // 1000
    code, token, _ = run("create", "-sk", file, "-s", "orders", "-e", "1y", "-h", "kid=one")
    assert code == 0
    made = claims(token)
    assert made["sub"] == "orders"
    assert 0 <= int(str(made["exp"])) - before - 31_536_000 < 60
    out = run("show", token.strip())[1].splitlines()
    assert json.loads(out[0]) == {"alg": "HS256", "kid": "one", "typ": "JWT"}
    monkeypatch.setattr(sys, "stdin", io.StringIO(token))
    code, out, _ = run("validate", "-sk", file)
    assert (code, json.loads(out)) == (0, made)
    # Pulsar's own clients take it as it is printed.
    assert pulsar.AuthenticationToken(token.strip()) is not None


def test_what_is_not_good_ends_with_code_1(run: Run, tmp_path: Path) -> None:
    file, other = tmp_path / "secret.key", tmp_path / "other.key"
    for each in (file, other):
        run("create-secret-key", "--output", each)
    token = run("create", "-sk", other, "-s", "orders")[1].strip()
    for words, message in (
        (("validate", token, "-sk", file), "no configured key has signed the token"),
        (("validate", token), "give the key"),
        (("validate", token, "-sk", file, "-pk", file), "give the key"),
        (("validate", token, "-pk", file), "neither DER nor PEM"),
        (("validate", token, "-pk", file, "-a", "none"), "one of RS256"),
        (("validate", "x.y", "-sk", file), "this is not a token"),
        (("show", "x.y"), "this is not a token"),
        (("create", "-s", "a"), "give the key"),
        (("create", "-s", " ", "-sk", file), "no role"),
        (("create", "-s", "a", "-sk", file, "-e", "1month"), "-e 1month"),
        (("create", "-s", "a", "-sk", file, "-a", "HS512"), "with this secret one of HS256"),
        (("create", "-s", "a", "-sk", "nowhere.key"), "-sk: neither a file"),
        (("create", "-s", "a", "-pk", file), "neither DER nor PEM of a private key"),
        (("create-secret-key", "-a", "RS256"), "one of HS256"),
        (
            (
                "create-key-pair",
                "--output-private-key",
                tmp_path / "a",
                "--output-public-key",
                tmp_path / "b",
                "-a",
                "HS256",
            ),
            "one of RS256",
        ),
    ):
        code, _, error = run(*words)
        assert code == 1, words
        assert message in error
