// The queue: only the rows in sight are there, whatever its length. Rows move by a handle.

import { act, cancelButton, may } from './actions.mjs';
import { ICONS, Rows, attr, button, h, icon, put, show, style } from './dom.mjs';
import { drag } from './drag.mjs';
import { rough } from './format.mjs';
import { FIRST } from './follow.mjs';
import { countOf, ownerOf } from './rows.mjs';
import { S } from './strings.mjs';

/** @typedef {import('./types.mjs').Job} Job */
/** @typedef {import('./actions.mjs').Context} Context */

const HEIGHT = 52;
const MOST = 9;
const AROUND = 6;
const MOST_ASKED = 500;

/**
 * When a job starts, in a few words.
 * @param {import('./types.mjs').Wait | null | undefined} wait
 * @param {number} now
 */
export function startWords(wait, now) {
  if (!wait || wait.reason === 'starting') return S.startsNow;
  if (wait.expected !== null) {
    const first = rough(wait.expected - now);
    if (wait.by !== null && wait.by - wait.expected >= 60) {
      return S.startsRange(first, rough(wait.by - now));
    }
    return S.starts(first);
  }
  return wait.later_than !== null ? S.startsLater(rough(wait.later_than - now)) : S.startsUnknown;
}

/**
 * Why a job waits.
 * @param {import('./types.mjs').Wait | null | undefined} wait
 */
export function whyWords(wait) {
  if (!wait) return '';
  // a command is of no use to whoever has the button before them
  return wait.reason === 'free mode' && wait.sentence.includes('`') ? S.waitsFree : wait.sentence;
}

/**
 * One row of the queue.
 * @typedef {object} Row
 * @property {HTMLElement} root
 * @property {HTMLElement} place
 * @property {HTMLElement} name
 * @property {HTMLElement} side
 * @property {HTMLElement} when
 * @property {HTMLElement} waited
 * @property {HTMLElement} why
 * @property {HTMLElement | null} grip
 * @property {Job} job
 * @property {number} index
 */

export class Queue {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    this.total = 0;
    this.time = 0;
    /** @type {Map<number, Job[]>} Pages of FIRST jobs, by their number. */
    this.pages = new Map();
    /** @type {Map<number, Row>} */
    this.known = new Map();
    /** @type {Set<number>} */
    this.asking = new Set();
    this.moving = false;
    this.query = '';
    context.picks.queue = this;

