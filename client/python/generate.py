"""Writes src/kvpilot/v1 from proto/. `make generate-python` runs it with the pinned compiler.

The options of REST routes and of validation are left out: the client needs neither, and so depends on no package for them.
"""

import pathlib
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parent.parent / "proto"
# What routers say to each other and to operators is not for applications.
NAMES = [f"kvpilot/v1/{n}.proto" for n in ("decision", "errors", "inference", "prompt", "replica", "reservation", "routing")]
LEFT_OUT = ("buf/validate/validate.proto", "google/api/annotations.proto")


def protoc(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *args], check=True)


def main() -> None:
    out = HERE / "src"
    for old in (out / "kvpilot" / "v1").glob("*_pb2*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as tmp:
        whole, bare = pathlib.Path(tmp, "whole.bin"), pathlib.Path(tmp, "bare.bin")
        protoc(f"-I{PROTO}", f"-I{PROTO / 'third_party'}", "--include_imports", f"--descriptor_set_out={whole}", *NAMES)
        files = descriptor_pb2.FileDescriptorSet.FromString(whole.read_bytes())
        kept = descriptor_pb2.FileDescriptorSet()
        for file in files.file:
            if file.name in LEFT_OUT:
                continue
            if file.name.startswith("kvpilot/"):
                # The options' extensions are unknown here, so they are unknown fields.
                file.DiscardUnknownFields()
                dependencies = [d for d in file.dependency if d not in LEFT_OUT]
                del file.dependency[:]
                file.dependency.extend(dependencies)
            kept.file.append(file)
        bare.write_bytes(kept.SerializeToString(deterministic=True))
        protoc(f"--descriptor_set_in={bare}", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}", *NAMES)


main()
