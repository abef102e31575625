import { ReplicaError } from "./errors.js";

/** events yields the data of server-sent events out of bytes that come at any boundaries. The end mark [DONE] is left out. */
export async function* events(parts: AsyncIterable<Uint8Array>): AsyncGenerator<string, void, undefined> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const part of parts) {
    const lines = (rest + decoder.decode(part, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data !== "" && data !== "[DONE]") {
        yield data;
      }
    }
  }
}

/** decoded yields the events as objects; an error event is thrown as a ReplicaError with status 0. */
export async function* decoded<T extends object>(parts: AsyncIterable<Uint8Array>): AsyncGenerator<T, void, undefined> {
  for await (const data of events(parts)) {
    const event = JSON.parse(data) as T;
    if ("error" in event && event.error && !("choices" in event)) {
      throw new ReplicaError(0, data);
    }
    yield event;
  }
}
