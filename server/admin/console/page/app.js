import { chart } from './chart.js';
import { el, ms, count, share, clock, pill, meter } from './parts.js';
import { showDecision, showTraces } from './detail.js';

const $ = (id) => document.getElementById(id);
let paused = false;
let models = '';

function tile(label, value, kind) {
  return el('div', { class: 'tile ' + (kind || '') }, el('b', {}, value), el('span', {}, label));
}

function lastMinute(history, at) {
  const since = at / 1000 - 60;
  const sum = { requests: 0, failed: 0, prompt: 0, cached: 0, p50: 0 };
  for (const s of history) {
    if (s.t < since) continue;
    sum.requests += s.requests; sum.failed += s.failed; sum.prompt += s.prompt_tokens; sum.cached += s.cached_tokens;
    if (s.p50_ms) sum.p50 = s.p50_ms;
  }
  return sum;
}

function showTiles(s) {
  const m = lastMinute(s.history, Date.parse(s.at));
  const ready = s.replicas.filter((r) => r.state === 'ready').length;
  const suspect = (s.parity || []).filter((p) => p.state === 'suspect');
  $('tiles').replaceChildren(
    tile('replicas ready', `${ready} / ${s.replicas.length}`, ready === 0 ? 'bad' : ready < s.replicas.length ? 'warn' : ''),
    tile('requests per second', (m.requests / 60).toFixed(1)),
    tile('cached share, last minute', m.prompt ? share(m.cached / m.prompt) : '–'),
    tile('booked now', count(s.queue.booked)),
    tile('waiting in the router', count(s.queue.waiting), s.queue.waiting > 0 ? 'warn' : ''),
    tile('failed, last minute', count(m.failed), m.failed ? 'bad' : ''),
    tile(`blocks in the index, ${Math.round(s.index.bytes / 1048576)} MiB`, count(s.index.blocks), s.index.cut ? 'warn' : ''),
    tile('tokenization', suspect.length ? `suspect: ${suspect.map((p) => p.model).join(', ')}` : 'agrees', suspect.length ? 'bad' : ''),
  );
}

function showCharts(s) {
  const end = Math.floor(Date.parse(s.at) / 1000);
  const series = (f) => s.history.map((h) => [h.t, f(h)]).filter((p) => p[1] !== null);
  chart($('chart-hit'), end, [{ c: 'l1', points: series((h) => h.prompt_tokens ? h.cached_tokens / h.prompt_tokens : null) }], { max: 1, show: share });
  chart($('chart-ttft'), end, [{ c: 'l2', points: series((h) => h.p99_ms || null) }, { c: 'l1', points: series((h) => h.p50_ms || null) }], { show: ms });
  chart($('chart-rate'), end, [{ c: 'l1', points: series((h) => h.requests) }, { c: 'l3', points: series((h) => h.failed || null) }], { show: count });
  $('figure-shadow').hidden = !s.policy.shadow;
  if (s.policy.shadow) {
    $('shadow-name').textContent = `${s.policy.shadow}: regret`;
    chart($('chart-shadow'), end, [{ c: 'l2', points: series((h) => h.shadow_agreed < 0 ? null : h.shadow_regret_ms) }], { show: ms });
  }
}

const feedKind = { exact: 'good', cold: 'warn', degraded: 'warn', none: 'soft' };
const stateKind = { ready: 'good', starting: 'warn', draining: 'warn', unhealthy: 'bad' };

function replicaRows(r) {
  const many = r.ranks.length > 1;
  return r.ranks.map((k, i) => {
    const name = el('td', { title: r.url }, el('b', {}, r.id), many ? ` rank ${k.rank}` : '', r.version ? el('span', { class: 'small' }, ' ' + r.version) : '');
    const state = i ? el('td') : el('td', { title: r.error || '' }, pill(r.state, stateKind[r.state]), r.breaker !== 'closed' ? pill('breaker ' + r.breaker, 'warn') : '');
    const feed = el('td', { title: k.feed_error || `${k.gaps} gaps, ${k.resets} resets, lag ${ms(k.lag_ms)}` }, pill(k.feed, feedKind[k.feed]));
    return el('tr', {}, name, state, feed,
      el('td', { class: 'n' }, count(k.in_flight), k.prefilling ? el('span', { class: 'small' }, ` ${k.prefilling} prefill`) : ''),
      el('td', { class: 'n' }, k.queued_ms ? `${ms(k.queued_ms)}` : '–'),
      el('td', {}, k.kv_usage >= 0 ? [meter(k.kv_usage), share(k.kv_usage)] : el('span', { class: 'soft' }, 'not reported')),
      el('td', { class: 'n' }, count(k.blocks), k.capacity ? el('span', { class: 'small' }, ` of ${count(k.capacity)}`) : ''),
      el('td', { class: 'n', title: k.samples ? `${k.samples} samples` : 'assumed, nothing learned yet' }, `${count(Math.round(k.tokens_per_s))}/s`, k.samples ? '' : el('span', { class: 'small' }, ' assumed')),
      el('td', { class: 'n' }, ms(k.step_ms)),
      el('td', { class: 'n' }, share(k.busy)));
  });
}

