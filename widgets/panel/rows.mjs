// Rows of jobs that run and of jobs that have ended.

import { cancelButton, may, retryButton } from './actions.mjs';
import { Rows, attr, h, put, show, style } from './dom.mjs';
import { bytes, duration, metric, rough } from './format.mjs';
import { listOf } from './picks.mjs';
import { S, stateWords } from './strings.mjs';

/** @typedef {import('./types.mjs').Job} Job */
/** @typedef {import('./types.mjs').Status} Status */
/** @typedef {import('./actions.mjs').Context} Context */

const SHOWN = 100;
const ENDED = ['succeeded', 'failed', 'cancelled'];
const ALL_STEPS = ['total_steps', 'max_steps', 'steps'];

/** @param {Job} job */
export function over(job) {
  return job.excess ? S.over(bytes(job.peak), bytes(job.request.memory)) : '';
}

/**
 * Whose job it is, where that is not always the same.
 * @param {Context} context
 * @param {Job} job
 */
export function ownerOf(context, job) {
  const status = context.follow.status;
  if (!status) return job.owner;
  const shown = [...status.running, ...status.waiting, ...status.recent];
  return shown.some(other => other.owner !== job.owner) ? job.owner : '';
}

/**
 * How far a job is: a fraction where that is known, and words.
 * @param {Job} job
 * @param {number} now
 * @returns {{part: number | null, words: string, sure: boolean}}
 */
export function progressOf(job, now) {
  const note = job.progress;
  if (note) {
    const all = ALL_STEPS.map(name => note.metrics[name]).find(value => typeof value === 'number');
    const whole = typeof all === 'number' && all > 0 ? all : null;
    const words = note.step === null ? [] : [S.step(note.step, whole)];
    for (const [name, value] of Object.entries(note.metrics)) {
      if (!ALL_STEPS.includes(name) && words.length < 4) words.push(`${name} ${metric(value)}`);
    }
    if (now - note.at > 60) words.push(S.noted(now - note.at));
    const part = whole && note.step !== null ? Math.min(1, note.step / whole) : null;
    if (part !== null) return { part, words: words.join(' · '), sure: true };
    return { ...byTime(job, now), words: words.join(' · ') };
  }
  return byTime(job, now);
}

/**
 * @param {Job} job
 * @param {number} now
 */
function byTime(job, now) {
  const whole = job.request.eta || job.learned;
  if (!whole || job.started === null) return { part: null, words: '', sure: false };
  return { part: Math.min(1, ranFor(job, now) / whole), words: '', sure: false };
}

/**
 * Seconds that a job has run, those that it was frozen for left out.
 * @param {Job} job
 * @param {number} now
 */
export function ranFor(job, now) {
  const until = job.ended ?? (job.frozen_at ? Math.min(now, job.frozen_at) : now);
  return Math.max(0, until - (job.started ?? until) - (job.frozen || 0));
}

/**
 * Numbers of the GPUs that a job has, in words.
 * @param {Status} status
 * @param {Job} job
 */
export function placeOf(status, job) {
  if (!job.placement) return '';
  const index = new Map(status.gpus.map(gpu => [gpu.uuid, gpu.index]));
  const found = job.placement.grants.map(grant => index.get(grant.gpu));
  const known = /** @type {number[]} */ (found.filter(one => one !== undefined));
  return known.length ? S.onGpus(known) : S.onCpu;
}

/** The parts of a row that are the same for all kinds. */
class Row {
  /**
   * @param {Context} context
   * @param {Job} job
   * @param {import('./picks.mjs').List} list
   */
  constructor(context, job, list) {
    this.job = job;
    this.name = h('span', 'name', {});
    this.side = h('span', 'num side', {});
    this.tools = h('span', 'tools', {});
    this.bar = h('i', 'fill', {});
    this.track = h('div', 'track thin', { 'aria-hidden': 'true' }, this.bar);
    this.line = h('div', 'line', {});
    this.second = h('div', 'line', {});
    this.dot = h('i', 'dot', {});
    const open = h('button', 'open', { type: 'button', click: () => context.open(job.id) },
      this.dot, this.name, this.side);
    attr(open, 'aria-label', S.open(job.id, job.tag));
    this.root = h(
      'li', 'row', { 'data-job': job.id, title: job.command },
      h('div', 'head', {}, open, this.tools), this.track, this.line, this.second,
    );
    if (context.picks.useful) this.root.prepend(context.picks.box(this.root, () => this.job, list));
    // the row as a whole is a larger target for a mouse; the keyboard has its button
    this.root.addEventListener('click', event => {
      if (!(event.target instanceof Element) || event.target.closest('button, a')) return;
      if (!String(getSelection())) context.open(job.id);
    });
  }
}

