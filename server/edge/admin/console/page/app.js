import { chart } from './chart.js';
import { el, ms, count, share, bytes, clock, duration, units, say, sync } from './parts.js';
import * as router from './router.js';
import { replicaTable, routerRow, decisionRow, programRow, pressure, urgent } from './tables.js';
import { splitRows, splitNotes } from './splits.js';
import { showDecision } from './detail.js';
import { showTraces, openTrace } from './traces.js';
import { filterOf, keep, names } from './filter.js';
import { ask } from './drain.js';
import * as links from './links.js';

const $ = (id) => document.getElementById(id);
let paused = false;
let allReplicas = false;
let range = 'minutes';
let hour = null; // the last hour's history, when it is asked for
let opened = ''; // the decision that is explained
let models = '';
let last = null;

function tile(label, value, note, kind) {
  return el('div', { class: 'tile ' + (kind || '') }, el('span', {}, label), el('b', {}, value), el('span', { title: note.length > 18 && note }, note || '\u00a0'));
}

// LIMITS says of each reason for which requests are refused what is short, and which setting bounds it.
const LIMITS = {
  OVERLOADED: ['the queue is full, or replicas reject requests', 'chooser.queue, chooser.max_requests_per_rank'],
  RATE_LIMIT_EXCEEDED: ['tenants are at their limits', 'tenants'],
  NO_REPLICA: ['no replica can take them', 'registry'],
  DEADLINE_UNREACHABLE: ['no replica is in time for their deadlines', 'more replicas'],
  DEADLINE_EXCEEDED: ['they waited longer than they may', 'chooser.queue.max_wait'],
};

// overload says what limits, when requests of the last minute were refused; empty when none were.
function overload(m) {
  const [reason] = Object.entries(m.unserved).sort((a, b) => b[1] - a[1])[0] || [];
  if (!reason) return '';
  const [short, setting] = LIMITS[reason] || [router.word(reason), ''];
  return `${count(m.unservedTotal)} refused in the last minute: ${short}${setting && ` (${setting})`}`;
}

const unwell = (s) => s.replicas.some((r) => r.state !== 'REPLICA_STATE_READY' || r.breaker === 'BREAKER_STATE_OPEN');

function showTiles(s) {
  const m = s.minute, now = s.status, index = now.index;
  const by = (state) => s.replicas.filter((r) => router.word(r.state) === state).length;
  const ready = by('ready');
  const kinds = ['unhealthy', 'starting', 'draining'].filter(by);
  const missing = kinds.length > 1 ? `${s.replicas.length - ready} are not` : kinds.map((state) => `${by(state)} ${state}`).join('');
  const suspect = now.parity.filter((p) => router.word(p.state) === 'suspect');
  const prompt = Number(m.prompt_tokens), counted = Number(m.counted_tokens);
  const unserved = Object.entries(m.unserved).sort((a, b) => b[1] - a[1]).map(([reason, n]) => `${count(n)} ${router.word(reason)}`);
  const failed = m.failed + m.unservedTotal;
  const apart = [m.retries && `${count(m.retries)} retried`, m.hand_overs && `${count(m.hand_overs)} handed over`].filter(Boolean);
  sync($('tiles'), [
    tile('Replicas ready', [String(ready), el('span', { class: 'u' }, ` of ${s.replicas.length}`)], missing || (ready ? 'all of them' : 'none is known'), ready === 0 ? 'bad' : missing ? 'warn' : ''),
    tile('Requests', units(`${m.counted ? (1000 * (m.requests + m.unservedTotal) / router.milliseconds(m.counted)).toFixed(1) : '0'} /s`), apart.join(', ') || 'last minute'),
    tile('First token', m.ttft_p50 ? units(ms(router.milliseconds(m.ttft_p50))) : '–', m.ttft_p99 ? `p99 ${ms(router.milliseconds(m.ttft_p99))}` : 'median, last minute'),
    tile('From caches', prompt ? units(share(m.cached_tokens / prompt)) : '–', counted ? `of prompt tokens; ${share(counted / prompt)} by kvpilot's own count` : 'of prompt tokens'),
    tile('Failed', failed ? el('a', { href: '#decisions', 'data-show': m.unservedTotal > m.failed ? 'refused' : 'failed', title: 'list them' }, count(failed)) : '0', unserved.length ? unserved.join(', ') : m.continued ? `${count(m.continued)} ${m.continued > 1 ? 'streams' : 'stream'} continued` : 'last minute', failed ? 'bad' : ''),
    tile('In flight', count(now.booked), now.held ? `${count(now.held)} more wait here` : 'none waits here', now.held ? 'warn' : ''),
    tile('Blocks known', units(count(index.blocks)), index.cut ? `${bytes(index.bytes)}, the bound is met` : `${bytes(index.bytes)} of memory`, index.cut ? 'warn' : ''),
    tile('Token ids', suspect.length ? 'suspect' : now.parity.length ? 'agree' : '–', suspect.length ? suspect.map((p) => p.model).join(', ') : now.parity.length ? 'with the engines' : 'not compared yet', suspect.length ? 'bad' : ''),
  ]);
}

