import { chart } from './chart.js';
import { el, ms, count, share, bytes, clock, duration, pill, meter, ask } from './parts.js';
import { showDecision, showTraces } from './detail.js';

const $ = (id) => document.getElementById(id);
let paused = false;
let models = '';
let last = null;

function tile(label, value, kind) {
  return el('div', { class: 'tile ' + (kind || '') }, el('b', {}, value), el('span', {}, label));
}

function lastMinute(history, end) {
  const sum = { requests: 0, failed: 0, prompt: 0, cached: 0, seconds: 0 };
  for (const s of history) {
    if (s.t <= end - 60 || s.t > end) continue;
    sum.requests += s.requests; sum.failed += s.failed; sum.prompt += s.prompt_tokens; sum.cached += s.cached_tokens;
    sum.seconds = Math.max(sum.seconds, end - s.t + 1);
  }
  return sum;
}

function showTiles(s, end) {
  const m = lastMinute(s.history, end);
  const ready = s.replicas.filter((r) => r.state === 'ready').length;
  const suspect = (s.parity || []).filter((p) => p.state === 'suspect');
  $('tiles').replaceChildren(
    tile('replicas ready', `${ready} / ${s.replicas.length}`, ready === 0 ? 'bad' : ready < s.replicas.length ? 'warn' : ''),
    tile('requests per second', m.seconds ? (m.requests / m.seconds).toFixed(1) : '0'),
    tile('prompt tokens cached', m.prompt ? share(m.cached / m.prompt) : '–'),
    tile('failed, last minute', count(m.failed), m.failed ? 'bad' : ''),
    tile('in flight', count(s.queue.booked)),
    tile('waiting here', count(s.queue.waiting), s.queue.waiting > 0 ? 'warn' : ''),
    tile(`blocks known, ${bytes(s.index.bytes)}`, count(s.index.blocks), s.index.cut ? 'warn' : ''),
    tile(suspect.length ? `token ids of ${suspect.map((p) => p.model).join(', ')}` : 'token ids', suspect.length ? 'suspect' : (s.parity || []).length ? 'agree' : '–', suspect.length ? 'bad' : ''),
  );
}

function showCharts(s, end) {
  const series = (f) => s.history.map((h) => [h.t, f(h)]).filter((p) => p[1] !== null);
  const known = new Map(s.history.map((h) => [h.t, h]));
  const dense = (f) => { // seconds without requests are left out of the history; here they are zeros
    const points = [];
    for (let t = s.history.length ? s.history[0].t : end + 1; t <= end; t++) points.push([t, known.has(t) ? f(known.get(t)) : 0]);
    return points;
  };
  chart($('figure-hit'), end, [{ c: 'l1', name: '', fill: true, points: series((h) => h.prompt_tokens ? h.cached_tokens / h.prompt_tokens : null) }], { max: 1, show: share });
  chart($('figure-ttft'), end, [{ c: 'l1', name: 'p50', fill: true, points: series((h) => h.p50_ms || null) }, { c: 'l2', name: 'p99', points: series((h) => h.p99_ms || null) }], { show: ms });
  chart($('figure-rate'), end, [{ c: 'l1', name: 'ended', fill: true, points: dense((h) => h.requests) }, { c: 'l3', name: 'failed', points: dense((h) => h.failed) }], { show: count });
  $('figure-shadow').hidden = !s.policy.shadow;
  if (!s.policy.shadow) return;
  $('shadow-name').textContent = `First token later, had ${s.policy.shadow} chosen`;
  chart($('figure-shadow'), end, [
    { c: 'l2', name: '', fill: true, points: series((h) => h.shadow_agreed < 0 ? null : Math.max(0, h.shadow_regret_ms)) },
  ], { show: ms });
  const agreed = s.history.filter((h) => h.shadow_agreed >= 0 && h.t > end - 60);
  $('shadow-note').textContent = agreed.length ? `same replica in ${share(agreed.reduce((a, h) => a + h.shadow_agreed, 0) / agreed.length)} of the last minute's decisions` : '';
}

const feedKind = { exact: 'good', cold: 'warn', degraded: 'warn', none: 'soft' };
const stateKind = { ready: 'good', starting: 'warn', draining: 'warn', unhealthy: 'bad' };

