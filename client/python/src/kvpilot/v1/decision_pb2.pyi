from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeedState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEED_STATE_UNSPECIFIED: _ClassVar[FeedState]
    FEED_STATE_NONE: _ClassVar[FeedState]
    FEED_STATE_COLD: _ClassVar[FeedState]
    FEED_STATE_EXACT: _ClassVar[FeedState]
    FEED_STATE_DEGRADED: _ClassVar[FeedState]

class ChoiceReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHOICE_REASON_UNSPECIFIED: _ClassVar[ChoiceReason]
    CHOICE_REASON_COST: _ClassVar[ChoiceReason]
    CHOICE_REASON_TIE: _ClassVar[ChoiceReason]
    CHOICE_REASON_ONLY: _ClassVar[ChoiceReason]
    CHOICE_REASON_PINNED: _ClassVar[ChoiceReason]
    CHOICE_REASON_DICE: _ClassVar[ChoiceReason]
    CHOICE_REASON_NO_KEY: _ClassVar[ChoiceReason]
    CHOICE_REASON_IMBALANCE: _ClassVar[ChoiceReason]
    CHOICE_REASON_TOO_LONG: _ClassVar[ChoiceReason]
    CHOICE_REASON_NONE: _ClassVar[ChoiceReason]
    CHOICE_REASON_SPLIT: _ClassVar[ChoiceReason]

