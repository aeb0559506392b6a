// A job's log as it grows: follow, search, and never more of it than a page can bear.

import { h, put, show } from './dom.mjs';
import { S } from './strings.mjs';

const LINES = 1000;
const MOST = 400000;
const PART = 262144;
const PAUSE = 1000;
const SLOW = 5000;
const NAME = 'gpuqueue-found';

/**
 * Text as a terminal would leave it: without colours, and of a line that was written over, the
 * last.
 * @param {string} text
 */
export function plain(text) {
  return text
    .replace(/\x1b\][^\x07\x1b]*(\x07|\x1b\\)/g, '')
    .replace(/\x1b\[[0-9;?]*[ -/]*[@-~]/g, '')
    .replace(/\r\n/g, '\n')
    .replace(/[^\n]*\r(?=[^\n])/g, '');
}

export class Log {
  /**
   * @param {import('./actions.mjs').Context} context
   * @param {number} job
   * @param {() => boolean} visible
   */
  constructor(context, job, visible) {
    this.context = context;
    this.job = job;
    this.visible = visible;
    this.next = -1;
    this.attempt = 0;
    this.ended = false;
    this.closed = false;
    this.asking = false;
    this.size = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @type {Range[]} */
    this.ranges = [];
    this.at = -1;

    this.text = h('pre', 'log', { tabindex: 0, role: 'log', 'aria-live': 'off', 'aria-label': S.log });
    this.follow = h('input', '', { type: 'checkbox', change: () => this.toEnd() });
    this.follow.checked = true;
    this.field = h('input', 'field', {
      type: 'search', placeholder: S.search, 'aria-label': S.search,
      input: () => this.find(), keydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === 'Enter') this.step(event.shiftKey ? -1 : 1);
      },
    });
    this.found = h('span', 'dim num', { role: 'status' });
    this.none = h('p', 'empty', {});
    this.root = h(
      'div', 'logbox', {},
      h('div', 'bar', {}, this.field, this.found,
        h('label', 'check', {}, this.follow, S.follow)),
      this.none, this.text,
    );
    this.text.addEventListener('scroll', () => {
      // whoever scrolls back wants to read; at the end it follows again
      const rest = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight;
      if (rest > 40) this.follow.checked = false;
    });
    void this.look();
  }

  /** @param {string} words What to say while there is nothing. */
  nothing(words) {
    put(this.none, this.size ? '' : words);
    show(this.text, this.size > 0);
  }

  /** Ask at once, for the job has changed. */
  changed() {
    this.ended = false;
    void this.look();
  }

  async look() {
    clearTimeout(this.timer);
    if (this.closed || this.asking) return;
    let pause = PAUSE;
    if (this.visible()) {
      this.asking = true;
      try {
        await this.read();
      } catch {
        pause = SLOW;
      }
      this.asking = false;
    }
    if (!this.closed && !this.ended) this.timer = setTimeout(() => void this.look(), pause);
  }

  async read() {
    const ask = this.context.home.source.ask;
    for (;;) {
      const query = this.next < 0 ? `lines=${LINES}` : `offset=${this.next}&limit=${PART}`;
      /** @type {import('./types.mjs').LogPart} */
      const part = await ask('GET', `/jobs/${this.job}/log?${query}`);
      if (this.closed) return;
      if (this.next >= 0 && part.attempt !== this.attempt) {
        // it has been started anew, with a log of its own
        this.text.replaceChildren();
        this.size = 0;
        this.next = -1;
        this.attempt = part.attempt;
        continue;
      }
      if (this.next < 0 && part.offset > 0) this.text.append(h('i', 'dim', {}, `${S.logCut}\n`));
      this.attempt = part.attempt;
      const moved = part.next > this.next;
      this.next = part.next;
      this.ended = part.ended;
      if (part.text) this.append(part.text);
      if (part.ended || part.next >= part.size || !moved) return;
    }
  }

  /** @param {string} text */
  append(text) {
    const last = this.text.lastChild;
    // what is written over by a carriage return may have come in the part before
    if (last instanceof Text && !last.data.endsWith('\n') && last.data.length < PART) {
      const joined = plain(last.data + text);
      this.size += joined.length - last.data.length;
      last.data = joined;
    } else {
      const made = plain(text);
      this.text.append(document.createTextNode(made));
      this.size += made.length;
    }
    while (this.size > MOST && this.text.childNodes.length > 1) {
      const first = /** @type {ChildNode} */ (this.text.firstChild);
      if (first instanceof Text) this.size -= first.data.length;
      first.remove();
    }
    show(this.text, true);
    show(this.none, false);
    if (this.field.value) this.find();
    this.toEnd();
  }

  toEnd() {
    if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }

  // -- searching -----------------------------------------------------------------------------

  find() {
    const wanted = this.field.value.toLowerCase();
    this.ranges = [];
    if (wanted) {
      for (const node of this.text.childNodes) {
        if (!(node instanceof Text)) continue;
        const text = node.data.toLowerCase();
        for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, Math.min(at + wanted.length, node.data.length));
          this.ranges.push(range);
          if (this.ranges.length > 5000) break;
        }
      }
      this.follow.checked = false;
    }
    this.at = this.ranges.length - 1;
    this.mark();
  }

  /** @param {number} by */
  step(by) {
    const all = this.ranges.length;
    if (all) this.at = (this.at + by + all) % all;
    this.mark();
  }

  mark() {
    const all = this.ranges.length;
    put(this.found, this.field.value ? S.found(this.at + 1, all) : '');
    const range = this.ranges[this.at];
    // older browsers count what is found and do not colour it
    const registry = /** @type {any} */ (CSS).highlights;
    const Highlight = /** @type {any} */ (globalThis).Highlight;
    if (registry && Highlight) {
      registry.set(NAME, new Highlight(...this.ranges));
      registry.set(`${NAME}-now`, new Highlight(...(range ? [range] : [])));
    }
    if (!range) return;
    const place = range.getBoundingClientRect();
    const box = this.text.getBoundingClientRect();
    this.text.scrollTop += place.top - box.top - box.height / 2;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    const registry = /** @type {any} */ (CSS).highlights;
    if (registry) {
      registry.delete(NAME);
      registry.delete(`${NAME}-now`);
    }
  }
}

