"""A stream is continued at another router when its own is gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROUTER

import kvpilot
from kvpilot import _carry

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 60}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "think first, then use get_weather"}], "max_tokens": 90, "tools": TOOLS}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Tell me more"}], "max_tokens": 60}),
    ("/v1/responses", {"input": "Tell me more", "max_output_tokens": 60}),
]


class Gate:
    """A way to the router that breaks after so many bytes of answers, once and for all, as a router that is killed does."""

    def __init__(self, limit: int) -> None:
        self._limit, self._sockets = limit, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                host, _, port = ROUTER.rpartition(":")
                far = socket.create_connection((host, int(port)))
                self._sockets += [near, far]
                for source, to, counts in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._copy, args=(source, to, counts), daemon=True).start()

    def _copy(self, source: socket.socket, to: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(512):
                if counts:
                    self._limit -= len(data)
                    if self._limit < 0:
                        break
                to.sendall(data)
        self.close()

    def close(self) -> None:
        for s in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()


@contextlib.contextmanager
def gate(limit: int) -> Iterator[str]:
    g = Gate(limit)
    try:
        yield g.address
    finally:
        g.close()


def said(event: dict[str, Any]) -> str:
    """What an event adds, without ids and times."""
    assert "error" not in event or not event["error"], event
    out = ""
    for choice in event.get("choices", ()):
        assert choice.get("token_ids") is None, event
        delta = choice["delta"]
        out += (delta.get("content") or "") + (delta.get("reasoning") or "")
        for call in delta.get("tool_calls") or ():
            out += call["function"].get("name", "") + call["function"].get("arguments", "")
        out += choice.get("finish_reason") or ""
    delta = event.get("delta", "")
    if isinstance(delta, dict):
        return out + "".join(delta.get(name) or "" for name in ("text", "thinking", "partial_json"))
    return out + (delta or (f"<{event['type']}>" if "type" in event and event["type"] != "response.in_progress" else ""))


@pytest.mark.parametrize("path, more", KINDS)
def test_a_stream_continues_at_another_router(client: kvpilot.Client, path: str, more: dict[str, Any]) -> None:
    body = {"model": "sim", "stream": True, "temperature": 0, **more}
    want = "".join(said(event) for event in client.stream(path, body))
    for limit in (1500, 3000, 4500, 6000):
        with gate(limit) as address, kvpilot.Client([address, ROUTER]) as through:
            assert "".join(said(event) for event in through.stream(path, body)) == want, limit


def test_a_stream_continues_at_another_router_asyncio(client: kvpilot.Client) -> None:
    path, more = KINDS[0]
    body = {"model": "sim", "stream": True, "temperature": 0, **more}
    want = "".join(said(event) for event in client.stream(path, body))

    async def through(address: str) -> str:
        async with kvpilot.AsyncClient([address, ROUTER]) as other:
            return "".join([said(event) async for event in other.stream(path, body)])

    with gate(3000) as address:
        assert asyncio.run(through(address)) == want


def test_a_stream_that_is_not_carried_ends(client: kvpilot.Client) -> None:
    path, more = KINDS[0]
    # The text alone is longer than what the gate lets through, however few events a busy router makes of it.
    more = {**more, "max_tokens": 2000, "ignore_eos": True}
    with gate(3000) as address, kvpilot.Client([address, ROUTER]) as through, pytest.raises(kvpilot.UnavailableError):
        list(through.stream(path, {"model": "sim", "stream": True, **more}, headers={"x-kvpilot-resume": "off"}))


def test_events_are_plain_for_the_caller() -> None:
    carrier = _carry.Carrier(b'{"stream":true}')
    first = b'data: {"choices":[{"delta":{"content":"\\"token_ids\\":[1]"},"finish_reason":null,"token_ids":[1,2]}]}\n\n'
    alone = b'data: {"choices":[{"delta":{},"finish_reason":null,"token_ids":[3]}]}\n\n'
    got = b"".join(carrier.feed(bytes([b])) for b in first + alone + b": ids -1\n\n" + b": keep-alive\n\n" + b"data: [DO")
    assert got == first.replace(b"[1,2]", b"null") + b": keep-alive\n\n"
    body, how = carrier.request()
    assert how == "continue" and body.startswith(b'{"stream":true,"kvpilot_received":"data: ') and b"[DO" not in body
    assert not carrier.over
    carrier.feed(b"data: [DONE]\n\n")
    assert carrier.over
