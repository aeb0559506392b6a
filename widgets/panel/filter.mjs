// What of the queue and the history is shown: by words, and by what became of a job.

import { button, h, show } from './dom.mjs';
import { RECENT } from './follow.mjs';
import { jobsRunning } from './rows.mjs';
import { S, stateWords } from './strings.mjs';

const PAUSE = 150;
/** @type {Record<string, string>} Chips, and the states that each stands for. */
const CHIPS = {
  running: 'starting,running,evicting,frozen',
  queued: 'queued',
  failed: 'failed',
  succeeded: 'succeeded',
  cancelled: 'cancelled',
};

/** @param {EventTarget | null} target */
const writes = target =>
  target instanceof HTMLElement && (target.isContentEditable || target.matches('input:not([type=checkbox]), textarea, select'));

export class Filter {
  /**
   * @param {HTMLElement} root Of the view.
   * @param {() => void} changed
   */
  constructor(root, changed) {
    this.changed = changed;
    /** @type {Set<string>} */
    this.states = new Set();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.field = h('input', 'field', {
      type: 'search', placeholder: S.filter, 'aria-label': S.filter, title: S.filterTip,
      spellcheck: 'false', autocomplete: 'off', name: 'filter',
      input: () => this.later(PAUSE), keydown: (/** @type {KeyboardEvent} */ event) => this.escape(event),
    });
    this.chips = Object.keys(CHIPS).map(name => {
      const made = button('plain small', S.onlyState(stateWords(name)), () => this.toggle(name), stateWords(name));
      made.setAttribute('aria-pressed', 'false');
      return made;
    });
    this.told = h('p', 'line', { role: 'status', 'aria-live': 'polite' });
    this.root = h('div', 'filter', { role: 'search', hidden: true },
      this.field, h('div', 'bar', { role: 'group', 'aria-label': S.filterStates }, ...this.chips), this.told);
    this.scope = root;
    /** @param {KeyboardEvent} event */
    this.slash = event => {
      if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || writes(event.target)) return;
      if (this.root.hidden || !this.root.offsetParent) return; // a job is shown instead
      event.preventDefault();
      this.field.focus();
      this.field.select();
    };
  }

  /**
   * Let `/` lead here.
   * @param {boolean} everywhere On the whole page, or only while the view has the focus.
   */
  listen(everywhere) {
    const target = /** @type {HTMLElement} */ (everywhere ? document : this.scope);
    target.addEventListener('keydown', this.slash);
    return () => {
      clearTimeout(this.timer);
      target.removeEventListener('keydown', this.slash);
    };
  }

  /** What is asked for, as a part of an address; empty for everything. */
  get query() {
    const states = [...this.states].map(name => CHIPS[name]).join(',');
    return `${this.match}${states ? `&state=${states}` : ''}`;
  }

  /** The words of it alone. */
  get match() {
    const words = this.field.value.trim();
    return words ? `&match=${encodeURIComponent(words)}` : '';
  }

  /** @param {number} delay In milliseconds. */
  later(delay) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.changed(), delay);
  }

  /** @param {string} name */
  toggle(name) {
    if (!this.states.delete(name)) this.states.add(name);
    this.mark();
    this.later(0);
  }

  mark() {
    Object.keys(CHIPS).forEach((name, i) =>
      this.chips[i].setAttribute('aria-pressed', String(this.states.has(name))));
  }

  /** @param {KeyboardEvent} event */
  escape(event) {
    if (event.key !== 'Escape') return;
    event.stopPropagation();
    if (!this.field.value && !this.states.size) {
      this.field.blur();
      return;
    }
    event.preventDefault();
    this.field.value = '';
    this.states.clear();
    this.mark();
    this.later(0);
  }

  /** @param {import('./types.mjs').Status} status */
  update(status) {
    const { counts, matches, recent } = status;
    show(this.root, Boolean(matches) || counts.running + counts.waiting + recent.length > 0);
    if (!matches) {
      this.tell('');
      return;
    }
    const ended = recent.length >= RECENT ? `${RECENT}+` : String(recent.length);
    const none = !matches.running && !matches.waiting && !recent.length;
    this.tell(none ? S.noMatch : S.matched(jobsRunning(matches), matches.waiting, matches.notebooks || 0, ended));
  }

  /** @param {string} words It stays where it is when empty: what is hidden is not read out later. */
  tell(words) {
    if (this.told.textContent !== words) this.told.textContent = words;
  }
}
