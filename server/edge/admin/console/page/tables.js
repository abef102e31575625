// The rows of the tables of replicas and decisions.

import { el, ms, count, share, clock, duration, units, mark, meter } from './parts.js';

const feedKind = { exact: 'good', cold: 'warn', degraded: 'warn', none: '' };
const stateKind = { ready: 'good', starting: 'warn', draining: 'warn', unhealthy: 'bad' };
const FEW = 12; // replicas that are listed unasked

// trouble describes a replica's problem, if it has one.
function trouble(r, at) {
  const list = [];
  if (r.state !== 'ready') list.push(`${r.state} for ${duration((at - Date.parse(r.since)) / 1000)}${r.drained ? ', drained by an operator' : ''}${r.error ? `: ${r.error}` : ''}`);
  if (r.breaker !== 'closed') list.push(r.breaker === 'open' ? 'requests failed there, so it gets none for now' : 'requests failed there; it is being tried again');
  for (const k of r.ranks) {
    const bad = k.feed === 'degraded' || k.feed === 'cold';
    if (bad && k.feed_error && r.state !== 'unhealthy') list.push(`events${r.ranks.length > 1 ? ` of rank ${k.rank}` : ''}: ${k.feed_error}`);
  }
  return list.join(' · ');
}

// rateTitle says where a rank's rate comes from and how sure it is.
function rateTitle(k) {
  if (!k.samples) return k.source === 'kind' ? 'as learned from replicas of the same kind' : k.source === 'engine' ? "from the engine's own counters" : 'nothing learned yet';
  const sure = k.spread > 0 ? `, ±${Math.round(100 * k.spread)} %` : '';
  const used = k.source === 'distrusted' ? "; its predictions are wrong, so its equals' rate is used" : '';
  return `learned from ${k.samples} pieces of busy time${sure}; predicted first tokens take ${k.prediction_error.toFixed(2)} of the actual time${used}`;
}

// offBy is the factor by which a rank's predictions are wrong of late, when that is much.
function offBy(k) {
  const e = k.prediction_error;
  if (!k.samples || !(e > 0) || (e < 2 && e > 0.5)) return '';
  return (e > 1 ? e : 1 / e).toFixed(1);
}

function replicaRows(r, at) {
  const many = r.ranks.length > 1;
  const rows = r.ranks.map((k, i) => {
    const name = el('th', { scope: 'row', title: `${r.id} · ${r.url}` }, el('span', { class: 'name' }, r.id), many ? ` rank ${k.rank}` : '', r.version && !i ? el('span', { class: 'small' }, ' ' + r.version) : '');
    const state = i ? el('td') : el('td', {}, mark(r.state, stateKind[r.state]), r.breaker !== 'closed' ? mark('breaker ' + r.breaker, 'warn') : '');
    const feed = el('td', { title: k.feed_error || `${k.gaps} gaps, ${k.resets} resets, lag ${ms(k.lag_ms)}` }, mark(k.feed, feedKind[k.feed]), k.gaps ? el('span', { class: 'small' }, ` ${count(k.gaps)} gaps`) : '');
    return el('tr', { class: r.state === 'unhealthy' ? 'dead' : '', 'data-key': `${r.id}/${k.rank}` }, name, state, feed,
      el('td', { class: 'n' }, count(k.in_flight), k.prefilling ? el('span', { class: 'small' }, `, ${k.prefilling} in prefill`) : ''),
      el('td', { class: 'n' }, k.queued_ms ? units(ms(k.queued_ms)) : '–'),
      el('td', {}, k.kv_usage >= 0 ? [meter(k.kv_usage), el('span', { class: 'pct' }, units(share(k.kv_usage)))] : el('span', { class: 'small' }, 'not reported')),
      el('td', { class: 'n' }, count(k.blocks), k.capacity ? el('span', { class: 'small' }, ` of ${count(k.capacity)}`) : ''),
      el('td', { class: 'n', title: rateTitle(k) }, units(`${count(k.tokens_per_s)}/s`), k.samples ? '' : el('span', { class: 'small' }, ' assumed'), offBy(k) ? mark('off ×' + offBy(k), 'warn') : ''),
      el('td', { class: 'n' }, units(ms(k.step_ms))),
      el('td', {}, meter(k.busy), el('span', { class: 'pct' }, units(share(k.busy)))));
  });
  const why = trouble(r, at);
  if (why) rows.push(el('tr', { class: 'why' + (r.state === 'unhealthy' ? '' : ' mind'), 'data-key': r.id + '/why' }, el('td', { colspan: 10 }, el('div', {}, why))));
  return rows;
}

// replicaTable is the rows of the replicas, and how many are left out. Of a large fleet only a few
// are listed unasked: those in trouble, and then the busiest of the others' order.
export function replicaTable(replicas, at, all) {
  let shown = replicas;
  if (!all && replicas.length > FEW + 4) {
    const bad = replicas.filter((r) => trouble(r, at));
    const good = replicas.filter((r) => !trouble(r, at)).slice(0, Math.max(0, FEW - bad.length));
    shown = [...bad.slice(0, 4 * FEW), ...good];
  }
  return { rows: shown.flatMap((r) => replicaRows(r, at)), left: replicas.length - shown.length };
}

const endKind = { completed: 'plain', canceled: 'plain', failed: 'bad' };

function ending(d) {
  if (d.dry_run) return el('span', { class: 'soft' }, 'dry run');
  if (!d.end) return el('span', { class: 'soft' }, 'running');
  const kind = endKind[d.end] || 'warn';
  return kind === 'plain' ? el('span', {}, d.end) : mark(d.end, kind);
}

// decisionRow is a line of the list; the button in it opens the decision.
export function decisionRow(d, policy, open) {
  const miss = d.cached_tokens >= 0 && d.cached_tokens < d.overlap_tokens - 64;
  const notes = [d.reason !== 'cost' ? d.reason : '', d.policy !== policy ? d.policy : ''].filter(Boolean).join(', ');
  return el('tr', { class: 'link' + (open === d.id ? ' open' : ''), 'data-key': d.id },
    el('td', {}, el('button', { class: 'row', type: 'button', 'aria-label': `${clock(d.at)}, ${d.replica || 'no replica'}: explain this decision` }, clock(d.at))),
    el('td', {}, el('span', { class: 'name', title: d.replica }, d.replica || '–'), d.rank ? ` rank ${d.rank}` : '', notes ? el('span', { class: 'small' }, ' ' + notes) : ''),
    el('td', {}, el('span', { class: 'model', title: d.model }, d.model)),
    el('td', { class: 'n' }, count(d.prompt_tokens)),
    el('td', {}, meter(d.prompt_tokens ? d.overlap_tokens / d.prompt_tokens : 0), el('span', { class: 'toks' }, count(d.overlap_tokens))),
    el('td', { class: 'n ' + (miss ? 'warn' : ''), title: miss ? 'the engine found less than was predicted' : '' }, d.cached_tokens >= 0 ? count(d.cached_tokens) : '–'),
    el('td', { class: 'n' }, d.held_ms ? units(ms(d.held_ms)) : '–'),
    el('td', { class: 'n' }, units(ms(d.predicted_ms))),
    el('td', { class: 'n' }, d.ttft_ms ? units(ms(d.ttft_ms)) : '–'),
    el('td', {}, ending(d)));
}
