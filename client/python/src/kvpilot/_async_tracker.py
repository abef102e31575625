"""The asyncio client's stream of reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc

from kvpilot import _core
from kvpilot._async_choice import AsyncChoice, Background
from kvpilot._choice import RELEASE_TIMEOUT, Report
from kvpilot.v1 import reservation_pb2

if TYPE_CHECKING:
    from kvpilot._aio import AsyncClient

CLOSE_WAIT = 2.0  # seconds that close waits for the router to end the stream too


class AsyncTracker:
    """Carries the reports of many choices over one stream.

    Its choices live as long as the stream: when this process dies, the router releases them at once instead of waiting for
    their leases. After the stream has ended (`closed`), open another one: AsyncClient.track. It belongs to one event loop.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self._queue: asyncio.Queue[reservation_pb2.ReservationReport | None] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._sequence = 0
        self._ended: _core.TrackerClosedError | None = None
        rpc: Any = client.channel.stream_stream(
            _core.ROUTING + "TrackReservation", request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=reservation_pb2.TrackReservationResponse.FromString)
        self._call = rpc(self._requests(), metadata=client._options.metadata)
        self._received = asyncio.get_running_loop().create_task(self._receive())

    @property
    def background(self) -> Background:
        return self.client.background

    @property
    def closed(self) -> bool:
        """The stream has ended, and the router has released its choices."""
        return self._ended is not None

    async def choose(self, **request: Any) -> AsyncChoice:
        """Chooses as AsyncClient.choose does and ties the reservation to this stream."""
        if self._ended is not None:
            raise self._ended
        return await self._bound(await self.client.choose(**request))

    async def _choose_for(self, *args: Any) -> AsyncChoice:
        if self._ended is not None:
            raise self._ended
        return await self._bound(await self.client._choose_for(*args))

    async def _bound(self, choice: AsyncChoice) -> AsyncChoice:
        if not choice.booked:
            return choice
        try:
            await self._report(choice._bind_message())
        except BaseException:
            self.background.start(choice._leave(reservation_pb2.RELEASE_REASON_CANCELED))
            raise
        return AsyncChoice(self, choice.response)

    async def close(self) -> None:
        """Ends the stream; the router releases what was chosen over it and not yet released."""
        await self.background.drain(RELEASE_TIMEOUT)
        self._end("the tracker is closed", None)
        self._queue.put_nowait(None)
        await asyncio.wait([self._received], timeout=CLOSE_WAIT)
        self._call.cancel()
        await asyncio.wait([self._received])

    async def __aenter__(self) -> AsyncTracker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _report(self, report: Report, timeout: float | None = None) -> None:
        """Sends one report and waits for its answer. A wait that ends early does not take the report back."""
        if self._ended is not None:
            raise self._ended
        self._sequence += 1
        sequence = self._sequence
        answered = self._waiting[sequence] = asyncio.get_running_loop().create_future()
        report.sequence = sequence
        self._queue.put_nowait(report)
        try:
            await asyncio.wait_for(answered, timeout or self.client._options.timeout)
        except asyncio.TimeoutError:
            raise _core.DeadlineError("the report was not answered in time", grpc.StatusCode.DEADLINE_EXCEEDED) from None
        finally:
            del self._waiting[sequence]

    async def _requests(self) -> AsyncIterator[reservation_pb2.ReservationReport]:
        while (request := await self._queue.get()) is not None:
            yield request

    async def _receive(self) -> None:
        cause: BaseException | None = None
        try:
            async for answer in self._call:
                waiting = self._waiting.get(answer.sequence)
                if waiting is None or waiting.done():
                    continue
                failed = _core.report_error(answer)
                if failed is None:
                    waiting.set_result(None)
                else:
                    waiting.set_exception(failed)
        except grpc.RpcError as e:
            cause = _core.error(e)
        except asyncio.CancelledError as e:  # grpc.aio raises it for a call that was canceled here
            cause = e
        self._end(f"the tracker's stream has ended{f': {cause}' if str(cause or '') else ''}", cause)
        self._queue.put_nowait(None)

    def _end(self, message: str, cause: BaseException | None) -> None:
        if self._ended is None:
            self._ended = _core.TrackerClosedError(message)
            self._ended.__cause__ = cause
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._ended)
