"""The weaknesses that other brokers of this protocol, or libraries of ours, had: each has its test.

``TESTS`` says which; what is asked of the sources as a whole is asked here.
"""

from __future__ import annotations

import ast
import inspect
import re
import ssl
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pytest
from jwt.algorithms import HMACAlgorithm

import pulsark
from pulsark.admin_client.credentials import Credentials
from pulsark.dispatch.connection.handshake import Handshake
from pulsark.security import broker_calls

ROOT = Path(__file__).parents[3]
PACKAGE = Path(pulsark.__file__).parent
NOT_IN_THE_BROKER = ("cli", "datasource", "admin_client", "jobs", "notebook.py")

TOKENS = "unit/security/test_tokens.py::"
LOGIN = "unit/dispatch/connection/test_login.py::"
FLIGHT = "unit/dispatch/spark/test_flight_login.py::"
EVERYBODY = "unit/security/test_everybody.py::"
HERE = "unit/security/test_known_weaknesses.py::"

TESTS = {
    "CVE-2021-22160: a token with the algorithm none was anybody's": (
        TOKENS + "test_what_the_key_has_not_signed_by_the_rules_is_refused",
        TOKENS + "test_only_the_one_algorithm_is_taken",
    ),
    "CVE-2022-29217 (PyJWT): a public key was taken for a secret": (
        TOKENS + "test_a_public_key_is_no_secret",
        TOKENS + "test_wrong_settings_stop_the_start",
    ),
    "CVE-2021-41571: a message of another tenant's ledger by its id": (
        "unit/admin/test_admin_messages.py::test_a_message_by_its_id",
    ),
    "CVE-2022-24280, CVE-2024-27894: the server fetched what clients named": (
        HERE + "test_the_broker_fetches_from_nowhere_but_issuers",
        "unit/security/test_openid.py::test_documents_are_fetched_without_redirects_and_up_to_a_size",
        "unit/security/test_openid.py::test_an_issuer_must_say_that_it_is_itself",
        TOKENS + "test_a_token_that_brings_a_key_is_refused_whoever_signed_it",
    ),
    "CVE-2022-33681 to 33684: the other side of TLS was not verified": (
        HERE + "test_clients_of_ours_verify_certificate_and_host",
        "unit/security/test_tls.py::test_a_client_of_another_ca_is_refused",
        FLIGHT + "test_a_client_certificate_is_a_login",
    ),
    "CVE-2022-34321, CVE-2023-37544: an endpoint without a login": (
        "unit/security/test_matrix.py::test_every_route_needs_what_the_matrix_says",
        "unit/security/test_matrix.py::test_every_command_needs_what_the_matrix_says",
        "unit/admin/test_admin_login.py::test_all_others_get_401_before_404",
        FLIGHT + "test_every_method_needs_what_the_matrix_says",
    ),
    "CVE-2023-30428, CVE-2023-30429: a header or the proxy decided who somebody is": (
        LOGIN + "test_with_authorization_only_proxies_ask_for_others",
        "unit/admin/test_admin_login.py::test_whom_a_proxy_names",
        LOGIN + "test_a_proxy_cannot_prolong_what_its_client_showed",
    ),
    "CVE-2023-37579, CVE-2024-28098, CVE-2024-29834: who could produce could configure": (
        EVERYBODY + "test_every_route",
        EVERYBODY + "test_every_command",
    ),
    "CVE-2023-31007: a connection outlived its credentials": (
        LOGIN + "test_who_does_not_answer_is_closed",
        LOGIN + "test_who_cannot_answer_is_closed_at_once",
        FLIGHT + "test_a_stream_ends_when_its_right_or_its_credentials_do",
    ),
    "CVE-2023-51437: signatures were compared in a time that told of them": (
        HERE + "test_signatures_are_compared_in_constant_time",
        "unit/security/test_passwords.py::test_of_a_user_who_is_not_there_as_much_is_hashed",
    ),
    "CVE-2024-27317, CVE-2024-27135: archives and code of clients": (
        HERE + "test_nothing_of_clients_is_unpacked_or_executed",
    ),
    "CVE-2025-30677: secrets in logs": (
        "unit/admin/test_admin_login.py::test_credentials_are_in_no_log",
        LOGIN + "test_credentials_are_in_no_log",
        "integration/test_authentication.py::test_no_log_has_credentials",
        TOKENS + "test_no_text_shows_a_token",
    ),
    "CVE-2023-30798, CVE-2025-54121, CVE-2025-62727 (Starlette): forms and ranges of files": (
        HERE + "test_there_are_no_forms_and_no_files_over_http",
        HERE + "test_libraries_are_not_older_than_their_mends",
    ),
}


