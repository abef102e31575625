"""What is read of an answer, without a router."""

from __future__ import annotations

import json
import types
from typing import Any

import pytest

from kvpilot._direct import HideUsage
from kvpilot._reading import Reading
from kvpilot.v1.reservation_pb2 import (
    RELEASE_REASON_CANCELED, RELEASE_REASON_COMPLETED, RELEASE_REASON_FAILED, RELEASE_REASON_REJECTED,
)


def chunk(content: str = "a", finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": content}, "finish_reason": finish}], **more}


USAGE = {"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 32}}}


def sse(*events: dict[str, Any], done: bool = True) -> bytes:
    return b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + (b"data: [DONE]\n\n" if done else b"")


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_bytes_at_any_boundaries(step: int) -> None:
    r, stream = Reading(), b": hello\n\n" + sse(chunk(), chunk(finish="stop"), USAGE)
    for i in range(0, len(stream), step):
        r.feed(stream[i:i + step])
    assert (r.begun, r.chunks, r.tokens, r.cached_tokens, r.complete) == (True, 2, 7, 32, True)
    assert r.left() == r.ended() == RELEASE_REASON_COMPLETED


def test_lines_mappings_objects_and_text() -> None:
    lines, mappings, objects, text = Reading(), Reading(), Reading(), Reading()
    for line in sse(chunk(finish="stop")).decode().splitlines():
        lines.feed(line)
    mappings.feed(chunk(finish="stop"))
    objects.feed(types.SimpleNamespace(choices=[types.SimpleNamespace(index=0, finish_reason="stop")], usage=None))
    for r in lines, mappings, objects:
        assert r.tokens == 1 and r.finished and r.ended() == RELEASE_REASON_COMPLETED
    for token in "a", "b", " ":
        text.feed(token)
    assert text.tokens == 2 and text.left() == RELEASE_REASON_CANCELED and text.ended() == RELEASE_REASON_COMPLETED


def test_what_comes_before_the_first_token_is_not_the_first_token() -> None:
    r = Reading()
    r.feed(b": wait\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\n")
    assert not r.begun and r.tokens is None and r.left() == RELEASE_REASON_CANCELED


def test_an_answer_of_several_choices_ends_with_the_last_one() -> None:
    r = Reading()
    for event in chunk(index=0), chunk(index=1), chunk(index=1, finish="stop"):
        r.feed(event)
    assert not r.finished and r.left() == RELEASE_REASON_CANCELED
    r.feed(chunk(index=0, finish="length"))
    assert r.finished and r.left() == RELEASE_REASON_COMPLETED


def test_progress_is_due_once() -> None:
    r = Reading(progress_every=2)
    due = []
    for _ in range(5):
        r.feed(chunk())
        due += [r.due(), r.due()]
    assert due == [None, None, 2, None, None, None, 4, None, None, None]
    r.feed(chunk(usage={"completion_tokens": 40}))  # several tokens to a chunk
    assert r.due() == 40


def test_streams_that_fail() -> None:
    broken, error = Reading(), Reading()
    broken.feed(sse(chunk(), done=False))
    assert broken.ended() == RELEASE_REASON_FAILED
    error.feed(sse(chunk(), {"error": {"message": "broken"}}))
    assert error.left() == error.ended() == RELEASE_REASON_FAILED
    assert Reading(status=422).ended() == RELEASE_REASON_REJECTED and Reading(status=500).ended() == RELEASE_REASON_FAILED


def test_a_whole_answer() -> None:
    r, answer = Reading(whole=True), json.dumps({"choices": [{"index": 0}], "usage": USAGE["usage"]}).encode()
    r.feed(answer[:9])
    assert r.left() == RELEASE_REASON_CANCELED
    r.feed(answer[9:])
    assert r.ended() == RELEASE_REASON_COMPLETED and (r.tokens, r.cached_tokens) == (7, 32)


def test_messages_and_responses() -> None:
    message, response = Reading(), Reading()
    for event in (
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 16, "output_tokens": 0}}},
        {"type": "content_block_delta", "delta": {"text": "a"}},
    ):
        message.feed(event)
    assert (message.tokens, message.cached_tokens) == (1, 16)  # the count at a message's start is of no output
    message.feed({"type": "message_delta", "usage": {"output_tokens": 5}})
    assert message.left() == RELEASE_REASON_CANCELED
    message.feed({"type": "message_stop"})
    assert message.complete and (message.tokens, message.cached_tokens, message.left()) == (5, 16, RELEASE_REASON_COMPLETED)
    response.feed({"type": "response.output_text.delta", "delta": "a"})
    assert response.tokens == 1
    usage = {"output_tokens": 3, "input_tokens_details": {"cached_tokens": 8}}
    response.feed({"type": "response.completed", "response": {"usage": usage}})
    assert response.complete and (response.tokens, response.cached_tokens) == (3, 8)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_usage_that_was_not_asked_for_is_hidden(step: int) -> None:
    hide, stream = HideUsage(), b": hello\n\n" + sse(chunk(usage=None), chunk(finish="stop", usage=None), USAGE)
    shown = b"".join(hide.feed(stream[i:i + step]) for i in range(0, len(stream), step)) + hide.end()
    assert shown == b": hello\n\n" + sse(chunk(usage=None), chunk(finish="stop", usage=None))
    assert HideUsage().feed(b"data: {\"choices\"") == b""
