// Which decisions are listed: a form, kept in the address so that it can be shared.

const NAMES = ['show', 'model', 'replica', 'tenant'];

// read is the filter that the address names.
function read() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(NAMES.map((n) => [n, query.get(n) || '']));
}

// keep writes names and values into the address; empty ones are left out.
export function keep(values) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(values)) {
    if (value) url.searchParams.set(name, value); else url.searchParams.delete(name);
  }
  if (url.href !== location.href) history.replaceState(null, '', url);
}

// filterOf makes the form follow the address and the address the form. changed is called with each new filter.
export function filterOf(form, clear, changed) {
  const state = { now: read() };
  const show = () => {
    for (const n of NAMES) form.elements[n].value = state.now[n];
    clear.hidden = !NAMES.some((n) => state.now[n]);
  };
  const set = (values) => {
    state.now = { ...state.now, ...values };
    keep(state.now);
    show();
    changed(state.now);
  };
  show();
  form.addEventListener('submit', (e) => e.preventDefault());
  form.addEventListener('change', () => set(Object.fromEntries(NAMES.map((n) => [n, form.elements[n].value.trim()]))));
  clear.addEventListener('click', () => { set(Object.fromEntries(NAMES.map((n) => [n, '']))); form.elements.show.focus(); });
  return { get now() { return state.now; }, get any() { return NAMES.some((n) => state.now[n]); }, set };
}

// names fills the suggestions of a field.
export function names(list, values) {
  const text = values.join('\n');
  if (list.dataset.names === text) return;
  list.dataset.names = text;
  list.replaceChildren(...values.map((v) => Object.assign(document.createElement('option'), { value: v })));
}