@pytest.mark.parametrize("name", [name for names in TESTS.values() for name in names])
def test_the_test_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    text = (ROOT / "tests" / path).read_text()
    assert re.search(rf"^(async )?def {function}\(", text, re.MULTILINE), name


class Source(NamedTuple):
    """A module that runs in a broker: what it imports, and what it calls."""

    name: str
    imported: frozenset[str]
    called: frozenset[str]


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(NOT_IN_THE_BROKER) and not name.endswith("_pb2.py"):
            module = ast.parse(path.read_text())
            found.append(Source(name, frozenset(imported(module)), frozenset(called(module))))
    return tuple(found)


def imported(module: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def called(module: ast.Module) -> set[str]:
    """The names of what is called, without what is before the last dot."""
    return {
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    }


def users_of(*modules: str) -> list[str]:
    return [each.name for each in sources() if not each.imported.isdisjoint(modules)]


def callers_of(*functions: str) -> list[str]:
    return [each.name for each in sources() if not each.called.isdisjoint(functions)]


def test_the_broker_fetches_from_nowhere_but_issuers() -> None:
    assert users_of("http.client", "urllib.request", "requests", "httpx", "aiohttp") == [
        "security/openid.py"
    ]
    # Brokers call brokers and bookies that announced themselves in the metadata store, and the
    # ZooKeeper or etcd of their settings. The supervisor reads from sockets that it has made
    # itself, and asks servers that it has started.
    assert callers_of("create_connection", "open_connection", "open_unix_connection") == [
        "dispatch/peers/http_call.py",
        "metadata/etcd/connection.py",
        "metadata/zookeeper/connection.py",
        "processes/bookkeeper_server.py",
        "processes/kept_child.py",
        "processes/zookeeper_server.py",
        "storage/bookkeeper/link.py",
    ]
    # What a client names as its broker is for proxies, and nobody reads it.
    assert "proxy_to_broker_url" not in inspect.getsource(Handshake)


def test_clients_of_ours_verify_certificate_and_host() -> None:
    context = Credentials().ssl_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    for weaker in ("CERT_NONE", "check_hostname = False", "disable_server_verification", "_create_"
                   "unverified_context"):  # fmt: skip
        assert weaker not in text


def test_signatures_are_compared_in_constant_time() -> None:
    assert "compare_digest" in inspect.getsource(HMACAlgorithm.verify)
    # In ``passwords`` it makes the key of a dictionary from a secret of the process: nothing is
    # compared there. The digests of BookKeeper's entries tell damage: no client sends them.
    assert users_of("hmac") == [
        "security/broker_calls.py",
        "security/passwords.py",
        "wire/bookkeeper/digests.py",
    ]
    assert "compare_digest" in inspect.getsource(broker_calls)


def test_nothing_of_clients_is_unpacked_or_executed() -> None:
    assert users_of("pickle", "marshal", "shelve", "dill", "cloudpickle", "runpy", "code") == []
    assert users_of("zipfile", "tarfile", "shutil.unpack_archive") == []
    assert callers_of("eval", "exec", "unpack_archive") == []


def test_there_are_no_forms_and_no_files_over_http() -> None:
    assert callers_of("FileResponse", "StaticFiles", "UploadFile", "Form", "File") == []
    with pytest.raises(PackageNotFoundError):
        version("python-multipart")


def test_libraries_are_not_older_than_their_mends() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        wanted = tomllib.load(file)["project"]["dependencies"]
    for name, least in {"starlette": (0, 49, 1), "PyJWT": (2, 12)}.items():
        (line,) = (each for each in wanted if each.startswith(name))
        found = re.search(r">=([0-9.]+)", line)
        assert found is not None
        assert tuple(map(int, found[1].split("."))) >= least
        assert tuple(map(int, version(name).split("."))) >= least
