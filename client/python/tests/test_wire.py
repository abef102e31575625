"""What a healthy router does not show: retries, the key, TLS, and the details of an error. The server is a double."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from google.api import httpbody_pb2
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

import kvpilot
from kvpilot import _core
from kvpilot.v1 import prompt_pb2, reservation_pb2, routing_pb2, routing_pb2_grpc


class Router(routing_pb2_grpc.RoutingServiceServicer):
    """Fails the first calls, then answers. chosen are the answers to choices; what is reported is kept."""

    def __init__(self, failures: int = 0, *chosen: routing_pb2.ChooseReplicaResponse) -> None:
        self.failures, self.calls, self.metadata = failures, 0, {}
        self.chosen, self.asked, self.reports = list(chosen), [], []

    def answer(self, context: Any) -> None:
        self.calls += 1
        self.metadata = dict(context.invocation_metadata())
        if self.calls <= self.failures:
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")

    def Detokenize(self, request: Any, context: Any) -> prompt_pb2.DetokenizeResponse:
        self.answer(context)
        return prompt_pb2.DetokenizeResponse(texts=["a"])

    def ChooseReplica(self, request: Any, context: Any) -> routing_pb2.ChooseReplicaResponse:
        self.answer(context)
        return routing_pb2.ChooseReplicaResponse(replica_id="r")

    def RouteBody(self, request: Any, context: Any) -> routing_pb2.ChooseReplicaResponse:
        self.asked.append(dict(context.invocation_metadata()))
        if not self.chosen:
            context.abort(grpc.StatusCode.UNAVAILABLE, "no replica")
        return self.chosen.pop(0)

    def ReportReservation(self, request: Any, context: Any) -> reservation_pb2.Reservation:
        self.reports.append(request)
        return reservation_pb2.Reservation(reservation_id=request.reservation_id)

    def TrackReservation(self, requests: Any, context: Any) -> Iterator[reservation_pb2.TrackReservationResponse]:
        for request in requests:
            self.reports.append(request)
            yield reservation_pb2.TrackReservationResponse(sequence=request.sequence)

    def ExplainDecision(self, request: Any, context: Any) -> None:
        details = []
        for message in (
            error_details_pb2.ErrorInfo(domain="kvpilot", reason="RATE_LIMIT_EXCEEDED", metadata={"tenant": "t"}),
            error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2)),
            httpbody_pb2.HttpBody(data=b"{}"),
        ):
            packed = any_pb2.Any()
            packed.Pack(message)
            details.append(packed)
        status = status_pb2.Status(code=8, message="slow down", details=details)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down")


@contextlib.contextmanager
def serve(router: Router, credentials: grpc.ServerCredentials | None = None) -> Iterator[int]:
    server = grpc.server(futures.ThreadPoolExecutor(16))
    routing_pb2_grpc.add_RoutingServiceServicer_to_server(router, server)
    port = server.add_secure_port("127.0.0.1:0", credentials) if credentials else server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def test_what_may_be_repeated_is_retried() -> None:
    router = Router(failures=2)
    with serve(router) as port, kvpilot.Client(f"127.0.0.1:{port}", api_key="secret") as client:
        assert client.detokenize("m", [1]) == "a"
    assert router.calls == 3 and router.metadata["authorization"] == "Bearer secret"


def test_a_choice_is_not_retried() -> None:
    router = Router(failures=1)
    with serve(router) as port, kvpilot.Client(f"127.0.0.1:{port}") as client:
        with pytest.raises(kvpilot.UnavailableError):
            client.choose(text="a")
    assert router.calls == 1


def test_an_error_has_its_details() -> None:
    with serve(Router(0)) as port, kvpilot.Client(f"127.0.0.1:{port}") as client:
        with pytest.raises(kvpilot.OverloadedError) as raised:
            client.explain(request_id="a")
    e = raised.value
    assert (e.reason, e.retry_after, e.body, e.metadata) == ("RATE_LIMIT_EXCEEDED", 2.0, b"{}", {"tenant": "t"})
    assert e.code is grpc.StatusCode.RESOURCE_EXHAUSTED and str(e) == "RATE_LIMIT_EXCEEDED: slow down"


def test_a_reset_at_the_deadline_is_the_deadline() -> None:
    class Resets(Router):
        def Detokenize(self, request: Any, context: Any) -> prompt_pb2.DetokenizeResponse:
            context.abort(grpc.StatusCode.CANCELLED, "reset")

    with serve(Resets()) as port, kvpilot.Client(f"127.0.0.1:{port}", timeout=60) as client:
        with pytest.raises(kvpilot.Error) as early:
            client.detokenize("m", [1])
    assert early.value.code is grpc.StatusCode.CANCELLED
    late, never = _core.Deadline(0), _core.Deadline(None)

    class Reset:
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.CANCELLED

        def details(self) -> str:
            return "reset"

        def trailing_metadata(self) -> tuple[()]:
            return ()

    assert isinstance(_core.error(Reset(), late), kvpilot.DeadlineError)
    assert not isinstance(_core.error(Reset(), never), kvpilot.DeadlineError)


def test_tls_with_several_targets(tmp_path: pathlib.Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    try:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
             "-keyout", key, "-out", cert, "-subj", "/CN=router", "-addext", "subjectAltName=DNS:router.test"],
            check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    server = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    with serve(Router(0), server) as port:
        targets = ["127.0.0.1:1", f"localhost:{port}"]
        roots = grpc.ssl_channel_credentials(cert.read_bytes())
        with kvpilot.Client(targets, credentials=roots, server_name="router.test") as client:
            assert client.choose(text="a").replica_id == "r"
        with kvpilot.Client(targets, credentials=roots, server_name="other.test") as client:
            with pytest.raises(kvpilot.UnavailableError):
                client.choose(text="a")
