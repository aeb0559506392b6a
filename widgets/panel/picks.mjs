// Several jobs chosen at once, and what is done to all of them.

import { may, reasonOf, sureButton } from './actions.mjs';
import { ICONS, attr, button, h, icon, put, show } from './dom.mjs';
import { S } from './strings.mjs';

/** @typedef {import('./types.mjs').Job} Job */

/**
 * Jobs in the order in which they are shown.
 * @typedef {object} List
 * @property {() => number} length
 * @property {(id: number) => number} index -1 for one that is not there.
 * @property {(from: number, to: number) => Promise<Job[]>} between Both are included.
 * @property {(index: number) => Job | undefined} at
 * @property {(index: number) => void} focus Puts the focus on the box of a row.
 */

const ENDED = ['succeeded', 'failed', 'cancelled'];
const AT_ONCE = 6;
const REASONS = 3;

export class Picks {
  /**
   * @param {import('./actions.mjs').Context} context
   * @param {HTMLElement} root Of the view.
   */
  constructor(context, root) {
    this.context = context;
    this.scope = root;
    /** @type {Map<number, Job>} */
    this.jobs = new Map();
    /** @type {{list: List, id: number} | null} Where a range begins. */
    this.from = null;
    /** @type {List | null} */
    this.queue = null;
    this.busy = false;
    this.words = h('span', 'grow', { role: 'status' });
    this.cancel = this.doing(S.cancelMany, S.cancelManySure, job => !ENDED.includes(job.state), jobs =>
      this.each(jobs, AT_ONCE, job => `/jobs/${job.id}/cancel`, S.cancelledMany));
    this.front = this.doing(S.frontMany, S.frontManySure, job => job.state === 'queued', jobs =>
      // each goes before all others, so the first one goes last
      this.each([...jobs].reverse(), 1, job => `/jobs/${job.id}/priority`, S.frontedMany));
    this.retry = this.doing(S.retryMany, S.retryManySure, job => ENDED.includes(job.state), jobs =>
      this.each(jobs, 1, job => `/jobs/${job.id}/retry`, S.retriedMany));
    this.all = button('plain', '', () => void this.pickAll(), ' ');
    this.root = h(
      'div', 'picked', { role: 'group', 'aria-label': S.picked, hidden: true },
      this.words, this.cancel.node, this.front.node, this.retry.node, this.all,
      button('quiet', S.unpick, () => this.clear(), icon(ICONS.close)),
    );
    this.root.addEventListener('keydown', event => {
      if (event.key === 'Escape') this.clear();
    });
  }

  /**
   * A button for those of the chosen that it fits.
   * @param {(count: number) => string} words
   * @param {(count: number) => string} sure
   * @param {(job: Job) => boolean} fits
   * @param {(jobs: Job[]) => Promise<void>} go
   */
  doing(words, sure, fits, go) {
    const some = () => this.ordered().filter(fits);
    const made = sureButton('plain', {
      face: () => words(some().length),
      label: () => null,
      sure: () => sure(some().length),
      sureLabel: () => null,
    }, () => go(some()));
    return { ...made, count: () => some().length };
  }

  /** The chosen in the order of the queue, others by number. */
  ordered() {
    const place = /** @param {Job} job */ job => job.wait?.position ?? 0;
    return [...this.jobs.values()].sort((a, b) => place(a) - place(b) || a.id - b.id);
  }

  /** Whether anything can be done to several jobs. */
  get useful() {
    return may(this.context, 'write') || may(this.context, 'execute');
  }

