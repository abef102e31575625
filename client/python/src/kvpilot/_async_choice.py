"""Choices of the asyncio client, and the streams that are followed for them."""

from __future__ import annotations

import asyncio
import collections
import inspect
import logging
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from kvpilot import _core
from kvpilot._choice import RELEASE_TIMEOUT, BaseChoice, Report, end_of
from kvpilot._reading import PROGRESS_EVERY, Reading
from kvpilot.v1 import routing_pb2
from kvpilot.v1.reservation_pb2 import ReleaseReason

C = TypeVar("C")

log = logging.getLogger("kvpilot")


class AsyncBytes(Protocol):
    """An answer whose bytes can be read, for example httpx.Response."""

    def aiter_bytes(self) -> AsyncIterator[bytes]: ...


class AsyncReporter(Protocol):
    """Carries lifecycle reports: call by call, or over a stream."""

    @property
    def background(self) -> Background: ...

    async def _report(self, report: Report, timeout: float | None = None) -> None: ...


class Background:
    """Tasks that outlive their caller. They belong to one event loop; the client waits for them when it is closed."""

    def __init__(self) -> None:
        self.open: set[AsyncReports] = set()  # of streams that have not ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: collections.deque[Callable[[], Coroutine[Any, Any, None]]] = collections.deque()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def later(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts work from any thread and from finalizers. On a loop that is closed it is lost: the lease ends the booking."""
        self._left.append(work)
        try:
            loop.call_soon_threadsafe(self._start_left)
        except RuntimeError:
            self._left.clear()

    def _start_left(self) -> None:
        while self._left:
            self.start(self._left.popleft()())

    async def close(self, timeout: float) -> None:
        """Ends the streams that are still open, and waits for everything."""
        for reports in list(self.open):
            reports.end(reports.reading.left())
        await self.drain(timeout)

    async def drain(self, timeout: float) -> None:
        self._start_left()
        others = self._tasks - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=timeout)


class AsyncChoice(BaseChoice):
    """A decision and, when it was booked, its reservation.

    Leave it (`async with`) and the reservation is released: as completed, as canceled, as rejected or as failed, by how the
    block ends and by what the followed stream has said. Reports are idempotent. On a choice that was not booked (a dry run)
    they do nothing.
    """

    def __init__(self, reporter: AsyncReporter, response: routing_pb2.ChooseReplicaResponse) -> None:
        super().__init__(response)
        self._reporter = reporter

    async def prefill_done(self) -> None:
        """Reports the first token."""
        if self.booked:
            await self._reporter._report(self._prefill_message())

    async def progress(self, output_tokens: int) -> None:
        """Reports the tokens produced since the start, and renews the lease."""
        if self.booked:
            await self._reporter._report(self._progress_message(output_tokens))

    async def renew(self) -> None:
        """Extends the lease of a request that still waits for its first token."""
        if self.booked:
            await self._reporter._report(self._renew_message())

    async def release(self, reason: ReleaseReason) -> None:
        """Ends the reservation; only the first release counts."""
        if not self.booked or self._released:
            return
        await self._reporter._report(self._release_message(reason), RELEASE_TIMEOUT)
        self._released = True

    @overload
    def follow(self, chunks: AsyncIterable[C], *, progress_every: int = PROGRESS_EVERY) -> AsyncFollowed[C]: ...

    @overload
    def follow(self, chunks: AsyncBytes, *, progress_every: int = PROGRESS_EVERY) -> AsyncFollowed[bytes]: ...

    def follow(self, chunks: Any, *, progress_every: int = PROGRESS_EVERY) -> AsyncFollowed[Any]:
        """Yields the chunks of the replica's answer and reports the lifecycle by what they say.

        chunks: a stream of openai's SDK, an httpx.Response, or anything that yields bytes of server-sent events, decoded
        events or tokens. The first token, progress (at every progress_every-th chunk), usage and the end are reported; the
        lease is renewed while the replica is waited for. Reports are sent in the background, and one that fails does not
        fail the answer.

        The request ends as completed when the stream says so or runs out; as failed when it breaks, ends in mid-answer or
        brings an error event; as rejected for a 4xx; as canceled when its reader leaves it: by aclose, `async with`,
        cancellation, or by dropping it (in a loop, `break`). Leaving it closes chunks too. A choice is followed once.
        """
        if self._reading is not None:
            raise RuntimeError("the choice is followed already")
        whole = str(getattr(chunks, "headers", {}).get("content-type", "")).startswith("application/json")
        return AsyncFollowed(AsyncReports(self, Reading(progress_every, getattr(chunks, "status_code", 200), whole)), chunks)

    async def __aenter__(self) -> AsyncChoice:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: object) -> None:
        task = asyncio.ensure_future(self._leave(self._end_of_block(raised)))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await task  # canceled again while releasing: the release has a deadline of its own
            raise

    async def _leave(self, end: ReleaseReason) -> None:
        try:
            await self.release(end)
        except _core.TrackerClosedError as e:
            log.info("reservation %s: %s", self.response.reservation_id, e)  # with it the router has released it
        except _core.Error as e:
            log.warning("reservation %s was not released, its lease will end it: %s", self.response.reservation_id, e)


