// One decision with its candidates side by side.

import { el, ms, count, clock, units, mark, meter } from './parts.js';
import { milliseconds, vetoed, word } from './router.js';
import { toDashboard, toTrace as elsewhere } from './links.js';

const MOST = 16; // candidates that are drawn unasked

// tokens is how much of a prompt a candidate holds.
export const tokens = ({ overlap: o }) => o.gpu_tokens + o.cpu_tokens + o.disk_tokens;
// tiers is the part of it below GPU memory.
const tiers = ({ overlap: o }) => [o.cpu_tokens ? `${count(o.cpu_tokens)} host` : '', o.disk_tokens ? `${count(o.disk_tokens)} store` : ''].filter(Boolean).join(', ');

function candidateRow(d, c, pick, slowest) {
  const prefill = milliseconds(c.prefill), ttft = milliseconds(c.ttft);
  return el('tr', { class: c === pick ? 'pick' : vetoed(c) ? 'veto' : '' },
    el('td', {}, c === pick ? '▸ ' : '', el('span', { class: 'name', title: c.replica_id }, c.replica_id), c.rank ? ` rank ${c.rank}` : '', c.session ? el('span', { class: 'small' }, ' session') : '', (c.conduct?.suspicions ?? []).map((s) => mark(word(s), 'warn'))),
    el('td', { title: tiers(c) ? `${tiers(c)}, loaded in ${ms(milliseconds(c.load))}` : '' }, d.prompt_tokens ? meter([c.overlap.gpu_tokens / d.prompt_tokens, ''], [(tokens(c) - c.overlap.gpu_tokens) / d.prompt_tokens, 'ahead']) : meter(0), el('span', { class: 'toks' }, count(tokens(c))), tiers(c) ? el('span', { class: 'small' }, ` ${tiers(c)}`) : ''),
    el('td', { class: 'n' }, count(c.uncached_tokens)),
    el('td', { class: 'n' }, units(ms(milliseconds(c.backlog)))),
    el('td', { class: 'n' }, units(ms(milliseconds(c.prefill)))),
    el('td', {}, ttft ? [meter([Math.max(0, ttft - prefill) / slowest, 'ahead'], [prefill / slowest, '']), units(ms(ttft))] : '–'),
    el('td', { class: 'n' }, count(c.requests)),
    el('td', { class: 'n' }, vetoed(c) ? mark(word(c.veto), 'warn') : cost(d, c.cost)),
    el('td', {}, word(c.feed)));
}

// cost is in the policy's own unit.
const cost = (d, v) => d.policy === 'predicted-ttft' ? units(ms(v)) : v.toPrecision(4);

// memoryWait says why a program's call waited for memory.
export function memoryWait(w) {
  const needed = Number(w.needed_tokens), free = Number(w.free_tokens), expected = milliseconds(w.expected);
  const why = free >= needed ? 'fitted and others went first' : free ? `did not fit into the ${count(free)} that were free` : 'did not fit';
  return `${ms(milliseconds(w.waited))}: its ${count(needed)} tokens ${why}, ${count(w.programs_before)} programs before it${expected ? `, expected about ${ms(expected)}` : ''}`;
}

