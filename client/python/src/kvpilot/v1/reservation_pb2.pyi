from kvpilot.v1 import decision_pb2 as _decision_pb2
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
EFFECT_UNSPECIFIED: Effect
EFFECT_APPLIED: Effect
EFFECT_DUPLICATE: Effect
EFFECT_STALE: Effect

class Reservation(_message.Message):
    __slots__ = ("reservation_id", "attempt", "effect")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    attempt: int
    effect: Effect
    def __init__(self, reservation_id: _Optional[str] = ..., attempt: _Optional[int] = ..., effect: _Optional[_Union[Effect, str]] = ...) -> None: ...

class ReportPrefillCompletedRequest(_message.Message):
    __slots__ = ("reservation_id", "attempt")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    attempt: int
    def __init__(self, reservation_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class ReportDecodeProgressRequest(_message.Message):
    __slots__ = ("reservation_id", "attempt", "output_tokens")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    attempt: int
    output_tokens: int
    def __init__(self, reservation_id: _Optional[str] = ..., attempt: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class ReleaseReservationRequest(_message.Message):
    __slots__ = ("reservation_id", "attempt", "end", "served_by", "output_tokens", "cached_tokens")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SERVED_BY_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    attempt: int
    end: _decision_pb2.End
    served_by: str
    output_tokens: int
    cached_tokens: int
    def __init__(self, reservation_id: _Optional[str] = ..., attempt: _Optional[int] = ..., end: _Optional[_Union[_decision_pb2.End, str]] = ..., served_by: _Optional[str] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class RenewReservationRequest(_message.Message):
    __slots__ = ("reservation_id", "attempt")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    attempt: int
    def __init__(self, reservation_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class TrackReservationRequest(_message.Message):
    __slots__ = ("sequence", "prefill_completed", "decode_progress", "release", "renew", "bind")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    DECODE_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    prefill_completed: ReportPrefillCompletedRequest
    decode_progress: ReportDecodeProgressRequest
    release: ReleaseReservationRequest
    renew: RenewReservationRequest
    bind: BindReservation
    def __init__(self, sequence: _Optional[int] = ..., prefill_completed: _Optional[_Union[ReportPrefillCompletedRequest, _Mapping]] = ..., decode_progress: _Optional[_Union[ReportDecodeProgressRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseReservationRequest, _Mapping]] = ..., renew: _Optional[_Union[RenewReservationRequest, _Mapping]] = ..., bind: _Optional[_Union[BindReservation, _Mapping]] = ...) -> None: ...

class BindReservation(_message.Message):
    __slots__ = ("reservation_id", "attempt")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    reservation_id: str
    attempt: int
    def __init__(self, reservation_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

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
