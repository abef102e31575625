"""What the two clients share: requests, channel options, errors, server-sent events. Nothing here waits."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union, cast

import grpc
from google.rpc import error_details_pb2, status_pb2
from google.api import httpbody_pb2

from kvpilot.v1 import errors_pb2, prompt_pb2, reservation_pb2, routing_pb2

Body = Union[bytes, str, Mapping[str, Any]]

ROUTING = "/kvpilot.v1.RoutingService/"
INFERENCE = "/kvpilot.v1.InferenceService/"
REPLICAS = "/kvpilot.v1.ReplicaService/"

# The calls that change nothing when they are repeated. ChooseReplica and inference are not among them.
REPEATABLE = ("Tokenize", "Detokenize", "ReportReservation", "ExplainDecision")

SERVICE_CONFIG = json.dumps({"methodConfig": [{
    "name": [{"service": "kvpilot.v1.RoutingService", "method": m} for m in REPEATABLE]
    + [{"service": "kvpilot.v1.ReplicaService", "method": "List"}],
    "retryPolicy": {
        "maxAttempts": 4, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 3,
        "retryableStatusCodes": ["UNAVAILABLE"],
    },
}]})

PATHS = {
    "/v1/chat/completions": "ChatCompletions", "/v1/completions": "Completions", "/v1/responses": "Responses",
    "/v1/messages": "Messages", "/v1/embeddings": "Embeddings",
}


@dataclass(frozen=True)
class Options:
    """How to reach the router. credentials: TLS; None is plain text. timeout: seconds for each unary call."""

    target: str
    credentials: grpc.ChannelCredentials | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    timeout: float = 30.0
    channel: tuple[tuple[str, Any], ...] = field(default=())
    api_key: str | None = None


def options(target: str | Sequence[str], credentials: grpc.ChannelCredentials | None, api_key: str | None,
            timeout: float, server_name: str | None) -> Options:
    channel: list[tuple[str, Any]] = [
        ("grpc.service_config", SERVICE_CONFIG),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # A router that has restarted is found soon: gRPC's own backoff grows to two minutes.
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]
    if server_name is not None:
        channel += [("grpc.ssl_target_name_override", server_name), ("grpc.default_authority", server_name)]
    metadata = () if api_key is None else (("authorization", "Bearer " + api_key),)
    return Options(address(target), credentials, metadata, timeout, tuple(channel), api_key)


def address(target: str | Sequence[str]) -> str:
    """One target stays as it is; several become a list of IPv4 addresses that gRPC tries in order."""
    if isinstance(target, str):
        return checked(target)
    if not target:
        raise ValueError("targets must not be empty")
    if len(target) == 1:
        return checked(target[0])
    found: list[str] = []
    for t in [checked(t) for t in target]:
        host, _, port = t.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"target {t!r} must be HOST:PORT")
        for info in socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM):
            found.append(f"{info[4][0]}:{port}")
    return "ipv4:" + ",".join(dict.fromkeys(found))


def checked(target: str) -> str:
    """The target, unless it is a URL or empty: gRPC would try to look its name up with each call."""
    scheme, separator, rest = target.partition("://")
    if separator and scheme.lower() in ("http", "https", "grpc", "grpcs"):
        raise ValueError(
            f"target {target!r} must be HOST:PORT of the router's gRPC address, without {scheme}://, for example"
            f" {rest.split('/')[0].rpartition(':')[0] or rest.split('/')[0]}:9090; credentials=grpc.ssl_channel_credentials() turns TLS on")
    if not target:
        raise ValueError("target must be HOST:PORT of the router's gRPC address, not empty")
    return target


def encode(body: Body) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def one_prompt(prompts: Mapping[str, object], without: str = "") -> None:
    """Raises ValueError unless there is one prompt. without says how a call is made that needs none."""
    given = [name for name, prompt in prompts.items() if prompt is not None]
    if len(given) == 1:
        return
    got = f"not {' and '.join(given)}" if given else "the prompt is missing"
    raise ValueError(f"give one of {', '.join(prompts)}: {got}{'' if given else without}")


def choose_request(*, model: str, messages: Sequence[Mapping[str, Any]] | None, text: str | None,
                   token_ids: Sequence[int] | None, body: Body | None, adapter: str, session_id: str, policy: str | None,
                   params: Mapping[str, float] | None, allow: Sequence[str], deny: Sequence[str], pin: str, priority: int,
                   ttft_deadline: float | None, expected_output_tokens: int, cache_salt: str, lease: float | None,
                   request_id: str, booking: routing_pb2.Booking, explain: bool, return_token_ids: bool,
                   reports_all: bool) -> routing_pb2.ChooseReplicaRequest:
    one_prompt({"messages": messages, "text": text, "token_ids": token_ids, "body": body},
               " (token_ids=[] chooses by load alone)")
    request = routing_pb2.ChooseReplicaRequest(
        model=model, adapter=adapter, session_id=session_id, priority=priority, cache_salt=cache_salt, request_id=request_id,
        expected_output_tokens=expected_output_tokens, booking=booking, explain=explain, return_token_ids=return_token_ids,
    )
    if messages is not None:
        body = {"model": model, "messages": list(messages)} if model else {"messages": list(messages)}
    if body is not None:
        request.body.json = encode(body)
    if text is not None:
        request.text = text
    if token_ids is not None:
        request.token_ids.ids.extend(token_ids)
    if allow or deny or pin:
        request.candidates.allow.extend(allow)
        request.candidates.deny.extend(deny)
        request.candidates.pin = pin
    if policy is not None or params:
        request.policy.name = policy or ""
        request.policy.params.update(params or {})
    if ttft_deadline is not None:
        request.ttft_deadline.FromNanoseconds(round(ttft_deadline * 1e9))
    if lease is not None:
        request.lease.FromNanoseconds(round(lease * 1e9))
    if reports_all:
        request.reports = routing_pb2.REPORTS_ALL
    return request


def tokenize_request(model: str, messages: Sequence[Mapping[str, Any]] | None, text: str | None,
                     body: Body | None) -> prompt_pb2.TokenizeRequest:
    one_prompt({"messages": messages, "text": text, "body": body})
    request = prompt_pb2.TokenizeRequest(model=model)
    if messages is not None:
        body = {"model": model, "messages": list(messages)}
    if body is not None:
        request.body.json = encode(body)
    else:
        request.text = text or ""
    return request


class Error(Exception):
    """A call that failed.

    code is gRPC's; reason is kvpilot's own (an ErrorReason without its prefix, "" when it gave none); retry_after is the
    time in seconds that the router asks to wait, or None; body is the replica's own answer, when the error carries one.
    """

    def __init__(self, message: str, code: grpc.StatusCode, reason: str = "", retry_after: float | None = None,
                 body: bytes | None = None, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message, self.code, self.reason = message, code, reason
        self.retry_after, self.body, self.metadata = retry_after, body, dict(metadata or {})

    def __str__(self) -> str:
        return f"{self.reason or self.code.name}: {self.message}"


class InvalidRequestError(Error):
    """The request is malformed."""


class AuthenticationError(Error):
    """The API key is missing or wrong, or may not do this."""


class NotFoundError(Error):
    """No such model, replica, decision or reservation."""


class ConflictError(Error):
    """The request conflicts with what is: a booking of another question, or a reservation that has ended."""


class OverloadedError(Error):
    """A queue or a limit is full; retry_after may say how long to wait."""


class UnavailableError(Error):
    """The router or every replica is out of reach; try again later."""


class DeadlineError(Error):
    """The deadline passed, or cannot be kept."""


KINDS: dict[grpc.StatusCode, type[Error]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: AuthenticationError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: ConflictError,
    grpc.StatusCode.FAILED_PRECONDITION: ConflictError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
}


# What gRPC says of a server of HTTP.
NOT_GRPC = ("Received http2 header with status", "Trying to connect an http1.x server")


class Deadline:
    """The deadline of a call that starts now; None is none."""

    def __init__(self, timeout: float | None) -> None:
        self._at = math.inf if timeout is None else time.monotonic() + timeout - 0.01  # but for the imprecision of timers

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._at

    @property
    def left(self) -> float | None:
        """The seconds until then; None is any time."""
        return None if self._at == math.inf else max(0.0, self._at - time.monotonic() + 0.01)


def error(e: Any, deadline: Deadline | None = None) -> Error:
    """The typed form of what gRPC raised: a call of grpc, or an AioRpcError.

    When the deadline passes, the router's reset of the stream may arrive before gRPC's own timer, as a cancellation.
    """
    code, message = e.code(), e.details() or ""
    if code is grpc.StatusCode.CANCELLED and deadline is not None and deadline.passed:
        return DeadlineError("the deadline passed", grpc.StatusCode.DEADLINE_EXCEEDED)
    reason, retry_after, body = "", None, None
    metadata: dict[str, str] = {}
    for key, value in e.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info, retry, answer = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), httpbody_pb2.HttpBody()
            if detail.Unpack(info) and info.domain == "kvpilot":
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Unpack(retry):
                retry_after = retry.retry_delay.ToTimedelta().total_seconds()
            elif detail.Unpack(answer):
                body = bytes(answer.data)
    if not reason and any(sign in message for sign in NOT_GRPC):
        message += " (the target is not the router's gRPC address, by default port 9090; it may be the REST or the admin address)"
    kind = KINDS.get(code, Error)
    if reason == errors_pb2.ErrorReason.Name(errors_pb2.ERROR_REASON_DEADLINE_UNREACHABLE).removeprefix("ERROR_REASON_"):
        kind = DeadlineError
    return kind(message, code, reason, retry_after, body, metadata)


def streamed(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with a stream asked for, its usage included. The router times the first token of streams only."""
    return {**body, "stream": True, "stream_options": {"include_usage": True, **(body.get("stream_options") or {})}}


