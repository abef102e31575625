from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kvpilot.v1 import decision_pb2 as _decision_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_STATE_UNSPECIFIED: _ClassVar[ReplicaState]
    REPLICA_STATE_STARTING: _ClassVar[ReplicaState]
    REPLICA_STATE_READY: _ClassVar[ReplicaState]
    REPLICA_STATE_DRAINING: _ClassVar[ReplicaState]
    REPLICA_STATE_UNHEALTHY: _ClassVar[ReplicaState]

class BreakerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BREAKER_STATE_UNSPECIFIED: _ClassVar[BreakerState]
    BREAKER_STATE_CLOSED: _ClassVar[BreakerState]
    BREAKER_STATE_TRIAL: _ClassVar[BreakerState]
    BREAKER_STATE_OPEN: _ClassVar[BreakerState]
REPLICA_STATE_UNSPECIFIED: ReplicaState
REPLICA_STATE_STARTING: ReplicaState
REPLICA_STATE_READY: ReplicaState
REPLICA_STATE_DRAINING: ReplicaState
REPLICA_STATE_UNHEALTHY: ReplicaState
BREAKER_STATE_UNSPECIFIED: BreakerState
BREAKER_STATE_CLOSED: BreakerState
BREAKER_STATE_TRIAL: BreakerState
BREAKER_STATE_OPEN: BreakerState

class Replica(_message.Message):
    __slots__ = ("replica_id", "url", "state", "since", "life", "ranks", "models", "labels", "version", "rust_frontend", "block_size", "blocks", "max_batched_tokens", "last_error", "drained", "breaker", "drain")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUST_FRONTEND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    url: str
    state: ReplicaState
    since: _timestamp_pb2.Timestamp
    life: int
    ranks: _containers.RepeatedCompositeFieldContainer[ReplicaRank]
    models: _containers.RepeatedCompositeFieldContainer[ReplicaModel]
    labels: _containers.ScalarMap[str, str]
    version: str
    rust_frontend: bool
    block_size: int
    blocks: int
    max_batched_tokens: int
    last_error: str
    drained: bool
    breaker: BreakerState
    drain: ReplicaDrain
    def __init__(self, replica_id: _Optional[str] = ..., url: _Optional[str] = ..., state: _Optional[_Union[ReplicaState, str]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., life: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[ReplicaRank, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[ReplicaModel, _Mapping]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., version: _Optional[str] = ..., rust_frontend: bool = ..., block_size: _Optional[int] = ..., blocks: _Optional[int] = ..., max_batched_tokens: _Optional[int] = ..., last_error: _Optional[str] = ..., drained: bool = ..., breaker: _Optional[_Union[BreakerState, str]] = ..., drain: _Optional[_Union[ReplicaDrain, _Mapping]] = ...) -> None: ...

class ReplicaDrain(_message.Message):
    __slots__ = ("since", "by", "reason", "in_flight", "move", "ranks")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    by: str
    reason: str
    in_flight: int
    move: bool
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ..., in_flight: _Optional[int] = ..., move: bool = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class ReplicaRank(_message.Message):
    __slots__ = ("rank", "events_endpoint", "replay_endpoint", "feed", "feed_error", "feed_lag", "gaps", "resets", "known_blocks", "known_lower_blocks")
    RANK_FIELD_NUMBER: _ClassVar[int]
    EVENTS_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    FEED_ERROR_FIELD_NUMBER: _ClassVar[int]
    FEED_LAG_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_LOWER_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    events_endpoint: str
    replay_endpoint: str
    feed: _decision_pb2.FeedState
    feed_error: str
    feed_lag: _duration_pb2.Duration
    gaps: int
    resets: int
    known_blocks: int
    known_lower_blocks: int
    def __init__(self, rank: _Optional[int] = ..., events_endpoint: _Optional[str] = ..., replay_endpoint: _Optional[str] = ..., feed: _Optional[_Union[_decision_pb2.FeedState, str]] = ..., feed_error: _Optional[str] = ..., feed_lag: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., gaps: _Optional[int] = ..., resets: _Optional[int] = ..., known_blocks: _Optional[int] = ..., known_lower_blocks: _Optional[int] = ...) -> None: ...

class ReplicaModel(_message.Message):
    __slots__ = ("id", "parent", "max_model_len")
    ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    id: str
    parent: str
    max_model_len: int
    def __init__(self, id: _Optional[str] = ..., parent: _Optional[str] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class EventsSpec(_message.Message):
    __slots__ = ("endpoint", "replay_endpoint", "topic")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    replay_endpoint: str
    topic: str
    def __init__(self, endpoint: _Optional[str] = ..., replay_endpoint: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("replica_id", "url", "events", "ranks", "labels", "lease", "api_key")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    url: str
    events: _containers.RepeatedCompositeFieldContainer[EventsSpec]
    ranks: int
    labels: _containers.ScalarMap[str, str]
    lease: _duration_pb2.Duration
    api_key: str
    def __init__(self, replica_id: _Optional[str] = ..., url: _Optional[str] = ..., events: _Optional[_Iterable[_Union[EventsSpec, _Mapping]]] = ..., ranks: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., api_key: _Optional[str] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("lease", "created")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    lease: _duration_pb2.Duration
    created: bool
    def __init__(self, lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., created: bool = ...) -> None: ...

class DeregisterRequest(_message.Message):
    __slots__ = ("replica_id",)
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    def __init__(self, replica_id: _Optional[str] = ...) -> None: ...

class DeregisterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("replica_id", "reason", "force", "move", "ranks")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    reason: str
    force: bool
    move: bool
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, replica_id: _Optional[str] = ..., reason: _Optional[str] = ..., force: bool = ..., move: bool = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ...) -> None: ...

class UndrainRequest(_message.Message):
    __slots__ = ("replica_id", "ranks")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, replica_id: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class UndrainResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("model", "page_size", "page_token")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    page_size: int
    page_token: str
    def __init__(self, model: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("replicas", "next_page_token")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    next_page_token: str
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("replica_id",)
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    def __init__(self, replica_id: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("replica", "removed")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    removed: bool
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ..., removed: bool = ...) -> None: ...
