// What a person does to jobs, and what is said when it did not work.

import { ICONS, attr, button, h, icon } from './dom.mjs';
import { Refused } from './source.mjs';
import { S } from './strings.mjs';

const SURE = 5000;

/** @param {unknown} error */
export const reasonOf = error => S.failed(error instanceof Refused ? error.message : '');

/**
 * @typedef {object} Context What all parts of one view share.
 * @property {import('./follow.mjs').Follow} follow
 * @property {import('./types.mjs').Home} home
 * @property {(words: string) => void} warn Say what went wrong, or nothing.
 * @property {(words: string, undo?: () => void) => void} say Say what was done, and let it be undone.
 * @property {(job: number) => void} open Show a job.
 * @property {import('./picks.mjs').Picks} picks What is chosen.
 * @property {import('./tones.mjs').Tones} tones Which colour a job has.
 */

/**
 * What the one who looks may do; where the server does not tell, it will say no by itself.
 * @param {Context} context
 * @param {'write' | 'execute'} action
 */
export function may(context, action) {
  const status = context.follow.status;
  const found = status && status.server.may;
  return found ? found[action] : true;
}

/**
 * Do something, and say what came of it.
 * @param {Context} context
 * @param {string} path
 * @param {unknown} body
 * @param {(words: string) => string} failed What to say where it was refused.
 */
export async function act(context, path, body, failed) {
  context.warn('');
  try {
    return await context.home.source.ask('POST', path, body);
  } catch (error) {
    context.warn(failed(reasonOf(error)));
    return null;
  } finally {
    context.follow.changed();
  }
}

/**
 * What a button that asks once shows.
 * @typedef {object} Faces
 * @property {() => Node | string} face
 * @property {() => string | null} label What is read out; null for what it shows.
 * @property {() => string} sure What it shows while it asks.
 * @property {() => string | null} sureLabel
 */

/**
 * A button whose first click asks; the second one within some seconds does it.
 * @param {string} kind
 * @param {Faces} faces
 * @param {() => Promise<unknown>} go
 */
export function sureButton(kind, faces, go) {
  let sure = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const draw = () => {
    const face = sure ? faces.sure() : faces.face();
    if (typeof face !== 'string' || node.textContent !== face) node.replaceChildren(face);
    node.classList.toggle('gq-sure', sure);
    attr(node, 'aria-label', sure ? faces.sureLabel() : faces.label());
  };
  /** @param {boolean} now */
  const ask = now => {
    sure = now;
    clearTimeout(timer);
    if (now) timer = setTimeout(() => ask(false), SURE);
    draw();
  };
  const node = h('button', `button ${kind}`, { type: 'button' });
  node.addEventListener('click', async event => {
    event.stopPropagation();
    if (!sure) {
      ask(true);
      return;
    }
    ask(false);
    node.disabled = true;
    await go();
    node.disabled = false;
  });
  node.addEventListener('blur', () => ask(false));
  return { node, draw };
}

/**
 * End a job. One that had not begun is gone without a loss, so that can be undone.
 * @param {Context} context
 * @param {number} id
 * @param {(why: string) => string} failed
 */
async function cancel(context, id, failed) {
  const queue = context.picks.queue;
  const next = queue && queue.index(id) >= 0 ? queue.at(queue.index(id) + 1) : undefined;
  const followers = context.follow.status?.waiting.some(job => job.request.after.includes(id));
  const untold = context.home.cancels?.(id);
  const job = await act(context, `/jobs/${id}/cancel`, {}, failed);
  if (!job) untold?.();
  if (!job || job.state !== 'cancelled' || job.attempt || !may(context, 'execute')) return;
  // what waits for a cell or a function has heard of it, and so have the jobs that come after it
  const whole = ['script', 'notebook'].includes(job.kind) && !followers;
  context.say(S.cancelled(id), whole ? () => void undo(context, id, next?.id) : undefined);
}

/**
 * Queue a cancelled job's work again, where it was.
 * @param {Context} context
 * @param {number} id
 * @param {number | undefined} next The job that came after it in the queue.
 */
async function undo(context, id, next) {
  const again = await act(context, `/jobs/${id}/retry`, {}, why => S.notRetried(id, why));
  if (!again) return;
  context.say(S.uncancelled(id, again.id));
  // one that has begun meanwhile is no place to go to: it waits at the end of its priority then
  if (next) await context.home.source.ask('POST', `/jobs/${again.id}/move`, { before: next }).catch(() => {});
  context.follow.changed();
}

/**
 * A button that ends a job; it asks once.
 * @param {Context} context
 * @param {number} job
 * @param {boolean} [words] With a word rather than a picture.
 * @param {string} [notebook] Whose kernel the job is, where it is one: it says that the kernel ends.
 */
export function cancelButton(context, job, words, notebook) {
  const kernel = notebook !== undefined;
  const short = kernel ? S.shutDownShort : S.cancelShort;
  const cross = words ? short : icon(ICONS.close);
  const name = kernel ? S.shutDown(notebook) : S.cancel(job);
  const { node, draw } = sureButton(words ? 'plain' : 'quiet', {
    face: () => cross,
    label: () => name,
    sure: () => (kernel ? S.shutDownAsk : S.cancelAsk),
    sureLabel: () => (kernel ? S.shutDownSure(notebook) : S.cancelSure(job)),
  }, () => cancel(context, job, why => (kernel ? S.notShutDown(notebook, why) : S.notCancelled(job, why))));
  draw();
  attr(node, 'title', kernel ? S.shutDownTip(notebook) : name);
  attr(node, 'data-cancel', job);
  return node;
}

/**
 * A button that queues an ended job's work again.
 * @param {Context} context
 * @param {number} job
 * @param {boolean} [words] With words rather than a picture.
 */
export function retryButton(context, job, words) {
  const made = button(
    words ? 'plain' : 'quiet',
    S.retry(job),
    async event => {
      event.stopPropagation();
      made.disabled = true;
      const failed = /** @param {string} why */ why => S.notRetried(job, why);
      const again = await act(context, `/jobs/${job}/retry`, {}, failed);
      if (again) context.say(S.retried(job, again.id));
      made.disabled = false;
    },
    words ? S.retryShort : icon(ICONS.retry),
  );
  return made;
}

/**
 * Put a text where pasting finds it.
 * @param {Context} context
 * @param {string} text
 */
export async function copy(context, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // pages that are not from this machine nor by TLS have no clipboard
    const field = h('textarea', '', {});
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand('copy');
    field.remove();
    if (!done) {
      context.warn(S.notCopied);
      return;
    }
  }
  context.say(S.copied);
}
