// The share that a notebook's kernels ask for as they start, to be chosen here by its path.

import { may, reasonOf } from './actions.mjs';
import { button, h, put, show } from './dom.mjs';
import { S } from './strings.mjs';

/**
 * What `/share` tells of a notebook.
 * @typedef {{path: string, job: number | null, message?: string,
 *   chosen: {share: number | null, memory: number | null, gpus: number | null} | null}} Own
 */

const MIB = 1 << 20;

/**
 * A size as it is typed, exact for whole MiB.
 * @param {number} size In bytes.
 */
const typed = size => (size % (1024 * MIB) ? `${Math.round(size / MIB)}M` : `${size / (1024 * MIB)}G`);

/** @param {NonNullable<Own['chosen']>} chosen */
function chosenWords({ share, memory, gpus }) {
  return [
    share === null ? '' : `${share / 10}%`,
    memory === null ? '' : typed(memory),
    gpus === null || gpus === 1 ? '' : S.nextGpus(gpus),
  ].filter(Boolean).join(', ');
}

/** Two fields, and what is chosen now. */
export class NextStart {
  /**
   * @param {import('./actions.mjs').Context} context
   * @param {string} path Absolute, or below the server's root.
   */
  constructor(context, path) {
    this.context = context;
    this.path = path;
    this.busy = false;
    this.typed = false; // something that is not asked for yet
    /** @type {Own | null} */
    this.own = null;
    this.now = h('p', 'line', {});
    this.share = this.field('share', S.nextShareHint);
    this.memory = this.field('mem', S.nextMemoryHint);
    this.go = h('button', 'button primary', { type: 'submit', title: S.nextTip }, S.nextGo);
    this.forget = button('plain', S.nextForgetTip, () => void this.choose({}), S.nextForget);
    this.told = h('p', 'line', { role: 'status' });
    this.wrong = h('p', 'note wrong', { role: 'alert', hidden: true });
    this.form = h(
      'form', 'bar', { submit: event => this.submit(event) },
      h('label', 'labelled', {}, S.nextShare, this.share),
      h('label', 'labelled', {}, S.nextMemory, this.memory),
      this.go, this.forget,
    );
    this.root = h(
      'div', 'share', { role: 'group', 'aria-label': S.nextStart },
      this.now, this.form, this.told, this.wrong,
    );
    this.form.addEventListener('input', () => (this.typed = true));
    show(this.form, may(context, 'write'));
    show(this.forget, false);
    put(this.now, S.nextStart);
    void this.look();
  }

  /**
   * @param {string} name
   * @param {string} hint
   */
  field(name, hint) {
    return h('input', 'field', {
      name, placeholder: hint, size: 8, autocomplete: 'off', spellcheck: 'false', 'data-lm-suppress-shortcuts': 'true',
    });
  }

  /** Ask what is chosen. */
  async look() {
    try {
      const own = await this.context.home.source.ask('GET', `/share?path=${encodeURIComponent(this.path)}`);
      if (!this.own) this.draw(own); // else something was chosen meanwhile
    } catch (error) {
      put(this.wrong, reasonOf(error));
    }
  }

  /** @param {Own} own */
  draw(own) {
    this.own = own;
    const { chosen } = own;
    put(this.now, chosen ? S.nextIs(chosenWords(chosen)) : S.nextIsNone);
    show(this.forget, chosen !== null);
    if (this.typed) return;
    this.share.value = chosen && chosen.share !== null ? String(chosen.share / 1000) : '';
    this.memory.value = chosen && chosen.memory !== null ? typed(chosen.memory) : '';
  }

  /** @param {Event} event */
  submit(event) {
    event.preventDefault();
    const share = this.share.value.trim();
    const mem = this.memory.value.trim();
    if (!share && !mem) {
      put(this.wrong, S.nextNothing);
      this.share.focus();
      return;
    }
    const gpus = this.own?.chosen?.gpus;
    void this.choose({ ...(share && { share }), ...(mem && { mem }), ...(gpus && { gpus }) });
  }

  /** @param {Record<string, string | number>} asked Nothing: what was chosen is forgotten. */
  async choose(asked) {
    if (this.busy) return;
    this.busy = this.go.disabled = true;
    put(this.wrong, '');
    put(this.told, '');
    const forgets = document.activeElement === this.forget;
    try {
      /** @type {Own} */
      const answer = await this.context.home.source.ask('POST', '/share', { path: this.path, ...asked });
      this.typed = false;
      this.draw(answer);
      put(this.told, answer.message || (answer.chosen ? S.nextNoted : S.nextForgotten));
    } catch (error) {
      put(this.wrong, S.nextRefused(reasonOf(error)));
    }
    this.busy = this.go.disabled = false;
    if (forgets || document.activeElement === document.body) this.share.focus();
    this.context.follow.changed();
  }
}
