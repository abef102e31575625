// The rows of the tables of replicas and decisions.

import { el, ms, count, share, clock, duration, units, mark, meter } from './parts.js';
import { tokens } from './detail.js';
import { drainButton } from './drain.js';
import { toDashboard } from './links.js';
import { milliseconds, word } from './router.js';

const feedKind = { exact: 'good', cold: 'warn', degraded: 'warn', none: '' };
const stateKind = { ready: 'good', starting: 'warn', draining: 'warn', unhealthy: 'bad' };
const FEW = 12; // replicas that are listed unasked
const STALE = 15000; // milliseconds after which an engine's report is no longer shown

// drained says who drains a replica, why, and what is left.
function drained(d) {
  if (!d) return 'drained by an operator';
  const left = d.in_flight ? `, ${d.in_flight} ${d.in_flight === 1 ? 'request' : 'requests'} left` : '';
  return `drained by ${d.by || 'an operator'}${d.reason ? ` (${d.reason})` : ''}${left}`;
}

// leaving are the ranks of a replica that drain while the others take requests.
function leaving(r) {
  return r.drain?.ranks ?? [];
}

// suspicion says why a rank is avoided.
function suspicion(s, c) {
  if (s === 'slow') return `its output tokens take ${c.slowness.toFixed(1)} times as long as those of its equals`;
  if (s === 'empty') return 'it gives empty answers where other replicas do not';
  if (s === 'unproven') return `its answers show as cached ${Math.round(100 * c.overlap_trust)} % of what it claims to hold`;
  return s;
}

// trouble describes a replica's problem, if it has one.
function trouble(r, at) {
  const list = [];
  const state = word(r.state);
  if (state !== 'ready') list.push(`${state} for ${duration((at - Date.parse(r.since)) / 1000)}${r.drained ? `, ${drained(r.drain)}` : ''}${r.last_error ? `: ${r.last_error}` : ''}`);
  if (leaving(r).length) list.push(`${leaving(r).length > 1 ? 'ranks' : 'rank'} ${leaving(r).join(', ')} ${drained(r.drain)}`);
  if (word(r.breaker) === 'open') list.push('requests failed there, so it gets none for now');
  if (word(r.breaker) === 'trial') list.push('requests failed there; it is being tried again');
  for (const k of r.ranks) {
    const bad = ['degraded', 'cold'].includes(word(k.feed));
    const held = k.load.conduct?.suspicions ?? [];
    if (held.length) list.push(`avoided${r.ranks.length > 1 ? `, rank ${k.rank}` : ''}: ${held.map((s) => suspicion(word(s), k.load.conduct)).join('; ')}`);
    if (bad && k.feed_error && state !== 'unhealthy') list.push(`events${r.ranks.length > 1 ? ` of rank ${k.rank}` : ''}: ${k.feed_error}`);
  }
  return list.join(' · ');
}

// rateTitle says where a rank's rate comes from and how sure it is.
function rateTitle(v) {
  if (!v.samples) return word(v.source) === 'kind' ? 'as learned from replicas of the same kind' : word(v.source) === 'engine' ? "from the engine's own counters" : 'nothing learned yet';
  const sure = v.spread > 0 ? `, ±${Math.round(100 * v.spread)} %` : '';
  const used = word(v.source) === 'distrusted' ? "; its predictions are wrong, so its equals' rate is used" : '';
  return `learned from ${v.samples} pieces of busy time${sure}; predicted first tokens take ${v.prediction_ratio.toFixed(2)} of the actual time${used}`;
}

// offBy is the factor by which a rank's predictions are wrong of late, when that is much.
function offBy(v) {
  const e = v.prediction_ratio;
  if (!v.samples || !(e > 0) || (e < 2 && e > 0.5)) return '';
  return (e > 1 ? e : 1 / e).toFixed(1);
}

// pace is the cells of a rank's speed; a dead rank has none.
function pace(v) {
  if (!v) return [el('td', { class: 'n' }, '–'), el('td', { class: 'n' }, '–'), el('td')];
  return [
    el('td', { class: 'n', title: rateTitle(v) }, units(`${count(v.tokens_per_second)}/s`), v.samples ? '' : el('span', { class: 'small' }, ' assumed'), offBy(v) ? mark('off ×' + offBy(v), 'warn') : ''),
    el('td', { class: 'n' }, units(ms(milliseconds(v.step)))),
    el('td', {}, meter(v.busy), el('span', { class: 'pct' }, units(share(v.busy)))),
  ];
}

