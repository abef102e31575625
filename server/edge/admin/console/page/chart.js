// Line charts of the last minutes or the last hour, in SVG. A pointer over one reads its values at that time.

import { el, clock, units } from './parts.js';

const NS = 'http://www.w3.org/2000/svg';

function svg(name, attributes) {
  const node = document.createElementNS(NS, name);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  return node;
}

// nice rounds a maximum up to a number that reads well on an axis.
function nice(v) {
  if (v <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(v));
  for (const m of [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10]) if (v <= m * unit) return m * unit;
  return 10 * unit;
}

// runs splits points where several are missing.
function runs(points, gap) {
  const list = [];
  for (const p of points) {
    const run = list.at(-1);
    if (run && p[0] - run.at(-1)[0] <= gap) run.push(p);
    else list.push([p]);
  }
  return list;
}

// valueAt is a line's value at second t, or the last one shortly before.
function valueAt(line, t, gap) {
  const p = line.points.findLast((q) => q[0] <= t);
  return p && t - p[0] <= gap ? p[1] : null;
}

// chart draws lines of [second, value] of a history up to second end into a figure with a caption and a box.
export function chart(figure, { end, span, step }, lines, { max, show }) {
  const gap = Math.max(5, 2 * step);
  lines = lines.map((l) => ({ ...l, points: l.points.filter((p) => p[0] > end - span && p[0] <= end) }));
  const values = lines.flatMap((l) => l.points.map((p) => p[1]));
  figure.drawn = { end, span, gap, lines, top: max || nice(Math.max(...values, 0)), show };
  if (!figure.followed) {
    figure.followed = true;
    const box = figure.querySelector('.chart');
    box.addEventListener('pointermove', (e) => {
      const r = box.getBoundingClientRect();
      figure.at = Math.min(1, Math.max(0, (e.clientX - r.left) / r.width));
      draw(figure);
    });
    box.addEventListener('pointerleave', () => { figure.at = undefined; draw(figure); });
  }
  draw(figure);
}

function draw(figure) {
  const { end, span, gap, lines, top, show } = figure.drawn;
  const x = (t) => 300 * (1 - (end - t) / span);
  const y = (v) => 100 - 100 * Math.min(1, v / top);
  const root = svg('svg', { viewBox: '0 0 300 100', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  for (const at of [0, 50, 100]) root.append(svg('line', { class: 'grid', x1: 0, x2: 300, y1: at, y2: at }));
  for (const line of [...lines].reverse().sort((a, b) => (a.above || false) - (b.above || false))) {
    for (const run of runs(line.points, gap)) {
      const d = run.map(([t, v], i) => `${i ? 'L' : 'M'}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join('');
      if (line.fill) root.append(svg('path', { class: 'area ' + line.kind, d: `${d}L${x(run.at(-1)[0]).toFixed(1)} 100L${x(run[0][0]).toFixed(1)} 100Z` }));
      root.append(svg('path', { class: `line ${line.kind}${line.above ? ' above' : ''}`, d: run.length > 1 ? d : d + 'h.01' }));
    }
  }
  const looked = figure.at === undefined ? null : Math.round(end - span + span * figure.at);
  if (looked !== null) root.append(svg('line', { class: 'cursor', x1: x(looked), x2: x(looked), y1: 0, y2: 100 }));
  const any = lines.some((l) => l.points.length);
  figure.querySelector('.chart').replaceChildren(root, any ? el('span', { class: 'high' }, show(top).replace(/\.0+(?= )/, '')) : '',
    el('span', { class: 'from' }, clock((end - span) * 1000)), el('span', { class: 'to' }, clock(end * 1000)));
  const values = lines.map((l) => [l, valueAt(l, looked ?? end, gap)]);
  figure.querySelector('.key').replaceChildren(
    ...(looked !== null ? [el('span', {}, clock(looked * 1000))] : []),
    ...(any ? values.map(([l, v]) => el('span', {}, lines.length > 1 ? el('i', { class: l.kind }) : '', l.name ? l.name + ' ' : '', el('b', {}, v === null ? '–' : units(show(v))))) : [el('span', {}, 'no data yet')]));
}
