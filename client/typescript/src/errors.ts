import { Code, ConnectError } from "@connectrpc/connect";
import { HttpBodySchema } from "./gen/google/api/httpbody_pb.js";
import { ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { ReleaseReason } from "./gen/kvpilot/v1/reservation_pb.js";
import { ErrorReason } from "./gen/kvpilot/v1/errors_pb.js";

/** kvpilot's own reasons, as docs/api.md lists them: the names of ErrorReason without its prefix. */
export type Reason = Exclude<keyof typeof ErrorReason, "UNSPECIFIED">;

/** What an error carries besides its message. */
export interface ErrorDetails {
  /** gRPC's status code. */
  code: Code;
  /** kvpilot's reason; "" when the router gave none, for example because it was not reached. */
  reason: Reason | "";
  /** How long the router asks to wait, in milliseconds. */
  retryAfterMs?: number;
  /** The replica's own answer, when the error is the replica's. */
  body?: Uint8Array;
  /** Further values of the error, by name. */
  metadata: Record<string, string>;
  cause?: unknown;
}

/** A call that failed. Its subclasses are the kinds that callers handle differently. */
export class KvpilotError extends Error {
  override name = "KvpilotError";
  readonly code: Code;
  readonly reason: Reason | "";
  readonly retryAfterMs: number | undefined;
  readonly body: Uint8Array | undefined;
  readonly metadata: Record<string, string>;

  constructor(message: string, details: ErrorDetails) {
    super(`${details.reason || Code[details.code]}: ${message}`, { cause: details.cause });
    this.code = details.code;
    this.reason = details.reason;
    this.retryAfterMs = details.retryAfterMs;
    this.body = details.body;
    this.metadata = details.metadata;
  }
}

/** The request is malformed. */
export class InvalidRequestError extends KvpilotError {
  override name = "InvalidRequestError";
}

/** The API key is missing or wrong, or lacks the role. */
export class AuthenticationError extends KvpilotError {
  override name = "AuthenticationError";
}

/** No such model, replica, decision or reservation. */
export class NotFoundError extends KvpilotError {
  override name = "NotFoundError";
}

/** The request conflicts with existing state: a booking of another request, or a reservation that has ended. */
export class ConflictError extends KvpilotError {
  override name = "ConflictError";
}

/** A queue or a limit is full; retryAfterMs may say how long to wait. */
export class OverloadedError extends KvpilotError {
  override name = "OverloadedError";
}

/** The router or every replica is unreachable; retry later. */
export class UnavailableError extends KvpilotError {
  override name = "UnavailableError";
}

/** The deadline passed, or cannot be kept. */
export class DeadlineError extends KvpilotError {
  override name = "DeadlineError";
}

/** The stream of a Tracker has ended; its choices are released. */
export class TrackerClosedError extends Error {
  override name = "TrackerClosedError";
}

/** A replica's own error: the HTTP status of its answer, or 0 for an error event within a stream, and its body. */
export class ReplicaError extends Error {
  override name = "ReplicaError";
  constructor(
    readonly status: number,
    readonly body: string,
  ) {
    super(`the replica answered ${status === 0 ? "an error event" : status}: ${body.slice(0, 500)}`);
  }
}

const kinds = new Map<Code, typeof KvpilotError>([
  [Code.InvalidArgument, InvalidRequestError],
  [Code.Unauthenticated, AuthenticationError],
  [Code.PermissionDenied, AuthenticationError],
  [Code.NotFound, NotFoundError],
  [Code.AlreadyExists, ConflictError],
  [Code.FailedPrecondition, ConflictError],
  [Code.ResourceExhausted, OverloadedError],
  [Code.Unavailable, UnavailableError],
  [Code.DeadlineExceeded, DeadlineError],
]);

/** newError makes the error of the kind that code and reason call for. */
export function newError(message: string, details: ErrorDetails): KvpilotError {
  const kind = details.reason === "DEADLINE_UNREACHABLE" ? DeadlineError : (kinds.get(details.code) ?? KvpilotError);
  return new kind(message, details);
}

const codes: Partial<Record<Reason, Code>> = {
  RESERVATION_NOT_FOUND: Code.NotFound,
  RESERVATION_ENDED: Code.FailedPrecondition,
  INVALID_BODY: Code.InvalidArgument,
  ROUTER_UNREACHABLE: Code.Unavailable,
  SHUTTING_DOWN: Code.Unavailable,
  PERMISSION_DENIED: Code.PermissionDenied,
  CONFLICT: Code.AlreadyExists,
};

/** reportError is the error of a report that the router could not use; the stream of reports continues. */
export function reportError(reason: ErrorReason, message: string): KvpilotError {
  const name = ErrorReason[reason] as Reason;
  return newError(message, { code: codes[name] ?? Code.Unknown, reason: name, metadata: {} });
}

/**
 * toError is what a caller gets for what a call threw: the signal's reason when the caller aborted, else a KvpilotError. late says
 * that the call's deadline has passed: the router's reset of the stream may arrive before this process's own timer, as Canceled.
 */
export function toError(thrown: unknown, signal?: AbortSignal, late = false): unknown {
  if (signal?.aborted) {
    return signal.reason;
  }
  const failed = ConnectError.from(thrown);
  if (late && failed.code === Code.Canceled) {
    return newError("the operation timed out", { code: Code.DeadlineExceeded, reason: "", metadata: {}, cause: failed });
  }
  const details: ErrorDetails = { code: failed.code, reason: "", metadata: {}, cause: failed };
  for (const info of failed.findDetails(ErrorInfoSchema)) {
    if (info.domain === "kvpilot") {
      details.reason = info.reason as Reason;
      details.metadata = info.metadata;
    }
  }
  for (const { retryDelay } of failed.findDetails(RetryInfoSchema)) {
    if (retryDelay) {
      details.retryAfterMs = Number(retryDelay.seconds) * 1000 + retryDelay.nanos / 1e6;
    }
  }
  for (const answer of failed.findDetails(HttpBodySchema)) {
    details.body = answer.data;
  }
  return newError(failed.rawMessage, details);
}

/**
 * endOf is the end of a request that what was thrown means: canceled when it was aborted, rejected for a replica's own 4xx, else
 * failed.
 */
export function endOf(thrown: unknown, aborted = false): ReleaseReason {
  if (!(thrown instanceof Error)) {
    return aborted ? ReleaseReason.CANCELED : ReleaseReason.FAILED;
  }
  // The SDKs' APIUserAbortError sets no name.
  if (aborted || thrown.name === "AbortError" || thrown.constructor.name === "APIUserAbortError") {
    return ReleaseReason.CANCELED;
  }
  const { status } = thrown as { status?: unknown }; // of ReplicaError and of the SDKs' errors
  return typeof status === "number" && status >= 400 && status < 500 ? ReleaseReason.REJECTED : ReleaseReason.FAILED;
}
