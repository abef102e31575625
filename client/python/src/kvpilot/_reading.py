"""What can be learned of a request from its answer, chunk by chunk. Nothing here waits or sends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kvpilot.v1.reservation_pb2 import (
    RELEASE_REASON_CANCELED, RELEASE_REASON_COMPLETED, RELEASE_REASON_FAILED, RELEASE_REASON_REJECTED, ReleaseReason,
)

# Chunks between two reports of progress, unless the caller says otherwise.
PROGRESS_EVERY = 16

# The last events of a message and of a response, and the events of a response that bring output.
STOPS = ("message_stop", "response.completed", "response.incomplete")
DELTAS = ("response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta")

# A whole answer above this size is not read for its usage.
MAX_WHOLE = 16 << 20


class Events:
    """Cuts the data of server-sent events out of bytes that come at any boundaries. The end mark [DONE] is left out."""

    def __init__(self) -> None:
        self._rest = b""
        self.done = False  # [DONE] has come

    def feed(self, part: bytes) -> Iterator[bytes]:
        lines = (self._rest + part).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    self.done = True
                else:
                    yield data


class Reading:
    """The state of one answer: whether it has begun, how far it is, what it says of its tokens, whether it is whole.

    Chunks are what a stream yields: bytes of server-sent events, their lines as text, decoded events (mappings), or the
    objects of openai's SDK. Text and objects of other kinds count as one token each. The shapes of OpenAI's chats,
    completions and responses and of Anthropic's messages are read.

    status: the HTTP status of the answer. whole: the bytes are one JSON document and no stream. Both are set before the first
    chunk.
    """

    def __init__(self, progress_every: int = PROGRESS_EVERY, status: int = 200, whole: bool = False) -> None:
        self.begun = False
        self.chunks = 0
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.status, self.whole, self._every = status, whole, progress_every
        self._events = Events()
        self._bytes = bytearray()
        self._error = False
        self._exhausted = False
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        self._stopped = False
        self._reported = 0

    @property
    def tokens(self) -> int | None:
        """The output tokens: as the engine counts them, else the chunks that had any; None when neither is known."""
        return self.chunks or None if self.output_tokens is None else self.output_tokens

    @property
    def finished(self) -> bool:
        """The engine has said that the answer ends here."""
        return self._events.done or self._stopped or bool(self._seen) and self._seen == self._finished

    @property
    def complete(self) -> bool:
        """Nothing more comes: the stream has its end mark or an error, or ran out."""
        return self._events.done or self._stopped or self._exhausted or self._error

    def due(self) -> int | None:
        """The number of tokens to report now, or None. A number is returned once."""
        if self.chunks - self._reported < self._every:
            return None
        self._reported = self.chunks
        return self.tokens

    def feed(self, chunk: object) -> None:
        """Reads what a stream has yielded."""
        if isinstance(chunk, (bytes, bytearray, memoryview)):
            part = bytes(chunk)
            if self.status >= 400:
                return
            if self.whole:
                if len(self._bytes) <= MAX_WHOLE:
                    self._bytes += part
                return
            for data in self._events.feed(part):
                self._data(data)
        elif isinstance(chunk, str):
            self._text(chunk)
        else:
            self._event(chunk)

    def _text(self, text: str) -> None:
        if text.startswith("data:"):
            self.feed(text.rstrip("\n").encode() + b"\n")
        elif text.strip() and not text.startswith((":", "event:", "id:", "retry:")):
            self.begun = True
            self.chunks += 1

    def _data(self, data: bytes) -> None:
        try:
            self._event(json.loads(data))
        except ValueError:
            self.begun = True
            self.chunks += 1

    def _event(self, event: object) -> None:
        kind = member(event, "type")
        if kind == "ping":
            return
        self.begun = True
        choices = member(event, "choices")
        if choices is None and (member(event, "error") or kind in ("error", "response.failed")):
            self._error = True
            return
        self._usage(member(event, "usage") or member(member(event, "response"), "usage"))
        self._cached(member(member(event, "message"), "usage"))  # at a message's start, when nothing of it is counted yet
        if choices is not None:
            self._choices(choices)
        elif kind in STOPS:
            self._stopped = True
        elif kind is None or kind == "content_block_delta" or kind in DELTAS:
            self.chunks += 1

    def _choices(self, choices: Any) -> None:
        self.chunks += bool(choices)
        for choice in choices:
            index = member(choice, "index") or 0
            self._seen.add(index)
            if member(choice, "finish_reason"):
                self._finished.add(index)

    def _usage(self, usage: object) -> None:
        if usage is None:
            return
        for name in ("completion_tokens", "output_tokens"):
            if isinstance(count := member(usage, name), int):
                self.output_tokens = count
        self._cached(usage)

    def _cached(self, usage: object) -> None:
        details = member(usage, "prompt_tokens_details") or member(usage, "input_tokens_details")
        for cached in (member(details, "cached_tokens"), member(usage, "cache_read_input_tokens")):
            if isinstance(cached, int):
                self.cached_tokens = cached

    def ended(self) -> ReleaseReason:
        """How the request ended, when the stream has run out by itself."""
        self._exhausted = True
        if self.status >= 400:
            return RELEASE_REASON_REJECTED if self.status < 500 else RELEASE_REASON_FAILED
        if self.whole and len(self._bytes) <= MAX_WHOLE:
            self._read_whole()
        broken = bool(self._seen) and not self.finished and not self.whole  # the connection was closed in mid-answer
        return RELEASE_REASON_FAILED if self._error or broken else RELEASE_REASON_COMPLETED

    def left(self) -> ReleaseReason:
        """How the request ended, when its reader wants no more of it."""
        if self._exhausted:
            return self.ended()
        if self._error:
            return RELEASE_REASON_FAILED
        return RELEASE_REASON_COMPLETED if self.finished else RELEASE_REASON_CANCELED

    def _read_whole(self) -> None:
        try:
            answer = json.loads(bytes(self._bytes))
        except ValueError:
            return
        self._usage(member(answer, "usage"))


def member(value: object, name: str) -> Any:
    """A member of a mapping or an attribute of an object; None when there is none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
