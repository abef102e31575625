// Links to other programs, as the router's settings name them.

import { el } from './parts.js';

let templates = { trace: '', dashboard: '' };

// use keeps the templates that the router reports.
export function use(links) { templates = { trace: '', dashboard: '', ...links }; }

function link(template, names, text) {
  if (!template) return '';
  const url = template.replace(/\{(\w+)\}/g, (all, name) => name in names ? encodeURIComponent(names[name]) : all);
  if (!/^https?:\/\//.test(url)) return ''; // the router admits no others
  return el('a', { href: url, target: '_blank', rel: 'noopener noreferrer' }, text);
}

// toTrace leads to a trace, toDashboard to the figures of a model or replica; empty without such a program.
export const toTrace = (id) => link(templates.trace, { trace_id: id }, 'all spans');
export const toDashboard = (model, replica) => link(templates.dashboard, { model, replica }, 'dashboard');
