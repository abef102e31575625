from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ApiKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    API_KIND_UNSPECIFIED: _ClassVar[ApiKind]
    API_KIND_CHAT_COMPLETIONS: _ClassVar[ApiKind]
    API_KIND_COMPLETIONS: _ClassVar[ApiKind]
    API_KIND_RESPONSES: _ClassVar[ApiKind]
    API_KIND_MESSAGES: _ClassVar[ApiKind]

class TokenSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_SOURCE_UNSPECIFIED: _ClassVar[TokenSource]
    TOKEN_SOURCE_BODY: _ClassVar[TokenSource]
    TOKEN_SOURCE_EXACT_CACHE: _ClassVar[TokenSource]
    TOKEN_SOURCE_CONVERSATION: _ClassVar[TokenSource]
    TOKEN_SOURCE_RENDER: _ClassVar[TokenSource]
    TOKEN_SOURCE_TOKENIZE: _ClassVar[TokenSource]
API_KIND_UNSPECIFIED: ApiKind
API_KIND_CHAT_COMPLETIONS: ApiKind
API_KIND_COMPLETIONS: ApiKind
API_KIND_RESPONSES: ApiKind
API_KIND_MESSAGES: ApiKind
TOKEN_SOURCE_UNSPECIFIED: TokenSource
TOKEN_SOURCE_BODY: TokenSource
TOKEN_SOURCE_EXACT_CACHE: TokenSource
TOKEN_SOURCE_CONVERSATION: TokenSource
TOKEN_SOURCE_RENDER: TokenSource
TOKEN_SOURCE_TOKENIZE: TokenSource

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RequestBody(_message.Message):
    __slots__ = ("json", "api", "truncated")
    JSON_FIELD_NUMBER: _ClassVar[int]
    API_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    api: ApiKind
    truncated: bool
    def __init__(self, json: _Optional[bytes] = ..., api: _Optional[_Union[ApiKind, str]] = ..., truncated: bool = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text", "body", "texts", "add_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    body: RequestBody
    texts: TextBatch
    add_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., body: _Optional[_Union[RequestBody, _Mapping]] = ..., texts: _Optional[_Union[TextBatch, _Mapping]] = ..., add_special_tokens: bool = ...) -> None: ...

class TextBatch(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("sequences", "max_model_len", "source")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    max_model_len: int
    source: TokenSource
    def __init__(self, sequences: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., max_model_len: _Optional[int] = ..., source: _Optional[_Union[TokenSource, str]] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids", "count")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    token_ids: TokenIds
    count: int
    def __init__(self, token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "sequences")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    model: str
    sequences: _containers.RepeatedCompositeFieldContainer[TokenIds]
    def __init__(self, model: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...
