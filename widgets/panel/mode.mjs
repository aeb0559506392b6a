// Who has the GPUs: the queue or the people, who said so, what is still held, and the buttons that change it.

import { act, cancelButton, may } from './actions.mjs';
import { Rows, attr, button, h, put, show } from './dom.mjs';
import { bytes, clock } from './format.mjs';
import { jobsRunning } from './rows.mjs';
import { S } from './strings.mjs';

const MOST = 8;

/**
 * Something that is still on a GPU, or was moved from it, while people have the GPUs.
 * @typedef {{key: string, job: number, tag: string, words: string, notebook: boolean, ends: boolean}} Held
 */

/** @param {import('./types.mjs').Mode} mode */
function heldBy(mode) {
  const all = mode.holding || [];
  const holding = [...new Map(all.map(one => [one.job, one])).values()].map(({ job, tag, notebook }) => ({
    key: `h${job}`, job, tag, notebook: Boolean(notebook), ends: true,
    words: S.holding(all.filter(one => one.job === job).map(one =>
      S.holdingOf(typeof one.memory === 'number' ? bytes(one.memory) : null, one.gpu ?? null))),
  }));
  const moved = (mode.moved || []).filter(one => one.memory > 0).map(one => ({
    key: `m${one.job} ${one.gpu}`, job: one.job, tag: one.tag, notebook: false, ends: false,
    words: S.onHost(bytes(one.memory), one.gpu ?? null),
  }));
  return [...holding, ...moved];
}

/**
 * What came of `free` or `resume`, as one sentence whatever the number of jobs.
 * @param {any} answer
 */
export function answerWords(answer) {
  if (!answer.mode || !Array.isArray(answer.jobs)) return String(answer.message || '').split('\n')[0];
  if (!answer.jobs.length && answer.sentence) return String(answer.sentence); // it was so already
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { does } of answer.jobs) counts.set(does, (counts.get(does) || 0) + 1);
  const told = Object.entries(S.does).flatMap(([does, words]) => {
    const count = counts.get(does);
    return count ? [words(count)] : [];
  });
  const head = answer.mode.name === 'normal' ? S.freeOver : S.freeNow;
  return told.length ? `${head.slice(0, -1)}: ${told.join(', ')}.` : head;
}

export class ModeBar {
  /**
   * @param {import('./actions.mjs').Context} context
   * @param {() => void} submit Opens the form.
   */
  constructor(context, submit) {
    this.context = context;
    this.pressed = false;
    this.name = h('span', 'chip', {});
    this.words = h('p', 'dim', {});
    this.free = button('primary', S.freeFullTip, () => void this.ask('/free', { soft: false }), S.freeFull);
    this.soft = button('plain', S.freeSoftTip, () => void this.ask('/free', { soft: true }), S.freeSoft);
    this.resume = button('primary', S.resumeTip, () => void this.ask('/resume', {}), S.resume);
    this.submit = button('plain', S.submit, submit, S.submitShort);
    this.list = h('ul', 'rows held', { 'aria-label': S.stillHeld });
    this.more = h('p', 'line', {});
    this.counts = h('span', 'dim num', {});
    this.root = h(
      'div', 'mode', {},
      h('div', 'head', {}, context.home.titled ? h('h1', '', {}, S.title) : null, this.name, this.counts, h('span', 'grow', {}), this.free, this.soft, this.resume, this.submit),
      this.words, this.list, this.more,
    );
    this.rows = new Rows(
      this.list,
      /** @param {Held} one */ one => this.row(one),
      (node, one) => put(/** @type {HTMLElement} */ (node.querySelector('.gq-grow')), one.words),
    );
  }

  /** @param {Held} one */
  row({ job, tag, notebook, ends }) {
    const link = h('button', 'link name', { type: 'button', click: () => this.context.open(job) }, `${job} ${tag}`);
    attr(link, 'aria-label', S.open(job, tag));
    const end = ends && may(this.context, 'write') && cancelButton(this.context, job, true, notebook ? tag : undefined);
    return h('li', 'heldrow', {}, link, h('span', 'dim grow', {}), end);
  }

  /**
   * @param {string} path
   * @param {unknown} body
   */
  async ask(path, body) {
    const buttons = [this.free, this.soft, this.resume];
    const pressed = buttons.some(one => one === document.activeElement);
    for (const one of buttons) one.disabled = true;
    const answer = await act(this.context, path, body, S.notDone);
    for (const one of buttons) one.disabled = false;
    this.pressed = pressed;
    if (answer) this.context.say(answerWords(answer));
  }

  /** @param {import('./types.mjs').Status} status */
  update(status) {
    const { mode, counts } = status;
    put(this.counts, S.counts(jobsRunning(counts), counts.waiting, counts.notebooks || 0));
    show(this.submit, may(this.context, 'execute'));
    show(this.name, Boolean(mode));
    const allowed = Boolean(mode) && may(this.context, 'write');
    const normal = !mode || mode.name === 'normal';
    show(this.free, allowed && normal);
    show(this.soft, allowed && normal);
    show(this.resume, allowed && !normal);
    // the button that was pressed has gone; what answers it stands there now
    if (this.pressed && document.activeElement === document.body) (normal ? this.free : this.resume).focus();
    this.pressed = false;
    const found = mode && !normal ? heldBy(mode) : [];
    this.rows.update(found.slice(0, MOST), one => one.key);
    show(this.list, found.length > 0);
    put(this.more, found.length > MOST ? S.moreHeld(found.length - MOST) : '');
    if (!mode) {
      put(this.words, '');
      return;
    }
    put(this.name, S.mode(mode.name));
    attr(this.name, 'data-mode', mode.name);
    const words = [];
    if (!normal) {
      words.push(mode.name === 'freeing' ? S.modeFreeing : mode.soft ? S.modeFreeSoft : S.modeFree);
      const by = [S.modeBy(mode.by)];
      if (mode.program) by.push(S.modeFor(mode.program));
      if (mode.since !== null) by.push(S.modeSince(clock(mode.since, status.at)));
      words.push(by.filter(Boolean).join(' '));
    }
    put(this.words, words.join(' · '));
  }
}
