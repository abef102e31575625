// Draining a replica, with a question before.

import { el, say } from './parts.js';
import * as router from './router.js';

// drainButton is the button of a replica's row; the table listens for it.
export function drainButton(r) {
  const what = r.drained ? 'Undrain' : 'Drain';
  return el('button', { class: 'act', type: 'button', 'data-drain': r.replica_id, 'data-undo': r.drained ? 'yes' : '', 'aria-label': `${what} ${r.replica_id}` }, what);
}

// ask opens the dialog for the replica of a button. others is how many other replicas are ready.
export function ask(dialog, button, others) {
  const id = button.dataset.drain, undo = Boolean(button.dataset.undo);
  const error = dialog.querySelector('.error');
  say(dialog.querySelector('h2'), undo ? `Send requests to ${id} again?` : `Drain ${id}?`);
  say(dialog.querySelector('p'), undo ? 'New requests may go there as soon as it is ready.'
    : `New requests go to other replicas; those under way finish. It stays drained, over restarts of the replica too, until someone undrains it.${others ? '' : ' No other replica is ready: requests will wait, and then be answered 503.'}`);
  say(error, '');
  const reason = dialog.querySelector('input');
  reason.value = '';
  reason.parentElement.hidden = undo;
  const yes = dialog.querySelector('button[value=yes]');
  yes.textContent = undo ? 'Undrain' : 'Drain';
  reason.onkeydown = (e) => { // the key would press the first button, Cancel
    if (e.key !== 'Enter') return;
    e.preventDefault();
    yes.focus();
  };
  dialog.onclose = () => document.querySelector(`[data-drain="${CSS.escape(id)}"]`)?.focus();
  yes.onclick = async (e) => {
    e.preventDefault();
    yes.disabled = true;
    try {
      await (undo ? router.undrain(id) : router.drain(id, others === 0, reason.value.trim())); // the question has said what that means
      dialog.close();
    } catch (bad) {
      say(error, bad.message);
    } finally {
      yes.disabled = false;
    }
  };
  dialog.showModal();
}
