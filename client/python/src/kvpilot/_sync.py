"""The synchronous client."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
from google.api import httpbody_pb2
from google.protobuf.message import Message

from kvpilot import _core
from kvpilot.v1 import decision_pb2, prompt_pb2, replica_pb2, reservation_pb2, routing_pb2

if TYPE_CHECKING:
    import httpx

M = TypeVar("M", bound=Message)

log = logging.getLogger("kvpilot")

RELEASE_TIMEOUT = 5.0  # seconds that leaving a choice waits for the router, retries included


class Choice:
    """A decision and, when it was booked, its reservation.

    Leave it (`with`) and the reservation is released: as completed, as canceled or as failed, by how the block ends.
    Reports are idempotent. On a choice that was not booked (a dry run) they do nothing.
    """

    def __init__(self, client: Client, response: routing_pb2.ChooseReplicaResponse) -> None:
        self.response = response
        self._client = client
        self._released = False
        self._end: decision_pb2.End | None = None
        self._output_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._served_by = ""

    @property
    def booked(self) -> bool:
        return self.response.reservation_id != ""

    @property
    def url(self) -> str:
        """The replica's base URL."""
        return self.response.url

    @property
    def replica_id(self) -> str:
        return self.response.replica_id

    @property
    def request_headers(self) -> dict[str, str]:
        """Headers to add to the request that goes to the replica."""
        return dict(self.response.request_headers)

    def prefill_done(self) -> None:
        """Reports the first token."""
        if self.booked:
            self._client._report("ReportPrefillCompleted", reservation_pb2.ReportPrefillCompletedRequest(
                reservation_id=self.response.reservation_id, attempt=self.response.attempt))

    def progress(self, output_tokens: int) -> None:
        """Reports the tokens produced since the start, and renews the lease."""
        if self.booked:
            self._client._report("ReportDecodeProgress", reservation_pb2.ReportDecodeProgressRequest(
                reservation_id=self.response.reservation_id, attempt=self.response.attempt, output_tokens=output_tokens))

    def renew(self) -> None:
        """Extends the lease of a request that still waits for its first token."""
        if self.booked:
            self._client._report("RenewReservation", reservation_pb2.RenewReservationRequest(
                reservation_id=self.response.reservation_id, attempt=self.response.attempt))

    def outcome(self, *, end: decision_pb2.End | None = None, output_tokens: int | None = None,
                cached_tokens: int | None = None, served_by: str = "") -> None:
        """Sets what the release at the block's end says."""
        self._end, self._served_by = end, served_by
        self._output_tokens, self._cached_tokens = output_tokens, cached_tokens

    def release(self, end: decision_pb2.End = decision_pb2.END_COMPLETED) -> None:
        """Ends the reservation; only the first release counts."""
        if not self.booked or self._released:
            return
        self._client._report("ReleaseReservation", _core.release_request(
            self.response.reservation_id, self.response.attempt, self._end or end,
            self._output_tokens, self._cached_tokens, self._served_by), RELEASE_TIMEOUT)
        self._released = True

    def __enter__(self) -> Choice:
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: object) -> None:
        end = decision_pb2.END_COMPLETED
        if kind is not None:
            canceled = not issubclass(kind, Exception)  # CancelledError, GeneratorExit, KeyboardInterrupt
            end = decision_pb2.END_CANCELED if canceled else decision_pb2.END_FAILED
        try:
            self.release(end)
        except _core.Error as e:
            log.warning("reservation %s was not released, its lease will end it: %s", self.response.reservation_id, e)


