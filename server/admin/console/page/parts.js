// Small pieces of the page. Text only ever becomes text nodes, never markup.

export function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== '' && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== '' && c !== null && c !== undefined));
  return node;
}

export function ms(v) {
  if (v === undefined || v === null) return '–';
  if (v >= 10000) return (v / 1000).toFixed(0) + ' s';
  if (v >= 1000) return (v / 1000).toFixed(1) + ' s';
  if (v >= 10 || v === 0) return v.toFixed(0) + ' ms';
  if (v <= -10) return v.toFixed(0) + ' ms';
  return v.toFixed(v > -0.1 && v < 0.1 ? 2 : 1) + ' ms';
}

export function count(v) {
  if (v >= 10e6) return (v / 1e6).toFixed(0) + ' M';
  if (v >= 1e6) return (v / 1e6).toFixed(1) + ' M';
  if (v >= 100e3) return (v / 1e3).toFixed(0) + ' k';
  return Math.round(v).toLocaleString('en');
}

export function bytes(v) {
  if (v >= 1 << 30) return (v / (1 << 30)).toFixed(1) + ' GiB';
  if (v >= 1 << 20) return (v / (1 << 20)).toFixed(0) + ' MiB';
  return (v / 1024).toFixed(0) + ' KiB';
}

export function share(v) { return (100 * v).toFixed(v > 0 && v < 0.1 ? 1 : 0) + ' %'; }

export function clock(t) { return new Date(t).toLocaleTimeString('en-GB'); }

export function duration(seconds) {
  const m = Math.floor(seconds / 60);
  if (m < 1) return `${Math.max(0, Math.floor(seconds))} s`;
  if (m < 120) return `${m} min`;
  return m < 2880 ? `${Math.floor(m / 60)} h` : `${Math.floor(m / 1440)} days`;
}

export function pill(text, kind) { return el('span', { class: 'pill ' + (kind || '') }, text); }

// meter is a bar of one or more shares of the whole: [share, class] each.
export function meter(...shares) {
  let left = 1;
  const bars = shares.map((s) => {
    const [v, kind] = Array.isArray(s) ? s : [s, ''];
    const bar = el('i', { class: kind });
    const width = Math.min(left, Math.max(0, v));
    left -= width;
    bar.style.width = (100 * width).toFixed(1) + '%';
    return bar;
  });
  return el('span', { class: 'meter', role: 'presentation' }, bars);
}

export async function ask(path, options) {
  const answer = await fetch(path, options);
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error || answer.statusText);
  return value;
}