function showCharts(s) {
  const long = range === 'hour';
  if (long && !hour) return;
  const step = long ? 15 : 1;
  const now = Math.floor(s.at / 1000);
  const end = now - now % step - 1; // the present step is not over
  const points = (long ? hour.points : s.history).filter((h) => h.t <= end);
  const time = { end, step, span: long ? 3600 : points.length && end - points[0].t < 60 ? 60 : 300 }; // one axis for all charts
  const series = (f) => points.map((h) => [h.t, f(h)]).filter((p) => p[1] !== null);
  const known = new Map(points.map((h) => [h.t, h]));
  const dense = (f) => { // steps without requests are left out of the history; here they are zeros
    const list = [];
    for (let t = points.length ? points[0].t : end + 1; t <= end; t += step) list.push([t, known.has(t) ? f(known.get(t)) / step : 0]);
    return list;
  };
  chart($('figure-ttft'), time, [{ kind: 'seen', name: 'p50', fill: true, points: series((h) => router.milliseconds(h.ttft_p50) || null) }, { kind: 'slow', name: 'p99', points: series((h) => router.milliseconds(h.ttft_p99) || null) }], { show: ms });
  chart($('figure-hit'), time, [{ kind: 'seen', name: '', fill: true, points: series((h) => Number(h.prompt_tokens) ? h.cached_tokens / h.prompt_tokens : null) }], { max: 1, show: share });
  chart($('figure-tpot'), time, [{ kind: 'seen', name: 'p50', fill: true, points: series((h) => router.milliseconds(h.tpot_p50) || null) }, { kind: 'slow', name: 'p99', points: series((h) => router.milliseconds(h.tpot_p99) || null) }], { show: ms });
  chart($('figure-rate'), time, [{ kind: 'seen', name: 'all', fill: true, points: dense((h) => h.requests + h.unservedTotal) }, { kind: 'failed', name: 'failed', above: true, points: dense((h) => h.failed + h.unservedTotal) }], { show: (v) => v < 10 ? String(+v.toFixed(1)) : count(v) });
  chart($('figure-held'), time, [{ kind: 'slow', name: '', fill: true, points: series((h) => h.requests ? router.milliseconds(h.held_max) : null) }], { show: ms });
  const shadow = s.status.shadow_policy;
  $('figure-shadow').hidden = !shadow;
  if (!shadow) return;
  $('shadow-name').textContent = `First token later, had ${shadow} chosen`;
  chart($('figure-shadow'), time, [{ kind: 'shadow', name: '', fill: true, points: series((h) => h.shadow_agreed === undefined ? null : Math.max(0, router.milliseconds(h.shadow_regret))) }], { show: ms });
  const agreed = points.filter((h) => h.shadow_agreed !== undefined && h.t > end - 60);
  $('shadow-note').textContent = agreed.length ? `the same replica in ${share(agreed.reduce((a, h) => a + h.shadow_agreed, 0) / agreed.length)} of the last minute's decisions` : '';
}

function showStatus(s) {
  const { not_ready: why, policy, shadow_policy: shadow, uptime, version } = s.status;
  const ready = s.replicas.filter((r) => r.state === 'REPLICA_STATE_READY').length;
  const short = overload(s.minute);
  $('status').className = why ? 'bad' : short || unwell(s) ? 'mind' : 'good';
  say($('status'), why ? `not ready: ${why}` : short || `${policy}${shadow ? `, in its shadow ${shadow}` : ''}`);
  say($('uptime'), `up ${duration(parseFloat(uptime))}`);
  say(document.querySelector('title'), `${ready}/${s.replicas.length} ready · kvpilot`);
  say($('foot'), `kvpilot ${version}`);
}