/**
 * Why a job ended as it did, with the last line of its own that says more.
 * @param {Job} job
 */
export function reasonOf(job) {
  const reason = job.reason.split('\n')[0];
  const error = job.failure ? job.failure.error : '';
  return error && !reason.includes(error) ? [reason, error].filter(Boolean).join(': ') : reason;
}

/**
 * How many jobs there are or, where some are looked for, how many of how many.
 * @param {Status} status
 * @param {'running' | 'waiting'} which
 */
export function countOf({ counts, matches }, which) {
  const all = which === 'running' ? jobsRunning(counts) : counts.waiting;
  if (matches) return S.ofAll(which === 'running' ? jobsRunning(matches) : matches.waiting, all);
  return all ? String(all) : '';
}

/**
 * How many run that are not a notebook's kernel.
 * @param {import('./types.mjs').Counts} counts
 */
export const jobsRunning = counts => counts.running - (counts.notebooks || 0);

/** What runs. */
export class Running {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    /** @type {Map<number, Row>} */
    this.known = new Map();
    this.count = h('span', 'count', {});
    this.list = h('ul', 'rows', {});
    this.none = h('p', 'empty', {});
    this.root = h('section', 'running', { 'aria-label': S.running },
      h('h2', '', {}, S.running, this.count), this.none, this.list);
    this.rows = new Rows(this.list, job => this.make(job), (_, job) => this.patch(job));
    /** @type {Job[]} */
    this.shown = [];
    this.order = listOf(this.list, () => this.shown);
    attr(this.list, 'data-lm-suppress-shortcuts', 'true');
    /** @type {Status | null} */
    this.status = null;
  }

  /** @param {Job} job */
  make(job) {
    const row = new Row(this.context, job, this.order);
    if (may(this.context, 'write')) row.tools.append(cancelButton(this.context, job.id));
    this.known.set(job.id, row);
    return row.root;
  }

  /** @param {Job} job */
  patch(job) {
    const row = /** @type {Row} */ (this.known.get(job.id));
    row.job = job;
    put(row.name, `${job.id} ${job.tag}`);
    attr(row.root, 'data-state', job.state);
    attr(row.dot, 'data-tone', this.context.tones.of(job.id));
    const words = { starting: S.starting, evicting: S.evicting, frozen: S.frozen };
    // one that borrows compute of notebooks says whose, or for whom it stands still
    const lent = job.loan && job.loan.borrows ? job.reason : '';
    const state = lent || /** @type {Record<string, string>} */ (words)[job.state];
    const place = this.status ? placeOf(this.status, job) : '';
    put(row.second, [state, over(job), place, ownerOf(this.context, job)].filter(Boolean).join(' · '));
    this.time(row, this.status ? this.status.at : 0);
  }

  /**
   * @param {Row} row
   * @param {number} now
   */
  time(row, now) {
    const job = row.job;
    const ran = job.started === null ? stateWords(job.state) : duration(ranFor(job, now));
    const whole = job.request.eta || job.learned;
    put(row.side, whole ? S.ofAbout(ran, rough(whole)) : ran);
    const { part, words, sure } = progressOf(job, now);
    put(row.line, words);
    show(row.track, part !== null);
    if (part !== null) style(row.bar, 'width', `${(part * 100).toFixed(1)}%`);
    row.track.classList.toggle('gq-guess', !sure);
  }

  /** @param {Status} status */
  update(status) {
    this.status = status;
    const jobs = status.running.filter(job => job.kind !== 'kernel');
    const ids = new Set(jobs.map(job => job.id));
    for (const id of this.known.keys()) if (!ids.has(id)) this.known.delete(id);
    this.shown = jobs.slice(0, SHOWN);
    this.rows.update(this.shown, job => job.id);
    put(this.count, countOf(status, 'running'));
    put(this.none, jobsRunning(status.counts) ? '' : S.nothingRuns);
  }

  /** @param {number} now Seconds since the epoch, by the server's clock. */
  tick(now) {
    for (const row of this.known.values()) this.time(row, now);
  }
}

