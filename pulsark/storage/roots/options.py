"""How object stores are reached: the settings, and the same as variables of the environment.

Processes that have no settings, such as Spark's tasks and table processes, take the variables.
What neither says is left to obstore, which knows the variables of AWS (``AWS_ENDPOINT_URL``,
``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ...) and the roles of machines.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.config.settings import Settings

PREFIX: Final = "PULSARK_"
_KEYS: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "token",
}


@dataclass(frozen=True, slots=True)
class ObjectStoreOptions:
    """The fields are named as their settings; empty: what the environment says."""

    objectStoreEndpoint: str = ""
    objectStoreRegion: str = ""
    objectStoreCredentialsFile: str = ""
    objectStoreTimeoutSeconds: int = 30
    objectStoreRetrySeconds: int = 10

    @classmethod
    def of(cls, settings: Settings) -> ObjectStoreOptions:
        """As the settings of a broker say it."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ObjectStoreOptions:
        """As the variables say it; raises ``ValueError``."""
        found: dict[str, Any] = {}
        for field in fields(cls):
            value = environment.get(PREFIX + field.name, "")
            if value:
                found[field.name] = value if field.type == "str" else int(value)
        return cls(**found)

    def to_environment(self) -> dict[str, str]:
        """The inverse of ``from_environment``."""
        return {PREFIX + field.name: str(getattr(self, field.name)) for field in fields(self)}


def read_credentials(path: str) -> dict[str, str | None]:
    """The credentials in a file in the form of AWS's, section ``default``; raises ``OSError``.

    Errors do not say what is in the file.
    """
    import configparser  # only where there is such a file

    parser = configparser.RawConfigParser()
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            parser.read_file(file)
        section = dict(parser["default"])
    except OSError as e:
        raise OSError(f"objectStoreCredentialsFile {path}: {e.strerror}") from None
    except (configparser.Error, KeyError, UnicodeDecodeError) as e:
        raise OSError(
            f"objectStoreCredentialsFile {path} cannot be read ({type(e).__name__}): it needs a "
            "section [default] with aws_access_key_id and aws_secret_access_key"
        ) from None
    found = {name: section.get(key) for key, name in _KEYS.items()}
    if not found["access_key_id"] or not found["secret_access_key"]:
        raise OSError(
            f"objectStoreCredentialsFile {path} lacks aws_access_key_id or aws_secret_access_key"
        )
    return found
