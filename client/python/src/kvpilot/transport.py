"""Transports for httpx that send each inference request to the replica that the router chooses.

AsyncTransport is for an AsyncClient, Transport for a Client, and so for every SDK that takes one of these: the SDK's own code is
left alone. They work with the package whose client calls them, httpx or httpx2, and import neither. The base URL of the client
is the router's REST address.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from kvpilot import _core, _direct
from kvpilot._aio import AsyncClient
from kvpilot._async_choice import AsyncChoice, AsyncFollowed, AsyncReports
from kvpilot._async_tracker import AsyncTracker
from kvpilot._choice import end_of
from kvpilot._direct import ATTEMPTS, ELSEWHERE, LEASE, HideUsage, Question, log
from kvpilot._reading import Reading
from kvpilot._sync import Client
from kvpilot._sync_choice import Choice, Followed, Reports
from kvpilot._sync_tracker import Tracker

if TYPE_CHECKING:
    Base = Any  # so that a checker takes them for transports of either package
else:
    Base = object

__all__ = ["AsyncTransport", "Transport"]


class AsyncTransport(Base):  # type: ignore[misc]  # Any
    """Chooses a replica for each chat completion, completion and message, sends the request there and reports its lifecycle.

    Headers and body decide as they do through the router (x-session-id, x-kvpilot-policy and so on). Requests of other
    routes, and those for which the router's gRPC address or a replica cannot be reached, go to the address that the client
    has: through the router's REST surface. A replica that cannot be reached, or answers 429 or 503 before anything of its
    answer was seen, is replaced by another one, twice at most. A refusal of the router has the status and body that its REST
    surface would give it.

    chooser: a client, or a tracker. With a client, the transport keeps a tracker of its own, so that the router releases the
    bookings of a process that dies, and opens another one when the router has restarted. engine_key: a key that the replicas ask for; the
    caller's own never goes there. lease: seconds that a booking lives
    without a report; None is the router's own setting. through: the transport that sends requests; None makes one.
    """

    def __init__(self, chooser: AsyncClient | AsyncTracker, *, engine_key: str | None = None, lease: float | None = LEASE,
                 through: Any = None) -> None:
        self._chooser, self._engine_key, self._lease, self._through = chooser, engine_key, lease, through
        self._tracker = chooser if isinstance(chooser, AsyncTracker) else None

    async def __aenter__(self) -> AsyncTransport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._through is not None:
            await self._through.aclose()
        if self._tracker is not None and self._tracker is not self._chooser:
            await self._tracker.close()

    async def handle_async_request(self, request: Any) -> Any:
        await request.aread()
        if self._through is None:
            http = _direct.package(request)
            self._through = http.AsyncHTTPTransport(limits=http.Limits(**_direct.LIMITS))
        question = Question.of(request, self._lease)
        for _ in range(ATTEMPTS if question else 0):
            assert question is not None
            try:
                choice = await self._choose(question)
            except (_core.Error, _core.TrackerClosedError) as e:
                if question.denied or _direct.unreached(e):
                    log.info("no replica was chosen, the request goes through the router: %s", e)
                    break
                return _direct.refusal(e, request)
            response = await self._send(question, choice)
            if response is not None:
                return response
        return await self._through.handle_async_request(request)

    async def _choose(self, question: Question) -> AsyncChoice:
        client = self._chooser.client if isinstance(self._chooser, AsyncTracker) else self._chooser
        if self._tracker is None or self._tracker.closed and self._tracker is not self._chooser:  # the router has restarted
            self._tracker = client.track()
        try:
            return await self._tracker._choose_for(*question.choice_args())
        except _core.TrackerClosedError:
            return await client._choose_for(*question.choice_args())  # a lease ends it if nothing else does

    async def _send(self, question: Question, choice: AsyncChoice) -> Any:
        """The replica's answer; None when another replica has to be asked."""
        reports = AsyncReports(choice, reading := Reading())
        http = question.http
        reports.waiting = True
        try:
            response = await self._through.handle_async_request(question.request(choice, self._engine_key))
            if response.status_code in ELSEWHERE:
                await response.aclose()
        except (http.NetworkError, http.ConnectTimeout, http.RemoteProtocolError) as e:
            log.info("replica %s: %s", choice.replica_id, e)
            await reports.end(end_of(e))
            return question.deny(choice)
        except BaseException as e:  # canceled, or late
            reports.end(end_of(e))
            raise
        finally:
            reports.waiting = False
        reading.status = response.status_code
        if response.status_code in ELSEWHERE:
            await reports.end(reading.ended())
            return question.deny(choice)
        reading.whole = response.headers.get("content-type", "").startswith("application/json")
        hide = HideUsage() if question.hide_usage and not reading.whole else None
        stream = _direct.stream_class(_AsyncBody, http.AsyncByteStream)
        return _direct.answer(response, choice, stream(AsyncFollowed(reports, response.stream), hide))


