import { el, ms, count, clock, pill, meter } from './parts.js';

// showDecision draws a decision with all its candidates side by side.
export function showDecision({ decision: d, outcome: o }, close) {
  const pick = d.candidates[d.chosen];
  const order = d.candidates.map((c, i) => [c, i]).sort((a, b) => (a[0].veto ? 1 : 0) - (b[0].veto ? 1 : 0) || a[0].cost - b[0].cost);
  const button = el('button', { title: 'Escape closes it too' }, 'Close');
  const slowest = Math.max(...d.candidates.filter((c) => !c.veto).map((c) => c.ttft_s), 1e-9);
  button.addEventListener('click', close);
  const tokens = (c) => c.gpu_tokens + (c.cpu_tokens || 0) + (c.disk_tokens || 0);
  const tiers = (c) => [c.cpu_tokens ? `${count(c.cpu_tokens)} in CPU memory` : '', c.disk_tokens ? `${count(c.disk_tokens)} on disk` : ''].filter(Boolean).join(', ');
  const rows = order.map(([c, i]) => el('tr', { class: i === d.chosen ? 'pick' : c.veto ? 'veto' : '' },
    el('td', {}, i === d.chosen ? '▸ ' : '', c.replica, c.rank ? ` rank ${c.rank}` : '', c.session ? el('span', { class: 'small' }, ' session') : ''),
    el('td', { title: tiers(c) }, meter(d.prompt_tokens ? tokens(c) / d.prompt_tokens : 0), count(tokens(c))),
    el('td', { class: 'n' }, count(c.uncached_tokens)),
    el('td', { class: 'n' }, ms(1000 * c.backlog_s)),
    el('td', { class: 'n' }, ms(1000 * c.prefill_s)),
    el('td', {}, c.ttft_s ? [meter([Math.max(0, c.ttft_s - c.prefill_s) / slowest, 'ahead'], [c.prefill_s / slowest, '']), ms(1000 * c.ttft_s)] : '–'),
    el('td', { class: 'n' }, count(c.requests)),
    el('td', { class: 'n' }, c.veto ? pill(c.veto, 'warn') : c.cost.toPrecision(4)),
    el('td', {}, c.feed === undefined ? '' : feed(c.feed))));
  const facts = [
    `${d.policy}, decided by ${d.reason}`,
    `${count(d.prompt_tokens)} prompt tokens${d.estimated ? ' (estimated)' : ''}`,
    d.margin ? `margin ${d.margin.toPrecision(3)}` : '',
    `fleet load ${d.load.toFixed(2)}, ω ${d.omega.toFixed(2)}`,
    d.trace_id ? `trace ${d.trace_id}` : '',
    d.held_ns ? `held ${ms(d.held_ns / 1e6)}` : '',
    `took ${ms(d.took_ns / 1e6)}`,
    o ? `${o.end}${o.ttft_ns ? `, first token after ${ms(o.ttft_ns / 1e6)} (predicted ${ms((o.predicted_ttft_ns || 0) / 1e6)})` : ''}${o.cached_tokens >= 0 ? `, ${count(o.cached_tokens)} tokens were cached` : ''}` : '',
    d.shadow ? `shadow ${d.shadow.policy} ${d.shadow.agrees ? 'agreed' : `would have taken ${d.shadow.replica}, ${ms(1000 * d.shadow.regret_s)} of regret`}` : '',
  ].filter(Boolean);
  const card = el('div', { class: 'card', tabindex: -1, role: 'group', 'aria-label': `Decision ${d.id}` },
    el('h3', {}, pick ? `→ ${pick.replica}` : 'no replica', el('span', { class: 'small' }, `${clock(d.at)} · ${d.id}${d.attempt ? `, attempt ${d.attempt + 1}` : ''}`), button),
    el('p', { class: 'small' }, facts.join(' · ')),
    el('div', { class: 'scroll' }, el('table', {},
      el('thead', {}, el('tr', {}, ...[['Candidate'], ['Overlap'], ['Uncached', 'n'], ['Prefill ahead', 'n'], ['Own prefill', 'n'], ['Predicted first token'], ['In flight', 'n'], ['Cost', 'n'], ['Events']].map(([t, c]) => el('th', { class: c }, t)))),
      el('tbody', {}, rows))),
    el('p', { class: 'small legend' }, el('i', { class: 'ahead' }), 'waiting for what is ahead ', el('i'), 'own prefill'));
  card.addEventListener('keydown', (e) => { if (e.key === 'Escape') close(); });
  return card;
}

const feeds = ['none', 'cold', 'exact', 'degraded'];
function feed(v) { return typeof v === 'number' ? feeds[v] : v; }

// showTraces draws each trace as a waterfall.
export function showTraces(box, traces) {
  if (!traces || !traces.length) {
    box.replaceChildren(el('p', { class: 'empty' }, 'No traces yet. They are recorded when telemetry.traces.ratio is above zero.'));
    return;
  }
  const slowest = Math.max(...traces.map((t) => t.ms), 0.001);
  box.replaceChildren(...traces.map((t) => {
    const about = t.spans.find((s) => s.name === t.name)?.attributes || {};
    const where = about['kvpilot.replica.id'];
    return el('details', { class: 'trace' },
      el('summary', {}, el('span', { class: 'small' }, clock(t.at)), el('span', { class: 'long' }, meter(t.ms / slowest), ms(t.ms)), el('b', {}, t.name), where ? el('span', {}, `→ ${where}`) : '',
        t.failed ? pill('failed', 'bad') : '', el('code', { class: 'small' }, t.id)),
      waterfall(t));
  }));
}

function waterfall(t) {
  const depth = new Map();
  const byID = new Map(t.spans.map((s) => [s.id, s]));
  for (const s of t.spans) {
    let n = 0;
    for (let p = byID.get(s.parent); p && n < 20; p = byID.get(p.parent)) n++;
    depth.set(s.id, n);
  }
  const total = Math.max(t.ms, 0.001);
  const rows = [...t.spans].sort((a, b) => Math.min(1, depth.get(a.id)) - Math.min(1, depth.get(b.id)) || a.start - b.start || depth.get(a.id) - depth.get(b.id)).flatMap((s) => {
    const facts = Object.entries(s.attributes || {}).sort();
    const list = el('dl', { hidden: true }, facts.map(([k, v]) => [el('dt', {}, k), el('dd', {}, v)]));
    const name = el('button', { class: 'name', type: 'button', 'aria-expanded': 'false', disabled: facts.length === 0 && 'disabled' }, s.name);
    name.addEventListener('click', () => { list.hidden = !list.hidden; name.setAttribute('aria-expanded', !list.hidden); });
    name.style.paddingLeft = 0.2 + depth.get(s.id) * 0.9 + 'rem';
    const bar = el('i', { class: s.failed ? 'bad' : '' });
    bar.style.left = (100 * Math.max(0, s.start) / total).toFixed(2) + '%';
    bar.style.width = (100 * Math.min(s.ms, total - Math.max(0, s.start)) / total).toFixed(2) + '%';
    return [name, el('div', { class: 'lane' }, bar), el('span', { class: 'took' }, ms(s.ms)), list];
  });
  return el('div', { class: 'fall' }, rows);
}