function replicaRows(r, at) {
  const id = r.replica_id, many = r.ranks.length > 1, broken = word(r.breaker), state = word(r.state);
  const rows = r.ranks.map((k, i) => {
    const l = k.load, feed = word(k.feed), gaps = Number(k.gaps);
    const reported = state !== 'unhealthy' && l.kv_usage !== undefined && milliseconds(l.engine_age) < STALE;
    return el('tr', { class: state === 'unhealthy' ? 'dead' : '', 'data-key': `${id}/${k.rank}` },
      el('th', { scope: 'row', title: `${id} · ${r.url}` }, el('span', { class: 'name' }, id), many ? ` rank ${k.rank}` : '', r.version && !i ? el('span', { class: 'small' }, ' ' + r.version) : '', r.labels?.role && !i ? el('span', { class: 'small' }, ' ' + r.labels.role) : ''),
      el('td', {}, i ? '' : mark(state, stateKind[state]), leaving(r).includes(k.rank) ? mark('draining', 'warn') : '', i ? '' : [broken === 'closed' ? '' : mark('breaker ' + broken, 'warn'), (l.conduct?.suspicions ?? []).map((s) => mark(word(s), 'warn'))]),
      el('td', { title: k.feed_error || `${gaps} gaps, ${k.resets} resets, lag ${ms(milliseconds(k.feed_lag))}` }, mark(feed, feedKind[feed]), gaps ? el('span', { class: 'small' }, ` ${count(gaps)} gaps`) : ''),
      el('td', { class: 'n' }, count(l.requests || 0), l.waiting ? el('span', { class: 'small' }, `, ${l.waiting} in prefill`) : ''),
      el('td', { class: 'n' }, milliseconds(l.backlog) ? units(ms(milliseconds(l.backlog))) : '–'),
      el('td', {}, reported ? [meter(l.kv_usage), el('span', { class: 'pct' }, units(share(l.kv_usage)))] : el('span', { class: 'small' }, 'not reported')),
      el('td', { class: 'n' }, count(k.known_blocks), r.blocks ? el('span', { class: 'small' }, ` of ${count(r.blocks)}`) : ''),
      pace(state === 'unhealthy' ? null : l.speed),
      el('td', { class: 'acts' }, i ? '' : [toDashboard(r.models[0]?.id || '', id), ' ', drainButton(r)]));
  });
  const why = trouble(r, at);
  if (why) rows.push(el('tr', { class: 'why' + (state === 'unhealthy' ? '' : ' mind'), 'data-key': id + '/why' }, el('td', { colspan: 11 }, el('div', why.length > 160 ? { tabindex: 0, role: 'group', 'aria-label': `What is wrong with ${id}` } : {}, why))));
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

// standing says how a router stands, and how bad that is.
function standing(r) {
  const state = word(r.state), report = r.report;
  if (state !== 'alive') return [state, state === 'dead' ? 'bad' : 'warn', state === 'stranger' ? 'it speaks another wire version' : 'it does not answer any more'];
  if (!r.connected) return ['no link', 'bad', 'gossip sees it, and no connection to it can be made'];
  if (!report) return ['silent', 'bad', 'it did not answer in time'];
  if (report.not_ready) return ['not ready', 'warn', report.not_ready];
  if (!report.able) return ['not able', 'warn', 'its index does not know all ranks yet, so it leaves decisions to others'];
  return ['alive', 'good', ''];
}

// routerRow is a line of the table of routers.
export function routerRow(r) {
  const [state, kind, why] = standing(r), report = r.report;
  return el('tr', { 'data-key': r.router_id || 'self' },
    el('th', { scope: 'row', title: `${r.router_id} · ${r.address}` }, el('span', { class: 'name' }, r.name || r.router_id), r.self ? el('span', { class: 'small' }, ' this one') : ''),
    el('td', { title: why }, mark(state, kind)),
    el('td', {}, r.decides.length ? r.decides.join(', ') : '–'),
    el('td', { class: 'n' }, report ? count(report.requests) : '–'),
    el('td', { class: 'n' }, report ? count(report.held) : '–'),
    el('td', {}, report ? report.version || '–' : '–'));
}

const URGENT = ['waiting', 'paused'];

// urgent orders programs: those that wait for longest first, then the paused ones, then the largest.
export function urgent(a, b) {
  const rank = (p) => { const at = URGENT.indexOf(word(p.state)); return at < 0 ? URGENT.length : at; };
  return rank(a) - rank(b) || milliseconds(b.wait) - milliseconds(a.wait) || Number(b.resident_tokens) - Number(a.resident_tokens);
}

// pressure says how the programs of a model stand with the memory.
export function pressure(p) {
  const all = p.placed + p.paused + p.waiting;
  const text = `${p.model}: memory for ${count(p.placed)} programs`;
  if (all === p.placed) return el('p', { class: 'small' }, text);
  return el('p', { class: 'small warn' }, `${text}, ${count(all)} want it (${count(p.waiting)} wait, ${count(p.paused)} paused); ${count(p.replicas_needed)} replicas would do, there are ${count(p.replicas)}`);
}

// programRow is a line of the table of programs.
export function programRow(p) {
  const state = word(p.state), prompt = Number(p.prompt_tokens), wait = milliseconds(p.wait);
  return el('tr', { 'data-key': p.model + p.program_id },
    el('th', { scope: 'row', title: p.parent_id ? `started by ${p.parent_id}` : '' }, el('code', {}, p.program_id)),
    el('td', {}, el('span', { class: 'model', title: p.model }, p.model)),
    el('td', {}, p.tenant || '–'),
    el('td', {}, URGENT.includes(state) ? mark(state, 'warn') : state),
    el('td', {}, p.replica_id ? el('span', { class: 'name', title: p.replica_id }, p.replica_id) : '–', p.rank ? ` rank ${p.rank}` : ''),
    el('td', { class: 'n' }, count(Number(p.resident_tokens))),
    el('td', { class: 'n' }, count(Number(p.needed_tokens))),
    el('td', { class: 'n' }, count(Number(p.calls))),
    el('td', {}, prompt ? [meter(Number(p.cached_tokens) / prompt), el('span', { class: 'toks' }, share(Number(p.cached_tokens) / prompt))] : '–'),
    el('td', { class: 'n' }, wait ? units(ms(wait)) : '–'));
}

const endKind = { completed: 'plain', canceled: 'plain', 'handed over': 'plain', failed: 'bad', poisoned: 'bad', unserved: 'bad' };

function ending(d) {
  if (d.dry_run) return el('span', { class: 'soft' }, 'dry run');
  if (!d.outcome) return el('span', { class: 'soft' }, 'running');
  const end = word(d.outcome.end), kind = endKind[end] || 'warn';
  return kind === 'plain' ? el('span', {}, end) : mark(end, kind);
}

// decisionRow is a line of the list; the button in it opens the decision. Of its candidates only the chosen one is known.
export function decisionRow(d, policy, open) {
  const id = d.decision_id, pick = d.candidates[0], found = d.outcome?.cached_tokens, held = milliseconds(d.held);
  const overlap = pick ? tokens(pick) : 0;
  const miss = found < overlap - 64;
  const notes = [word(d.reason) !== 'cost' ? word(d.reason) : '', d.policy !== policy ? d.policy : ''].filter(Boolean).join(', ');
  return el('tr', { class: 'link' + (open === id ? ' open' : ''), 'data-key': id },
    el('td', {}, el('button', { class: 'row', type: 'button', 'aria-label': `${clock(d.time)}, ${d.replica_id || 'no replica'}: explain this decision` }, clock(d.time))),
    el('td', {}, el('span', { class: 'name', title: d.replica_id }, d.replica_id || '–'), d.rank ? ` rank ${d.rank}` : '', notes ? el('span', { class: 'small' }, ' ' + notes) : ''),
    el('td', {}, el('span', { class: 'model', title: d.model }, d.model)),
    el('td', { class: 'n' }, count(d.prompt_tokens)),
    el('td', {}, meter(d.prompt_tokens ? overlap / d.prompt_tokens : 0), el('span', { class: 'toks' }, count(overlap))),
    el('td', { class: 'n ' + (miss ? 'warn' : ''), title: miss ? 'the engine found less than was predicted' : '' }, found === undefined ? '–' : count(found)),
    el('td', { class: 'n' }, held ? units(ms(held)) : '–'),
    el('td', { class: 'n' }, pick ? units(ms(milliseconds(pick.ttft))) : '–'),
    el('td', { class: 'n' }, d.outcome?.ttft ? units(ms(milliseconds(d.outcome.ttft))) : '–'),
    el('td', {}, ending(d)));
}
