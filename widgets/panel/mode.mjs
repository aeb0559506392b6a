// Who has the GPUs: the queue or the people, who said so, and the buttons that change it.

import { act, may } from './actions.mjs';
import { attr, button, h, put, show } from './dom.mjs';
import { clock } from './format.mjs';
import { Freed } from './freed.mjs';
import { jobsRunning } from './rows.mjs';
import { S } from './strings.mjs';

export class ModeBar {
  /**
   * @param {import('./actions.mjs').Context} context
   * @param {() => void} submit Opens the form.
   */
  constructor(context, submit) {
    this.context = context;
    this.name = h('span', 'chip', {});
    this.words = h('span', 'dim grow', {});
    this.free = button('primary', S.freeFullTip, () => void this.ask('/free', { soft: false }), S.freeFull);
    this.soft = button('plain', S.freeSoftTip, () => void this.ask('/free', { soft: true }), S.freeSoft);
    this.resume = button('primary', S.resumeTip, () => void this.ask('/resume', {}), S.resume);
    this.submit = button('plain', S.submit, submit, S.submitShort);
    this.freed = new Freed(context);
    this.counts = h('span', 'dim num', {});
    this.root = h(
      'div', 'mode', {},
      h('div', 'head', {}, context.home.titled ? h('h1', '', {}, S.title) : null, this.name, this.counts, h('span', 'grow', {}), this.free, this.soft, this.resume, this.submit),
      this.words, this.freed.root,
    );
  }

  /**
   * @param {string} path
   * @param {unknown} body
   */
  async ask(path, body) {
    const buttons = [this.free, this.soft, this.resume];
    for (const one of buttons) one.disabled = true;
    const answer = await act(this.context, path, body, S.notDone);
    for (const one of buttons) one.disabled = false;
    if (answer && answer.message) this.context.say(answer.sentence || answer.message);
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
    this.freed.update(mode);
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
