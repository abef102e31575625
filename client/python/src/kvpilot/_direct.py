"""What the transports have in common: which requests go to a replica directly, and what they become there."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import grpc

from kvpilot import _core
from kvpilot._choice import BaseChoice

log = logging.getLogger("kvpilot")

# The routes that a replica can be asked for directly. Everything else goes through the router: stored responses, for
# example, are on one replica, and only the router knows which.
DIRECT = re.compile(r"/v1/(?:chat/completions|completions|messages)$")

# As many connections as there are requests: how many may run is for the router to decide.
LIMITS: dict[str, Any] = {"max_connections": None, "max_keepalive_connections": 100, "keepalive_expiry": 30.0}

# Seconds. A stream is renewed while it is read and while its replica is waited for, so this is how long the booking of one lives
# that its reader has left without closing it, and that only the garbage collector would find.
LEASE = 10.0

# How often a request is sent before the router is asked to answer it.
ATTEMPTS = 3

# A replica's answers that another replica may give better.
ELSEWHERE = (429, 503)

# Headers that a choice does not need or gRPC would take for its own, and those that a replica must not get.
NOT_METADATA = re.compile(
    r"host|connection|te|trailer|upgrade|transfer-encoding|keep-alive|authorization|proxy-.*|x-api-key|cookie|user-agent|content-.*|"
    r"accept.*|x-stainless-.*|grpc-.*|.*-bin")
METADATA = re.compile(r"[0-9a-z_.-]+")
NOT_REPLICA = re.compile(r"host|content-length|accept-encoding|authorization|proxy-.*|x-api-key|cookie|x-kvpilot-.*")

STATUS: dict[grpc.StatusCode, tuple[int, str]] = {
    grpc.StatusCode.INVALID_ARGUMENT: (400, "invalid_request_error"),
    grpc.StatusCode.UNAUTHENTICATED: (401, "authentication_error"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "permission_error"),
    grpc.StatusCode.NOT_FOUND: (404, "not_found_error"),
    grpc.StatusCode.ALREADY_EXISTS: (409, "invalid_request_error"),
    grpc.StatusCode.FAILED_PRECONDITION: (409, "invalid_request_error"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    grpc.StatusCode.UNAVAILABLE: (503, "server_error"),
}


def package(value: object) -> Any:
    """The package that a request or a response is from: httpx, or a successor with the same classes."""
    return importlib.import_module(type(value).__module__.partition(".")[0])


class Question:
    """A request that may go to a replica directly."""

    def __init__(self, request: Any, body: dict[str, Any], path: str, lease: float | None) -> None:
        self.http = package(request)
        self.body, self.path = body, path
        self.denied: list[str] = []  # replicas that were tried
        self.streamed = body.get("stream") is True
        # Usage is asked for, so that the router learns what was cached, and taken out again when the caller did not want it.
        options = body.get("stream_options")
        wants = isinstance(options, Mapping) and bool(options.get("include_usage"))
        self.hide_usage = self.streamed and not wants and path != "/v1/messages"
        if self.hide_usage:
            self.body = {**body, "stream_options": {**(options or {}), "include_usage": True}}
        self._request, self._content, self._decoded = request, request.content, body
        self._lease = lease
        read = (request.extensions.get("timeout") or {}).get("read")
        self.timeout = float(read) if isinstance(read, (int, float)) else None

    @classmethod
    def of(cls, request: Any, lease: float | None) -> Question | None:
        """The request, its body read; None when it has to go through the router."""
        found = DIRECT.search(request.url.path)
        if request.method != "POST" or found is None or "content-encoding" in request.headers:
            return None
        try:
            body = json.loads(request.content)
        except ValueError:
            return None
        return cls(request, body, found[0], lease) if isinstance(body, dict) else None

    def deny(self, choice: BaseChoice) -> None:
        """Takes the chosen replica out of the next choice."""
        self.denied.append(choice.replica_id)

    def choice_args(self) -> tuple[str, bytes, dict[str, str], float | None]:
        """The arguments of _choose_for: the request's own body and headers, as the router would have got them."""
        headers: dict[str, str] = {}
        for name, value in self._request.headers.items():
            known = METADATA.fullmatch(name) and not NOT_METADATA.fullmatch(name)
            if known and value.isascii() and value.isprintable():
                headers[name] = value
        headers["x-kvpilot-reports"] = "all" if self.streamed else "end"
        if self._lease is not None:
            headers.setdefault("x-kvpilot-lease-ms", str(round(self._lease * 1000)))
        if self.denied:
            headers["x-kvpilot-deny"] = ",".join(filter(None, (headers.get("x-kvpilot-deny"), *self.denied)))
        return self.path, self._content, headers, self.timeout

    def request(self, choice: BaseChoice, engine_key: str | None) -> Any:
        """The request as the replica gets it."""
        headers = [(k, v) for k, v in self._request.headers.multi_items() if not NOT_REPLICA.fullmatch(k.lower())]
        # The bytes are read on their way, so they come as they are.
        headers += [("accept-encoding", "identity"), *choice.request_headers.items()]
        if engine_key is not None:
            headers.append(("authorization", "Bearer " + engine_key))
        body = choice.body_for(self.body)
        content = self._content if body == self._decoded else json.dumps(body, ensure_ascii=False).encode()
        request: Any = type(self._request)
        return request("POST", choice.url + self.path, headers=headers, content=content, extensions=self._request.extensions)


