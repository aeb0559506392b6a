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
 * @property {(words: string) => void} say Say what was done.
 * @property {(job: number) => void} open Show a job.
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
 * A button that ends a job. The first click asks, the second one within some seconds does it.
 * @param {Context} context
 * @param {number} job
 * @param {boolean} [words] With a word rather than a picture.
 */
export function cancelButton(context, job, words) {
  let sure = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const cross = words ? S.cancelShort : icon(ICONS.close);
  /** @param {boolean} now */
  const ask = now => {
    sure = now;
    clearTimeout(timer);
    if (now) timer = setTimeout(() => ask(false), SURE);
    made.replaceChildren(now ? S.cancelAsk : cross);
    made.classList.toggle('gq-sure', now);
    attr(made, 'aria-label', now ? S.cancelSure(job) : S.cancel(job));
  };
  const made = button(words ? 'plain' : 'quiet', S.cancel(job), async event => {
    event.stopPropagation();
    if (!sure) {
      ask(true);
      return;
    }
    ask(false);
    made.disabled = true;
    await act(context, `/jobs/${job}/cancel`, {}, why => S.notCancelled(job, why));
    made.disabled = false;
  }, cross);
  made.addEventListener('blur', () => ask(false));
  attr(made, 'data-cancel', job);
  attr(made, 'aria-label', S.cancel(job));
  return made;
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
