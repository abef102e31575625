// The table of split models and their sides.
import { el, mark, units, ms, count, share } from './parts.js';
import { milliseconds } from './router.js';

const time = (d) => d ? units(ms(milliseconds(d))) : '–';

function state(side) {
  if (side.stepped_back_since) return mark('stepped back', 'bad');
  if (!side.ready) return mark('not ready', 'warn');
  if (side.worse) return mark('worse', 'warn');
  return side.baseline ? 'baseline' : 'compared';
}

// splitRows are the lines of one split.
export function splitRows(split) {
  const sum = split.sides.reduce((n, s) => n + s.weight, 0) || 1;
  return split.sides.map((s) => el('tr', { 'data-key': JSON.stringify([split.model, s.side]) },
    el('th', { scope: 'row' }, el('span', { class: 'name', title: s.side }, s.side)),
    el('td', {}, el('span', { class: 'model', title: split.model }, split.model)),
    el('td', { class: 'n' }, share(s.weight / sum)),
    el('td', {}, state(s)),
    el('td', { class: 'n' }, count(s.requests)),
    el('td', { class: 'n' }, s.requests ? share(s.failed / s.requests) : '–'),
    el('td', { class: 'n' }, time(s.ttft_p50)),
    el('td', { class: 'n' }, time(s.ttft_p99)),
    el('td', { class: 'n' }, time(s.answer_p50)),
    el('td', { class: 'n' }, time(s.answer_p99)),
    el('td', { class: 'n' }, s.shadow_regret ? units(ms(milliseconds(s.shadow_regret))) : '–')));
}

// splitNotes say why sides stepped back or are worse.
export function splitNotes(split) {
  return split.sides.filter((s) => s.stepped_back_why || s.worse).map((s) => el('p', { class: 'small warn', 'data-key': JSON.stringify([split.model, s.side]) },
    `${s.side} of ${split.model} ${s.stepped_back_why ? `stepped back (${s.stepped_back_by}): ${s.stepped_back_why}` : `is worse: ${s.worse}`}`));
}