class Veto(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VETO_UNSPECIFIED: _ClassVar[Veto]
    VETO_STATE: _ClassVar[Veto]
    VETO_MODEL: _ClassVar[Veto]
    VETO_EXCLUDED: _ClassVar[Veto]
    VETO_DENIED: _ClassVar[Veto]
    VETO_NOT_ALLOWED: _ClassVar[Veto]
    VETO_PINNED: _ClassVar[Veto]
    VETO_RANK: _ClassVar[Veto]
    VETO_CAP: _ClassVar[Veto]
    VETO_CONTEXT: _ClassVar[Veto]
    VETO_STALLED: _ClassVar[Veto]
    VETO_DRAINING: _ClassVar[Veto]
    VETO_MEMORY: _ClassVar[Veto]
    VETO_ROLE: _ClassVar[Veto]

class Objective(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECTIVE_UNSPECIFIED: _ClassVar[Objective]
    OBJECTIVE_TTFT: _ClassVar[Objective]
    OBJECTIVE_ANSWER: _ClassVar[Objective]
    OBJECTIVE_SLO: _ClassVar[Objective]
    OBJECTIVE_COMPLETION: _ClassVar[Objective]

class Suspicion(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUSPICION_UNSPECIFIED: _ClassVar[Suspicion]
    SUSPICION_SLOW: _ClassVar[Suspicion]
    SUSPICION_EMPTY: _ClassVar[Suspicion]
    SUSPICION_UNPROVEN: _ClassVar[Suspicion]

class SpeedSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPEED_SOURCE_UNSPECIFIED: _ClassVar[SpeedSource]
    SPEED_SOURCE_PRIOR: _ClassVar[SpeedSource]
    SPEED_SOURCE_ENGINE: _ClassVar[SpeedSource]
    SPEED_SOURCE_KIND: _ClassVar[SpeedSource]
    SPEED_SOURCE_LEARNED: _ClassVar[SpeedSource]
    SPEED_SOURCE_DISTRUSTED: _ClassVar[SpeedSource]

class Alone(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALONE_UNSPECIFIED: _ClassVar[Alone]
    ALONE_SILENT: _ClassVar[Alone]
    ALONE_UNKNOWN_RANK: _ClassVar[Alone]
    ALONE_NO_REPLICA: _ClassVar[Alone]
    ALONE_MOVED: _ClassVar[Alone]

class AdapterState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADAPTER_STATE_UNSPECIFIED: _ClassVar[AdapterState]
    ADAPTER_STATE_RUNNING: _ClassVar[AdapterState]
    ADAPTER_STATE_RESIDENT: _ClassVar[AdapterState]
    ADAPTER_STATE_ABSENT: _ClassVar[AdapterState]
    ADAPTER_STATE_FULL: _ClassVar[AdapterState]

class End(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_UNSPECIFIED: _ClassVar[End]
    END_COMPLETED: _ClassVar[End]
    END_CANCELED: _ClassVar[End]
    END_REJECTED: _ClassVar[End]
    END_FAILED: _ClassVar[End]
    END_MOVED: _ClassVar[End]
    END_EXPIRED: _ClassVar[End]
    END_REMOVED: _ClassVar[End]
    END_RESUMED: _ClassVar[End]
    END_UNSERVED: _ClassVar[End]
    END_HANDED_OVER: _ClassVar[End]
    END_POISONED: _ClassVar[End]
FEED_STATE_UNSPECIFIED: FeedState
FEED_STATE_NONE: FeedState
FEED_STATE_COLD: FeedState
FEED_STATE_EXACT: FeedState
FEED_STATE_DEGRADED: FeedState
CHOICE_REASON_UNSPECIFIED: ChoiceReason
CHOICE_REASON_COST: ChoiceReason
CHOICE_REASON_TIE: ChoiceReason
CHOICE_REASON_ONLY: ChoiceReason
CHOICE_REASON_PINNED: ChoiceReason
CHOICE_REASON_DICE: ChoiceReason
CHOICE_REASON_NO_KEY: ChoiceReason
CHOICE_REASON_IMBALANCE: ChoiceReason
CHOICE_REASON_TOO_LONG: ChoiceReason
CHOICE_REASON_NONE: ChoiceReason
CHOICE_REASON_SPLIT: ChoiceReason
VETO_UNSPECIFIED: Veto
VETO_STATE: Veto
VETO_MODEL: Veto
VETO_EXCLUDED: Veto
VETO_DENIED: Veto
VETO_NOT_ALLOWED: Veto
VETO_PINNED: Veto
VETO_RANK: Veto
VETO_CAP: Veto
VETO_CONTEXT: Veto
VETO_STALLED: Veto
VETO_DRAINING: Veto
VETO_MEMORY: Veto
VETO_ROLE: Veto
OBJECTIVE_UNSPECIFIED: Objective
OBJECTIVE_TTFT: Objective
OBJECTIVE_ANSWER: Objective
OBJECTIVE_SLO: Objective
OBJECTIVE_COMPLETION: Objective
SUSPICION_UNSPECIFIED: Suspicion
SUSPICION_SLOW: Suspicion
SUSPICION_EMPTY: Suspicion
SUSPICION_UNPROVEN: Suspicion
SPEED_SOURCE_UNSPECIFIED: SpeedSource
SPEED_SOURCE_PRIOR: SpeedSource
SPEED_SOURCE_ENGINE: SpeedSource
SPEED_SOURCE_KIND: SpeedSource
SPEED_SOURCE_LEARNED: SpeedSource
SPEED_SOURCE_DISTRUSTED: SpeedSource
ALONE_UNSPECIFIED: Alone
ALONE_SILENT: Alone
ALONE_UNKNOWN_RANK: Alone
ALONE_NO_REPLICA: Alone
ALONE_MOVED: Alone
ADAPTER_STATE_UNSPECIFIED: AdapterState
ADAPTER_STATE_RUNNING: AdapterState
ADAPTER_STATE_RESIDENT: AdapterState
ADAPTER_STATE_ABSENT: AdapterState
ADAPTER_STATE_FULL: AdapterState
END_UNSPECIFIED: End
END_COMPLETED: End
END_CANCELED: End
END_REJECTED: End
END_FAILED: End
END_MOVED: End
END_EXPIRED: End
END_REMOVED: End
END_RESUMED: End
END_UNSERVED: End
END_HANDED_OVER: End
END_POISONED: End

class Overlap(_message.Message):
    __slots__ = ("gpu_tokens", "cpu_tokens", "disk_tokens")
    GPU_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CPU_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    gpu_tokens: int
    cpu_tokens: int
    disk_tokens: int
    def __init__(self, gpu_tokens: _Optional[int] = ..., cpu_tokens: _Optional[int] = ..., disk_tokens: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("decision_id", "attempt", "request_id", "time", "model", "adapter", "policy", "reason", "replica_id", "rank", "prompt_tokens", "estimated", "expected_output_tokens", "dry_run", "margin", "params", "load", "omega", "held", "took", "tries", "candidates", "outcome", "shadow", "seed", "trace_id", "span_id", "tenant", "objective", "target_ttft", "target_tpot", "keyless", "pinned", "too_long", "prompt_chars", "cursor", "waited", "scored", "decided_by", "asked_by", "alone", "others", "vetoed_others", "returning", "ways", "memory_wait", "prefill_rate", "split", "directory")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    OMEGA_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    TARGET_TTFT_FIELD_NUMBER: _ClassVar[int]
    TARGET_TPOT_FIELD_NUMBER: _ClassVar[int]
    KEYLESS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    TOO_LONG_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CHARS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    VETOED_OTHERS_FIELD_NUMBER: _ClassVar[int]
    RETURNING_FIELD_NUMBER: _ClassVar[int]
    WAYS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_WAIT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_RATE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    attempt: int
    request_id: str
    time: _timestamp_pb2.Timestamp
    model: str
    adapter: str
    policy: str
    reason: ChoiceReason
    replica_id: str
    rank: int
    prompt_tokens: int
    estimated: bool
    expected_output_tokens: int
    dry_run: bool
    margin: float
    params: _containers.ScalarMap[str, float]
    load: float
    omega: float
    held: _duration_pb2.Duration
    took: _duration_pb2.Duration
    tries: int
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    outcome: Outcome
    shadow: Shadow
    seed: int
    trace_id: str
    span_id: str
    tenant: str
    objective: Objective
    target_ttft: _duration_pb2.Duration
    target_tpot: _duration_pb2.Duration
    keyless: bool
    pinned: bool
    too_long: bool
    prompt_chars: int
    cursor: int
    waited: _duration_pb2.Duration
    scored: _duration_pb2.Duration
    decided_by: str
    asked_by: str
    alone: Alone
    others: int
    vetoed_others: int
    returning: float
    ways: _containers.RepeatedCompositeFieldContainer[Way]
    memory_wait: MemoryWait
    prefill_rate: float
    split: SplitChoice
    directory: DirectoryLookup
    def __init__(self, decision_id: _Optional[str] = ..., attempt: _Optional[int] = ..., request_id: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., model: _Optional[str] = ..., adapter: _Optional[str] = ..., policy: _Optional[str] = ..., reason: _Optional[_Union[ChoiceReason, str]] = ..., replica_id: _Optional[str] = ..., rank: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., estimated: bool = ..., expected_output_tokens: _Optional[int] = ..., dry_run: bool = ..., margin: _Optional[float] = ..., params: _Optional[_Mapping[str, float]] = ..., load: _Optional[float] = ..., omega: _Optional[float] = ..., held: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., took: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., tries: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., shadow: _Optional[_Union[Shadow, _Mapping]] = ..., seed: _Optional[int] = ..., trace_id: _Optional[str] = ..., span_id: _Optional[str] = ..., tenant: _Optional[str] = ..., objective: _Optional[_Union[Objective, str]] = ..., target_ttft: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., target_tpot: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., keyless: bool = ..., pinned: bool = ..., too_long: bool = ..., prompt_chars: _Optional[int] = ..., cursor: _Optional[int] = ..., waited: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., scored: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., decided_by: _Optional[str] = ..., asked_by: _Optional[str] = ..., alone: _Optional[_Union[Alone, str]] = ..., others: _Optional[int] = ..., vetoed_others: _Optional[int] = ..., returning: _Optional[float] = ..., ways: _Optional[_Iterable[_Union[Way, _Mapping]]] = ..., memory_wait: _Optional[_Union[MemoryWait, _Mapping]] = ..., prefill_rate: _Optional[float] = ..., split: _Optional[_Union[SplitChoice, _Mapping]] = ..., directory: _Optional[_Union[DirectoryLookup, _Mapping]] = ...) -> None: ...

class DirectoryLookup(_message.Message):
    __slots__ = ("source", "result", "took")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    source: str
    result: str
    took: _duration_pb2.Duration
    def __init__(self, source: _Optional[str] = ..., result: _Optional[str] = ..., took: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SplitChoice(_message.Message):
    __slots__ = ("model", "side", "instead_of")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    INSTEAD_OF_FIELD_NUMBER: _ClassVar[int]
    model: str
    side: str
    instead_of: str
    def __init__(self, model: _Optional[str] = ..., side: _Optional[str] = ..., instead_of: _Optional[str] = ...) -> None: ...

class MemoryWait(_message.Message):
    __slots__ = ("program_id", "needed_tokens", "free_tokens", "programs_before", "expected", "waited")
    PROGRAM_ID_FIELD_NUMBER: _ClassVar[int]
    NEEDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    program_id: str
    needed_tokens: int
    free_tokens: int
    programs_before: int
    expected: _duration_pb2.Duration
    waited: _duration_pb2.Duration
    def __init__(self, program_id: _Optional[str] = ..., needed_tokens: _Optional[int] = ..., free_tokens: _Optional[int] = ..., programs_before: _Optional[int] = ..., expected: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., waited: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Way(_message.Message):
    __slots__ = ("kind", "prefill_replica_id", "prefill_rank", "decode_replica_id", "decode_rank", "held_tokens", "moved_tokens", "cost", "ttft", "queue", "compute", "transfer")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PREFILL_REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    PREFILL_RANK_FIELD_NUMBER: _ClassVar[int]
    DECODE_REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_RANK_FIELD_NUMBER: _ClassVar[int]
    HELD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MOVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    kind: str
    prefill_replica_id: str
    prefill_rank: int
    decode_replica_id: str
    decode_rank: int
    held_tokens: int
    moved_tokens: int
    cost: float
    ttft: _duration_pb2.Duration
    queue: _duration_pb2.Duration
    compute: _duration_pb2.Duration
    transfer: _duration_pb2.Duration
    def __init__(self, kind: _Optional[str] = ..., prefill_replica_id: _Optional[str] = ..., prefill_rank: _Optional[int] = ..., decode_replica_id: _Optional[str] = ..., decode_rank: _Optional[int] = ..., held_tokens: _Optional[int] = ..., moved_tokens: _Optional[int] = ..., cost: _Optional[float] = ..., ttft: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., compute: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., transfer: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("replica_id", "rank", "veto", "overlap", "feed", "block_size", "session", "requests", "waiting", "queued_tokens", "decode_blocks", "blocks", "engine_waiting", "kv_usage", "backlog", "uncached_tokens", "prefill", "ttft", "cost", "silent", "speed", "slowdown", "planned", "full_step", "decode", "crowding", "tpot", "late", "returns_per_second", "saved", "residual", "chars", "held_chars", "place", "drag", "conduct", "adapter", "load", "loadable_tokens", "named_tokens")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    VETO_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    FULL_STEP_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    CROWDING_FIELD_NUMBER: _ClassVar[int]
    TPOT_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    RETURNS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    CHARS_FIELD_NUMBER: _ClassVar[int]
    HELD_CHARS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DRAG_FIELD_NUMBER: _ClassVar[int]
    CONDUCT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LOADABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    rank: int
    veto: Veto
    overlap: Overlap
    feed: FeedState
    block_size: int
    session: bool
    requests: int
    waiting: int
    queued_tokens: int
    decode_blocks: float
    blocks: int
    engine_waiting: int
    kv_usage: float
    backlog: _duration_pb2.Duration
    uncached_tokens: int
    prefill: _duration_pb2.Duration
    ttft: _duration_pb2.Duration
    cost: float
    silent: _duration_pb2.Duration
    speed: RankSpeed
    slowdown: float
    planned: _duration_pb2.Duration
    full_step: _duration_pb2.Duration
    decode: _duration_pb2.Duration
    crowding: _duration_pb2.Duration
    tpot: _duration_pb2.Duration
    late: float
    returns_per_second: float
    saved: _duration_pb2.Duration
    residual: _duration_pb2.Duration
    chars: int
    held_chars: int
    place: int
    drag: _duration_pb2.Duration
    conduct: RankConduct
    adapter: AdapterCost
    load: _duration_pb2.Duration
    loadable_tokens: int
    named_tokens: int
    def __init__(self, replica_id: _Optional[str] = ..., rank: _Optional[int] = ..., veto: _Optional[_Union[Veto, str]] = ..., overlap: _Optional[_Union[Overlap, _Mapping]] = ..., feed: _Optional[_Union[FeedState, str]] = ..., block_size: _Optional[int] = ..., session: bool = ..., requests: _Optional[int] = ..., waiting: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., decode_blocks: _Optional[float] = ..., blocks: _Optional[int] = ..., engine_waiting: _Optional[int] = ..., kv_usage: _Optional[float] = ..., backlog: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., uncached_tokens: _Optional[int] = ..., prefill: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., ttft: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., cost: _Optional[float] = ..., silent: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., speed: _Optional[_Union[RankSpeed, _Mapping]] = ..., slowdown: _Optional[float] = ..., planned: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., full_step: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., decode: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., crowding: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., tpot: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., late: _Optional[float] = ..., returns_per_second: _Optional[float] = ..., saved: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., residual: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., chars: _Optional[int] = ..., held_chars: _Optional[int] = ..., place: _Optional[int] = ..., drag: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., conduct: _Optional[_Union[RankConduct, _Mapping]] = ..., adapter: _Optional[_Union[AdapterCost, _Mapping]] = ..., load: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., loadable_tokens: _Optional[int] = ..., named_tokens: _Optional[int] = ...) -> None: ...

class AdapterCost(_message.Message):
    __slots__ = ("state", "wait", "load", "loss")
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    state: AdapterState
    wait: _duration_pb2.Duration
    load: _duration_pb2.Duration
    loss: _duration_pb2.Duration
    def __init__(self, state: _Optional[_Union[AdapterState, str]] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., load: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., loss: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RankConduct(_message.Message):
    __slots__ = ("suspicions", "slowness", "token_time", "empty_share", "overlap_trust")
    SUSPICIONS_FIELD_NUMBER: _ClassVar[int]
    SLOWNESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TIME_FIELD_NUMBER: _ClassVar[int]
    EMPTY_SHARE_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_TRUST_FIELD_NUMBER: _ClassVar[int]
    suspicions: _containers.RepeatedScalarFieldContainer[Suspicion]
    slowness: float
    token_time: _duration_pb2.Duration
    empty_share: float
    overlap_trust: float
    def __init__(self, suspicions: _Optional[_Iterable[_Union[Suspicion, str]]] = ..., slowness: _Optional[float] = ..., token_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., empty_share: _Optional[float] = ..., overlap_trust: _Optional[float] = ...) -> None: ...

class RankSpeed(_message.Message):
    __slots__ = ("tokens_per_second", "bend_tokens", "step", "overhead", "spread", "source", "busy", "samples", "prediction_ratio")
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BEND_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_RATIO_FIELD_NUMBER: _ClassVar[int]
    tokens_per_second: float
    bend_tokens: float
    step: _duration_pb2.Duration
    overhead: _duration_pb2.Duration
    spread: float
    source: SpeedSource
    busy: float
    samples: int
    prediction_ratio: float
    def __init__(self, tokens_per_second: _Optional[float] = ..., bend_tokens: _Optional[float] = ..., step: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., overhead: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., spread: _Optional[float] = ..., source: _Optional[_Union[SpeedSource, str]] = ..., busy: _Optional[float] = ..., samples: _Optional[int] = ..., prediction_ratio: _Optional[float] = ...) -> None: ...

class Shadow(_message.Message):
    __slots__ = ("policy", "replica_id", "rank", "agrees", "regret")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    AGREES_FIELD_NUMBER: _ClassVar[int]
    REGRET_FIELD_NUMBER: _ClassVar[int]
    policy: str
    replica_id: str
    rank: int
    agrees: bool
    regret: _duration_pb2.Duration
    def __init__(self, policy: _Optional[str] = ..., replica_id: _Optional[str] = ..., rank: _Optional[int] = ..., agrees: bool = ..., regret: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("end", "replica_id", "rank", "ttft", "predicted_ttft", "duration", "prompt_tokens", "output_tokens", "cached_tokens", "predicted_cached_tokens", "counted_output_tokens")
    END_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TTFT_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    end: End
    replica_id: str
    rank: int
    ttft: _duration_pb2.Duration
    predicted_ttft: _duration_pb2.Duration
    duration: _duration_pb2.Duration
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    predicted_cached_tokens: int
    counted_output_tokens: int
    def __init__(self, end: _Optional[_Union[End, str]] = ..., replica_id: _Optional[str] = ..., rank: _Optional[int] = ..., ttft: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., predicted_ttft: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., predicted_cached_tokens: _Optional[int] = ..., counted_output_tokens: _Optional[int] = ...) -> None: ...