function showRouters(s) {
  $('fleet').hidden = s.routers.length < 2;
  for (const note of document.querySelectorAll('.of-one')) note.hidden = s.routers.length < 2;
  sync($('router-table').tBodies[0], s.routers.length < 2 ? [] : s.routers.map(routerRow));
}

const PROGRAMS = 8; // that are listed

function showPrograms(s) {
  const { programs, pressure: pools, next_page_token: more } = s.programs;
  $('program-section').hidden = programs.length + pools.length === 0;
  $('program-box').hidden = programs.length === 0;
  sync($('pressure'), pools.map(pressure));
  sync($('program-table').tBodies[0], [...programs].sort(urgent).slice(0, PROGRAMS).map(programRow));
  const left = programs.length - PROGRAMS;
  $('more-programs').hidden = left <= 0;
  say($('more-programs'), left > 0 ? `${more ? 'more than ' : ''}${count(left)} more; kvpilot top lists them` : '');
}

function showSplits(s) {
  $('split-section').hidden = s.splits.length === 0;
  sync($('split-table').tBodies[0], s.splits.flatMap(splitRows));
  sync($('split-notes'), s.splits.flatMap(splitNotes));
}

function showReplicas(s) {
  const { rows, left } = replicaTable(s.replicas, s.at, allReplicas);
  sync($('replica-table').tBodies[0], rows);
  const many = left > 0 || allReplicas && s.replicas.length > 16;
  $('more-replicas').hidden = !many;
  say($('more-replicas').firstElementChild, allReplicas ? 'Show fewer' : `Show all ${s.replicas.length} replicas`);
  const none = s.replicas.length === 0;
  $('no-replicas').hidden = !none;
  $('replica-table').hidden = $('replica-words').hidden = none;
}

function showDecisions(s) {
  const recent = s.recent;
  const focused = document.activeElement && document.activeElement.closest('#decision-table');
  if (!paused && !focused) sync($('decision-table').tBodies[0], recent.map((d) => decisionRow(d, s.status.policy, opened)));
  $('no-decisions').hidden = recent.length > 0 || filter.any;
  $('no-matches').hidden = recent.length > 0 || !filter.any;
  $('decision-box').hidden = recent.length === 0;
  if (recent.length > 0 && Math.abs(s.at - traced) > 5000 && !reading()) loadTraces(true);
}

function show(s) {
  last = s;
  document.body.classList.remove('gone');
  links.use(s.status.links);
  showStatus(s);
  showTiles(s);
  showCharts(s);
  showRouters(s);
  showSplits(s);
  showPrograms(s);
  showReplicas(s);
  showDecisions(s);
  const served = [...new Set(s.replicas.flatMap((r) => r.models.map((m) => m.id)))].sort();
  names($('models'), served);
  names($('replica-ids'), s.replicas.map((r) => r.replica_id));
  if (served.join() !== models) {
    models = served.join();
    const chosen = $('choose-model').value;
    $('choose-model').replaceChildren(...served.map((n) => el('option', {}, n)));
    if (served.includes(chosen)) $('choose-model').value = chosen;
  }
  for (const field of $('choose').elements) field.disabled = served.length === 0;
  if (range === 'hour' && (!hour || Math.abs(s.at / 1000 - hour.loaded) >= 15)) loadHour();
}

async function loadHour() {
  try {
    hour = { points: await router.hour(), loaded: last ? last.at / 1000 : 0 };
    if (last) showCharts(last);
  } catch { /* the next state asks again */ }
}

// close empties box and gives the focus back to the row of decision id, or to a field of its own.
function close(box, id, otherwise) {
  box.replaceChildren();
  if (box === $('explain')) markOpen('');
  const row = document.querySelector(`#decision-table tr[data-key="${CSS.escape(id)}"] button`);
  (row || otherwise || document.querySelector('#decision-table tr.link button'))?.focus();
}

function markOpen(id) {
  opened = id;
  keep({ decision: id });
  for (const row of $('decision-table').querySelectorAll('tr.link')) row.classList.toggle('open', row.dataset.key === id);
}

async function toTrace(id) {
  if (openTrace($('trace-list'), id)) return;
  await loadTraces(false);
  if (openTrace($('trace-list'), id)) return;
  $('trace-list').prepend(el('p', { class: 'error' }, `Trace ${id} is not kept here any more; Jaeger may have it.`));
  $('trace-list').scrollIntoView({ block: 'center' });
}

