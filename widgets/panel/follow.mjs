// Keeps the state of the queue: asks when something changed and now and then, never for nobody.

import { Refused } from './source.mjs';
import { S } from './strings.mjs';
import { SCHEMA, VERSION } from './version.mjs';

const SOONEST = 500;
const SLOWEST = 60000;
export const FIRST = 100;
export const RECENT = 20;

/**
 * What to say where there is no status to show, and what to do about it.
 * @param {unknown} error
 * @param {string} kind The kind of source.
 */
export function sentence(error, kind) {
  if (!(error instanceof Refused)) return kind === 'kernel' ? S.kernelSilent : S.unreachable;
  if (error.status === 404) return S.noExtension;
  if (error.status === 403) return S.forbidden;
  return error.message || S.answered(error.status);
}

/**
 * @param {unknown} answer
 * @returns {import('./types.mjs').Status}
 */
export function checked(answer) {
  const status = /** @type {import('./types.mjs').Status} */ (answer);
  if (status && status.schema === SCHEMA && status.counts && status.server) return status;
  const version = (status && status.server && status.server.version) || '';
  throw new Refused(200, S.otherSchema(version, VERSION));
}

export class Follow {
  /**
   * @param {import('./types.mjs').Home} home
   * @param {() => boolean} visible
   */
  constructor(home, visible) {
    this.home = home;
    this.source = home.source;
    this.visible = visible;
    /** @type {import('./types.mjs').Status | null} */
    this.status = null;
    this.note = '';
    this.query = ''; // which jobs are asked for, as the end of an address
    this.shown = ''; // the query that the status answers
    /** @type {Set<() => void>} */
    this.heard = new Set();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.asking = false;
    this.again = false;
    this.closed = false;
    this.failures = 0;
    this.asked = 0;
    this.stop = this.source.onChange(() => this.changed());
  }

  /** Something changed: look soon, but not more often than twice a second. */
  changed() {
    if (this.visible()) this.later(Math.max(0, SOONEST - (Date.now() - this.asked)));
  }

  /** @param {number} delay In milliseconds. */
  later(delay) {
    clearTimeout(this.timer);
    if (!this.closed) this.timer = setTimeout(() => void this.look(), delay);
  }

  async look() {
    // whoever comes into sight looks again by itself: nothing is asked for nobody
    if (this.closed || !this.visible()) return;
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    this.again = false;
    this.asked = Date.now();
    const { query } = this;
    try {
      const status = checked(
        await this.source.ask('GET', `/status?limit=${FIRST}&recent=${RECENT}${query}`),
      );
      if (this.closed) return;
      this.status = status;
      this.shown = query;
      this.note = '';
      this.failures = 0;
    } catch (error) {
      if (this.closed) return;
      this.failures += 1;
      this.note = sentence(error, this.source.kind);
      // what was seen before is no longer true for sure
      if (error instanceof Refused) this.status = null;
    } finally {
      this.asking = false;
    }
    this.tell();
    const pause = Math.max(2, this.home.refresh) * 1000;
    this.later(this.again ? SOONEST : Math.min(SLOWEST, pause * 2 ** Math.min(this.failures, 4)));
  }

  tell() {
    for (const heard of this.heard) heard();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.stop();
    this.heard.clear();
  }
}
