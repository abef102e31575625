"""Choices of the synchronous client, and the streams that are followed for them."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from kvpilot import _core
from kvpilot._choice import RELEASE_TIMEOUT, BaseChoice, Report, end_of
from kvpilot._reading import PROGRESS_EVERY, Reading
from kvpilot.v1 import routing_pb2
from kvpilot.v1.reservation_pb2 import ReleaseReason

C = TypeVar("C")
Wait = Callable[[], None]

log = logging.getLogger("kvpilot")


class Bytes(Protocol):
    """An answer whose bytes can be read, for example httpx.Response."""

    def iter_bytes(self) -> Iterator[bytes]: ...


class Reporter(Protocol):
    """Carries lifecycle reports: call by call, or over a stream."""

    @property
    def janitor(self) -> Janitor: ...

    def _begin(self, report: Report, timeout: float | None = None) -> Wait:
        """Sends a report. What it returns waits for the answer and raises its error."""


class Choice(BaseChoice):
    """A decision and, when it was booked, its reservation.

    Leave it (`with`) and the reservation is released: as completed, as canceled, as rejected or as failed, by how the block
    ends and by what the followed stream has said. Reports are idempotent. On a choice that was not booked (a dry run) they
    do nothing.
    """

    def __init__(self, reporter: Reporter, response: routing_pb2.ChooseReplicaResponse) -> None:
        super().__init__(response)
        self._reporter = reporter

    def prefill_done(self) -> None:
        """Reports the first token."""
        if self.booked:
            self._reporter._begin(self._prefill_message())()

    def progress(self, output_tokens: int) -> None:
        """Reports the tokens produced since the start, and renews the lease."""
        if self.booked:
            self._reporter._begin(self._progress_message(output_tokens))()

    def renew(self) -> None:
        """Extends the lease of a request that still waits for its first token."""
        if self.booked:
            self._reporter._begin(self._renew_message())()

    def release(self, reason: ReleaseReason) -> None:
        """Ends the reservation; only the first release counts."""
        if not self.booked or self._released:
            return
        self._reporter._begin(self._release_message(reason), RELEASE_TIMEOUT)()
        self._released = True

    @overload
    def follow(self, chunks: Iterable[C], *, progress_every: int = PROGRESS_EVERY) -> Followed[C]: ...

    @overload
    def follow(self, chunks: Bytes, *, progress_every: int = PROGRESS_EVERY) -> Followed[bytes]: ...

    def follow(self, chunks: Any, *, progress_every: int = PROGRESS_EVERY) -> Followed[Any]:
        """Yields the chunks of the replica's answer and reports the lifecycle by what they say.

        chunks: a stream of openai's SDK, an httpx.Response, or anything that yields bytes of server-sent events, decoded
        events or tokens. The first token, progress (at every progress_every-th chunk), usage and the end are reported; the
        lease is renewed while the replica is waited for. Only the end waits for the router. A report that fails does not
        fail the answer.

        The request ends as completed when the stream says so or runs out; as failed when it breaks, ends in mid-answer or
        brings an error event; as rejected for a 4xx; as canceled when its reader leaves it: by close, `with`, or by dropping
        it (in a loop, `break`). Leaving it closes chunks too. A choice is followed once.
        """
        if self._reading is not None:
            raise RuntimeError("the choice is followed already")
        whole = str(getattr(chunks, "headers", {}).get("content-type", "")).startswith("application/json")
        return Followed(Reports(self, Reading(progress_every, getattr(chunks, "status_code", 200), whole)), chunks)

    def __enter__(self) -> Choice:
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: object) -> None:
        self._leave(self._end_of_block(raised))

    def _leave(self, end: ReleaseReason) -> None:
        try:
            self.release(end)
        except _core.TrackerClosedError as e:
            log.info("reservation %s: %s", self.response.reservation_id, e)  # with it the router has released it
        except _core.Error as e:
            log.warning("reservation %s was not released, its lease will end it: %s", self.response.reservation_id, e)


class Reports:
    """Reports what is read of an answer. One thread reads; the janitor renews."""

    def __init__(self, choice: Choice, reading: Reading) -> None:
        choice._reading = self.reading = reading
        self.waiting = False  # for the replica
        self.over = False
        self.period = choice._renew_every
        self.janitor = choice._reporter.janitor
        self._choice = choice
        self._lock = threading.Lock()
        self._sent: list[Wait] = []  # guarded by _lock
        self._first = False
        self._chunks = 0  # at the last tick
        if choice.booked:
            self.janitor.watch(self)

    def tick(self) -> None:
        """Renews the lease, but not of a stream that its reader has left lying."""
        if self.waiting or self.reading.chunks != self._chunks:
            self._chunks = self.reading.chunks
            self._send(self._choice._renew_message())

    def _send(self, report: Report) -> None:
        with self._lock:
            if not self._choice.booked or self.over:
                return
            try:
                self._sent.append(self._choice._reporter._begin(report))
            except (_core.Error, _core.TrackerClosedError) as e:
                log.info("report: %s", e)

    def observe(self, chunk: object) -> None:
        reading = self.reading
        reading.feed(chunk)
        if reading.begun and not self._first:
            self._first = True
            self._send(self._choice._prefill_message())
        elif (tokens := reading.due()) is not None:
            self._send(self._choice._progress_message(tokens))
        if reading.complete:  # a reader may leave now without closing
            self.end(reading.left())

    def end(self, end: ReleaseReason) -> None:
        """Releases; only the first end counts."""
        with self._lock:
            if self.over:
                return
            self.over = True
            sent, self._sent = self._sent, []
        for wait in sent:
            try:
                wait()
            except (_core.Error, _core.TrackerClosedError) as e:
                log.info("report: %s", e)
        self._choice._leave(end)


class Followed(Generic[C]):
    """The chunks of an answer, whose lifecycle is reported as they are read. Choice.follow makes it; one thread reads it."""

    def __init__(self, reports: Reports, chunks: Any) -> None:
        whole = hasattr(chunks, "iter_bytes")
        self._iterator = cast("Iterator[C]", iter(chunks.iter_bytes() if whole else chunks))
        self._sources: Sequence[object] = (self._iterator, chunks) if whole or chunks is not self._iterator else (chunks,)
        self._reports = reports
        self._over = False
        self._finalizer = weakref.finalize(self, reports.janitor.drop, reports, self._sources)
        self._finalizer.atexit = False

    def __iter__(self) -> Followed[C]:
        return self

    def __next__(self) -> C:
        if self._over:
            raise StopIteration
        reports = self._reports
        reports.waiting = True
        try:
            chunk = next(self._iterator)
        except StopIteration:
            self._end(reports.reading.ended())
            raise
        except BaseException as e:
            self._end(end_of(e))
            raise
        finally:
            reports.waiting = False
        reports.observe(chunk)
        return chunk

    def close(self) -> None:
        """Ends the request as canceled, unless it has ended, and closes the stream. It may be called twice."""
        if self._over or not self._finalizer.alive:  # an SDK may close what the collector has found, and is being closed
            return
        try:
            close_all(self._sources)
        finally:
            self._end(self._reports.reading.left())

    def _end(self, end: ReleaseReason) -> None:
        self._over = True
        self._finalizer.detach()
        self._reports.end(end)

    def __enter__(self) -> Followed[C]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def close_all(sources: Sequence[object]) -> None:
    for source in sources:
        close = getattr(source, "close", None)
        if close is not None:
            close()


class Janitor:
    """A thread that renews the leases of streams whose replica is waited for, and ends those that were dropped.

    Its queue is a SimpleQueue, so that finalizers may put into it within any code. It starts with the first stream.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Wait | Reports | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # guarded by _lock
        # A client that is dropped without close leaves no thread.
        weakref.finalize(self, self._queue.put, None).atexit = False

    def watch(self, reports: Reports) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=_clean, args=(self._queue,), name="kvpilot", daemon=True)
                self._thread.start()
        self._queue.put(reports)

    def drop(self, reports: Reports, sources: Sequence[object]) -> None:
        def end() -> None:
            try:
                close_all(sources)
            except Exception as e:
                log.info("closing a stream that was dropped: %s", e)
            reports.end(reports.reading.left())

        self._queue.put(end)

    def flush(self, timeout: float) -> None:
        """Waits until what was dropped so far has ended."""
        with self._lock:
            running = self._thread is not None
        if running:
            done = threading.Event()
            self._queue.put(done.set)
            done.wait(timeout)

    def close(self, timeout: float) -> None:
        """Ends the streams that were dropped or are still open, and then the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(timeout)


def _clean(work: queue.SimpleQueue[Wait | Reports | None]) -> None:
    due: dict[Reports, float] = {}
    while True:
        now = time.monotonic()
        for reports in [r for r, at in due.items() if r.over or at <= now]:
            if reports.over:
                del due[reports]
            else:
                reports.tick()
                due[reports] = now + reports.period
        try:
            item = work.get(timeout=max(0.0, min(due.values()) - now) if due else None)
        except queue.Empty:
            continue
        if item is None:
            for reports in due:
                reports.end(reports.reading.left())
            return
        if isinstance(item, Reports):
            due[item] = time.monotonic() + item.period
        else:
            item()
