"""A ledger's metadata as BookKeeper stores them.

A first line with the number of the form; then in form 3 a delimited protobuf message, in form 2 the
same message as text, in form 1 some lines. All are read, and each is written in the form that it
was read in. What is not understood here is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError, EncodeError

from pulsark.errors import CorruptMetadataError, MetadataRefusedError
from pulsark.storage.ledger.metadata import (
    Ensemble,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
)
from pulsark.storage.proto.bookkeeper_pb2 import LedgerMetadataFormat
from pulsark.wire.bookkeeper.digests import DigestType, LedgerKey

NEWEST_FORM: Final = 3

_FIRST_LINE: Final = b"BookieMetadataFormatVersion\t"
_CLOSED: Final = "CLOSED"
_IN_RECOVERY: Final = -102
"""Form 1 has this for the last entry."""
_SIZE_BYTES_MAX: Final = 5

_OWNER: Final = "pulsark/owner"
_RESERVE: Final = "pulsark/reserve"


@dataclass(frozen=True, slots=True)
class LedgerNode:
    """What a node has. The message is never changed once it is here."""

    form: int
    message: LedgerMetadataFormat

    @property
    def key(self) -> LedgerKey | None:
        """How its entries are checked; ``None`` if it does not say."""
        if not self.message.HasField("password"):
            return None
        return LedgerKey(DigestType(self.message.digestType), self.message.password)

    @property
    def token(self) -> int:
        """What its creator knows it by; -1 if it has none."""
        return self.message.cToken if self.message.HasField("cToken") else -1

    def encode(self) -> bytes:
        """The bytes to store."""
        first = b"%s%d\n" % (_FIRST_LINE, self.form)
        try:
            if self.form == 1:
                return first + _lines(self.message).encode()
            if self.form == 2:
                return first + text_format.MessageToString(self.message).encode()
            body = self.message.SerializeToString()
        except EncodeError as e:
            raise MetadataRefusedError(f"no metadata of a ledger: {e}") from e
        return first + _varint(len(body)) + body

    def metadata(self, ledger_id: int, created_ms: int = 0) -> LedgerMetadata:
        """What is said of the ledger; ``CorruptMetadataError`` if that makes no sense.

        ``created_ms``: when the node was, which counts if it does not say itself.
        """
        message = self.message
        notes = {each.key: each.value for each in message.customMetadata}
        try:
            config = LedgerConfig(
                message.ensembleSize,
                message.quorumSize,
                message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
                _RESERVE in notes,
                notes.get(_OWNER, b"").decode(),
            )
            ensembles = _ensembles(message, config)
        except ValueError as e:
            raise CorruptMetadataError(
                f"the metadata of ledger {ledger_id} cannot be used: {e}"
            ) from e
        closed = message.state == LedgerMetadataFormat.CLOSED
        return LedgerMetadata(
            ledger_id,
            config,
            _STATES[message.state],
            ensembles,
            message.ctime if message.HasField("ctime") else created_ms,
            message.lastEntryId if closed else -1,
            message.length if closed else 0,
        )

    def changed(self, metadata: LedgerMetadata) -> LedgerNode:
        """With the state, the end and the segments of ``metadata``, and all else as it was."""
        message = LedgerMetadataFormat()
        message.CopyFrom(self.message)
        _set(message, metadata)
        return LedgerNode(self.form, message)


def new_node(metadata: LedgerMetadata, key: LedgerKey, token: int) -> LedgerNode:
    """The node of a new ledger."""
    config = metadata.config
    message = LedgerMetadataFormat(
        quorumSize=config.write_quorum,
        ensembleSize=config.ensemble_size,
        ackQuorumSize=config.ack_quorum,
        digestType=LedgerMetadataFormat.DigestType.Name(key.digest),
        password=key.password,  # also if empty: without it the digest type does not count
        ctime=metadata.created_ms,
        cToken=token,
    )
    notes = {}
    if config.owner:
        # The names of Pulsar's, for its tools and for those who look at ledgers with the shell.
        notes = {
            "application": b"pulsar",
            "component": b"managed-ledger",
            "pulsar/managed-ledger": config.owner.encode(),
            _OWNER: config.owner.encode(),
        }
    if config.reserve:
        notes[_RESERVE] = b"1"
    for name in sorted(notes):
        message.customMetadata.add(key=name, value=notes[name])
    _set(message, metadata)
    return LedgerNode(NEWEST_FORM, message)


def as_stored(metadata: LedgerMetadata) -> LedgerMetadata:
    """What a node says that was made of these metadata, or changed to them: the same, but for
    lengths of ensembles, which it does not keep."""
    if all(e.length == _length(e.first_entry_id) for e in metadata.ensembles):
        return metadata
    ensembles = (replace(e, length=_length(e.first_entry_id)) for e in metadata.ensembles)
    return replace(metadata, ensembles=tuple(ensembles))


def decode_node(value: bytes) -> LedgerNode:
    """The inverse of ``encode``; ``CorruptMetadataError`` if it cannot be read."""
    first, _, body = value.partition(b"\n")
    if not first.startswith(_FIRST_LINE):
        raise CorruptMetadataError(f"no metadata of a ledger: {value[:40]!r}")
    try:
        form = int(first[len(_FIRST_LINE) :])
        if form == 1:
            message = _from_lines(body.decode())
        elif form == 2:
            message = text_format.Parse(body, LedgerMetadataFormat())
        elif form == NEWEST_FORM:
            message = LedgerMetadataFormat.FromString(_delimited(body))
        else:
            raise ValueError(f"form {form} is not known")
        if not message.IsInitialized():
            raise ValueError("a required field is missing")
    except (DecodeError, text_format.ParseError, ValueError, IndexError) as e:
        raise CorruptMetadataError(f"the metadata of a ledger cannot be read: {e!r}") from e
    return LedgerNode(form, message)


_STATES: Final = {
    LedgerMetadataFormat.OPEN: LedgerState.OPEN,
    LedgerMetadataFormat.IN_RECOVERY: LedgerState.IN_RECOVERY,
    LedgerMetadataFormat.CLOSED: LedgerState.CLOSED,
}
_NUMBERS: Final = {state: number for number, state in _STATES.items()}


def _set(message: LedgerMetadataFormat, metadata: LedgerMetadata) -> None:
    if metadata.is_attached:
        # BookKeeper's own code expects a segment in each ledger, and has no entries of this one.
        raise MetadataRefusedError(f"ledger {metadata.ledger_id} has no bookies")
    message.state = _NUMBERS[metadata.state]
    message.lastEntryId = metadata.last_entry_id
    message.length = metadata.length
    del message.segment[:]
    for ensemble in metadata.ensembles:
        message.segment.add(ensembleMember=ensemble.bookies, firstEntryId=ensemble.first_entry_id)


def _ensembles(message: LedgerMetadataFormat, config: LedgerConfig) -> tuple[Ensemble, ...]:
    firsts = [segment.firstEntryId for segment in message.segment]
    if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise ValueError(f"segments start at {firsts}")
    if any(len(s.ensembleMember) != config.ensemble_size for s in message.segment):
        raise ValueError(f"a segment is not of {config.ensemble_size} bookies")
    return tuple(
        Ensemble(s.firstEntryId, _length(s.firstEntryId), tuple(s.ensembleMember))
        for s in message.segment
    )


def _length(first_entry_id: int) -> int:
    """Of all entries before an ensemble, as far as it is known without having been kept."""
    return -1 if first_entry_id else 0


def _lines(message: LedgerMetadataFormat) -> str:
    lines = [str(message.quorumSize), str(message.ensembleSize), str(message.length)]
    lines += ["\t".join([str(s.firstEntryId), *s.ensembleMember]) for s in message.segment]
    if message.state == LedgerMetadataFormat.CLOSED:
        lines.append(f"{message.lastEntryId}\t{_CLOSED}")
    elif message.state == LedgerMetadataFormat.IN_RECOVERY:
        lines.append(f"{_IN_RECOVERY}\t{_CLOSED}")
    else:
        lines.append("")
    return "\n".join(lines)


def _from_lines(body: str) -> LedgerMetadataFormat:
    lines = body.split("\n")
    message = LedgerMetadataFormat(
        quorumSize=int(lines[0]),
        ensembleSize=int(lines[1]),
        length=int(lines[2]),
        lastEntryId=-1,
        state=LedgerMetadataFormat.OPEN,
    )
    for line in filter(None, lines[3:]):
        number, *names = line.split("\t")
        if names == [_CLOSED]:
            in_recovery = int(number) == _IN_RECOVERY
            message.state = (
                LedgerMetadataFormat.IN_RECOVERY if in_recovery else LedgerMetadataFormat.CLOSED
            )
            message.lastEntryId = -1 if in_recovery else int(number)
            break
        message.segment.add(ensembleMember=names, firstEntryId=int(number))
    return message


def _delimited(body: bytes) -> bytes:
    size = shift = 0
    for i in range(_SIZE_BYTES_MAX):
        size |= (body[i] & 0x7F) << shift
        shift += 7
        if body[i] < 0x80:
            if len(body) - i - 1 < size:
                raise ValueError(f"{len(body) - i - 1} bytes of {size}")
            return body[i + 1 : i + 1 + size]
    raise ValueError("no size of the message")


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