function facts(d, toTrace) {
  const o = d.outcome, held = milliseconds(d.held);
  const list = [
    ['decided by', `${word(d.reason)} (${d.policy})`],
    ['prompt', `${count(d.prompt_tokens)} tokens${d.estimated ? ', estimated' : ''}`],
    d.margin ? ['margin to the next', cost(d, d.margin)] : null,
    ['fleet load', `${(100 * d.load).toFixed(0)} %`],
    held ? ['held in the router', ms(held)] : null,
    d.split ? ['side', `${d.split.side} of the split of ${d.split.model}${d.split.instead_of ? `, in place of ${d.split.instead_of}` : ''}`] : null,
    d.memory_wait ? ['waited for memory', memoryWait(d.memory_wait)] : null,
    ['the choice took', ms(milliseconds(d.took))],
  ];
  if (o) {
    list.push(['end', word(o.end)]);
    if (o.ttft) list.push(['first token', `after ${ms(milliseconds(o.ttft))}, predicted ${ms(milliseconds(o.predicted_ttft))}`]);
    if (o.counted_output_tokens !== undefined) list.push(['tokens', `about ${count(o.counted_output_tokens)}, counted by kvpilot: the engine gave no usage`]);
    else if (o.cached_tokens !== undefined) list.push(['tokens cached', `${count(o.cached_tokens)}, predicted ${count(o.predicted_cached_tokens)}`]);
  }
  const pick = d.candidates.find((c) => c.replica_id === d.replica_id && c.rank === d.rank);
  if (pick && tiers(pick)) list.push(['tiers', `${tiers(pick)}: ${count(pick.loadable_tokens)} loaded in ${ms(milliseconds(pick.load))} expected${pick.named_tokens ? `, ${count(pick.named_tokens)} by the directory's word` : ''}`]);
  if (d.directory) list.push(['directory', `${d.directory.source}: ${d.directory.result} in ${ms(milliseconds(d.directory.took))}`]);
  (d.ways ?? []).forEach((w, i) => {
    if (w.kind === 'copy') {
      list.push(['copy', `of the prompt's first ${count(w.held_tokens)} tokens from ${w.prefill_replica_id} to ${w.decode_replica_id}, expected after ${ms(milliseconds(w.transfer))}`]);
      return;
    }
    const how = w.kind === 'split' ? `prefill on ${w.prefill_replica_id}, answer on ${w.decode_replica_id}, ${w.moved_tokens} tokens moved in ${ms(milliseconds(w.transfer))}` : `whole on ${w.decode_replica_id}`;
    list.push([i === 0 ? 'way taken' : 'other way', `${how}: cost ${w.cost.toPrecision(4)}, first token ${ms(milliseconds(w.ttft))}`]);
  });
  if (d.shadow) list.push([`shadow ${d.shadow.policy}`, d.shadow.agrees ? 'agreed' : `would have taken ${d.shadow.replica_id}, for a first token ${ms(milliseconds(d.shadow.regret))} later`]);
  if (d.trace_id) {
    const button = el('button', { class: 'link', type: 'button' }, el('code', {}, d.trace_id));
    button.addEventListener('click', () => toTrace(d.trace_id));
    list.push(['trace', [button, ' ', elsewhere(d.trace_id)]]);
  }
  if (d.tenant) list.push(['tenant', d.tenant]);
  const figures = toDashboard(d.model, d.replica_id);
  if (figures) list.push(['figures', figures]);
  return el('dl', { class: 'facts' }, list.filter(Boolean).map(([k, v]) => el('div', {}, el('dt', {}, k), el('dd', {}, v))));
}

// showDecision draws a decision.
export function showDecision(d, { close, toTrace }) {
  const pick = d.candidates.find((c) => c.replica_id === d.replica_id && c.rank === d.rank);
  const order = [...d.candidates].sort((a, b) => (vetoed(a) ? 1 : 0) - (vetoed(b) ? 1 : 0) || a.cost - b.cost);
  const slowest = Math.max(...d.candidates.filter((c) => !vetoed(c)).map((c) => milliseconds(c.ttft)), 1e-6);
  const body = el('tbody');
  const draw = (n) => body.replaceChildren(...order.filter((c, place) => place < n || c === pick).map((c) => candidateRow(d, c, pick, slowest)));
  const many = order.length > MOST + 4;
  draw(many ? MOST : order.length);
  const more = el('button', { type: 'button' }, `Show all ${order.length} candidates`);
  more.addEventListener('click', () => { draw(order.length); more.remove(); });
  const button = el('button', { type: 'button', title: 'Escape closes it too' }, 'Close');
  button.addEventListener('click', close);
  const heads = [['Candidate'], ['Overlap'], ['Uncached', 'n'], ['Prefill ahead', 'n'], ['Own prefill', 'n'], ['First token predicted'], ['In flight', 'n'], ['Cost', 'n'], ['Events']];
  const card = el('div', { class: 'card', tabindex: -1, role: 'group', 'aria-label': `Decision ${d.decision_id}` },
    el('h3', {}, pick ? `→ ${pick.replica_id}${pick.rank ? ` rank ${pick.rank}` : ''}` : 'no replica', el('span', { class: 'small' }, `${clock(d.time)} · `, el('code', {}, d.decision_id), d.attempt ? ` · attempt ${d.attempt + 1}` : ''), button),
    facts(d, toTrace),
    el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'Candidates' }, el('table', {},
      el('thead', {}, el('tr', {}, ...heads.map(([t, c]) => el('th', { class: c, scope: 'col' }, t)))), body)),
    many ? el('p', { class: 'more' }, more) : '',
    d.others || d.vetoed_others ? el('p', { class: 'small' }, `Not listed: ${d.others || 0} more that could serve, ${d.vetoed_others || 0} that could not`) : '',
    el('p', { class: 'small legend' }, el('i', { class: 'ahead' }), 'waiting for what is ahead', el('span'), el('i'), 'own prefill'));
  card.addEventListener('keydown', (e) => { if (e.key === 'Escape') close(); });
  return card;
}
