// Small pieces of the page. Text only ever becomes text nodes, never markup.

export function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== '' && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((c) => c !== '' && c !== null && c !== undefined));
  return node;
}

export function ms(v) {
  if (v === undefined || v === null) return '–';
  if (v >= 10000) return (v / 1000).toFixed(0) + ' s';
  if (v >= 1000) return (v / 1000).toFixed(1) + ' s';
  if (v >= 10 || v === 0) return v.toFixed(0) + ' ms';
  return v.toFixed(1) + ' ms';
}

export function count(v) {
  if (v >= 10e6) return (v / 1e6).toFixed(0) + ' M';
  if (v >= 1e6) return (v / 1e6).toFixed(1) + ' M';
  if (v >= 100e3) return (v / 1e3).toFixed(0) + ' k';
  return Math.round(v).toLocaleString('en');
}

export function share(v) { return (100 * v).toFixed(v > 0 && v < 0.1 ? 1 : 0) + ' %'; }

export function clock(t) { return new Date(t).toLocaleTimeString('en-GB'); }

export function pill(text, kind) { return el('span', { class: 'pill ' + (kind || '') }, text); }

export function meter(v) {
  const bar = el('i');
  bar.style.width = (100 * Math.min(1, Math.max(0, v))).toFixed(1) + '%';
  return el('span', { class: 'meter', role: 'presentation' }, bar);
}
