// What the page asks of the router: the contract's RPCs under their REST paths, as docs/api.md has them.

const PATIENCE = 10000; // milliseconds

async function call(path, body) {
  const options = body ? { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) } : {};
  const answer = await fetch('../kvpilot/v1/' + path, { ...options, signal: AbortSignal.timeout(PATIENCE) });
  let value;
  try { value = await answer.json(); } catch { value = {}; }
  if (answer.status === 401) throw new Error('the router asks for an API key; reload the page to give one');
  if (!answer.ok) throw Object.assign(new Error(value.error?.message || value.reason || `${answer.status} ${answer.statusText}`), { status: answer.status });
  return value;
}

// pages is a list of the router, all its pages.
async function pages(path, name) {
  const list = [];
  for (let token = ''; ;) {
    const page = await call(path + (token && `?page_token=${encodeURIComponent(token)}`));
    list.push(...page[name]);
    if (!(token = page.next_page_token)) return list;
  }
}

// word is an enum's value as people say it: REPLICA_STATE_READY is ready.
export const word = (value) => (value || '').replace(/^(REPLICA_STATE|ROUTER_STATE|FEED_STATE|BREAKER_STATE|PARITY_STATE|PROGRAM_STATE|END|CHOICE_REASON|SPEED_SOURCE|SUSPICION|VETO)_/, '').toLowerCase().replaceAll('_', ' ');

// vetoed reports whether a candidate could not be chosen.
export const vetoed = (c) => c.veto !== 'VETO_UNSPECIFIED';

// milliseconds is a duration of the contract, such as "0.120s".
export const milliseconds = (duration) => 1000 * parseFloat(duration || 0);

// steps are those of a history, with times in seconds.
const steps = (list) => (list || []).map((s) => ({ ...s, t: Date.parse(s.time) / 1000, unservedTotal: Object.values(s.unserved).reduce((a, n) => a + n, 0) }));

let seconds = []; // the last minutes' history

// ENDS are the ends of decisions that an operator looks for together. The last attempt of a request can end as MOVED, too.
const ENDS = { failed: ['FAILED', 'MOVED', 'RESUMED', 'EXPIRED', 'REMOVED', 'POISONED'], handed: ['HANDED_OVER'], refused: ['UNSERVED', 'REJECTED'], canceled: ['CANCELED'] };

// wanted is the query of the decisions that a filter lets through.
function wanted({ show, model, replica, tenant }) {
  const query = new URLSearchParams({ page_size: 25, only_chosen: true });
  for (const end of ENDS[show] || []) query.append('ends', 'END_' + end);
  const slow = /^slow-(\d+s)$/.exec(show);
  if (slow) query.set('slower_than', slow[1]);
  for (const [name, value] of [['model', model], ['replica_id', replica], ['tenant', tenant]]) if (value) query.set(name, value);
  return query;
}

// look is the router at this moment, with the decisions that the filter lets through. Of the history only what is new is asked for.
export async function look(filter) {
  const since = seconds.length ? '?since=' + encodeURIComponent(seconds.at(-1).time) : '';
  const [status, fleet, loads, recent, history, routers, programs, splits] = await Promise.all(
    [call('status'), pages('replicas', 'replicas'), pages('loads', 'ranks'), call('decisions?' + wanted(filter)), call('history' + since), call('routers'), call('programs'), call('splits')]);
  const fresh = steps(history.steps);
  const from = fresh.length ? fresh[0].t : Infinity;
  const at = Date.parse(status.time);
  seconds = [...seconds.filter((s) => s.t < from && s.t > at / 1000 - 301), ...fresh];
  const load = new Map(loads.map((l) => [`${l.replica_id}/${l.rank}`, l]));
  for (const r of fleet) for (const k of r.ranks) k.load = load.get(`${r.replica_id}/${k.rank}`) || {};
  return { at, status, minute: steps([status.minute])[0], replicas: fleet, routers: routers.routers, programs, splits: splits.splits, recent: recent.decisions, history: seconds };
}

export async function hour() { return steps((await call('history?step=15s')).steps); }

export async function traces() {
  return (await call('traces')).traces.map((t) => ({ ...t, duration_ms: milliseconds(t.duration), spans: t.spans.map((s) => ({
    ...s, start_ms: milliseconds(s.start), duration_ms: milliseconds(s.duration), events: s.events.map((e) => ({ ...e, at_ms: milliseconds(e.at) })),
  })) }));
}

// drain stops new requests to a replica. force drains the last ready replica too. The reason may be empty.
export const drain = (id, force, reason) => call(`replicas/${encodeURIComponent(id)}:drain`, { force, reason });

// undrain lets new requests go to a replica again.
export const undrain = (id) => call(`replicas/${encodeURIComponent(id)}:undrain`, {});

// find is every attempt of a decision, or of a request; empty when nothing is known of the id.
export async function find(id) {
  const key = encodeURIComponent(id);
  const paths = [`requests/${key}/decisions`, `decisions/${key}`];
  for (const path of /^[0-9a-f]{24}$/.test(id) ? paths.reverse() : paths) { // decisions have such ids
    try { return (await call(path)).decisions; } catch (e) { if (e.status !== 404) throw e; }
  }
  return [];
}

// choose is a dry run: where would a prompt, or a request body in JSON, go?
export async function choose(model, text) {
  const ask = { model, booking: 'BOOKING_DRY_RUN', explain: true };
  if (text.trim().startsWith('{')) {
    JSON.parse(text); // its errors say where
    ask.body = { json: btoa(Array.from(new TextEncoder().encode(text), (b) => String.fromCharCode(b)).join('')) };
  } else ask.text = text;
  return (await call('choose', ask)).decision;
}
