from kvpilot.v1 import errors_pb2 as _errors_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Effect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_UNSPECIFIED: _ClassVar[Effect]
    EFFECT_APPLIED: _ClassVar[Effect]
    EFFECT_DUPLICATE: _ClassVar[Effect]
    EFFECT_STALE: _ClassVar[Effect]

class ReleaseReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELEASE_REASON_UNSPECIFIED: _ClassVar[ReleaseReason]
    RELEASE_REASON_COMPLETED: _ClassVar[ReleaseReason]
    RELEASE_REASON_CANCELED: _ClassVar[ReleaseReason]
    RELEASE_REASON_REJECTED: _ClassVar[ReleaseReason]
    RELEASE_REASON_FAILED: _ClassVar[ReleaseReason]
EFFECT_UNSPECIFIED: Effect
EFFECT_APPLIED: Effect
EFFECT_DUPLICATE: Effect
EFFECT_STALE: Effect
RELEASE_REASON_UNSPECIFIED: ReleaseReason
RELEASE_REASON_COMPLETED: ReleaseReason
RELEASE_REASON_CANCELED: ReleaseReason
RELEASE_REASON_REJECTED: ReleaseReason
RELEASE_REASON_FAILED: ReleaseReason

class Reservation(_message.Message):
    __slots__ = ("reservation_id", "attempt", "effect")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    attempt: int
    effect: Effect
    def __init__(self, reservation_id: _Optional[str] = ..., attempt: _Optional[int] = ..., effect: _Optional[_Union[Effect, str]] = ...) -> None: ...

class ReservationReport(_message.Message):
    __slots__ = ("reservation_id", "attempt", "sequence", "first_token", "progress", "renew", "release", "bind")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    attempt: int
    sequence: int
    first_token: FirstTokenReport
    progress: ProgressReport
    renew: RenewalReport
    release: ReleaseReport
    bind: BindReport
    def __init__(self, reservation_id: _Optional[str] = ..., attempt: _Optional[int] = ..., sequence: _Optional[int] = ..., first_token: _Optional[_Union[FirstTokenReport, _Mapping]] = ..., progress: _Optional[_Union[ProgressReport, _Mapping]] = ..., renew: _Optional[_Union[RenewalReport, _Mapping]] = ..., release: _Optional[_Union[ReleaseReport, _Mapping]] = ..., bind: _Optional[_Union[BindReport, _Mapping]] = ...) -> None: ...

class FirstTokenReport(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProgressReport(_message.Message):
    __slots__ = ("output_tokens",)
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    output_tokens: int
    def __init__(self, output_tokens: _Optional[int] = ...) -> None: ...

class RenewalReport(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseReport(_message.Message):
    __slots__ = ("reason", "served_by", "output_tokens", "cached_tokens")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SERVED_BY_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reason: ReleaseReason
    served_by: str
    output_tokens: int
    cached_tokens: int
    def __init__(self, reason: _Optional[_Union[ReleaseReason, str]] = ..., served_by: _Optional[str] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class BindReport(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrackReservationResponse(_message.Message):
    __slots__ = ("sequence", "reservation", "reason", "message")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    reservation: Reservation
    reason: _errors_pb2.ErrorReason
    message: str
    def __init__(self, sequence: _Optional[int] = ..., reservation: _Optional[_Union[Reservation, _Mapping]] = ..., reason: _Optional[_Union[_errors_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...