  /**
   * The box of a row.
   * @param {HTMLElement} row
   * @param {() => Job} job
   * @param {List} list
   */
  box(row, job, list) {
    const { id, tag } = job();
    const made = h('input', 'pick', {
      type: 'checkbox', 'aria-label': S.pick(id, tag), title: S.pickTip, 'data-pick': id,
      change: () => {
        this.set([job()], made.checked);
        this.from = { list, id };
      },
    });
    made.checked = this.jobs.has(id);
    made.addEventListener('click', event => {
      event.stopPropagation();
      if (event.shiftKey) void this.range(list, id);
    });
    made.addEventListener('keydown', event => this.key(event, list, id));
    row.addEventListener('click', event => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      if (event.target instanceof Element && event.target.closest('[data-pick], .gq-tools')) return;
      event.preventDefault();
      event.stopPropagation();
      getSelection()?.removeAllRanges();
      if (event.shiftKey) void this.range(list, id);
      else {
        this.set([job()], !this.jobs.has(id));
        this.from = { list, id };
      }
      made.focus({ preventScroll: true });
    }, true);
    // a click with Shift would mark text
    row.addEventListener('mousedown', event => {
      if (event.shiftKey) event.preventDefault();
    });
    return made;
  }

  /**
   * @param {KeyboardEvent} event
   * @param {List} list
   * @param {number} id
   */
  key(event, list, id) {
    const step = { ArrowUp: -1, ArrowDown: 1 }[/** @type {'ArrowUp'} */ (event.key)];
    if (event.key === 'Escape' && this.jobs.size) this.clear();
    else if (event.key === 'a' && (event.ctrlKey || event.metaKey)) void this.pick(list, 0, list.length() - 1);
    else if (step) {
      const to = list.index(id) + step;
      if (to >= 0 && to < list.length()) {
        if (event.shiftKey) {
          if (!this.from || this.from.list !== list) this.from = { list, id };
          void this.pick(list, list.index(this.from.id), to);
        }
        list.focus(to);
      }
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /**
   * All from where one was chosen last.
   * @param {List} list
   * @param {number} id
   */
  range(list, id) {
    const here = list.index(id);
    const begin = this.from && this.from.list === list ? list.index(this.from.id) : here;
    return this.pick(list, begin < 0 ? here : begin, here);
  }

  /**
   * @param {List} list
   * @param {number} one
   * @param {number} other
   */
  async pick(list, one, other) {
    try {
      this.set(await list.between(Math.min(one, other), Math.max(one, other)), true);
    } catch (error) {
      this.context.warn(S.notDone(reasonOf(error)));
    }
  }

  async pickAll() {
    if (this.queue) await this.pick(this.queue, 0, this.queue.length() - 1);
    this.cancel.node.focus();
  }

  /**
   * @param {Job[]} jobs
   * @param {boolean} chosen
   */
  set(jobs, chosen) {
    for (const job of jobs) {
      if (chosen) this.jobs.set(job.id, job);
      else this.jobs.delete(job.id);
    }
    this.draw();
  }

  clear() {
    const held = this.root.contains(document.activeElement);
    const { from } = this;
    this.jobs.clear();
    this.draw();
    if (held && from) from.list.focus(Math.max(0, from.list.index(from.id)));
  }

  /** @param {import('./types.mjs').Status} status */
  update(status) {
    if (!this.jobs.size) return;
    for (const job of [...status.running, ...status.waiting, ...status.recent]) {
      if (this.jobs.has(job.id)) this.jobs.set(job.id, job);
    }
    this.draw();
  }

  draw() {
    const count = this.jobs.size;
    this.scope.classList.toggle('gq-picking', count > 0);
    show(this.root, count > 0);
    for (const box of this.scope.querySelectorAll('[data-pick]')) {
      if (box instanceof HTMLInputElement) box.checked = this.jobs.has(Number(box.dataset.pick));
    }
    if (this.busy) return;
    put(this.words, count ? S.pickedCount(count) : '');
    const allowed = /** @type {const} */ ([[this.cancel, 'write'], [this.front, 'write'], [this.retry, 'execute']]);
    for (const [one, action] of allowed) {
      show(one.node, one.count() > 0 && may(this.context, action));
      one.draw();
    }
    const waiting = this.queue ? this.queue.length() : 0;
    const some = [...this.jobs.values()].filter(job => job.state === 'queued').length;
    show(this.all, some > 0 && some < waiting);
    put(this.all, some > 0 && some < waiting ? S.pickAll(waiting) : '');
    attr(this.all, 'title', null);
  }

  /**
   * Do something to each, some at once, and say what came of it.
   * @param {Job[]} jobs
   * @param {number} atOnce
   * @param {(job: Job) => string} path
   * @param {(count: number) => string} done
   */
  async each(jobs, atOnce, path, done) {
    const { context } = this;
    context.warn('');
    this.busy = true;
    /** @type {string[]} */
    const refused = [];
    let next = 0;
    let ready = 0;
    const work = async () => {
      while (next < jobs.length) {
        const job = jobs[next];
        next += 1;
        try {
          await context.home.source.ask('POST', path(job), {});
          this.jobs.delete(job.id);
        } catch (error) {
          refused.push(S.refusedOne(job.id, reasonOf(error)));
        }
        ready += 1;
        if (jobs.length > AT_ONCE) put(this.words, S.doingMany(ready, jobs.length));
      }
    };
    for (const one of this.root.querySelectorAll('button')) one.disabled = true;
    await Promise.all(Array.from({ length: atOnce }, work));
    for (const one of this.root.querySelectorAll('button')) one.disabled = false;
    this.busy = false;
    const many = refused.length > REASONS ? [...refused.slice(0, REASONS), '…'] : refused;
    if (refused.length) context.warn(S.refusedMany(refused.length, jobs.length, many.join(' ')));
    if (refused.length < jobs.length) context.say(done(jobs.length - refused.length));
    this.draw();
    context.follow.changed();
  }
}

/**
 * A list whose rows are all there.
 * @param {HTMLElement} root
 * @param {() => Job[]} jobs
 * @returns {List}
 */
export function listOf(root, jobs) {
  return {
    length: () => jobs().length,
    index: id => jobs().findIndex(job => job.id === id),
    at: index => jobs()[index],
    between: async (from, to) => jobs().slice(from, to + 1),
    focus: index => {
      const box = root.children[index]?.querySelector('[data-pick]');
      if (box instanceof HTMLElement) box.focus();
    },
  };
}
