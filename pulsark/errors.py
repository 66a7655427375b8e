"""Every error that Pulsark raises on purpose.

The class says what the failure means for the connection and the process:

* ``ProtocolError``: the peer sent bytes that are not the protocol. The connection is closed.
* ``ClientError``: one request cannot be served. It is answered with ``code``; the connection lives.
* ``StorageError`` and its kinds: a ledger, a bookie or the metadata store failed.
* ``ConfigError``: the operator's settings are wrong. The process prints the message and stops.

Anything else that escapes is a bug and is not caught to keep going. Sealing is the exception: a
bug that one message reaches must not keep the others of its topic out of the table.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class ServerError(IntEnum):
    """Error codes of the binary protocol (``ServerError`` in the schema)."""

    UnknownError = 0
    MetadataError = 1
    PersistenceError = 2
    AuthenticationError = 3
    AuthorizationError = 4
    ConsumerBusy = 5
    ServiceNotReady = 6
    ProducerBlockedQuotaExceededError = 7
    ProducerBlockedQuotaExceededException = 8
    ChecksumError = 9
    UnsupportedVersionError = 10
    TopicNotFound = 11
    SubscriptionNotFound = 12
    ConsumerNotFound = 13
    TooManyRequests = 14
    TopicTerminatedError = 15
    ProducerBusy = 16
    InvalidTopicName = 17
    IncompatibleSchema = 18
    ConsumerAssignError = 19
    TransactionCoordinatorNotFound = 20
    InvalidTxnStatus = 21
    NotAllowedError = 22
    TransactionConflict = 23
    TransactionNotFound = 24
    ProducerFenced = 25


class PulsarkError(Exception):
    """Base of all errors raised on purpose; ``str(e)`` is fit for a user to read."""


class CrowdedOutError(PulsarkError):
    """Too many clients of an address failed to log in: it serves no more of them for now."""


class ProtocolError(PulsarkError):
    """The peer's bytes break the protocol; the connection cannot go on."""


class ClientError(PulsarkError):
    """A request that is answered with an error code. The connection lives on."""

    def __init__(self, code: ServerError, message: str) -> None:
        super().__init__(message)
        self.code = code


def internal_error() -> ClientError:
    """What a client is told of a bug; the log has the rest."""
    return ClientError(ServerError.UnknownError, "Internal error; the log of the broker says more")


class ConfigError(PulsarkError):
    """A setting, a flag or the environment is wrong; names the key and the cure."""

    @classmethod
    def cannot_listen(
        cls, key: str, hosts: Sequence[str], port: int, error: OSError
    ) -> ConfigError:
        """The port that the setting ``key`` names cannot be opened."""
        if error.errno == errno.EADDRINUSE:
            return PortInUseError(
                f"{key}: port {port} is in use; stop the other process or choose another"
            )
        return cls(
            f"{key}: cannot listen on {' and '.join(hosts)}, port {port}: {error.strerror or error}"
        )


class PortInUseError(ConfigError):
    """Another process has the port that a setting names, or one that follows from it."""


class MetadataError(PulsarkError):
    """The metadata store could not serve a request."""


class CorruptMetadataError(MetadataError):
    """A document of the metadata store is damaged, or none that this release can read."""


class MetadataRefusedError(MetadataError):
    """The metadata store has done nothing of what it was asked, and will not."""


class OutcomeUnknownError(MetadataError):
    """A write of metadata was made, or not, or comes a little later: the stored value tells."""


class OwnershipLostError(MetadataRefusedError):
    """What a write concerns belongs to a bundle that another broker has claimed since."""


class BadVersionError(MetadataRefusedError):
    """A compare-and-set lost: the value at ``path`` is not at the expected version."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path


class StorageError(PulsarkError):
    """A bookie or a ledger could not serve a request. The outcome of a write is unknown."""


class LedgerFencedError(StorageError):
    """Another owner fenced this ledger. The outcome of unconfirmed writes is unknown."""


class OlderMetadataError(StorageError):
    """The metadata store has forgotten what a table knows: an old copy of it was put back."""


class NotAttachedError(StorageError):
    """Files are no part of a table, and will not become one by the attempt that failed so."""


class TableTakenError(LedgerFencedError, NotAttachedError):
    """Another owner has a table: the write that failed so changed nothing, and will not."""


class CrowdedTableError(StorageError):
    """What is known of a table would not fit into its document: files must be merged first."""


class BookieAwayError(StorageError):
    """The connection to a bookie ended, or there is none now: it is expected to be back."""


class NoSuchLedgerError(StorageError):
    """The bookie has never stored anything of this ledger, or it was deleted."""


class NoSuchEntryError(StorageError):
    """The bookie is sure that it does not hold this entry."""


class EntrySealedError(StorageError):
    """The entry was released from the journal: it lives in the topic's table."""


class CorruptEntryError(StorageError):
    """The stored bytes fail their checksum. This is *unknown*, never *absent*."""


class RootsAwayError(StorageError):
    """Too few storage roots of a table can be reached now."""


class DamagedLogError(StorageError):
    """The log of a topic's table is damaged: nothing is sealed until it is repaired."""


class UnreadableTableError(CorruptEntryError):
    """No storage root of a table has the file with a sealed entry, or has it intact."""


class UnreadableExcerptError(StorageError):
    """Another process cannot read entries in the files of a journal. Its bookie may be able to."""


class ProcessEndedError(StorageError):
    """A process that worked for this one died, or did not answer in time and was ended."""


class SlowSealError(ProcessEndedError):
    """A process was ended because sealing took far more time than the size explains."""


class SealedApartError(StorageError):
    """A topic made trouble while it was sealed with others. It may be sealed again, apart."""


class ChangedTableError(StorageError):
    """Somebody else has written to the log of a topic's table. It is sealed into, and no more."""


class UnsealableError(StorageError):
    """Sealing failed at what some entry has in it: without that entry it succeeds."""


class StorageFullError(StorageError):
    """The disk is at its reserve: nothing was written, and nothing is lost."""


def trace_of(error: BaseException) -> BaseException | None:
    """What a line in the log shows of an error besides its text: where it was, if it is a bug."""
    return None if isinstance(error, PulsarkError) else error


def near_miss(word: str, known: Iterable[str], prefix: str = "") -> str:
    """`` (did you mean X?)`` for a name that is nearly a known one; else nothing."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {prefix}{near[0]}?)" if near else ""
