from google.api import httpbody_pb2 as _httpbody_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kvpilot.v1 import decision_pb2 as _decision_pb2
from kvpilot.v1 import prompt_pb2 as _prompt_pb2
from kvpilot.v1 import reservation_pb2 as _reservation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reports(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPORTS_UNSPECIFIED: _ClassVar[Reports]
    REPORTS_ALL: _ClassVar[Reports]
    REPORTS_END: _ClassVar[Reports]

class Booking(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BOOKING_UNSPECIFIED: _ClassVar[Booking]
    BOOKING_RESERVE: _ClassVar[Booking]
    BOOKING_NONE: _ClassVar[Booking]
    BOOKING_DRY_RUN: _ClassVar[Booking]

class ProgramState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROGRAM_STATE_UNSPECIFIED: _ClassVar[ProgramState]
    PROGRAM_STATE_RUNNING: _ClassVar[ProgramState]
    PROGRAM_STATE_GAP: _ClassVar[ProgramState]
    PROGRAM_STATE_PAUSED: _ClassVar[ProgramState]
    PROGRAM_STATE_WAITING: _ClassVar[ProgramState]
REPORTS_UNSPECIFIED: Reports
REPORTS_ALL: Reports
REPORTS_END: Reports
BOOKING_UNSPECIFIED: Booking
BOOKING_RESERVE: Booking
BOOKING_NONE: Booking
BOOKING_DRY_RUN: Booking
PROGRAM_STATE_UNSPECIFIED: ProgramState
PROGRAM_STATE_RUNNING: ProgramState
PROGRAM_STATE_GAP: ProgramState
PROGRAM_STATE_PAUSED: ProgramState
PROGRAM_STATE_WAITING: ProgramState

class Candidates(_message.Message):
    __slots__ = ("allow", "deny", "pin", "min_rank", "max_rank")
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    DENY_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    MIN_RANK_FIELD_NUMBER: _ClassVar[int]
    MAX_RANK_FIELD_NUMBER: _ClassVar[int]
    allow: _containers.RepeatedScalarFieldContainer[str]
    deny: _containers.RepeatedScalarFieldContainer[str]
    pin: str
    min_rank: int
    max_rank: int
    def __init__(self, allow: _Optional[_Iterable[str]] = ..., deny: _Optional[_Iterable[str]] = ..., pin: _Optional[str] = ..., min_rank: _Optional[int] = ..., max_rank: _Optional[int] = ...) -> None: ...

class PolicyOverride(_message.Message):
    __slots__ = ("name", "params", "temperature", "objective")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    params: _containers.ScalarMap[str, float]
    temperature: float
    objective: _decision_pb2.Objective
    def __init__(self, name: _Optional[str] = ..., params: _Optional[_Mapping[str, float]] = ..., temperature: _Optional[float] = ..., objective: _Optional[_Union[_decision_pb2.Objective, str]] = ...) -> None: ...

class ChooseReplicaRequest(_message.Message):
    __slots__ = ("model", "token_ids", "text", "body", "candidates", "policy", "session_id", "priority", "ttft_deadline", "expected_output_tokens", "adapter", "cache_salt", "booking", "lease", "request_id", "explain", "return_token_ids", "reports")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TTFT_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    BOOKING_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_ids: _prompt_pb2.TokenIds
    text: str
    body: _prompt_pb2.RequestBody
    candidates: Candidates
    policy: PolicyOverride
    session_id: str
    priority: int
    ttft_deadline: _duration_pb2.Duration
    expected_output_tokens: int
    adapter: str
    cache_salt: str
    booking: Booking
    lease: _duration_pb2.Duration
    request_id: str
    explain: bool
    return_token_ids: bool
    reports: Reports
    def __init__(self, model: _Optional[str] = ..., token_ids: _Optional[_Union[_prompt_pb2.TokenIds, _Mapping]] = ..., text: _Optional[str] = ..., body: _Optional[_Union[_prompt_pb2.RequestBody, _Mapping]] = ..., candidates: _Optional[_Union[Candidates, _Mapping]] = ..., policy: _Optional[_Union[PolicyOverride, _Mapping]] = ..., session_id: _Optional[str] = ..., priority: _Optional[int] = ..., ttft_deadline: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., expected_output_tokens: _Optional[int] = ..., adapter: _Optional[str] = ..., cache_salt: _Optional[str] = ..., booking: _Optional[_Union[Booking, str]] = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., request_id: _Optional[str] = ..., explain: bool = ..., return_token_ids: bool = ..., reports: _Optional[_Union[Reports, str]] = ...) -> None: ...

class ChooseReplicaResponse(_message.Message):
    __slots__ = ("host", "port", "replica_id", "rank", "url", "model", "decision_id", "reservation_id", "attempt", "lease", "policy", "reason", "prompt_tokens", "overlap_gpu_tokens", "overlap_cpu_tokens", "overlap_disk_tokens", "predicted_ttft", "request_headers", "decision", "token_ids", "labels", "effect", "cache_salt", "tenant")
    class RequestHeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_GPU_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_CPU_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_DISK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TTFT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_HEADERS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    replica_id: str
    rank: int
    url: str
    model: str
    decision_id: str
    reservation_id: str
    attempt: int
    lease: _duration_pb2.Duration
    policy: str
    reason: _decision_pb2.ChoiceReason
    prompt_tokens: int
    overlap_gpu_tokens: int
    overlap_cpu_tokens: int
    overlap_disk_tokens: int
    predicted_ttft: _duration_pb2.Duration
    request_headers: _containers.ScalarMap[str, str]
    decision: _decision_pb2.Decision
    token_ids: _prompt_pb2.TokenIds
    labels: _containers.ScalarMap[str, str]
    effect: _reservation_pb2.Effect
    cache_salt: str
    tenant: str
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., replica_id: _Optional[str] = ..., rank: _Optional[int] = ..., url: _Optional[str] = ..., model: _Optional[str] = ..., decision_id: _Optional[str] = ..., reservation_id: _Optional[str] = ..., attempt: _Optional[int] = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., policy: _Optional[str] = ..., reason: _Optional[_Union[_decision_pb2.ChoiceReason, str]] = ..., prompt_tokens: _Optional[int] = ..., overlap_gpu_tokens: _Optional[int] = ..., overlap_cpu_tokens: _Optional[int] = ..., overlap_disk_tokens: _Optional[int] = ..., predicted_ttft: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., request_headers: _Optional[_Mapping[str, str]] = ..., decision: _Optional[_Union[_decision_pb2.Decision, _Mapping]] = ..., token_ids: _Optional[_Union[_prompt_pb2.TokenIds, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., effect: _Optional[_Union[_reservation_pb2.Effect, str]] = ..., cache_salt: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class ExplainDecisionRequest(_message.Message):
    __slots__ = ("decision_id", "request_id")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    request_id: str
    def __init__(self, decision_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ExplainDecisionResponse(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[_decision_pb2.Decision]
    def __init__(self, decisions: _Optional[_Iterable[_Union[_decision_pb2.Decision, _Mapping]]] = ...) -> None: ...

class ListDecisionsRequest(_message.Message):
    __slots__ = ("model", "replica_id", "only_chosen", "tenant", "ends", "slower_than", "page_size", "page_token")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ONLY_CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    SLOWER_THAN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    replica_id: str
    only_chosen: bool
    tenant: str
    ends: _containers.RepeatedScalarFieldContainer[_decision_pb2.End]
    slower_than: _duration_pb2.Duration
    page_size: int
    page_token: str
    def __init__(self, model: _Optional[str] = ..., replica_id: _Optional[str] = ..., only_chosen: bool = ..., tenant: _Optional[str] = ..., ends: _Optional[_Iterable[_Union[_decision_pb2.End, str]]] = ..., slower_than: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDecisionsResponse(_message.Message):
    __slots__ = ("decisions", "unanswered", "next_page_token")
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[_decision_pb2.Decision]
    unanswered: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, decisions: _Optional[_Iterable[_Union[_decision_pb2.Decision, _Mapping]]] = ..., unanswered: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchDecisionsRequest(_message.Message):
    __slots__ = ("model", "replica_id", "only_chosen")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ONLY_CHOSEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    replica_id: str
    only_chosen: bool
    def __init__(self, model: _Optional[str] = ..., replica_id: _Optional[str] = ..., only_chosen: bool = ...) -> None: ...

class WatchDecisionsResponse(_message.Message):
    __slots__ = ("decision", "lost")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    decision: _decision_pb2.Decision
    lost: int
    def __init__(self, decision: _Optional[_Union[_decision_pb2.Decision, _Mapping]] = ..., lost: _Optional[int] = ...) -> None: ...

class ScoreOverlapRequest(_message.Message):
    __slots__ = ("model", "token_ids", "text", "body", "adapter", "cache_salt")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_ids: _prompt_pb2.TokenIds
    text: str
    body: _prompt_pb2.RequestBody
    adapter: str
    cache_salt: str
    def __init__(self, model: _Optional[str] = ..., token_ids: _Optional[_Union[_prompt_pb2.TokenIds, _Mapping]] = ..., text: _Optional[str] = ..., body: _Optional[_Union[_prompt_pb2.RequestBody, _Mapping]] = ..., adapter: _Optional[str] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class ScoreOverlapResponse(_message.Message):
    __slots__ = ("ranks", "prompt_tokens")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[RankOverlap]
    prompt_tokens: int
    def __init__(self, ranks: _Optional[_Iterable[_Union[RankOverlap, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class RankOverlap(_message.Message):
    __slots__ = ("replica_id", "rank", "overlap", "feed", "block_size")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    rank: int
    overlap: _decision_pb2.Overlap
    feed: _decision_pb2.FeedState
    block_size: int
    def __init__(self, replica_id: _Optional[str] = ..., rank: _Optional[int] = ..., overlap: _Optional[_Union[_decision_pb2.Overlap, _Mapping]] = ..., feed: _Optional[_Union[_decision_pb2.FeedState, str]] = ..., block_size: _Optional[int] = ...) -> None: ...

class GetLoadsRequest(_message.Message):
    __slots__ = ("model", "replica_id", "page_size", "page_token")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    replica_id: str
    page_size: int
    page_token: str
    def __init__(self, model: _Optional[str] = ..., replica_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetLoadsResponse(_message.Message):
    __slots__ = ("ranks", "unanswered", "next_page_token")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[RankLoad]
    unanswered: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, ranks: _Optional[_Iterable[_Union[RankLoad, _Mapping]]] = ..., unanswered: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RankLoad(_message.Message):
    __slots__ = ("replica_id", "rank", "requests", "waiting", "queued_tokens", "decode_blocks", "engine_running", "engine_waiting", "kv_usage", "engine_age", "backlog", "speed", "counted_by", "conduct")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_RUNNING_FIELD_NUMBER: _ClassVar[int]
    ENGINE_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_AGE_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    COUNTED_BY_FIELD_NUMBER: _ClassVar[int]
    CONDUCT_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    rank: int
    requests: int
    waiting: int
    queued_tokens: int
    decode_blocks: float
    engine_running: int
    engine_waiting: int
    kv_usage: float
    engine_age: _duration_pb2.Duration
    backlog: _duration_pb2.Duration
    speed: _decision_pb2.RankSpeed
    counted_by: str
    conduct: _decision_pb2.RankConduct
    def __init__(self, replica_id: _Optional[str] = ..., rank: _Optional[int] = ..., requests: _Optional[int] = ..., waiting: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., decode_blocks: _Optional[float] = ..., engine_running: _Optional[int] = ..., engine_waiting: _Optional[int] = ..., kv_usage: _Optional[float] = ..., engine_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., backlog: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., speed: _Optional[_Union[_decision_pb2.RankSpeed, _Mapping]] = ..., counted_by: _Optional[str] = ..., conduct: _Optional[_Union[_decision_pb2.RankConduct, _Mapping]] = ...) -> None: ...

class ListProgramsRequest(_message.Message):
    __slots__ = ("model", "replica_id", "tenant", "states", "page_size", "page_token")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    replica_id: str
    tenant: str
    states: _containers.RepeatedScalarFieldContainer[ProgramState]
    page_size: int
    page_token: str
    def __init__(self, model: _Optional[str] = ..., replica_id: _Optional[str] = ..., tenant: _Optional[str] = ..., states: _Optional[_Iterable[_Union[ProgramState, str]]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListProgramsResponse(_message.Message):
    __slots__ = ("programs", "pressure", "unanswered", "next_page_token")
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedCompositeFieldContainer[Program]
    pressure: _containers.RepeatedCompositeFieldContainer[ProgramPressure]
    unanswered: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    def __init__(self, programs: _Optional[_Iterable[_Union[Program, _Mapping]]] = ..., pressure: _Optional[_Iterable[_Union[ProgramPressure, _Mapping]]] = ..., unanswered: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("program_id", "model", "tenant", "state", "replica_id", "rank", "resident_tokens", "needed_tokens", "calls", "prompt_tokens", "cached_tokens", "wait", "idle", "parent_id")
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEEDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    program_id: str
    model: str
    tenant: str
    state: ProgramState
    replica_id: str
    rank: int
    resident_tokens: int
    needed_tokens: int
    calls: int
    prompt_tokens: int
    cached_tokens: int
    wait: _duration_pb2.Duration
    idle: _duration_pb2.Duration
    parent_id: str
    def __init__(self, program_id: _Optional[str] = ..., model: _Optional[str] = ..., tenant: _Optional[str] = ..., state: _Optional[_Union[ProgramState, str]] = ..., replica_id: _Optional[str] = ..., rank: _Optional[int] = ..., resident_tokens: _Optional[int] = ..., needed_tokens: _Optional[int] = ..., calls: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., idle: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., parent_id: _Optional[str] = ...) -> None: ...

class ProgramPressure(_message.Message):
    __slots__ = ("model", "placed", "paused", "waiting", "replicas", "replicas_needed")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    model: str
    placed: int
    paused: int
    waiting: int
    replicas: int
    replicas_needed: int
    def __init__(self, model: _Optional[str] = ..., placed: _Optional[int] = ..., paused: _Optional[int] = ..., waiting: _Optional[int] = ..., replicas: _Optional[int] = ..., replicas_needed: _Optional[int] = ...) -> None: ...

class ListSplitsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSplitsResponse(_message.Message):
    __slots__ = ("splits",)
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    splits: _containers.RepeatedCompositeFieldContainer[Split]
    def __init__(self, splits: _Optional[_Iterable[_Union[Split, _Mapping]]] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("model", "sides")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SIDES_FIELD_NUMBER: _ClassVar[int]
    model: str
    sides: _containers.RepeatedCompositeFieldContainer[SplitSide]
    def __init__(self, model: _Optional[str] = ..., sides: _Optional[_Iterable[_Union[SplitSide, _Mapping]]] = ...) -> None: ...

class SplitSide(_message.Message):
    __slots__ = ("side", "target_model", "labels", "weight", "baseline", "ready", "stepped_back_since", "stepped_back_why", "stepped_back_by", "requests", "failed", "ttft_p50", "ttft_p99", "answer_p50", "answer_p99", "shadow_regret", "worse")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SIDE_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODEL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    STEPPED_BACK_SINCE_FIELD_NUMBER: _ClassVar[int]
    STEPPED_BACK_WHY_FIELD_NUMBER: _ClassVar[int]
    STEPPED_BACK_BY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TTFT_P50_FIELD_NUMBER: _ClassVar[int]
    TTFT_P99_FIELD_NUMBER: _ClassVar[int]
    ANSWER_P50_FIELD_NUMBER: _ClassVar[int]
    ANSWER_P99_FIELD_NUMBER: _ClassVar[int]
    SHADOW_REGRET_FIELD_NUMBER: _ClassVar[int]
    WORSE_FIELD_NUMBER: _ClassVar[int]
    side: str
    target_model: str
    labels: _containers.ScalarMap[str, str]
    weight: int
    baseline: bool
    ready: bool
    stepped_back_since: _timestamp_pb2.Timestamp
    stepped_back_why: str
    stepped_back_by: str
    requests: int
    failed: int
    ttft_p50: _duration_pb2.Duration
    ttft_p99: _duration_pb2.Duration
    answer_p50: _duration_pb2.Duration
    answer_p99: _duration_pb2.Duration
    shadow_regret: _duration_pb2.Duration
    worse: str
    def __init__(self, side: _Optional[str] = ..., target_model: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., weight: _Optional[int] = ..., baseline: bool = ..., ready: bool = ..., stepped_back_since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., stepped_back_why: _Optional[str] = ..., stepped_back_by: _Optional[str] = ..., requests: _Optional[int] = ..., failed: _Optional[int] = ..., ttft_p50: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., ttft_p99: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., answer_p50: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., answer_p99: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., shadow_regret: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., worse: _Optional[str] = ...) -> None: ...

class SetSplitSideRequest(_message.Message):
    __slots__ = ("model", "side", "back")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    model: str
    side: str
    back: bool
    def __init__(self, model: _Optional[str] = ..., side: _Optional[str] = ..., back: bool = ...) -> None: ...

class SetSplitSideResponse(_message.Message):
    __slots__ = ("split", "unanswered")
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    split: Split
    unanswered: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, split: _Optional[_Union[Split, _Mapping]] = ..., unanswered: _Optional[_Iterable[str]] = ...) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    def __init__(self, policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("name", "description", "params", "default")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    params: _containers.ScalarMap[str, float]
    default: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., params: _Optional[_Mapping[str, float]] = ..., default: bool = ...) -> None: ...
