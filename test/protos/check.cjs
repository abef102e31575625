// Loads the protos at run time, as @grpc/proto-loader does it, and calls what it built.
const assert = require("node:assert");
const path = require("node:path");
const modules = process.env.NODE_MODULES;
const grpc = require(path.join(modules, "@grpc/grpc-js"));
const loader = require(path.join(modules, "@grpc/proto-loader"));

const files = process.argv.slice(2);
const loaded = loader.loadSync(files, { includeDirs: ["proto", "proto/third_party"], keepCase: true, longs: String });
const { kvpilot } = grpc.loadPackageDefinition(loaded);
const choose = kvpilot.v1.RoutingService.service.ChooseReplica;
assert.equal(choose.path, "/kvpilot.v1.RoutingService/ChooseReplica");
const got = choose.requestDeserialize(choose.requestSerialize({ model: "m", token_ids: { ids: [1, 2, 3] } }));
assert.deepEqual(got.token_ids.ids, [1, 2, 3]);
assert.equal(kvpilot.v1.InferenceService.service.ChatCompletions.responseStream, true);
console.log(`ok: @grpc/proto-loader loads ${files.length} files`);
