import { ReplicaError } from "./errors.js";

/** Cuts the data of server-sent events out of bytes that come at any boundaries. The end mark [DONE] is left out. */
export class EventData {
  /** [DONE] has come. */
  done = false;
  private readonly decoder = new TextDecoder();
  private rest = "";

  feed(part: Uint8Array): string[] {
    const lines = (this.rest + this.decoder.decode(part, { stream: true })).split("\n");
    this.rest = lines.pop() ?? "";
    const found: string[] = [];
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data === "[DONE]") {
        this.done = true;
      } else if (data !== "") {
        found.push(data);
      }
    }
    return found;
  }
}

/** decoded yields the events as objects; an error event is thrown as a ReplicaError with status 0. */
export async function* decoded<T extends object>(parts: AsyncIterable<Uint8Array>): AsyncGenerator<T, void, undefined> {
  const events = new EventData();
  for await (const part of parts) {
    for (const data of events.feed(part)) {
      const event = JSON.parse(data) as T;
      if ("error" in event && event.error && !("choices" in event)) {
        throw new ReplicaError(0, data);
      }
      yield event;
    }
  }
}
