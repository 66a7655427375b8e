from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import Any as _Any, ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Batch(_message.Message):
    __slots__ = ("version", "records", "snapshot_end", "time_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    records: _containers.RepeatedCompositeFieldContainer[Record]
    snapshot_end: SnapshotEnd
    time_ms: int
    def __init__(self, version: _Optional[int] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping[str, _Any]]]] = ..., snapshot_end: _Optional[_Union[SnapshotEnd, _Mapping[str, _Any]]] = ..., time_ms: _Optional[int] = ...) -> None: ...

class SnapshotEnd(_message.Message):
    __slots__ = ("next_cursor_id",)
    NEXT_CURSOR_ID_FIELD_NUMBER: _ClassVar[int]
    next_cursor_id: int
    def __init__(self, next_cursor_id: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("cursor_id", "identity", "properties", "acks", "deleted")
    CURSOR_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    cursor_id: int
    identity: Identity
    properties: Properties
    acks: Acks
    deleted: bool
    def __init__(self, cursor_id: _Optional[int] = ..., identity: _Optional[_Union[Identity, _Mapping[str, _Any]]] = ..., properties: _Optional[_Union[Properties, _Mapping[str, _Any]]] = ..., acks: _Optional[_Union[Acks, _Mapping[str, _Any]]] = ..., deleted: bool = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("topic_id", "subscription", "created_ms")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    topic_id: str
    subscription: str
    created_ms: int
    def __init__(self, topic_id: _Optional[str] = ..., subscription: _Optional[str] = ..., created_ms: _Optional[int] = ...) -> None: ...

class Properties(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Acks(_message.Message):
    __slots__ = ("era", "ledger_id", "entry_id", "ledgers")
    ERA_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    era: int
    ledger_id: int
    entry_id: int
    ledgers: _containers.RepeatedCompositeFieldContainer[LedgerAcks]
    def __init__(self, era: _Optional[int] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., ledgers: _Optional[_Iterable[_Union[LedgerAcks, _Mapping[str, _Any]]]] = ...) -> None: ...

class LedgerAcks(_message.Message):
    __slots__ = ("ledger_id", "acked", "partial", "masks")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    acked: bytes
    partial: _containers.RepeatedScalarFieldContainer[int]
    masks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, ledger_id: _Optional[int] = ..., acked: _Optional[bytes] = ..., partial: _Optional[_Iterable[int]] = ..., masks: _Optional[_Iterable[bytes]] = ...) -> None: ...
