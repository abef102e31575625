"""What choices have in common, with and without asyncio: their answer, their reports as messages, and how they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpilot._reading import Reading
from kvpilot.v1 import routing_pb2
from kvpilot.v1.reservation_pb2 import (
    RELEASE_REASON_CANCELED, RELEASE_REASON_COMPLETED, RELEASE_REASON_FAILED, RELEASE_REASON_REJECTED, ReleaseReason,
)
from kvpilot.v1.reservation_pb2 import ReservationReport as Report

# Seconds that the release at the end of a block or of a stream waits for the router, retries included.
RELEASE_TIMEOUT = 5.0


class BaseChoice:
    """The part of a choice that does not wait."""

    def __init__(self, response: routing_pb2.ChooseReplicaResponse) -> None:
        self.response = response
        self._released = False
        self._reason: ReleaseReason | None = None
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

    def outcome(self, *, reason: ReleaseReason | None = None, output_tokens: int | None = None,
                cached_tokens: int | None = None, served_by: str = "") -> None:
        """Sets what the release at the block's end says, in place of what a followed stream said of itself."""
        self._reason, self._served_by = reason, served_by
        self._output_tokens, self._cached_tokens = output_tokens, cached_tokens

    @property
    def _renew_every(self) -> float:
        """Seconds between two renewals: a third of the lease, of which the shortest is 100 ms."""
        return max(self.response.lease.ToTimedelta().total_seconds(), 0.1) / 3

    def _new_report(self) -> Report:
        return Report(reservation_id=self.response.reservation_id, attempt=self.response.attempt)

    def _prefill_message(self) -> Report:
        report = self._new_report()
        report.first_token.SetInParent()
        return report

    def _progress_message(self, output_tokens: int) -> Report:
        report = self._new_report()
        report.progress.SetInParent()
        report.progress.output_tokens = output_tokens
        return report

    def _renew_message(self) -> Report:
        report = self._new_report()
        report.renew.SetInParent()
        return report

    def _bind_message(self) -> Report:
        report = self._new_report()
        report.bind.SetInParent()
        return report

    def _release_message(self, reason: ReleaseReason) -> Report:
        report = self._new_report()
        report.release.reason = self._reason or reason
        report.release.served_by = self._served_by
        output_tokens, cached_tokens = self._output_tokens, self._cached_tokens
        if self._reading is not None:
            output_tokens = self._reading.tokens if output_tokens is None else output_tokens
            cached_tokens = self._reading.cached_tokens if cached_tokens is None else cached_tokens
        if output_tokens is not None:
            report.release.output_tokens = output_tokens
        if cached_tokens is not None:
            report.release.cached_tokens = cached_tokens
        return report

    def _end_of_block(self, raised: BaseException | None) -> ReleaseReason:
        """How the request ended when a block that used it ends."""
        if self._reading is not None:  # an exception of the stream itself has ended it already: this is the reader's
            return self._reading.left()
        return RELEASE_REASON_COMPLETED if raised is None else end_of(raised)


def end_of(raised: BaseException) -> ReleaseReason:
    """The end that an exception means: canceled when it is no error, rejected for a replica's own 4xx, else failed."""
    if not isinstance(raised, Exception):  # CancelledError, GeneratorExit, KeyboardInterrupt
        return RELEASE_REASON_CANCELED
    # openai's and anthropic's errors have the status themselves, httpx's has it in its response.
    status = getattr(raised, "status_code", None) or getattr(getattr(raised, "response", None), "status_code", None)
    if isinstance(status, int) and 400 <= status < 500:
        return RELEASE_REASON_REJECTED
    return RELEASE_REASON_FAILED