/** What has ended, the last to end first. */
export class Recent {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    /** @type {Map<number, Row>} */
    this.known = new Map();
    /** @type {Job[]} */
    this.older = [];
    /** @type {Status | null} */
    this.status = null;
    this.list = h('ul', 'rows', {});
    this.more = h('button', 'button plain', { type: 'button', click: () => void this.page() }, S.more);
    this.root = h('section', 'recent', { 'aria-label': S.recent },
      h('h2', '', {}, S.recent), this.list, this.more);
    this.rows = new Rows(this.list, job => this.make(job), (_, job) => this.patch(job));
    /** @type {Job[]} */
    this.shown = [];
    this.order = listOf(this.list, () => this.shown);
    attr(this.list, 'data-lm-suppress-shortcuts', 'true');
    this.query = '';
  }

  /** @param {Job} job */
  make(job) {
    const row = new Row(this.context, job, this.order);
    show(row.track, false);
    if (job.kind !== 'kernel' && may(this.context, 'execute')) {
      row.tools.append(retryButton(this.context, job.id));
    }
    this.known.set(job.id, row);
    return row.root;
  }

  /** @param {Job} job */
  patch(job) {
    const row = /** @type {Row} */ (this.known.get(job.id));
    row.job = job;
    put(row.name, `${job.id} ${job.tag}`);
    attr(row.root, 'data-state', job.state);
    attr(row.dot, 'data-state', job.state);
    const took = job.started && job.ended ? ` ${duration(ranFor(job, 0))}` : '';
    put(row.side, `${stateWords(job.state)}${took}`);
    put(row.line, job.state === 'succeeded' ? '' : reasonOf(job));
    const peak = job.peak && !job.excess ? S.peak(bytes(job.peak)) : '';
    put(row.second, [job.failure?.line, over(job), peak, ownerOf(this.context, job)].filter(Boolean).join(' · '));
  }

  /** The next page of older ones; in all no more than a person would read. */
  async page() {
    const last = this.older[this.older.length - 1] || this.status?.recent.slice(-1)[0];
    if (!last) return;
    try {
      const { query } = this;
      const asked = new URLSearchParams(query);
      const wanted = (asked.get('state') || ENDED.join()).split(',').filter(state => ENDED.includes(state));
      const match = asked.get('match');
      const words = match ? `&match=${encodeURIComponent(match)}` : '';
      const path = `/jobs?state=${wanted.join()}&order=ended&before=${last.id}&limit=50${words}`;
      const found = await this.context.home.source.ask('GET', path);
      if (query !== this.query) return; // something else is looked for meanwhile
      this.older.push(...found.jobs);
      this.draw();
      show(this.more, found.next !== null && this.older.length < 1000);
    } catch {
      this.context.follow.changed(); // which says what is wrong
    }
  }

  draw() {
    const recent = this.status ? this.status.recent : [];
    const ids = new Set(recent.map(job => job.id));
    this.shown = [...recent, ...this.older.filter(job => !ids.has(job.id))];
    const shown = new Set(this.shown.map(job => job.id));
    for (const id of this.known.keys()) if (!shown.has(id)) this.known.delete(id);
    this.rows.update(this.shown, job => job.id);
    show(this.root, this.shown.length > 0);
  }

  /** @param {Status} status */
  update(status) {
    // what has moved out of the first page meanwhile goes to the older ones
    const before = this.status ? this.status.recent : [];
    this.status = status;
    if (this.query !== this.context.follow.shown) {
      this.query = this.context.follow.shown;
      this.older = [];
    }
    if (this.older.length) {
      const ids = new Set(status.recent.map(job => job.id));
      this.older = [...before.filter(job => !ids.has(job.id)), ...this.older].slice(0, 1000);
    } else {
      show(this.more, status.recent.length >= 20);
    }
    this.draw();
  }
}
