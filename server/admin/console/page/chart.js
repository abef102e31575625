// A line chart of the last five minutes in SVG.

const SPAN = 300;
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

export function chart(box, end, lines, { max, show }) {
  const top = max || nice(Math.max(...lines.flatMap((l) => l.points.map((p) => p[1])), 0));
  const root = svg('svg', { viewBox: '0 0 300 100', preserveAspectRatio: 'none', role: 'img' });
  for (const y of [0, 50, 100]) root.append(svg('line', { class: 'grid', x1: 0, x2: 300, y1: y, y2: y }));
  let last = null;
  for (const line of lines) {
    let d = '';
    let before = null;
    for (const [t, v] of line.points) {
      const x = 300 - (end - t);
      if (x < 0) continue;
      const y = 100 - 100 * Math.min(1, v / top);
      d += `${before !== null && t - before <= 5 ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
      before = t;
      last = v;
    }
    if (d) root.append(svg('path', { class: line.c, d: d + 'h.01', 'stroke-linecap': 'round' }));
  }
  root.setAttribute('aria-label', last === null ? 'no data yet' : `now ${show(last)}, at most ${show(top)} on this scale`);
  const now = document.createElement('span');
  now.className = 'now';
  now.textContent = last === null ? 'no data yet' : show(last);
  const scale = document.createElement('span');
  scale.className = 'small';
  scale.style.cssText = 'position:absolute;left:0;top:-.2rem';
  scale.textContent = show(top);
  box.replaceChildren(root, scale, now);
}
