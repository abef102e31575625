"""The synchronous client's stream of reports."""

from __future__ import annotations

import queue
import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc

from kvpilot import _core
from kvpilot._choice import RELEASE_TIMEOUT, Report
from kvpilot._sync_choice import Choice, Janitor, Wait
from kvpilot.v1 import reservation_pb2

if TYPE_CHECKING:
    from kvpilot._sync import Client

CLOSE_WAIT = 2.0  # seconds that close waits for the router to end the stream too


class Tracker:
    """Carries the reports of many choices over one stream. Safe for threads.

    Its choices live as long as the stream: when this process dies, the router releases them at once instead of waiting for
    their leases. After the stream has ended (`closed`), open another one: Client.track.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._queue: queue.SimpleQueue[reservation_pb2.ReservationReport | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: dict[int, futures.Future[None]] = {}  # guarded by _lock
        self._sequence = 0  # guarded by _lock
        self._ended: _core.TrackerClosedError | None = None  # guarded by _lock
        rpc: Any = client.channel.stream_stream(
            _core.ROUTING + "TrackReservation", request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=reservation_pb2.TrackReservationResponse.FromString)
        self._call = rpc(iter(self._queue.get, None), metadata=client._options.metadata)
        self._thread = threading.Thread(target=self._receive, name="kvpilot-tracker", daemon=True)
        self._thread.start()

    @property
    def janitor(self) -> Janitor:
        return self.client.janitor

    @property
    def closed(self) -> bool:
        """The stream has ended, and the router has released its choices."""
        with self._lock:
            return self._ended is not None

    def choose(self, **request: Any) -> Choice:
        """Chooses as Client.choose does and ties the reservation to this stream."""
        self._check()
        return self._bound(self.client.choose(**request))

    def _choose_for(self, *args: Any) -> Choice:
        self._check()
        return self._bound(self.client._choose_for(*args))

    def _bound(self, choice: Choice) -> Choice:
        if not choice.booked:
            return choice
        try:
            self._begin(choice._bind_message())()
        except BaseException:
            choice._leave(reservation_pb2.RELEASE_REASON_CANCELED)
            raise
        return Choice(self, choice.response)

    def close(self) -> None:
        """Ends the stream; the router releases what was chosen over it and not yet released."""
        self.janitor.flush(RELEASE_TIMEOUT)
        self._end("the tracker is closed", None)
        self._queue.put(None)
        self._thread.join(CLOSE_WAIT)
        self._call.cancel()
        self._thread.join()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        with self._lock:
            if self._ended is not None:
                raise self._ended

    def _begin(self, report: Report, timeout: float | None = None) -> Wait:
        answered: futures.Future[None] = futures.Future()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._sequence += 1
            sequence = self._sequence
            self._waiting[sequence] = answered
            report.sequence = sequence
            self._queue.put(report)

        def wait() -> None:
            try:
                answered.result(timeout or self.client._options.timeout)
            except futures.TimeoutError:
                raise _core.DeadlineError("the report was not answered in time", grpc.StatusCode.DEADLINE_EXCEEDED) from None

        return wait

    def _receive(self) -> None:
        cause: BaseException | None = None
        try:
            for answer in self._call:
                with self._lock:
                    answered = self._waiting.pop(answer.sequence, None)
                if answered is None:
                    continue
                failed = _core.report_error(answer)
                if failed is None:
                    answered.set_result(None)
                else:
                    answered.set_exception(failed)
        except grpc.RpcError as e:
            cause = _core.error(e)
        self._end(f"the tracker's stream has ended{f': {cause}' if cause else ''}", cause)
        self._queue.put(None)

    def _end(self, message: str, cause: BaseException | None) -> None:
        with self._lock:
            if self._ended is None:
                self._ended = _core.TrackerClosedError(message)
                self._ended.__cause__ = cause
            waiting, self._waiting = list(self._waiting.values()), {}
            ended = self._ended
        for answered in waiting:
            answered.set_exception(ended)