async def advise(report: Awaitable[None]) -> None:
    """A report that fails does not fail the answer."""
    try:
        await report
    except (_core.Error, _core.TrackerClosedError) as e:
        log.info("report: %s", e)


class AsyncReports:
    """Reports what is read of an answer, in the background. It belongs to one event loop."""

    def __init__(self, choice: AsyncChoice, reading: Reading) -> None:
        choice._reading = self.reading = reading
        self.waiting = False  # for the replica
        self._choice = choice
        self.loop = asyncio.get_running_loop()
        self.background = choice._reporter.background
        self._sent: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._first = False
        self._chunks = 0  # at the last tick
        self._timer: asyncio.TimerHandle | None = None
        if choice.booked:
            self.background.open.add(self)
            self._timer = self.loop.call_later(choice._renew_every, self._tick)

    def _tick(self) -> None:
        """Renews the lease, but not of a stream that its reader has left lying."""
        if self.waiting or self.reading.chunks != self._chunks:
            self._chunks = self.reading.chunks
            self._send(self._choice.renew)
        self._timer = self.loop.call_later(self._choice._renew_every, self._tick)

    def _send(self, report: Callable[[], Awaitable[None]]) -> None:
        if self._choice.booked and self._ending is None:
            task = self.background.start(advise(report()))
            self._sent.add(task)
            task.add_done_callback(self._sent.discard)

    def observe(self, chunk: object) -> None:
        reading = self.reading
        reading.feed(chunk)
        if reading.begun and not self._first:
            self._first = True
            self._send(self._choice.prefill_done)
        elif (tokens := reading.due()) is not None:
            self._send(lambda: self._choice.progress(tokens))
        if reading.complete:
            self.end(reading.left())

    def end(self, end: ReleaseReason) -> asyncio.Task[None]:
        """Begins the release; only the first end counts."""
        if self._ending is None:
            self.background.open.discard(self)
            if self._timer is not None:
                self._timer.cancel()
            self._ending = self.background.start(self._finish(end))
        return self._ending

    async def _finish(self, end: ReleaseReason) -> None:
        if self._sent:
            await asyncio.wait(self._sent, timeout=RELEASE_TIMEOUT)
        await self._choice._leave(end)


class AsyncFollowed(Generic[C]):
    """The chunks of an answer, whose lifecycle is reported as they are read. AsyncChoice.follow makes it; one task reads it."""

    def __init__(self, reports: AsyncReports, chunks: Any) -> None:
        whole = hasattr(chunks, "aiter_bytes")
        self._iterator = cast("AsyncIterator[C]", aiter(chunks.aiter_bytes() if whole else chunks))
        self._sources: Sequence[object] = (self._iterator, chunks) if whole or chunks is not self._iterator else (chunks,)
        self._reports = reports
        self._over = False
        self._finalizer = weakref.finalize(self, _dropped, reports, self._sources)
        self._finalizer.atexit = False

    def __aiter__(self) -> AsyncFollowed[C]:
        return self

    async def __anext__(self) -> C:
        if self._over:
            raise StopAsyncIteration
        reports = self._reports
        reports.waiting = True
        try:
            chunk = await self._iterator.__anext__()
        except StopAsyncIteration:
            await self._end(reports.reading.ended())
            raise
        except Exception as e:
            await self._end(end_of(e))
            raise
        except BaseException:  # canceled; the release must not delay it
            self._over = True
            self._finalizer()
            raise
        finally:
            reports.waiting = False
        reports.observe(chunk)
        return chunk

    async def aclose(self) -> None:
        """Ends the request as canceled, unless it has ended, and closes the stream. It may be called twice."""
        if self._over or not self._finalizer.alive:  # an SDK may close what the collector has found, and is being closed
            return
        ending = self._end(self._reports.reading.left())
        try:
            await _close(self._sources)
        finally:
            await ending

    def _end(self, end: ReleaseReason) -> Awaitable[None]:
        self._over = True
        self._finalizer.detach()
        return asyncio.shield(self._reports.end(end))

    async def __aenter__(self) -> AsyncFollowed[C]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _dropped(reports: AsyncReports, sources: Sequence[object]) -> None:
    """The finalizer: it may run in any thread and within any code."""

    async def end() -> None:
        ending = reports.end(reports.reading.left())
        try:
            await _close(sources)
        except Exception as e:
            log.info("closing a stream that was dropped: %s", e)
        await ending

    reports.background.later(reports.loop, end)


async def _close(sources: Sequence[object]) -> None:
    for source in sources:
        close = getattr(source, "aclose", None) or getattr(source, "close", None)
        if close is not None and inspect.isawaitable(closing := close()):
            await closing
