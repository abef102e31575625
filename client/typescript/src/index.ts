/**
 * Client of the kvpilot inference router over gRPC: choose a replica, report a request's lifecycle, stream answers through the
 * router or directly from the chosen replica, tokenize, watch. `kvpilot/v1` has the generated contract.
 */
export { Code } from "@connectrpc/connect";
export type { ChatCompletion, ChatCompletionChunk, Completion, Envelope, JsonBody, ToolCallDelta, Usage } from "./bodies.js";
export { type CallOptions, Choice, type ChooseRequest, type Prompt, type Result } from "./choice.js";
export { Client, type DirectOptions, type Path, paths } from "./client.js";
export {
  AuthenticationError,
  ConflictError,
  DeadlineError,
  type ErrorDetails,
  InvalidRequestError,
  KvpilotError,
  NotFoundError,
  OverloadedError,
  type Reason,
  ReplicaError,
  TrackerClosedError,
  UnavailableError,
} from "./errors.js";
export type { Followed, FollowOptions } from "./follow.js";
export { End } from "./gen/kvpilot/v1/decision_pb.js";
export { ReleaseReason } from "./gen/kvpilot/v1/reservation_pb.js";
export { Booking } from "./gen/kvpilot/v1/routing_pb.js";
export { Tracker } from "./tracker.js";
export type { ClientOptions, TlsOptions } from "./transport.js";
