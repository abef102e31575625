// One decision with all of its candidates side by side.

import { el, ms, count, clock, units, mark, meter } from './parts.js';

const MOST = 16; // candidates that are drawn unasked
const feeds = ['none', 'cold', 'exact', 'degraded'];
const feed = (v) => v === undefined ? '' : typeof v === 'number' ? feeds[v] : v;
const tokens = (c) => c.gpu_tokens + (c.cpu_tokens || 0) + (c.disk_tokens || 0);
const tiers = (c) => [c.cpu_tokens ? `${count(c.cpu_tokens)} in CPU memory` : '', c.disk_tokens ? `${count(c.disk_tokens)} on disk` : ''].filter(Boolean).join(', ');

function candidateRow(d, c, i, slowest) {
  return el('tr', { class: i === d.chosen ? 'pick' : c.veto ? 'veto' : '' },
    el('td', {}, i === d.chosen ? '▸ ' : '', el('span', { class: 'name', title: c.replica }, c.replica), c.rank ? ` rank ${c.rank}` : '', c.session ? el('span', { class: 'small' }, ' session') : ''),
    el('td', { title: tiers(c) }, meter(d.prompt_tokens ? tokens(c) / d.prompt_tokens : 0), el('span', { class: 'toks' }, count(tokens(c)))),
    el('td', { class: 'n' }, count(c.uncached_tokens)),
    el('td', { class: 'n' }, units(ms(1000 * c.backlog_s))),
    el('td', { class: 'n' }, units(ms(1000 * c.prefill_s))),
    el('td', {}, c.ttft_s ? [meter([Math.max(0, c.ttft_s - c.prefill_s) / slowest, 'ahead'], [c.prefill_s / slowest, '']), units(ms(1000 * c.ttft_s))] : '–'),
    el('td', { class: 'n' }, count(c.requests)),
    el('td', { class: 'n' }, c.veto ? mark(c.veto, 'warn') : c.cost.toPrecision(4)),
    el('td', {}, feed(c.feed)));
}

function facts(d, o, toTrace) {
  const list = [
    ['decided by', `${d.reason} (${d.policy})`],
    ['prompt', `${count(d.prompt_tokens)} tokens${d.estimated ? ', estimated' : ''}`],
    d.margin ? ['margin to the next', d.margin.toPrecision(3)] : null,
    ['fleet load', `${(100 * d.load).toFixed(0)} %`],
    d.held_ns ? ['held in the router', ms(d.held_ns / 1e6)] : null,
    ['the choice took', ms(d.took_ns / 1e6)],
  ];
  if (o) {
    list.push(['end', o.end]);
    if (o.ttft_ns) list.push(['first token', `after ${ms(o.ttft_ns / 1e6)}, predicted ${ms((o.predicted_ttft_ns || 0) / 1e6)}`]);
    if (o.counted) list.push(['tokens', `about ${count(o.output_tokens)}, counted by kvpilot: the engine gave no usage`]);
    else if (o.cached_tokens >= 0) list.push(['tokens cached', `${count(o.cached_tokens)}${o.predicted_cached_tokens === undefined ? '' : `, predicted ${count(o.predicted_cached_tokens)}`}`]);
  }
  if (d.shadow) list.push([`shadow ${d.shadow.policy}`, d.shadow.agrees ? 'agreed' : `would have taken ${d.shadow.replica}, for a first token ${ms(1000 * d.shadow.regret_s)} later`]);
  if (d.trace_id) {
    const button = el('button', { class: 'link', type: 'button' }, el('code', {}, d.trace_id));
    button.addEventListener('click', () => toTrace(d.trace_id));
    list.push(['trace', button]);
  }
  return el('dl', { class: 'facts' }, list.filter(Boolean).map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v))));
}

// showDecision draws a decision.
export function showDecision({ decision: d, outcome: o }, { close, toTrace }) {
  const pick = d.candidates[d.chosen];
  const order = d.candidates.map((c, i) => [c, i]).sort((a, b) => (a[0].veto ? 1 : 0) - (b[0].veto ? 1 : 0) || a[0].cost - b[0].cost);
  const slowest = Math.max(...d.candidates.filter((c) => !c.veto).map((c) => c.ttft_s), 1e-9);
  const body = el('tbody');
  const draw = (n) => body.replaceChildren(...order.filter(([, i], place) => place < n || i === d.chosen).map(([c, i]) => candidateRow(d, c, i, slowest)));
  const many = order.length > MOST + 4;
  draw(many ? MOST : order.length);
  const more = el('button', { type: 'button' }, `Show all ${order.length} candidates`);
  more.addEventListener('click', () => { draw(order.length); more.remove(); });
  const button = el('button', { type: 'button', title: 'Escape closes it too' }, 'Close');
  button.addEventListener('click', close);
  const heads = [['Candidate'], ['Overlap'], ['Uncached', 'n'], ['Prefill ahead', 'n'], ['Own prefill', 'n'], ['First token predicted'], ['In flight', 'n'], ['Cost', 'n'], ['Events']];
  const card = el('div', { class: 'card', tabindex: -1, role: 'group', 'aria-label': `Decision ${d.id}` },
    el('h3', {}, pick ? `→ ${pick.replica}${pick.rank ? ` rank ${pick.rank}` : ''}` : 'no replica', el('span', { class: 'small' }, `${clock(d.at)} · `, el('code', {}, d.id), d.attempt ? ` · attempt ${d.attempt + 1}` : ''), button),
    facts(d, o, toTrace),
    el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Candidates' }, el('table', {},
      el('thead', {}, el('tr', {}, ...heads.map(([t, c]) => el('th', { class: c, scope: 'col' }, t)))), body)),
    many ? el('p', { class: 'more' }, more) : '',
    el('p', { class: 'small legend' }, el('i', { class: 'ahead' }), 'waiting for what is ahead', el('span'), el('i'), 'own prefill'));
  card.addEventListener('keydown', (e) => { if (e.key === 'Escape') close(); });
  return card;
}
