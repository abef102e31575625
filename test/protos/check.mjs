// Imports what protoc-gen-es generated and calls it.
import assert from "node:assert";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { ChooseReplicaRequestSchema, RoutingService } from "./kvpilot/v1/routing_pb.js";

const asked = create(ChooseReplicaRequestSchema, { model: "m", prompt: { case: "tokenIds", value: { ids: [1, 2, 3] } } });
const got = fromBinary(ChooseReplicaRequestSchema, toBinary(ChooseReplicaRequestSchema, asked));
assert.deepEqual(got.prompt.value.ids, [1, 2, 3]);
assert.equal(RoutingService.method.trackReservation.methodKind, "bidi_streaming");
console.log("ok: protoc-gen-es");