function decisionRow(d) {
  const miss = d.cached_tokens >= 0 && d.cached_tokens < d.overlap_tokens - 64;
  const row = el('tr', { class: 'link', tabindex: 0, 'aria-label': `Explain the decision for request ${d.request_id}` },
    el('td', {}, clock(d.at)), el('td', {}, d.model),
    el('td', {}, el('b', {}, d.replica || '–'), d.rank ? ` rank ${d.rank}` : '', d.reason !== 'cost' ? el('span', { class: 'small' }, ' ' + d.reason) : ''),
    el('td', { class: 'n' }, count(d.prompt_tokens)),
    el('td', {}, meter(d.prompt_tokens ? d.overlap_tokens / d.prompt_tokens : 0), count(d.overlap_tokens)),
    el('td', { class: 'n' }, d.held_ms ? ms(d.held_ms) : '–'),
    el('td', { class: 'n' }, ms(d.predicted_ms)),
    el('td', { class: 'n' }, d.ttft_ms ? ms(d.ttft_ms) : '–'),
    el('td', { class: miss ? 'warn' : '' }, d.cached_tokens >= 0 ? count(d.cached_tokens) : '–'),
    el('td', {}, d.dry_run ? pill('dry run', 'soft') : d.end ? pill(d.end, d.end === 'completed' ? 'good' : d.end === 'failed' ? 'bad' : 'warn') : pill('running', 'soft')));
  const open = () => explain(d.id);
  row.addEventListener('click', open);
  row.addEventListener('keydown', (e) => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); open(); } });
  return row;
}

function show(s) {
  $('status').textContent = s.not_ready ? `not ready: ${s.not_ready}` : `${s.policy.name}${s.policy.shadow ? `, shadow ${s.policy.shadow}` : ''} · up ${duration(s.uptime_s)}`;
  $('status').className = s.not_ready ? 'bad' : '';
  showTiles(s);
  showCharts(s);
  const focused = document.activeElement && document.activeElement.closest('#decision-table');
  $('replica-table').tBodies[0].replaceChildren(...s.replicas.flatMap(replicaRows));
  $('no-replicas').hidden = s.replicas.length > 0;
  $('replica-table').hidden = s.replicas.length === 0;
  if (!paused && !focused) $('decision-table').tBodies[0].replaceChildren(...(s.recent || []).map(decisionRow));
  $('no-decisions').hidden = (s.recent || []).length > 0;
  $('decision-table').hidden = (s.recent || []).length === 0;
  const names = [...new Set(s.replicas.flatMap((r) => r.models))].sort();
  if (names.join() !== models) {
    models = names.join();
    $('choose-model').replaceChildren(...names.map((n) => el('option', {}, n)));
  }
  $('foot').textContent = `kvpilot ${s.version}`;
}

function duration(seconds) {
  const m = Math.floor(seconds / 60);
  if (m < 1) return `${Math.floor(seconds)} s`;
  return m < 120 ? `${m} min` : `${Math.floor(m / 60)} h`;
}

async function ask(path, options) {
  const answer = await fetch(path, options);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error || answer.statusText);
  return value;
}

async function explain(id) {
  const box = $('explain');
  try {
    const found = await ask('api/explain?id=' + encodeURIComponent(id));
    if (!found || !found.length) throw new Error(`Nothing is known of ${id}; old decisions are forgotten.`);
    box.replaceChildren(...found.map((f) => showDecision(f, () => box.replaceChildren())));
    box.scrollIntoView({ block: 'nearest' });
  } catch (e) {
    box.replaceChildren(el('p', { class: 'error' }, e.message));
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
$('load-traces').addEventListener('click', async () => {
  try {
    showTraces($('trace-list'), await ask('api/traces'));
  } catch (e) {
    $('trace-list').replaceChildren(el('p', { class: 'error' }, e.message));
  }
});
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
    $('chosen').replaceChildren(showDecision(f, () => $('chosen').replaceChildren()));
  } catch (bad) {
    $('chosen').replaceChildren(el('p', { class: 'error' }, bad.message));
  }
});

function follow() {
  const source = new EventSource('api/watch');
  source.onmessage = (e) => show(JSON.parse(e.data));
  source.onerror = () => {
    $('status').textContent = 'the router cannot be reached; trying again …';
    $('status').className = 'bad';
  };
}
ask('api/state').then(show, () => {}).finally(follow);