class TrackerClosedError(Exception):
    """The stream of a Tracker has ended; its choices are released. Open another Tracker."""


class ReplicaError(Exception):
    """An error event within the stream of a replica that was asked directly; body is the event."""

    def __init__(self, body: bytes) -> None:
        super().__init__(f"the replica answered an error event: {body[:500].decode(errors='replace')}")
        self.body = body


def decode_event(data: bytes) -> dict[str, Any]:
    """An event of a replica, decoded. An error event is raised."""
    event = cast(dict[str, Any], json.loads(data))
    if event.get("error") and "choices" not in event:
        raise ReplicaError(data)
    return event


# The code of a report that failed on a Tracker's stream, by its reason.
REPORT_CODES: dict[str, grpc.StatusCode] = {
    "RESERVATION_NOT_FOUND": grpc.StatusCode.NOT_FOUND, "RESERVATION_ENDED": grpc.StatusCode.FAILED_PRECONDITION,
    "INVALID_BODY": grpc.StatusCode.INVALID_ARGUMENT, "ROUTER_UNREACHABLE": grpc.StatusCode.UNAVAILABLE,
    "SHUTTING_DOWN": grpc.StatusCode.UNAVAILABLE, "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "CONFLICT": grpc.StatusCode.ALREADY_EXISTS,
}


def report_error(answer: reservation_pb2.TrackReservationResponse) -> Error | None:
    """The error of a report that the router could not use, or None. The stream of reports continues."""
    if answer.reason == errors_pb2.ERROR_REASON_UNSPECIFIED:
        return None
    reason = errors_pb2.ErrorReason.Name(answer.reason).removeprefix("ERROR_REASON_")
    code = REPORT_CODES.get(reason, grpc.StatusCode.UNKNOWN)
    return KINDS.get(code, Error)(answer.message, code, reason)
