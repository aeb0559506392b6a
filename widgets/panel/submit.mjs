// A small form that queues a command, and says beforehand where and when it would run.

import { act, reasonOf } from './actions.mjs';
import { button, h, put, show } from './dom.mjs';
import { clock } from './format.mjs';
import { startWords } from './queue.mjs';
import { Refused } from './source.mjs';
import { S } from './strings.mjs';

const PAUSE = 400;

/**
 * @param {string} name
 * @param {HTMLElement} field
 */
function labelled(name, field) {
  return h('label', 'labelled', {}, h('span', 'dim', {}, name), field);
}

export class SubmitForm {
  /**
   * @param {import('./actions.mjs').Context} context
   * @param {() => void} closed
   */
  constructor(context, closed) {
    this.context = context;
    this.closed = closed;
    this.number = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.command = h('textarea', 'field code', {
      rows: 2, spellcheck: 'false', placeholder: 'python train.py --lr 0.1', name: 'command',
      title: S.submitHint,
    });
    this.preset = h('select', 'field', { name: 'preset' },
      ...Object.entries(S.presets).map(([value, words]) => h('option', '', { value }, words)));
    this.memory = h('input', 'field', { placeholder: S.submitMemoryHint, size: 6, name: 'mem' });
    this.eta = h('input', 'field', { placeholder: S.submitEtaHint, size: 6, name: 'eta' });
    this.tag = h('input', 'field', { size: 10, maxlength: 200, name: 'tag' });
    this.preview = h('p', 'preview', { role: 'status' });
    this.wrong = h('p', 'note wrong', { role: 'alert', hidden: true });
    this.go = h('button', 'button primary', { type: 'submit' }, S.submitGo);
    this.root = h(
      'form', 'submit', { 'aria-label': S.submit, hidden: true },
      labelled(S.submitCommand, this.command),
      h('div', 'fields', {},
        labelled(S.submitPreset, this.preset), labelled(S.submitMemory, this.memory),
        labelled(S.submitEta, this.eta), labelled(S.submitTag, this.tag)),
      this.preview, this.wrong,
      h('div', 'bar', {}, this.go, button('plain', S.submitClose, () => this.close(), S.submitClose)),
    );
    this.root.addEventListener('input', () => this.later());
    this.root.addEventListener('submit', event => {
      event.preventDefault();
      void this.submit();
    });
    this.root.addEventListener('keydown', event => {
      if (event.key === 'Escape') this.close();
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) void this.submit();
    });
  }

  open() {
    show(this.root, true);
    put(this.preview, S.previewFirst);
    this.command.focus();
    this.later();
  }

  close() {
    clearTimeout(this.timer);
    show(this.root, false);
    put(this.wrong, '');
    this.closed();
  }

  asked() {
    /** @type {Record<string, string>} */
    const options = { preset: this.preset.value };
    for (const field of [this.memory, this.eta, this.tag]) {
      if (field.value.trim()) options[field.name] = field.value.trim();
    }
    return { command: this.command.value.trim(), options };
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.look(), PAUSE);
  }

  async look() {
    const number = (this.number += 1);
    const asked = this.asked();
    put(this.wrong, '');
    if (!asked.command || this.root.hidden) {
      put(this.preview, S.previewFirst);
      return;
    }
    try {
      /** @type {import('./types.mjs').Preview} */
      const found = await this.context.home.source.ask('POST', '/preview', asked);
      if (number !== this.number) return;
      const where = found.gpus.length ? S.onGpus(found.gpus) : S.onCpu;
      const words = [];
      if (found.now) words.push(S.wouldStart(where));
      else if (found.wait) {
        const when = startWords(found.wait, found.at);
        words.push(S.wouldWait(found.wait.position, found.gpus.length ? `${when}, ${where}` : when));
        words.push(found.wait.sentence);
      }
      if (found.end !== null) words.push(S.done(clock(found.end, found.at)));
      put(this.preview, words.join(' · '));
    } catch (error) {
      if (number !== this.number) return;
      put(this.preview, '');
      // what is only half written is not wrong yet for whoever still writes; it is told all the same
      put(this.wrong, error instanceof Refused ? error.message : reasonOf(error));
    }
  }

  async submit() {
    const asked = this.asked();
    if (!asked.command) {
      this.command.focus();
      return;
    }
    this.go.disabled = true;
    put(this.wrong, '');
    const job = await act(this.context, '/jobs', asked, words => {
      put(this.wrong, words);
      return '';
    });
    this.go.disabled = false;
    if (!job) return;
    this.command.value = '';
    this.tag.value = '';
    this.context.say(S.submittedAs(job.id));
    this.close();
  }
}
