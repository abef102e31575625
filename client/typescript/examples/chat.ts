// Chat through the router's REST address with the OpenAI SDK, with no package of kvpilot: node chat.js localhost:8080 MODEL
import OpenAI from "openai";

const [address = "localhost:8080", model = "sim"] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `http://${address}/v1`, apiKey: "none" });
const stream = await openai.chat.completions.create({
  model,
  messages: [{ role: "user", content: "Hello" }],
  max_tokens: 16,
  stream: true,
});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta.content ?? "");
}
console.log();
