"""What choices have in common, with and without asyncio: their answer, their reports as messages, and how they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from kvpilot._reading import Reading
from kvpilot.v1 import decision_pb2, reservation_pb2, routing_pb2

Report = Union[
    reservation_pb2.ReportPrefillCompletedRequest, reservation_pb2.ReportDecodeProgressRequest,
    reservation_pb2.ReleaseReservationRequest, reservation_pb2.RenewReservationRequest, reservation_pb2.BindReservation,
]

# The call that carries a report alone. Only a Tracker's stream binds.
CALLS: dict[type[Report], str] = {
    reservation_pb2.ReportPrefillCompletedRequest: "ReportPrefillCompleted",
    reservation_pb2.ReportDecodeProgressRequest: "ReportDecodeProgress",
    reservation_pb2.ReleaseReservationRequest: "ReleaseReservation",
    reservation_pb2.RenewReservationRequest: "RenewReservation",
}

# The member of TrackReservationRequest that carries a report on a stream.
MEMBERS: dict[type[Report], str] = {
    reservation_pb2.ReportPrefillCompletedRequest: "prefill_completed",
    reservation_pb2.ReportDecodeProgressRequest: "decode_progress",
    reservation_pb2.ReleaseReservationRequest: "release",
    reservation_pb2.RenewReservationRequest: "renew",
    reservation_pb2.BindReservation: "bind",
}

# Seconds that the release at the end of a block or of a stream waits for the router, retries included.
RELEASE_TIMEOUT = 5.0


def on_stream(sequence: int, report: Report) -> reservation_pb2.TrackReservationRequest:
    """The report as a Tracker's stream carries it."""
    request = reservation_pb2.TrackReservationRequest(sequence=sequence)
    getattr(request, MEMBERS[type(report)]).CopyFrom(report)
    return request


class BaseChoice:
    """The part of a choice that does not wait."""

    def __init__(self, response: routing_pb2.ChooseReplicaResponse) -> None:
        self.response = response
        self._released = False
        self._end: decision_pb2.End | None = None
        self._output_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._served_by = ""
        self._reading: Reading | None = None  # of the stream that is followed

    @property
    def booked(self) -> bool:
        return self.response.reservation_id != ""

    @property
    def url(self) -> str:
        """The replica's base URL, without a slash at its end."""
        return self.response.url.rstrip("/")

    @property
    def replica_id(self) -> str:
        return self.response.replica_id

    @property
    def request_headers(self) -> dict[str, str]:
        """Headers to add to the request that goes to the replica."""
        return dict(self.response.request_headers)

    def body_for(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body as the replica must get it: its own name of the model, and the cache_salt of the prediction."""
        sent = dict(body)
        if self.response.model:
            sent["model"] = self.response.model
        if self.response.cache_salt:
            sent["cache_salt"] = self.response.cache_salt
        return sent

    def openai_options(self, api_key: str = "none") -> dict[str, Any]:
        """Arguments for openai.OpenAI and AsyncOpenAI, so that they send to the chosen replica. They do not retry: a retry is
        another choice. api_key is the engines' own. What they cannot carry is in body_for: cache_salt goes into extra_body.
        """
        return {"base_url": self.url + "/v1", "api_key": api_key, "default_headers": self.request_headers, "max_retries": 0}

    def outcome(self, *, end: decision_pb2.End | None = None, output_tokens: int | None = None,
                cached_tokens: int | None = None, served_by: str = "") -> None:
        """Sets what the release at the block's end says, in place of what a followed stream said of itself."""
        self._end, self._served_by = end, served_by
        self._output_tokens, self._cached_tokens = output_tokens, cached_tokens

    @property
    def _renew_every(self) -> float:
        """Seconds between two renewals: a third of the lease, of which the shortest is 100 ms."""
        return max(self.response.lease_ms, 100) / 3000

    def _prefill_message(self) -> Report:
        return reservation_pb2.ReportPrefillCompletedRequest(
            reservation_id=self.response.reservation_id, attempt=self.response.attempt)

    def _progress_message(self, output_tokens: int) -> Report:
        return reservation_pb2.ReportDecodeProgressRequest(
            reservation_id=self.response.reservation_id, attempt=self.response.attempt, output_tokens=output_tokens)

    def _renew_message(self) -> Report:
        return reservation_pb2.RenewReservationRequest(
            reservation_id=self.response.reservation_id, attempt=self.response.attempt)

    def _bind_message(self) -> Report:
        return reservation_pb2.BindReservation(reservation_id=self.response.reservation_id, attempt=self.response.attempt)

    def _release_message(self, end: decision_pb2.End) -> Report:
        message = reservation_pb2.ReleaseReservationRequest(
            reservation_id=self.response.reservation_id, attempt=self.response.attempt, end=self._end or end,
            served_by=self._served_by)
        output_tokens, cached_tokens = self._output_tokens, self._cached_tokens
        if self._reading is not None:
            output_tokens = self._reading.tokens if output_tokens is None else output_tokens
            cached_tokens = self._reading.cached_tokens if cached_tokens is None else cached_tokens
        if output_tokens is not None:
            message.output_tokens = output_tokens
        if cached_tokens is not None:
            message.cached_tokens = cached_tokens
        return message

    def _end_of_block(self, raised: BaseException | None) -> decision_pb2.End:
        """How the request ended when a block that used it ends."""
        if self._reading is not None:  # an exception of the stream itself has ended it already: this is the reader's
            return self._reading.left()
        return decision_pb2.END_COMPLETED if raised is None else end_of(raised)


def end_of(raised: BaseException) -> decision_pb2.End:
    """The end that an exception means: canceled when it is no error, rejected for a replica's own 4xx, else failed."""
    if not isinstance(raised, Exception):  # CancelledError, GeneratorExit, KeyboardInterrupt
        return decision_pb2.END_CANCELED
    # openai's and anthropic's errors have the status themselves, httpx's has it in its response.
    status = getattr(raised, "status_code", None) or getattr(getattr(raised, "response", None), "status_code", None)
    if isinstance(status, int) and 400 <= status < 500:
        return decision_pb2.END_REJECTED
    return decision_pb2.END_FAILED
