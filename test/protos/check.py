"""Imports what protoc generated for Python and calls it: a message survives its encoding, and each service has a stub."""

import importlib
import sys

for name in sys.argv[1:]:
    module = name.removesuffix(".proto").replace("/", ".")
    messages = importlib.import_module(module + "_pb2")
    calls = importlib.import_module(module + "_pb2_grpc")
    for service in messages.DESCRIPTOR.services_by_name:
        assert hasattr(calls, service + "Stub"), service

from kvpilot.v1 import prompt_pb2, routing_pb2  # noqa: E402

asked = routing_pb2.ChooseReplicaRequest(model="m", token_ids=prompt_pb2.TokenIds(ids=[1, 2, 3]))
got = routing_pb2.ChooseReplicaRequest.FromString(asked.SerializeToString())
assert got == asked and list(got.token_ids.ids) == [1, 2, 3], got
print(f"ok: Python compiles and imports {len(sys.argv) - 1} files")
