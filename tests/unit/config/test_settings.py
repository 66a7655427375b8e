"""Settings: types, bounds, sources, and what is said about keys without effect."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from pulsark.config.keys import key_index, keys
from pulsark.config.pulsar_keys import pulsar_default
from pulsark.config.settings import Settings
from pulsark.config.sources import LoadedSettings, for_standalone, load_settings
from pulsark.errors import ConfigError

PACKAGE = Path(__file__).parents[3] / "pulsark"


def test_every_default_is_allowed_and_survives_its_text() -> None:
    for key in keys():
        assert key.parse(key.text(key.default)) == key.default, key.name


def test_every_key_says_what_it_means() -> None:
    for key in keys():
        assert key.spec.meaning, key.name
        if key.type.startswith("int"):
            assert key.spec.unit, key.name


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().bookies = 2  # type: ignore[misc]


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerServicePort=1\nwebServicePort=2\nflightServicePort=3\n")
    loaded = load_settings(
        file=str(file),
        environment={"PULSARK_webServicePort": "4", "PULSARK_flightServicePort": "5", "HOME": "/"},
        flags={"flightServicePort": 6, "allowAutoTopicCreation": False},
    )
    settings = loaded.settings
    assert settings.brokerServicePort == 1
    assert settings.webServicePort == 4
    assert settings.flightServicePort == 6
    assert settings.allowAutoTopicCreation is False
    assert loaded.warnings == ()
    assert loaded.sources["webServicePort"] == "environment"
    assert loaded.sources["brokerServicePort"] == str(file)


def test_an_empty_value_is_the_default(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("advertisedAddress=\ntlsCiphers=\nmanagedLedgerCacheSizeMB=\n")
    loaded = load_settings(file=str(file))
    assert loaded == LoadedSettings(Settings(), (), {})


@pytest.mark.parametrize(
    "later",
    [
        {"flags": {"advertisedAddress": "", "managedLedgerCacheSizeMB": " "}},
        {"environment": {"PULSARK_advertisedAddress": "", "PULSARK_managedLedgerCacheSizeMB": ""}},
    ],
    ids=["flags", "environment"],
)
def test_an_empty_value_of_a_later_source_is_the_default_again(
    tmp_path: Path, later: dict[str, dict[str, str]]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("advertisedAddress=a.example\nmanagedLedgerCacheSizeMB=7\n")
    loaded = load_settings(file=str(file), **later)  # type: ignore[arg-type]
    assert loaded == LoadedSettings(Settings(), (), {})


def test_an_empty_port_is_not_opened(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerServicePort=\nbrokerServicePortTls=6651\n")
    found = load_settings(file=str(file)).settings
    assert (found.brokerServicePort, found.brokerServicePortTls) == (None, 6651)
    emptied = {"PULSARK_brokerServicePortTls": ""}
    assert load_settings(file=str(file), environment=emptied).settings.brokerServicePortTls is None


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("brokerServicePort", "70000", "a whole number from 0 to 65535"),
        ("brokerServicePort", "65e2", "a whole number"),
        ("brokerServicePort", "\u0661", "a whole number"),
        ("brokerServicePort", "9" * 400, "a whole number"),
        ("keepAliveIntervalSeconds", "0", "a whole number from 1"),
        *(
            ("maxUnackedMessagesPerSubscriptionOnBrokerBlocked", text, "a number from 0 to 1")
            for text in ("1.1", "-0.1", "nan", "1e-3", ".", "\u0661")
        ),
        ("allowAutoTopicCreation", "yes", "true or false"),
        ("allowAutoTopicCreationType", "both", "one of partitioned, non-partitioned"),
        ("subscriptionTypesEnabled", "Shared,Foo", "a comma-separated list of Exclusive, Shared"),
        ("managedLedgerDefaultWriteQuorum", "3", "at most managedLedgerDefaultEnsembleSize=2"),
        ("managedLedgerDefaultEnsembleSize", "1", "at most managedLedgerDefaultEnsembleSize=1"),
        ("managedLedgerMinLedgerRolloverTimeMinutes", "500", "at most managedLedgerMaxLedgerRoll"),
        ("webServicePort", "6650", "choose another"),
        ("journalDirectories", "/a,/b", "give one for each bookie"),
    ],
)
def test_a_bad_value_names_the_key_and_the_cure(key: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags={key: text})
    assert message in str(caught.value)
    assert "=" in str(caught.value) or key in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.feature("F50")
def test_a_broker_serves_one_kind_of_topic_at_least() -> None:
    kinds = ("enablePersistentTopics", "enableNonPersistentTopics")
    with pytest.raises(ConfigError, match="set one of them to true"):
        load_settings(flags=dict.fromkeys(kinds, "false"))
    for kind in kinds:
        assert not load_settings(flags={kind: "false"}).warnings


def test_values_in_the_spelling_of_pulsars_files() -> None:
    loaded = load_settings(
        environment={
            "PULSARK_subscriptionTypesEnabled": " Shared , Failover ",
            "PULSARK_allowAutoTopicCreation": "FALSE",
            "PULSARK_brokerServicePortTls": "6651",
        }
    )
    assert loaded.settings.subscriptionTypesEnabled == ("Shared", "Failover")
    assert loaded.settings.allowAutoTopicCreation is False
    assert loaded.settings.brokerServicePortTls == 6651


@pytest.mark.parametrize(
    ("key", "text", "warning"),
    [
        ("brokerServicPort", "1", "brokerServicPort: unknown key, did you mean brokerServicePort?"),
        ("BROKER_SERVICE_PORT", "1", "did you mean brokerServicePort?"),
        ("wibble", "1", "wibble: unknown key ("),
        ("athenzDomainNames", "a,b", "athenzDomainNames: known in Pulsar, not implemented"),
        ("dispatcherMaxReadBatchSize", "7", "has no effect"),
        (
            "dispatchThrottlingRatePerReplicatorInMsg",
            "7",
            "dispatchThrottlingRatePerReplicatorInMsg: not implemented yet",
        ),
        ("dispatcherMaxReadBatchSize", "100", "left at Pulsar's default and not used"),
    ],
)
def test_what_has_no_effect_is_a_warning(key: str, text: str, warning: str) -> None:
    (found,) = load_settings(environment={f"PULSARK_{key}": text}).warnings
    assert warning in found


def test_the_file_of_users_has_a_second_name_that_is_weaker(tmp_path: Path) -> None:
    environment = {"PULSARK_BASIC_CONF": "/users"}
    assert load_settings(environment=environment).settings.basicAuthConf == "/users"
    file = tmp_path / "broker.conf"
    file.write_text("basicAuthConf=/others\n")
    loaded = load_settings(file=str(file), environment=environment)
    assert loaded.settings.basicAuthConf == "/others"
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("bookies", "quorums"), [(1, (1, 1, 1)), (2, (2, 2, 2)), (3, (3, 3, 2)), (5, (3, 3, 2))]
)
def test_quorums_follow_from_the_bookies(bookies: int, quorums: tuple[int, int, int]) -> None:
    loaded = for_standalone(load_settings(flags={"bookies": bookies}))
    settings = loaded.settings
    assert quorums == (
        settings.managedLedgerDefaultEnsembleSize,
        settings.managedLedgerDefaultWriteQuorum,
        settings.managedLedgerDefaultAckQuorum,
    )
    assert loaded.warnings == ()


def test_quorums_that_were_set_come_down_to_the_bookies_with_a_warning() -> None:
    given = {
        "managedLedgerDefaultEnsembleSize": 3,
        "managedLedgerDefaultWriteQuorum": 2,
        "managedLedgerDefaultAckQuorum": 1,
    }
    loaded = for_standalone(load_settings(flags={**given, "bookies": 2}))
    assert loaded.settings.managedLedgerDefaultEnsembleSize == 2
    assert loaded.settings.managedLedgerDefaultWriteQuorum == 2
    assert loaded.settings.managedLedgerDefaultAckQuorum == 1
    assert len(loaded.warnings) == 1
    assert "managedLedgerDefaultEnsembleSize=3: this standalone has 2 bookies" in loaded.warnings[0]


@pytest.mark.parametrize("content", [None, b"x" * ((1 << 20) + 1)])
def test_a_file_that_cannot_be_used(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "broker.conf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broker\.conf"):
        load_settings(file=str(file))


def test_a_file_in_latin_1(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_bytes("clusterName=k\xf6ln".encode("latin-1"))
    assert load_settings(file=str(file)).settings.clusterName == "köln"


def test_foreign_keys_are_not_ours() -> None:
    assert not [name for name in key_index() if pulsar_default(name) is not None]
    assert pulsar_default("managedLedgerOffloadMaxThreads") == "2"


def test_a_setting_is_read_somewhere_or_marked_as_planned() -> None:
    used = set()
    for path in PACKAGE.rglob("*.py"):
        readers = ("several_brokers.py", "store_urls.py")
        declares = path.parent == PACKAGE / "config" and path.name not in readers
        if declares or path.name.endswith("_pb2.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                used.add(node.attr)
    silent = [key.name for key in keys() if not key.spec.planned and key.name not in used]
    assert silent == []


def test_settings_are_light_to_import() -> None:
    code = (
        "import sys; before = set(sys.modules); import pulsark.config.sources;"
        "print(*{m.split('.')[0] for m in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "asyncio", "difflib", "typer"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("gigabytes", "in_bytes", "expected"),
    [("10", "-1", 10 << 30), ("10", "", 10 << 30), ("10", "7", 7), ("-1", "-1", -1), ("0", "", -1)],
)
def test_the_older_name_of_the_limit_of_backlogs(
    tmp_path: Path, gigabytes: str, in_bytes: str, expected: int
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        f"backlogQuotaDefaultLimitGB={gigabytes}\nbacklogQuotaDefaultLimitBytes={in_bytes}\n"
    )
    loaded = load_settings(file=str(file))
    assert loaded.settings.backlogQuotaDefaultLimitBytes == expected


def test_a_secret_is_shown_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    from pulsark.cli.settings import show_settings

    key = key_index()["tokenSecretKey"]
    assert key.shown("") == ""
    assert key.shown("file:///etc/key") == "file:///etc/key"
    assert key.shown("data:;base64,AAAA") == key.shown("AAAA") == "(not shown)"
    assert "AAAA" not in repr(Settings(tokenSecretKey="AAAA", basicAuthConf="AAAA"))
    for as_json in (False, True):
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PULSARK_tokenSecretKey", "data:;base64,AAAA")
            show_settings(None, as_json=as_json, form="")
        assert "AAAA" not in capsys.readouterr().out


def test_a_session_with_etcd_leaves_room_for_an_election() -> None:
    short = {"metadataStoreSessionTimeoutMillis": "4999"}
    for key in ("metadataStoreUrl", "configurationMetadataStoreUrl"):
        urls = {"metadataStoreUrl": "zk:h:2181", key: "etcd:http://h:2379"}
        with pytest.raises(ConfigError, match=r"metadataStoreSessionTimeoutMillis=4999.* 5000"):
            load_settings(flags=urls | short)
        load_settings(flags=urls | {"metadataStoreSessionTimeoutMillis": "5000"})
    load_settings(flags={"metadataStoreUrl": "zk:h:2181"} | short)


@pytest.mark.parametrize("name", ["PULSARK_SERVICE_URL", "PULSARK_IVY_DIR"])
def test_variables_of_other_programs_are_no_unknown_settings(name: str) -> None:
    assert load_settings(environment={name: "/x"}).warnings == ()