async function explain(id) {
  const box = $('explain');
  try {
    const found = await router.find(id);
    if (!found.length) throw new Error(`Nothing is known of ${id}. The last decisions are remembered (decisions.size); older ones are in decisions.file, if that is set.`);
    box.replaceChildren(...found.map((d) => showDecision(d, { close: () => close(box, id), toTrace })));
    markOpen(found[0].decision_id);
    box.firstChild.focus({ preventScroll: true });
    box.scrollIntoView({ block: 'nearest' });
  } catch (e) {
    box.replaceChildren(el('p', { class: 'error' }, e.message));
  }
}

// reading reports whether a trace is open, which must not be replaced.
function reading() {
  const list = $('trace-list');
  return list.querySelector('details[open]') || list.contains(document.activeElement);
}

let traced = 0; // when the traces were loaded last, in the router's time
async function loadTraces(unasked) {
  traced = last ? last.at : 0;
  try {
    const traces = await router.traces();
    if (!unasked || !reading()) showTraces($('trace-list'), traces);
  } catch (e) {
    $('trace-list').replaceChildren(el('p', { class: 'error' }, e.message));
  }
}

$('hold').addEventListener('click', () => {
  paused = !paused;
  $('hold').setAttribute('aria-pressed', paused);
  $('hold').textContent = paused ? 'Resume' : 'Pause';
});
$('range').addEventListener('click', (e) => {
  const button = e.target.closest('button');
  if (!button) return;
  range = button.value;
  for (const b of $('range').children) b.setAttribute('aria-pressed', b === button);
  if (range === 'hour') loadHour();
  else if (last) showCharts(last);
});
$('replica-table').addEventListener('click', (e) => {
  const button = e.target.closest('[data-drain]');
  if (button) ask($('drain'), button, last.replicas.filter((r) => router.word(r.state) === 'ready' && r.replica_id !== button.dataset.drain).length);
});
$('tiles').addEventListener('click', (e) => {
  const to = e.target.closest('[data-show]');
  if (to) filter.set({ show: to.dataset.show });
});
$('more-replicas').addEventListener('click', () => { allReplicas = !allReplicas; if (last) showReplicas(last); });
$('decision-table').addEventListener('click', (e) => {
  const row = e.target.closest('tr.link');
  if (row && (e.target.closest('button') || getSelection().isCollapsed)) explain(row.dataset.key);
});
$('find').addEventListener('submit', (e) => {
  e.preventDefault();
  if ($('find-id').value.trim()) explain($('find-id').value.trim());
});
$('load-traces').addEventListener('click', () => loadTraces(false));
$('choose').addEventListener('submit', async (e) => {
  e.preventDefault();
  try {
    const d = await router.choose($('choose-model').value, $('choose-text').value);
    $('chosen').replaceChildren(showDecision(d, { close: () => close($('chosen'), '', $('choose-text')), toTrace }));
  } catch (bad) {
    $('chosen').replaceChildren(el('p', { class: 'error' }, bad instanceof SyntaxError ? `This is not valid JSON: ${bad.message}` : bad.message));
  }
});

// gone says that what is shown is old, and why.
function gone(why) {
  document.body.classList.add('gone');
  $('status').className = 'bad';
  say($('status'), `${why}; trying again …${last ? ` (below: as it was at ${clock(last.at)})` : ''}`);
  say(document.querySelector('title'), 'unreachable · kvpilot');
}

// unanswered reports an error that is no answer of the router: nothing came, or nothing in time.
const unanswered = (e) => e instanceof TypeError || e.name === 'TimeoutError';

let wake = () => {}; // ends the pause before the next look
const filter = filterOf($('filter'), $('clear'), () => { paused = false; $('hold').setAttribute('aria-pressed', false); $('hold').textContent = 'Pause'; wake(); });
let asked = new URLSearchParams(location.search).get('decision'); // to be explained once the router has said what it links to

// follow shows the router once a second, while the page is in sight.
async function follow() {
  for (;;) {
    if (!document.hidden) {
      try {
        show(await router.look(filter.now));
        if (asked) explain(asked);
        asked = '';
      } catch (e) {
        gone(unanswered(e) ? 'the router cannot be reached' : e.message);
      }
    }
    await new Promise((done) => { wake = done; setTimeout(done, 1000); });
  }
}
follow();