    this.count = h('span', 'count', {});
    this.none = h('p', 'empty', {});
    // arrow keys and Space are for the rows, not for JupyterLab's shortcuts
    this.list = h('ul', 'rows', { 'data-lm-suppress-shortcuts': 'true' });
    this.mark = h('div', 'mark', { hidden: true });
    this.scroller = h('div', 'scroller', { scroll: () => this.draw() }, this.list, this.mark);
    this.root = h('section', 'waiting', { 'aria-label': S.waiting },
      h('h2', '', {}, S.waiting, this.count), this.none, this.scroller);
    this.rows = new Rows(
      this.list,
      /** @param {{job: Job, index: number}} item */ item => this.make(item.job),
      (_, item) => this.patch(item.job, item.index),
    );
  }

  /** @param {number} index */
  job(index) {
    const page = this.pages.get(Math.floor(index / FIRST));
    return page && page[index % FIRST];
  }

  /** @param {Job} job */
  make(job) {
    const place = h('span', 'place num', {});
    const name = h('span', 'name', {});
    const side = h('span', 'num side wide', {});
    // where there is little room, the start stands in the second line and how long it has waited nowhere
    const when = h('span', 'narrow', {});
    const waited = h('span', 'wide', {});
    const why = h('span', '', {});
    const line = h('div', 'line one', {}, when, waited, why);
    const tools = h('span', 'tools', {});
    const open = h('button', 'open', { type: 'button', click: () => this.context.open(job.id) },
      place, name, side);
    attr(open, 'aria-label', S.open(job.id, job.tag));
    let grip = null;
    if (may(this.context, 'write')) {
      grip = button('grip', '', () => {}, icon(ICONS.grip));
      this.grips(grip, job.id);
      tools.append(cancelButton(this.context, job.id));
    }
    const side1 = h('div', 'handles', {}, grip);
    const root = h(
      'li', 'row queued', { 'data-job': job.id }, side1,
      h('div', 'grow', {}, h('div', 'head', {}, open, tools), line),
    );
    const { picks } = this.context;
    if (picks.useful) side1.append(picks.box(root, () => this.known.get(job.id)?.job || job, this));
    root.addEventListener('click', event => {
      if (!(event.target instanceof Element) || event.target.closest('button')) return;
      this.context.open(job.id);
    });
    this.known.set(job.id, { root, place, name, side, when, waited, why, grip, job, index: -1 });
    return root;
  }

  /**
   * @param {Job} job
   * @param {number} index
   */
  patch(job, index) {
    const row = /** @type {Row} */ (this.known.get(job.id));
    row.job = job;
    row.index = index;
    style(row.root, 'transform', `translateY(${index * HEIGHT}px)`);
    attr(row.root, 'aria-setsize', this.total);
    attr(row.root, 'aria-posinset', index + 1);
    put(row.place, String(job.wait ? job.wait.position : index + 1));
    put(row.name, `${job.id} ${job.tag}`);
    const start = startWords(job.wait, this.time);
    const why = job.wait && job.wait.reason !== 'starting' ? whyWords(job.wait) : '';
    const rest = [ownerOf(this.context, job), why].filter(Boolean).join(' · ');
    const before = rest ? ' · ' : '';
    put(row.side, start);
    put(row.when, start + before);
    put(row.waited, S.waits(rough(this.time - job.submitted)) + before);
    put(row.why, rest);
    attr(row.root, 'title', `${why ? `${why}\n` : ''}${job.command}`);
    if (row.grip) {
      const label = S.grip(job.id, index + 1, this.total);
      attr(row.grip, 'aria-label', label);
      attr(row.grip, 'title', label);
    }
  }

  /** @param {import('./types.mjs').Status} status */
  update(status) {
    this.time = status.at;
    this.total = (status.matches || status.counts).waiting;
    put(this.count, countOf(status, 'waiting'));
    if (this.query !== this.context.follow.shown) {
      this.query = this.context.follow.shown;
      this.pages.clear();
      this.scroller.scrollTop = 0;
    }
    put(this.none, this.total ? '' : S.nothingWaits);
    show(this.scroller, this.total > 0);
    const [first, last] = this.sight();
    // of what is out of sight only the first page stays; it came with the status
    for (const page of this.pages.keys()) {
      const near = page * FIRST <= last && (page + 1) * FIRST > first;
      if (!near) this.pages.delete(page);
      else if (page) void this.fetch(page);
    }
    this.pages.set(0, status.waiting);
    style(this.list, 'height', `${this.total * HEIGHT}px`);
    style(this.scroller, 'max-height', `${MOST * HEIGHT}px`);
    this.draw();
  }

  /** The first and the last row that is in sight or near. */
  sight() {
    const top = this.scroller.scrollTop;
    const height = this.scroller.clientHeight || MOST * HEIGHT;
    const first = Math.max(0, Math.floor(top / HEIGHT) - AROUND);
    return [first, Math.min(this.total - 1, Math.ceil((top + height) / HEIGHT) + AROUND)];
  }

  draw() {
    const [first, last] = this.sight();
    const items = [];
    for (let index = first; index <= last; index += 1) {
      const job = this.job(index);
      if (job) items.push({ job, index });
      else void this.fetch(Math.floor(index / FIRST));
    }
    const ids = new Set(items.map(item => item.job.id));
    for (const id of this.known.keys()) if (!ids.has(id)) this.known.delete(id);
    this.rows.update(items, item => item.job.id);
  }

  /**
   * @param {number} offset
   * @param {number} limit
   * @returns {Promise<import('./types.mjs').Page>}
   */
  ask(offset, limit) {
    const match = new URLSearchParams(this.query).get('match');
    const words = match ? `&match=${encodeURIComponent(match)}` : '';
    return this.context.home.source.ask('GET', `/queue?offset=${offset}&limit=${limit}${words}`);
  }

  /** @param {number} page */
  async fetch(page) {
    if (this.asking.has(page)) return;
    this.asking.add(page);
    const { query } = this;
    try {
      const found = await this.ask(page * FIRST, FIRST);
      if (query !== this.query) return; // something else is looked for meanwhile
      this.pages.set(page, found.jobs);
      // a page that is shorter than was thought: the next status has the new count
      this.asking.delete(page);
      if (found.jobs.length) this.draw();
    } catch {
      this.context.follow.changed(); // which says what is wrong
    } finally {
      this.asking.delete(page);
    }
  }

  // -- as a list of which some are chosen ---------------------------------------------------

  length() {
    return this.total;
  }

  /** @param {number} id */
  index(id) {
    for (const [page, jobs] of this.pages) {
      const at = jobs.findIndex(job => job.id === id);
      if (at >= 0) return page * FIRST + at;
    }
    return -1;
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  async between(from, to) {
    const known = [];
    for (let index = from; index <= to; index += 1) {
      const job = this.job(index);
      if (!job) break;
      known.push(job);
    }
    while (known.length <= to - from) {
      const offset = from + known.length;
      const found = await this.ask(offset, Math.min(MOST_ASKED, to + 1 - offset));
      if (!found.jobs.length) break;
      known.push(...found.jobs);
    }
    return known;
  }

  /** @param {number} index */
  at(index) {
    return this.job(index);
  }

  /** @param {number} index */
  focus(index) {
    const top = index * HEIGHT;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + HEIGHT > scrollTop + clientHeight) this.scroller.scrollTop = top + HEIGHT - clientHeight;
    this.draw();
    const job = this.job(index);
    const box = job && this.known.get(job.id)?.root.querySelector('[data-pick]');
    if (box instanceof HTMLElement) box.focus({ preventScroll: true });
  }

  // -- moving --------------------------------------------------------------------------------

  /**
   * Put the job at one place to another.
   * @param {number} from
   * @param {number} to Its place afterwards.
   */
  async move(from, to) {
    const job = this.job(from);
    const other = this.job(to);
    if (!job || !other || from === to || this.moving) return;
    this.moving = true;
    const body = to < from ? { before: other.id } : { after: other.id };
    const failed = /** @param {string} words */ words => S.notMoved(job.id, words);
    const moved = await act(this.context, `/jobs/${job.id}/move`, body, failed);
    this.moving = false;
    if (!moved) return;
    this.shift(from, to);
    const place = moved.wait ? moved.wait.position : to + 1;
    this.context.say(S.moved(job.id, place));
    await this.context.follow.look();
  }

  /**
   * Show a move at once: the next key is about where the row is now, whenever the next look comes.
   * @param {number} from
   * @param {number} to
   */
  shift(from, to) {
    const number = Math.floor(from / FIRST);
    const page = this.pages.get(number);
    if (!page || Math.floor(to / FIRST) !== number) return;
    const changed = [...page];
    changed.splice(to % FIRST, 0, ...changed.splice(from % FIRST, 1));
    this.pages.set(number, changed);
    this.draw();
  }

  /**
   * @param {HTMLElement} grip
   * @param {number} id
   */
  grips(grip, id) {
    grip.addEventListener('keydown', event => {
      const row = this.known.get(id);
      if (!row) return;
      const steps = /** @type {Record<string, number>} */ ({
        ArrowUp: row.index - 1, ArrowDown: row.index + 1, Home: 0,
      });
      const to = steps[event.key];
      if (to === undefined) return;
      event.preventDefault();
      if (to >= 0 && to < this.total) void this.move(row.index, to);
    });
    grip.addEventListener('pointerdown', event => {
      const row = this.known.get(id);
      if (!row || event.button) return;
      event.preventDefault();
      grip.focus();
      grip.setPointerCapture(event.pointerId);
      drag(this, grip, row, HEIGHT, event);
    });
  }
}