class Client:
    """A connection to a router; it connects with the first call. Safe for threads.

    target: "localhost:9090", "dns:///kvpilot:9090", or several HOST:PORT, of which the first that answers is used (names
    are resolved once, to IPv4; with TLS give server_name). timeout: seconds for each call but streams. Lifecycle reports,
    tokenizing and explaining are retried while the router is unavailable; choosing and inference are not.
    """

    def __init__(self, target: str | Sequence[str], *, credentials: grpc.ChannelCredentials | None = None,
                 api_key: str | None = None, timeout: float = 30.0, server_name: str | None = None) -> None:
        self._options = o = _core.options(target, credentials, api_key, timeout, server_name)
        self.channel = (grpc.insecure_channel(o.target, list(o.channel)) if o.credentials is None
                        else grpc.secure_channel(o.target, o.credentials, list(o.channel)))

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, request: Message, answer: type[M], timeout: float | None = None,
              service: str = _core.ROUTING) -> M:
        call: Any = self.channel.unary_unary(
            service + name, request_serializer=lambda m: m.SerializeToString(), response_deserializer=answer.FromString)
        try:
            return cast(M, call(request, metadata=self._options.metadata, timeout=timeout or self._options.timeout))
        except grpc.RpcError as e:
            raise _core.error(e) from None

    def _report(self, name: str, request: Message, timeout: float | None = None) -> None:
        self._call(name, request, reservation_pb2.Reservation, timeout)

    def choose(
        self, *, model: str = "", messages: Sequence[Mapping[str, Any]] | None = None, text: str | None = None,
        token_ids: Sequence[int] | None = None, body: _core.Body | None = None, adapter: str = "", session_id: str = "",
        policy: str | None = None, params: Mapping[str, float] | None = None, allow: Sequence[str] = (),
        deny: Sequence[str] = (), pin: str = "", priority: int = 0, ttft_deadline: float | None = None,
        expected_output_tokens: int = 0, cache_salt: str = "", lease: float | None = None, request_id: str = "",
        dry_run: bool = False, explain: bool = False, return_token_ids: bool = False, reports_all: bool = False,
    ) -> Choice:
        """Chooses a replica and books the load there, unless dry_run is set.

        The prompt is one of messages, text, token_ids and body (the whole request, as JSON or a mapping); without one, load
        alone decides. adapter is the LoRA adapter. ttft_deadline and lease are in seconds. explain and return_token_ids
        add the decision and the ids to choice.response. reports_all declares that prefill_done is always reported.
        Leave the choice (`with`) or release it; otherwise it is booked until its lease ends.
        """
        request = _core.choose_request(
            model=model, messages=messages, text=text, token_ids=token_ids, body=body, adapter=adapter, session_id=session_id,
            policy=policy, params=params, allow=allow, deny=deny, pin=pin, priority=priority, ttft_deadline=ttft_deadline,
            expected_output_tokens=expected_output_tokens, cache_salt=cache_salt, lease=lease, request_id=request_id,
            dry_run=dry_run, explain=explain, return_token_ids=return_token_ids, reports_all=reports_all)
        return Choice(self, self._call("ChooseReplica", request, routing_pb2.ChooseReplicaResponse))

    def tokenize(self, model: str, *, text: str | None = None, messages: Sequence[Mapping[str, Any]] | None = None,
                       body: _core.Body | None = None) -> list[int]:
        """The ids that the model's replicas use for a prompt, chat template and all for messages and body."""
        answer = self._call("Tokenize", _core.tokenize_request(model, messages, text, body), prompt_pb2.TokenizeResponse)
        return list(answer.sequences[0].token_ids.ids)

    def detokenize(self, model: str, ids: Sequence[int]) -> str:
        request = prompt_pb2.DetokenizeRequest(model=model, sequences=[prompt_pb2.TokenIds(ids=ids)])
        return (self._call("Detokenize", request, prompt_pb2.DetokenizeResponse)).texts[0]

    def explain(self, *, decision_id: str = "", request_id: str = "") -> list[decision_pb2.Decision]:
        """The recorded decisions of a request, first attempt first."""
        request = routing_pb2.ExplainDecisionRequest()
        if decision_id:
            request.decision_id = decision_id
        else:
            request.request_id = request_id
        return list((self._call("ExplainDecision", request, routing_pb2.ExplainDecisionResponse)).decisions)

    def list_replicas(self, model: str = "") -> list[replica_pb2.Replica]:
        """The replicas that serve model; all of them when it is empty."""
        request = replica_pb2.ListRequest(model=model)
        return list((self._call("List", request, replica_pb2.ListResponse, service=_core.REPLICAS)).replicas)

    def watch_decisions(self, *, model: str = "", replica_id: str = "", only_chosen: bool = False,
                        timeout: float | None = None) -> Generator[routing_pb2.WatchDecisionsResponse, None, None]:
        """Yields decisions as they are made and again with their outcome, until the iterator is closed or the connection breaks.

        A reader that is too slow loses some; `lost` of the next one is their number.
        """
        call: Any = self.channel.unary_stream(
            _core.ROUTING + "WatchDecisions", request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=routing_pb2.WatchDecisionsResponse.FromString)
        request = routing_pb2.WatchDecisionsRequest(model=model, replica_id=replica_id, only_chosen=only_chosen)
        answer = call(request, metadata=self._options.metadata, timeout=timeout)
        try:
            for update in answer:
                yield update
        except grpc.RpcError as e:
            raise _core.error(e) from None
        finally:
            answer.cancel()

    def open(self, path: str, body: _core.Body, *, headers: Mapping[str, str] | None = None,
             timeout: float | None = None) -> Generator[bytes, None, None]:
        """Has the router answer on an inference route, named by its REST path, and yields the replica's bytes as they come.

        headers: x-session-id, x-kvpilot-policy and others. Closing the iterator stops the replica's work.
        """
        if path not in _core.PATHS:
            raise ValueError(f"path {path!r} must be one of {', '.join(_core.PATHS)}")
        call: Any = self.channel.unary_stream(
            _core.INFERENCE + _core.PATHS[path], request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=httpbody_pb2.HttpBody.FromString)
        metadata = self._options.metadata + tuple((k.lower(), v) for k, v in (headers or {}).items())
        answer = call(httpbody_pb2.HttpBody(content_type="application/json", data=_core.encode(body)),
                      metadata=metadata, timeout=timeout)
        try:
            for part in answer:
                yield part.data
        except grpc.RpcError as e:
            raise _core.error(e) from None
        finally:
            answer.cancel()

    def stream(self, path: str, body: _core.Body, *, headers: Mapping[str, str] | None = None,
               timeout: float | None = None) -> Generator[dict[str, Any], None, None]:
        """Like open, for a body with "stream": true; yields the events, decoded."""
        events = _core.Events()
        with contextlib.closing(self.open(path, body, headers=headers, timeout=timeout)) as parts:
            for part in parts:
                for data in events.feed(part):
                    yield cast(dict[str, Any], json.loads(data))

    def complete(self, path: str, body: _core.Body, *, headers: Mapping[str, str] | None = None,
                       timeout: float | None = None) -> dict[str, Any]:
        """Like open, for a body that is not streamed; returns the whole answer, decoded."""
        answer = b"".join([part for part in self.open(path, body, headers=headers, timeout=timeout or self._options.timeout)])
        return cast(dict[str, Any], json.loads(answer))

    def stream_direct(self, body: Mapping[str, Any], *, http: httpx.Client, path: str = "/v1/chat/completions",
                            headers: Mapping[str, str] | None = None, progress_every: int = 16,
                            **choose: Any) -> Generator[dict[str, Any], None, None]:
        """Chooses a replica, streams the answer from it with httpx, and reports the lifecycle; yields the events, decoded.

        choose are further arguments of choose(), for example session_id. progress_every: chunks between two reports.
        An error of the replica is httpx.HTTPStatusError, its body read.
        """
        with self.choose(body=_core.streamed(body), **choose) as choice:
            sent_body = _core.direct_body(body, choice.response)
            sent = {**choice.request_headers, **(headers or {})}
            with http.stream("POST", choice.url.rstrip("/") + path, headers=sent, json=sent_body) as answer:
                if answer.is_error:
                    choice.outcome(end=decision_pb2.END_REJECTED if answer.is_client_error else decision_pb2.END_FAILED)
                    answer.read()
                    answer.raise_for_status()
                usage, events = _core.Usage(), _core.Events()
                for part in answer.iter_bytes():
                    for data in events.feed(part):
                        event = cast(dict[str, Any], json.loads(data))
                        if usage.chunks == 0:
                            self._advise(choice.prefill_done)
                        usage.read(event)
                        if usage.chunks % progress_every == 0:
                            self._advise(lambda: choice.progress(usage.chunks))
                        yield event
                choice.outcome(output_tokens=usage.output_tokens, cached_tokens=usage.cached_tokens)

    @staticmethod
    def _advise(report: Callable[[], None]) -> None:
        """A report that fails does not fail the answer."""
        try:
            report()
        except _core.Error as e:
            log.warning("report: %s", e)
