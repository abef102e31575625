// Traces as waterfalls.

import { el, ms, clock, units, mark, meter } from './parts.js';
import { toTrace } from './links.js';

// showTraces draws each trace as a waterfall.
export function showTraces(box, traces) {
  if (!traces || !traces.length) {
    box.replaceChildren(el('p', { class: 'empty' }, 'No traces yet. They are recorded when ', el('code', {}, 'telemetry.traces.ratio'), ' is above zero and a request has come.'));
    return;
  }
  const slowest = Math.max(...traces.map((t) => t.duration_ms), 0.001);
  box.replaceChildren(...traces.map((t) => {
    const about = t.spans.find((s) => s.name === t.name)?.attributes || {};
    const where = about['kvpilot.replica.id'];
    const details = el('details', { class: 'trace', 'data-trace': t.trace_id },
      el('summary', {}, el('span', { class: 'small' }, clock(t.time)), el('span', { class: 'long' }, meter(t.duration_ms / slowest), el('span', {}, units(ms(t.duration_ms)))),
        el('span', {}, t.failed ? [mark('failed', 'bad'), ' '] : '', el('b', {}, t.name), where ? ` → ${where}` : ''), el('code', { class: 'small', title: t.trace_id }, t.trace_id)));
    details.addEventListener('toggle', () => { if (details.open && details.children.length === 1) details.append(waterfall(t), el('p', { class: 'small' }, toTrace(t.trace_id))); });
    return details;
  }));
}

// openTrace shows one of the traces that are loaded, and reports whether it is there.
export function openTrace(box, id) {
  const details = box.querySelector(`[data-trace="${CSS.escape(id)}"]`);
  if (!details) return false;
  details.open = true;
  details.querySelector('summary').focus({ preventScroll: true });
  details.scrollIntoView({ block: 'center' });
  return true;
}

// ordered lists spans as a tree reads: each followed by what lies below it, by their beginnings.
function ordered(spans) {
  const below = new Map();
  const ids = new Set(spans.map((s) => s.span_id));
  for (const s of spans) {
    const parent = ids.has(s.parent_span_id) ? s.parent_span_id : '';
    below.set(parent, [...(below.get(parent) || []), s]);
  }
  const list = [];
  const walk = (parent, depth) => {
    for (const s of (below.get(parent) || []).sort((a, b) => a.start_ms - b.start_ms)) {
      list.push([s, depth]);
      if (depth < 20) walk(s.span_id, depth + 1);
    }
  };
  walk('', 0);
  return list;
}

function waterfall(t) {
  const total = Math.max(t.duration_ms, 0.001);
  const place = (v) => (100 * Math.min(total, Math.max(0, v)) / total).toFixed(2) + '%';
  const rows = ordered(t.spans).flatMap(([s, depth]) => {
    const facts = [...Object.entries(s.attributes || {}).sort(), ...(s.events || []).map((e) => [e.name, `after ${ms(e.at_ms)}`])];
    const list = el('dl', { hidden: true }, facts.map(([k, v]) => [el('dt', {}, k), el('dd', {}, v)]));
    const name = el('button', { class: 'step', type: 'button', 'aria-expanded': 'false', disabled: facts.length === 0 && 'disabled' }, s.name);
    name.addEventListener('click', () => { list.hidden = !list.hidden; name.setAttribute('aria-expanded', !list.hidden); });
    name.style.paddingLeft = 0.2 + depth * 0.9 + 'rem';
    const bar = el('i', { class: s.failed ? 'bad' : '' });
    bar.style.left = place(s.start_ms);
    bar.style.width = (100 * Math.min(s.duration_ms, total - Math.max(0, s.start_ms)) / total).toFixed(2) + '%';
    const ticks = (s.events || []).map((e) => {
      const tick = el('em', { title: `${e.name} after ${ms(e.at_ms)}` });
      tick.style.left = place(e.at_ms);
      return tick;
    });
    return [name, el('div', { class: 'lane' }, bar, ticks), el('span', { class: 'took' }, units(ms(s.duration_ms))), list];
  });
  const ruler = el('div', { class: 'ruler', 'aria-hidden': 'true' }, [0, 0.5, 1].map((q) => el('span', {}, q ? ms(q * total) : '0')));
  return el('div', { class: 'fall' }, ruler, el('span'), rows);
}
