/** The generated contract: messages, enums and services of kvpilot.v1. */
export * from "./gen/kvpilot/v1/decision_pb.js";
export * from "./gen/kvpilot/v1/errors_pb.js";
export * from "./gen/kvpilot/v1/inference_pb.js";
export * from "./gen/kvpilot/v1/prompt_pb.js";
export * from "./gen/kvpilot/v1/replica_pb.js";
export * from "./gen/kvpilot/v1/reservation_pb.js";
export * from "./gen/kvpilot/v1/routing_pb.js";
