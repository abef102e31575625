"""The asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import grpc.aio
from google.api import httpbody_pb2
from google.protobuf.message import Message

from kvpilot import _carry, _core
from kvpilot._async_choice import AsyncChoice, Background
from kvpilot._async_tracker import AsyncTracker
from kvpilot._choice import RELEASE_TIMEOUT, Report
from kvpilot._reading import PROGRESS_EVERY, Events
from kvpilot.v1 import decision_pb2, prompt_pb2, replica_pb2, reservation_pb2, routing_pb2

if TYPE_CHECKING:
    import httpx

M = TypeVar("M", bound=Message)

GIVE_BACK_WAIT = 1.0  # seconds in which the answer to a canceled choose is still awaited, so that its booking can be released


class AsyncClient:
    """A connection to a router; it connects with the first call. It belongs to one event loop.

    target: "localhost:9090", "dns:///kvpilot:9090", or several HOST:PORT, of which the first that answers is used (names
    are resolved once, to IPv4; with TLS give server_name). timeout: seconds for each call but streams. Lifecycle reports,
    tokenizing and explaining are retried while the router is unavailable; choosing and inference are not.
    """

    def __init__(self, target: str | Sequence[str], *, credentials: grpc.ChannelCredentials | None = None,
                 api_key: str | None = None, timeout: float = 30.0, server_name: str | None = None) -> None:
        self._options = o = _core.options(target, credentials, api_key, timeout, server_name)
        self.background = Background()
        self.channel = (grpc.aio.insecure_channel(o.target, list(o.channel)) if o.credentials is None
                        else grpc.aio.secure_channel(o.target, o.credentials, list(o.channel)))

    @property
    def api_key(self) -> str | None:
        return self._options.api_key

    async def close(self) -> None:
        """Releases what is followed and still open, and ends the connection."""
        await self.background.close(RELEASE_TIMEOUT)
        await self.channel.close()

    def track(self) -> AsyncTracker:
        """Opens a stream that carries the reports of many choices, and whose end releases them."""
        return AsyncTracker(self)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, name: str, request: Message, answer: type[M], timeout: float | None = None,
                    service: str = _core.ROUTING, metadata: tuple[tuple[str, str], ...] = ()) -> M:
        call: Any = self.channel.unary_unary(
            service + name, request_serializer=lambda m: m.SerializeToString(), response_deserializer=answer.FromString)
        timeout = timeout or self._options.timeout
        deadline = _core.Deadline(timeout)
        try:
            return cast(M, await call(request, metadata=metadata + self._options.metadata, timeout=timeout))
        except grpc.aio.UsageError as e:  # the channel is closed
            raise _core.UnavailableError(str(e), grpc.StatusCode.CANCELLED) from None
        except grpc.RpcError as e:
            raise _core.error(e, deadline) from None

    async def _report(self, report: Report, timeout: float | None = None) -> None:
        await self._call("ReportReservation", report, reservation_pb2.Reservation, timeout)

    async def _chosen(self, name: str, request: Message, timeout: float | None = None,
                      metadata: tuple[tuple[str, str], ...] = ()) -> AsyncChoice:
        """Has a call choose. When it is canceled, what it has booked is released."""
        call = asyncio.ensure_future(self._call(
            name, request, routing_pb2.ChooseReplicaResponse, timeout, metadata=metadata))
        try:
            return AsyncChoice(self, await asyncio.shield(call))
        except asyncio.CancelledError:
            self.background.start(self._give_back(call))
            raise

    async def _give_back(self, call: asyncio.Future[routing_pb2.ChooseReplicaResponse]) -> None:
        """A call that is still without an answer after GIVE_BACK_WAIT is canceled, so that it leaves the router's queue."""
        try:
            response = await asyncio.wait_for(call, GIVE_BACK_WAIT)
        except (_core.Error, asyncio.TimeoutError):
            return
        await AsyncChoice(self, response)._leave(reservation_pb2.RELEASE_REASON_CANCELED)

    async def _choose_for(self, path: str, body: bytes, headers: Mapping[str, str], timeout: float | None) -> AsyncChoice:
        """Chooses for an inference request by its body and its headers, as the router reads them."""
        metadata = (*headers.items(), ("x-kvpilot-path", path))
        return await self._chosen("RouteBody", httpbody_pb2.HttpBody(content_type="application/json", data=body), timeout, metadata)

    async def choose(
        self, *, model: str = "", messages: Sequence[Mapping[str, Any]] | None = None, text: str | None = None,
        token_ids: Sequence[int] | None = None, body: _core.Body | None = None, adapter: str = "", session_id: str = "",
        policy: str | None = None, params: Mapping[str, float] | None = None, allow: Sequence[str] = (),
        deny: Sequence[str] = (), pin: str = "", priority: int = 0, ttft_deadline: float | None = None,
        expected_output_tokens: int = 0, cache_salt: str = "", lease: float | None = None, request_id: str = "",
        booking: routing_pb2.Booking = routing_pb2.BOOKING_RESERVE, explain: bool = False, return_token_ids: bool = False,
        reports_all: bool = False,
    ) -> AsyncChoice:
        """Chooses a replica and books the load there, unless booking says otherwise.

        The prompt is one of messages, text, token_ids and body (the whole request, as JSON or a mapping); with token_ids=[],
        load alone decides. adapter is the LoRA adapter. ttft_deadline and lease are in seconds. explain and return_token_ids
        add the decision and the ids to choice.response. reports_all declares that prefill_done is always reported.
        Leave the choice (`async with`) or release it; otherwise it is booked until its lease ends.
        """
        request = _core.choose_request(
            model=model, messages=messages, text=text, token_ids=token_ids, body=body, adapter=adapter, session_id=session_id,
            policy=policy, params=params, allow=allow, deny=deny, pin=pin, priority=priority, ttft_deadline=ttft_deadline,
            expected_output_tokens=expected_output_tokens, cache_salt=cache_salt, lease=lease, request_id=request_id,
            booking=booking, explain=explain, return_token_ids=return_token_ids, reports_all=reports_all)
        return await self._chosen("ChooseReplica", request)

    async def tokenize(self, model: str, *, text: str | None = None, messages: Sequence[Mapping[str, Any]] | None = None,
                       body: _core.Body | None = None) -> list[int]:
        """The ids that the model's replicas use for a prompt, chat template and all for messages and body."""
        answer = await self._call("Tokenize", _core.tokenize_request(model, messages, text, body), prompt_pb2.TokenizeResponse)
        return list(answer.sequences[0].token_ids.ids)

    async def detokenize(self, model: str, ids: Sequence[int]) -> str:
        request = prompt_pb2.DetokenizeRequest(model=model, sequences=[prompt_pb2.TokenIds(ids=ids)])
        return (await self._call("Detokenize", request, prompt_pb2.DetokenizeResponse)).texts[0]

    async def explain(self, *, decision_id: str = "", request_id: str = "") -> list[decision_pb2.Decision]:
        """The recorded decisions of a request, first attempt first."""
        request = routing_pb2.ExplainDecisionRequest()
        if decision_id:
            request.decision_id = decision_id
        else:
            request.request_id = request_id
        return list((await self._call("ExplainDecision", request, routing_pb2.ExplainDecisionResponse)).decisions)

    async def list_replicas(self, model: str = "") -> list[replica_pb2.Replica]:
        """The replicas that serve model; all of them when it is empty."""
        request = replica_pb2.ListRequest(model=model)
        found: list[replica_pb2.Replica] = []
        while True:
            page = await self._call("List", request, replica_pb2.ListResponse, service=_core.REPLICAS)
            found += page.replicas
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def watch_replicas(self, model: str = "", *, timeout: float | None = None) -> AsyncGenerator[replica_pb2.WatchResponse, None]:
        """Yields every replica that serves model (all when it is empty) and then each change, until the iterator is closed or
        the connection breaks.
        """
        return self._watch(_core.REPLICAS + "Watch", replica_pb2.WatchRequest(model=model), replica_pb2.WatchResponse, timeout)

    def watch_decisions(self, *, model: str = "", replica_id: str = "", only_chosen: bool = False,
                        timeout: float | None = None) -> AsyncGenerator[routing_pb2.WatchDecisionsResponse, None]:
        """Yields decisions as they are made and again with their outcome, until the iterator is closed or the connection breaks.

        A reader that is too slow loses some; `lost` of the next one is their number.
        """
        request = routing_pb2.WatchDecisionsRequest(model=model, replica_id=replica_id, only_chosen=only_chosen)
        return self._watch(_core.ROUTING + "WatchDecisions", request, routing_pb2.WatchDecisionsResponse, timeout)

    async def _watch(self, name: str, request: Message, update: type[M], timeout: float | None) -> AsyncGenerator[M, None]:
        call: Any = self.channel.unary_stream(
            name, request_serializer=lambda m: m.SerializeToString(), response_deserializer=update.FromString)
        answer, deadline = call(request, metadata=self._options.metadata, timeout=timeout), _core.Deadline(timeout)
        try:
            async for message in answer:
                yield message
        except grpc.RpcError as e:
            raise _core.error(e, deadline) from None
        finally:
            answer.cancel()

    async def open(self, path: str, body: _core.Body, *, headers: Mapping[str, str] | None = None,
                   timeout: float | None = None) -> AsyncGenerator[bytes, None]:
        """Has the router answer on an inference route, named by its REST path, and yields the replica's bytes as they come.

        headers: x-session-id, x-kvpilot-policy and others. Closing the iterator stops the replica's work. A stream whose router stops or
        dies is continued by the next router of the targets, wherever that is possible exactly: then what comes are whole events. The
        header x-kvpilot-resume, with any value, turns that off.
        """
        if path not in _core.PATHS:
            raise ValueError(f"path {path!r} must be one of {', '.join(_core.PATHS)}")
        call: Any = self.channel.unary_stream(
            _core.INFERENCE + _core.PATHS[path], request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=httpbody_pb2.HttpBody.FromString)
        metadata = self._options.metadata + tuple((k.lower(), v) for k, v in (headers or {}).items())
        data, deadline, how = _core.encode(body), _core.Deadline(timeout), "carry"
        carried = _carry.carrier(path, data, headers)
        while True:
            asks = metadata if carried is None else (*metadata, (_carry.HEADER, how))
            answer = call(httpbody_pb2.HttpBody(content_type="application/json", data=data), metadata=asks, timeout=deadline.left)
            try:
                async for part in answer:
                    if part.content_type and not part.content_type.startswith("text/event-stream"):
                        carried = None
                    got = part.data if carried is None else carried.feed(part.data)
                    if got or carried is None:
                        yield got
                return
            except grpc.RpcError as e:
                error = _core.error(e, deadline)
                if carried is None or deadline.passed or not carried.lost(error):
                    raise error from None
                if carried.over:
                    return
            finally:
                answer.cancel()
            await asyncio.sleep(carried.pause)
            data, how = carried.request()

    async def stream(self, path: str, body: _core.Body, *, headers: Mapping[str, str] | None = None,
                     timeout: float | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """Like open, for a body with "stream": true; yields the events, decoded."""
        events = Events()
        async with contextlib.aclosing(self.open(path, body, headers=headers, timeout=timeout)) as parts:
            async for part in parts:
                for data in events.feed(part):
                    yield cast(dict[str, Any], json.loads(data))

    async def complete(self, path: str, body: _core.Body, *, headers: Mapping[str, str] | None = None,
                       timeout: float | None = None) -> dict[str, Any]:
        """Like open, for a body that is not streamed; returns the whole answer, decoded."""
        answer = b"".join([part async for part in self.open(path, body, headers=headers, timeout=timeout or self._options.timeout)])
        return cast(dict[str, Any], json.loads(answer))

    async def stream_direct(self, body: Mapping[str, Any], *, http: httpx.AsyncClient, path: str = "/v1/chat/completions",
                            headers: Mapping[str, str] | None = None, progress_every: int = PROGRESS_EVERY,
                            tracker: AsyncTracker | None = None, **choose: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Chooses a replica, streams the answer from it with httpx, and reports the lifecycle; yields the events, decoded.

        choose are further arguments of choose(), for example session_id. progress_every: chunks between two reports. tracker
        ties the choice to its stream. An answer of the replica that is an error is httpx.HTTPStatusError, its body read; an
        error event is ReplicaError.
        """
        asked = _core.streamed(body)
        async with await (tracker or self).choose(body=asked, **choose) as choice:
            sent = {**choice.request_headers, **(headers or {})}
            async with http.stream("POST", choice.url + path, headers=sent, json=choice.body_for(asked)) as answer:
                if answer.is_error:
                    await answer.aread()
                    answer.raise_for_status()
                async with choice.follow(_decoded(answer), progress_every=progress_every) as events:
                    async for event in events:
                        yield event


async def _decoded(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    events = Events()
    async for part in answer.aiter_bytes():
        for data in events.feed(part):
            yield _core.decode_event(data)
