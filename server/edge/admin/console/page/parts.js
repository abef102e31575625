// Small pieces of the page. Text only ever becomes text nodes, never markup.

export function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== '' && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== '' && c !== null && c !== undefined));
  return node;
}

// sync makes the children of parent equal to nodes and keeps existing ones, so that
// a selection, a focus and a scroll position outlive the next second. Rows with a data-key are
// only ever themselves. Listeners of nodes are not carried over: parents listen for them.
export function sync(parent, ...nodes) {
  let old = parent.firstChild;
  for (const node of nodes.flat(Infinity)) {
    if (!old) parent.append(node);
    else if (old.nodeName !== node.nodeName || old.dataset?.key !== node.dataset?.key) {
      parent.replaceChild(node, old);
      old = node.nextSibling;
    } else {
      if (old.nodeType === Node.TEXT_NODE) { if (old.data !== node.data) old.data = node.data; } else adopt(old, node);
      old = old.nextSibling;
    }
  }
  while (old) {
    const next = old.nextSibling;
    old.remove();
    old = next;
  }
}

function adopt(old, node) {
  for (const a of [...old.attributes]) if (!node.hasAttribute(a.name)) old.removeAttribute(a.name);
  for (const a of node.attributes) if (a.name !== 'style' && old.getAttribute(a.name) !== a.value) old.setAttribute(a.name, a.value);
  if (old.style.cssText !== node.style.cssText) old.style.cssText = node.style.cssText;
  sync(old, ...node.childNodes);
}

// say writes a text where a screen reader listens, and only when it is news.
export function say(node, text) { if (node.textContent !== text) node.textContent = text; }

export function ms(v) {
  if (v === undefined || v === null) return '–';
  if (v >= 100000) return (v / 1000).toFixed(0) + ' s';
  if (v >= 1000) return (v / 1000).toFixed(v >= 10000 ? 1 : 2) + ' s';
  if (Math.abs(v) >= 10 || v === 0) return v.toFixed(0) + ' ms';
  return v.toFixed(Math.abs(v) < 0.1 ? 2 : 1) + ' ms';
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

// units sets the unit of a text such as "12 ms" back, so that the numbers stand out.
export function units(text) {
  const at = text.search(/ ?(ms|s|%|M|k|\/s)$/);
  return at < 1 ? text : [text.slice(0, at), el('span', { class: 'u' }, text.slice(at).replace(' ', '\u202f'))];
}

// mark is a word for how something is. What is as it should be stays quiet.
export function mark(text, kind) { return el('span', { class: (kind === 'warn' || kind === 'bad' ? 'pill ' : 'mark ') + (kind || '') }, text); }

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
  return el('span', { class: 'meter', 'aria-hidden': 'true' }, bars);
}
