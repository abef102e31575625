// Line charts of the last minutes, in SVG. A pointer over one reads its values at that time.

import { el, clock } from './parts.js';

const LONGEST = 300; // seconds; a router that is younger is drawn closer
const SHORTEST = 60;
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
  for (const m of [1, 2, 2.5, 5, 10]) if (v <= m * unit) return m * unit;
  return 10 * unit;
}

// runs splits points where more than five seconds are missing.
function runs(points) {
  const list = [];
  for (const p of points) {
    const run = list.at(-1);
    if (run && p[0] - run.at(-1)[0] <= 5) run.push(p);
    else list.push([p]);
  }
  return list;
}

// valueAt is a line's value at second t, or the last one shortly before.
function valueAt(line, t) {
  const p = line.points.findLast((q) => q[0] <= t);
  return p && t - p[0] <= 5 ? p[1] : null;
}

// chart draws lines of [second, value] up to second end into a figure with a caption and a box.
export function chart(figure, end, lines, { max, show }) {
  const since = end - LONGEST;
  lines = lines.map((l) => ({ ...l, points: l.points.filter((p) => p[0] > since && p[0] <= end) }));
  const first = Math.min(...lines.flatMap((l) => l.points.slice(0, 1).map((p) => p[0])), end);
  const span = end - first < SHORTEST ? SHORTEST : LONGEST;
  figure.drawn = { end, span, lines, top: max || nice(Math.max(...lines.flatMap((l) => l.points.map((p) => p[1])), 0)), show };
  if (!figure.followed) {
    figure.followed = true;
    const box = figure.querySelector('.chart');
    box.addEventListener('pointermove', (e) => {
      const r = box.getBoundingClientRect();
      figure.at = (e.clientX - r.left) / r.width;
      draw(figure);
    });
    box.addEventListener('pointerleave', () => { figure.at = undefined; draw(figure); });
  }
  draw(figure);
}

function draw(figure) {
  const { end, span, lines, top, show } = figure.drawn;
  const x = (t) => 300 * (1 - (end - t) / span);
  const y = (v) => 100 - 100 * Math.min(1, v / top);
  const root = svg('svg', { viewBox: '0 0 300 100', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  for (const at of [0, 50, 100]) root.append(svg('line', { class: 'grid', x1: 0, x2: 300, y1: at, y2: at }));
  for (const line of [...lines].reverse()) {
    for (const run of runs(line.points)) {
      const d = run.map(([t, v], i) => `${i ? 'L' : 'M'}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join('');
      if (line.fill) root.append(svg('path', { class: 'area', d: `${d}L${x(run.at(-1)[0]).toFixed(1)} 100L${x(run[0][0]).toFixed(1)} 100Z` }));
      root.append(svg('path', { class: line.c, d: run.length > 1 ? d : d + 'h.01', 'stroke-linecap': 'round' }));
    }
  }
  const looked = figure.at === undefined ? null : Math.round(end - span + span * figure.at);
  if (looked !== null) root.append(svg('line', { class: 'cursor', x1: x(looked), x2: x(looked), y1: 0, y2: 100 }));
  figure.querySelector('.chart').replaceChildren(root, el('span', { class: 'high' }, show(top)), el('span', { class: 'low' }, show(0)), el('span', { class: 'back' }, span === LONGEST ? 'last 5 minutes' : 'last minute'));
  const values = lines.map((l) => [l, valueAt(l, looked ?? end)]);
  const any = lines.some((l) => l.points.length);
  figure.querySelector('.key').replaceChildren(
    ...(looked !== null ? [el('span', {}, clock(looked * 1000))] : []),
    ...(any ? values.map(([l, v]) => el('span', {}, lines.length > 1 ? el('i', { class: 'key-' + l.c }) : '', l.name ? l.name + ' ' : '', el('b', {}, v === null ? '–' : show(v)))) : [el('span', {}, 'no data yet')]));
}
