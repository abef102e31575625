// Print decisions as they are made, and again with their outcome: node watch.js localhost:9090 [COUNT]
import { Client, End } from "kvpilot";
import { ChoiceReason } from "kvpilot/v1";

const [address = "localhost:9090", count = "0"] = process.argv.slice(2);
const client = new Client(address);
let left = Number(count);
for await (const { decision, lost } of client.watchDecisions({ onlyChosen: true })) {
  const outcome = decision?.outcome ? End[decision.outcome.end] : "running";
  console.log(`${decision?.requestId} ${decision?.replicaId} ${decision && ChoiceReason[decision.reason]}: ${outcome}${lost ? ` (${lost} lost)` : ""}`);
  if (--left === 0) {
    break;
  }
}
client.close();