// trouble is what somebody should know about a replica, in words.
function trouble(r, at) {
  const list = [];
  if (r.state !== 'ready') list.push(`${r.state} for ${duration((at - Date.parse(r.since)) / 1000)}${r.drained ? ', drained by an operator' : ''}${r.error ? `: ${r.error}` : ''}`);
  if (r.breaker !== 'closed') list.push(`its breaker is ${r.breaker}`);
  for (const k of r.ranks) {
    const bad = k.feed === 'degraded' || k.feed === 'cold';
    if (bad && k.feed_error && r.state !== 'unhealthy') list.push(`events${r.ranks.length > 1 ? ` of rank ${k.rank}` : ''}: ${k.feed_error}`);
  }
  return list.join(' · ');
}

function replicaRows(r, at) {
  const many = r.ranks.length > 1;
  const dead = r.state === 'unhealthy' ? 'dead' : '';
  const rows = r.ranks.map((k, i) => {
    const name = el('td', { title: r.url }, el('b', {}, r.id), many ? ` rank ${k.rank}` : '', r.version ? el('span', { class: 'small' }, ' ' + r.version) : '');
    const state = i ? el('td') : el('td', {}, pill(r.state, stateKind[r.state]), r.breaker !== 'closed' ? pill('breaker ' + r.breaker, 'warn') : '');
    const feed = el('td', { title: k.feed_error || `${k.gaps} gaps, ${k.resets} resets, lag ${ms(k.lag_ms)}` }, pill(k.feed, feedKind[k.feed]), k.gaps ? el('span', { class: 'small' }, ` ${count(k.gaps)} gaps`) : '');
    return el('tr', { class: dead }, name, state, feed,
      el('td', { class: 'n' }, count(k.in_flight), k.prefilling ? el('span', { class: 'small' }, `, ${k.prefilling} in prefill`) : ''),
      el('td', { class: 'n' }, k.queued_ms ? ms(k.queued_ms) : '–'),
      el('td', {}, k.kv_usage >= 0 ? [meter(k.kv_usage), share(k.kv_usage)] : el('span', { class: 'small' }, 'not reported')),
      el('td', { class: 'n' }, count(k.blocks), k.capacity ? el('span', { class: 'small' }, ` of ${count(k.capacity)}`) : ''),
      el('td', { class: 'n', title: k.samples ? `learned from ${k.samples} first tokens` : 'nothing learned yet' }, `${count(Math.round(k.tokens_per_s))}/s`, k.samples ? '' : el('span', { class: 'small' }, ' assumed')),
      el('td', { class: 'n' }, ms(k.step_ms)),
      el('td', {}, meter(k.busy), share(k.busy)));
  });
  const why = trouble(r, at);
  if (why) rows.push(el('tr', { class: 'why' }, el('td', { colspan: 10 }, el('div', {}, why))));
  return rows;
}

function decisionRow(d, policy) {
  const miss = d.cached_tokens >= 0 && d.cached_tokens < d.overlap_tokens - 64;
  const notes = [d.reason !== 'cost' ? d.reason : '', d.policy !== policy ? d.policy : ''].filter(Boolean).join(', ');
  const row = el('tr', { class: 'link', tabindex: 0, 'data-id': d.id, 'aria-label': `Explain the decision for request ${d.request_id}` },
    el('td', {}, clock(d.at)), el('td', {}, d.model),
    el('td', {}, el('b', {}, d.replica || '–'), d.rank ? ` rank ${d.rank}` : '', notes ? el('span', { class: 'small' }, ' ' + notes) : ''),
    el('td', { class: 'n' }, count(d.prompt_tokens)),
    el('td', {}, meter(d.prompt_tokens ? d.overlap_tokens / d.prompt_tokens : 0), count(d.overlap_tokens)),
    el('td', { class: 'n ' + (miss ? 'warn' : '') }, d.cached_tokens >= 0 ? count(d.cached_tokens) : '–'),
    el('td', { class: 'n' }, d.held_ms ? ms(d.held_ms) : '–'),
    el('td', { class: 'n' }, ms(d.predicted_ms)),
    el('td', { class: 'n' }, d.ttft_ms ? ms(d.ttft_ms) : '–'),
    el('td', {}, d.dry_run ? pill('dry run', 'soft') : d.end ? pill(d.end, d.end === 'completed' ? 'good' : d.end === 'failed' ? 'bad' : 'warn') : pill('running', 'soft')));
  const open = () => explain(d.id);
  row.addEventListener('click', open);
  row.addEventListener('keydown', (e) => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); open(); } });
  return row;
}