def unreached(e: Exception) -> bool:
    """The router was not reached, or leaves: its REST address may be another router's."""
    if isinstance(e, _core.TrackerClosedError):
        return True
    return isinstance(e, _core.UnavailableError) and e.reason in ("", "ROUTER_UNREACHABLE", "SHUTTING_DOWN")


def refusal(e: Exception, request: Any) -> Any:
    """The answer for a request that the router refused to place, as its REST surface would have given it."""
    if not isinstance(e, _core.Error):
        raise e
    if e.code is grpc.StatusCode.DEADLINE_EXCEEDED and e.reason == "":
        raise package(request).ReadTimeout(f"no replica was chosen in time: {e.message}", request=request)
    status, kind = STATUS.get(e.code, (500, "server_error"))
    headers = {"x-kvpilot-reason": e.reason}
    if e.retry_after is not None:
        headers["retry-after"] = str(max(1, round(e.retry_after)))
    error: dict[str, Any] = {"message": e.message, "type": kind, "param": None, "code": e.reason.lower() or None}
    body = {"type": "error", "error": error} if request.url.path.endswith("/messages") else {"error": error}
    return package(request).Response(status, headers=headers, json=body, request=request)


def answer(response: Any, choice: BaseChoice, stream: object) -> Any:
    """The replica's answer with the headers that the router adds, read from stream."""
    headers = [*response.headers.multi_items(), ("x-kvpilot-replica", choice.replica_id),
               ("x-kvpilot-decision", choice.response.decision_id)]
    return type(response)(response.status_code, headers=headers, stream=stream, extensions=response.extensions)


@functools.lru_cache(maxsize=None)
def stream_class(body: type[Any], base: type[Any]) -> type[Any]:
    """A class of body that a client takes for a stream of its own package."""
    return type(body.__name__, (body, base), {})


class HideUsage:
    """Takes the events that have nothing but usage out of a stream. Events are passed on whole."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, part: bytes) -> bytes:
        events = (self._rest + part).split(b"\n\n")
        self._rest = events.pop()
        return b"".join(event + b"\n\n" for event in events if not _only_usage(event))

    def end(self) -> bytes:
        """What is left at the end of the stream. It is returned once."""
        rest, self._rest = self._rest, b""
        return rest


def _only_usage(event: bytes) -> bool:
    if b'"choices"' not in event or b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        data = json.loads(event[5:])
    except ValueError:
        return False
    return isinstance(data, dict) and data.get("choices") == [] and bool(data.get("usage"))
