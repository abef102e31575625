// Choose a replica, send the request there with the OpenAI SDK, and report its lifecycle over one stream:
// node direct.js localhost:9090 MODEL
import { Client } from "kvpilot";
import OpenAI from "openai";

const [address = "localhost:9090", model = "sim"] = process.argv.slice(2);
const client = new Client(address);
const tracker = client.track();
const body = { model, messages: [{ role: "user" as const, content: "Hello" }], max_tokens: 16 };

const choice = await tracker.choose({ body, sessionId: "example" });
await choice.run(async () => {
  const openai = new OpenAI(choice.openAIOptions());
  const asked = { ...body, stream: true as const, stream_options: { include_usage: true } };
  const stream = await openai.chat.completions.create(choice.bodyFor(asked));
  for await (const chunk of choice.follow(stream)) {
    process.stdout.write(chunk.choices[0]?.delta.content ?? "");
  }
});
console.log(`\nanswered by ${choice.replicaId}`);
await tracker.close();
client.close();