function show(s) {
  last = s;
  document.body.classList.remove('stale');
  const at = Date.parse(s.at);
  const end = Math.floor(at / 1000) - 1; // the present second is not over
  const ready = s.replicas.filter((r) => r.state === 'ready').length;
  $('status').textContent = s.not_ready ? `not ready: ${s.not_ready}` : `${s.policy.name}${s.policy.shadow ? `, in its shadow ${s.policy.shadow}` : ''} · up ${duration(s.uptime_s)}`;
  $('status').className = s.not_ready ? 'bad' : '';
  document.title = `${ready}/${s.replicas.length} ready · kvpilot`;
  showTiles(s, end);
  showCharts(s, end);
  $('replica-table').tBodies[0].replaceChildren(...s.replicas.flatMap((r) => replicaRows(r, at)));
  $('no-replicas').hidden = s.replicas.length > 0;
  $('replica-table').hidden = s.replicas.length === 0;
  const recent = s.recent || [];
  const focused = document.activeElement && document.activeElement.closest('#decision-table');
  if (!paused && !focused) $('decision-table').tBodies[0].replaceChildren(...recent.map((d) => decisionRow(d, s.policy.name)));
  $('no-decisions').hidden = recent.length > 0;
  $('decision-box').hidden = recent.length === 0;
  if (recent.length > 0 && at - traced > 5000 && !reading()) loadTraces(true);
  const names = [...new Set(s.replicas.flatMap((r) => r.models))].sort();
  if (names.join() !== models) {
    models = names.join();
    $('choose-model').replaceChildren(...names.map((n) => el('option', {}, n)));
  }
  for (const field of $('choose').elements) field.disabled = names.length === 0;
  $('foot').textContent = `kvpilot ${s.version}`;
}

// close empties box and gives the focus back to the row of decision id, or to a field of its own.
function close(box, id, otherwise) {
  box.replaceChildren();
  const row = document.querySelector(`#decision-table tr[data-id="${CSS.escape(id)}"]`);
  (row || otherwise || document.querySelector('#decision-table tr.link'))?.focus();
}

async function explain(id) {
  const box = $('explain');
  try {
    const found = await ask('api/explain?id=' + encodeURIComponent(id));
    if (!found || !found.length) throw new Error(`Nothing is known of ${id}; old decisions are forgotten.`);
    box.replaceChildren(...found.map((f) => showDecision(f, () => close(box, id))));
    box.firstChild.focus({ preventScroll: true });
    box.scrollIntoView({ block: 'nearest' });
  } catch (e) {
    box.replaceChildren(el('p', { class: 'error' }, e.message));
  }
}

// reading reports whether somebody looks at a trace, which must not be taken away.
function reading() {
  const list = $('trace-list');
  return document.hidden || list.querySelector('details[open]') || list.contains(document.activeElement);
}

let traced = 0; // when the traces were loaded last, in the router's time
async function loadTraces(unasked) {
  traced = last ? Date.parse(last.at) : 0;
  try {
    const traces = await ask('api/traces');
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
$('find').addEventListener('submit', (e) => {
  e.preventDefault();
  if ($('find-id').value.trim()) explain($('find-id').value.trim());
});
$('load-traces').addEventListener('click', () => loadTraces(false));
$('choose').addEventListener('submit', async (e) => {
  e.preventDefault();
  const text = $('choose-text').value;
  const request = { model: $('choose-model').value };
  if (text.trim().startsWith('{')) {
    try { request.body = JSON.parse(text); } catch (bad) {
      $('chosen').replaceChildren(el('p', { class: 'error' }, `This is no valid JSON: ${bad.message}`));
      return;
    }
  } else request.text = text;
  try {
    const f = await ask('api/choose', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(request) });
    $('chosen').replaceChildren(showDecision(f, () => close($('chosen'), '', $('choose-text'))));
  } catch (bad) {
    $('chosen').replaceChildren(el('p', { class: 'error' }, bad.message));
  }
});

function follow() {
  const source = new EventSource('api/watch');
  source.onmessage = (e) => show(JSON.parse(e.data));
  source.onerror = () => {
    document.body.classList.add('stale');
    $('status').textContent = `the router cannot be reached; trying again …${last ? ` (below: as it was at ${clock(last.at)})` : ''}`;
    $('status').className = 'bad';
    document.title = 'unreachable · kvpilot';
  };
}
ask('api/state').then(show, () => {}).finally(follow);