class _AsyncBody(AsyncIterator[bytes]):
    """The stream of an answer. It is no generator: one that is dropped has nothing to be closed by the event loop."""

    def __init__(self, followed: AsyncFollowed[bytes], hide: HideUsage | None) -> None:
        self._followed, self._hide = followed, hide

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            try:
                part = await anext(self._followed)
            except StopAsyncIteration:
                if self._hide is not None and (rest := self._hide.end()):
                    return rest
                raise
            if shown := part if self._hide is None else self._hide.feed(part):
                return shown

    async def aclose(self) -> None:
        await self._followed.aclose()


class Transport(Base):  # type: ignore[misc]  # Any
    """AsyncTransport without asyncio."""

    def __init__(self, chooser: Client | Tracker, *, engine_key: str | None = None, lease: float | None = LEASE,
                 through: Any = None) -> None:
        self._chooser, self._engine_key, self._lease, self._through = chooser, engine_key, lease, through
        self._tracker = chooser if isinstance(chooser, Tracker) else None
        self._lock = threading.Lock()  # guards _through and _tracker while they are made

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._through is not None:
            self._through.close()
        if self._tracker is not None and self._tracker is not self._chooser:
            self._tracker.close()

    def handle_request(self, request: Any) -> Any:
        request.read()
        with self._lock:
            if self._through is None:
                http = _direct.package(request)
                self._through = http.HTTPTransport(limits=http.Limits(**_direct.LIMITS))
        question = Question.of(request, self._lease)
        for _ in range(ATTEMPTS if question else 0):
            assert question is not None
            try:
                choice = self._choose(question)
            except (_core.Error, _core.TrackerClosedError) as e:
                if question.denied or _direct.unreached(e):
                    log.info("no replica was chosen, the request goes through the router: %s", e)
                    break
                return _direct.refusal(e, request)
            response = self._send(question, choice)
            if response is not None:
                return response
        return self._through.handle_request(request)

    def _choose(self, question: Question) -> Choice:
        client = self._chooser.client if isinstance(self._chooser, Tracker) else self._chooser
        with self._lock:
            if self._tracker is None or self._tracker.closed and self._tracker is not self._chooser:  # the router has restarted
                self._tracker = client.track()
            tracker = self._tracker
        try:
            return tracker._choose_for(*question.choice_args())
        except _core.TrackerClosedError:
            return client._choose_for(*question.choice_args())  # a lease ends it if nothing else does

    def _send(self, question: Question, choice: Choice) -> Any:
        """The replica's answer; None when another replica has to be asked."""
        reports = Reports(choice, reading := Reading())
        http = question.http
        reports.waiting = True
        try:
            response = self._through.handle_request(question.request(choice, self._engine_key))
            if response.status_code in ELSEWHERE:
                response.close()
        except (http.NetworkError, http.ConnectTimeout, http.RemoteProtocolError) as e:
            log.info("replica %s: %s", choice.replica_id, e)
            reports.end(end_of(e))
            return question.deny(choice)
        except BaseException as e:  # canceled, or late
            reports.end(end_of(e))
            raise
        finally:
            reports.waiting = False
        reading.status = response.status_code
        if response.status_code in ELSEWHERE:
            reports.end(reading.ended())
            return question.deny(choice)
        reading.whole = response.headers.get("content-type", "").startswith("application/json")
        hide = HideUsage() if question.hide_usage and not reading.whole else None
        stream = _direct.stream_class(_Body, http.SyncByteStream)
        return _direct.answer(response, choice, stream(Followed(reports, response.stream), hide))


class _Body(Iterator[bytes]):
    """The stream of an answer."""

    def __init__(self, followed: Followed[bytes], hide: HideUsage | None) -> None:
        self._followed, self._hide = followed, hide

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            try:
                part = next(self._followed)
            except StopIteration:
                if self._hide is not None and (rest := self._hide.end()):
                    return rest
                raise
            if shown := part if self._hide is None else self._hide.feed(part):
                return shown

    def close(self) -> None:
        self._followed.close()
