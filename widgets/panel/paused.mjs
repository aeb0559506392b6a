// A banner in a notebook whose kernel free mode has to do with: what that means for its cells, and
// what may be done.

import { reasonOf, sureButton } from './actions.mjs';
import { notebookOf } from './detail.mjs';
import { button, h, put, show } from './dom.mjs';
import { bytes } from './format.mjs';
import { S } from './strings.mjs';

/** @typedef {import('./types.mjs').Job} Job */
/** @typedef {import('./types.mjs').Status} Status */

const SOON = 300;
const AGAIN = 5000;
const ASK = '/status?limit=200&recent=0&match=.ipynb';
const KINDS = ['mode', 'frozen', 'continued', 'parked', 'unparked', 'restarted', 'many'];
/** Events after which a notebook's kernel may stand otherwise to free mode. */

/**
 * What a notebook is told, and whether its kernel may be started again to let go of its memory.
 * @typedef {{kind: 'paused' | 'waits' | 'moved' | 'holds', words: string, release: boolean}} Told
 */

/**
 * What to tell the notebook whose kernel this is; null where there is nothing to tell.
 * @param {Job} job
 * @param {Status} status
 * @returns {Told | null}
 */
export function toldOf(job, status) {
  const { mode } = status;
  if (!mode || mode.name === 'normal') {
    const waits = job.state === 'frozen' || (job.state === 'running' && job.reason);
    return waits ? { kind: 'waits', words: S.pausedWaits(job.reason), release: false } : null;
  }
  const who = S.pausedFor(mode.program);
  if (job.state === 'frozen') return { kind: 'paused', words: S.paused(who), release: false };
  if (job.state !== 'running') return null;
  const moved = (mode.moved || []).filter(one => one.job === job.id && one.memory > 0);
  const out = moved.reduce((sum, one) => sum + one.memory, 0);
  if (out) return { kind: 'moved', words: S.pausedMoved(who, bytes(out)), release: false };
  const held = mode.holding.filter(one => one.job === job.id).map(one => S.holdingOf(
    one.memory === null ? null : bytes(one.memory), one.gpu,
  ));
  return held.length ? { kind: 'holds', words: S.pausedHolds(who, held), release: true } : null;
}

/**
 * A place for a banner: an open notebook. `put` shows a node above its cells, or takes it away.
 * @typedef {{key: object, path: string, put: (node: HTMLElement | null) => void,
 *   restart: () => Promise<unknown>}} Place
 */

/** @typedef {{ask: (method: string, path: string, body?: unknown) => Promise<any>}} Ways */

class Banner {
  /**
   * @param {Ways} ways
   * @param {Place} place
   * @param {() => void} changed
   */
  constructor(ways, place, changed) {
    this.ways = ways;
    this.changed = changed;
    this.words = h('span', 'grow', {});
    this.failed = h('span', 'bad', { role: 'alert' });
    this.resume = button('primary', S.resumeTip, () => void this.go(this.resume, () => ways.ask('POST', '/resume', {})), S.resume);
    const { node, draw } = sureButton('plain', {
      face: () => S.pausedRelease,
      label: () => null,
      sure: () => S.pausedReleaseAsk,
      sureLabel: () => null,
    }, () => this.go(null, place.restart));
    draw();
    this.release = node;
    this.release.title = S.pausedReleaseTip;
    // one that is there beforehand is read out when something comes into it
    const said = h('span', 'grow', { role: 'status' }, this.words);
    this.root = h('div', 'view paused', {}, h('div', 'head', {}, said, this.failed, this.release, this.resume));
    this.shown = false;
  }

  /**
   * @param {HTMLButtonElement | null} pressed
   * @param {() => Promise<unknown>} what
   */
  async go(pressed, what) {
    put(this.failed, '');
    if (pressed) pressed.disabled = true;
    try {
      await what();
    } catch (error) {
      put(this.failed, S.notDone(reasonOf(error)));
    }
    if (pressed) pressed.disabled = false;
    this.changed();
  }

  /**
   * @param {Place} place
   * @param {Told | null} told
   * @param {boolean} allowed
   */
  update(place, told, allowed) {
    if (told) {
      this.root.dataset.kind = told.kind;
      put(this.words, told.words);
      show(this.release, told.release);
      show(this.resume, allowed && told.kind !== 'waits');
    }
    if (this.shown !== Boolean(told)) {
      this.shown = Boolean(told);
      if (!told) put(this.failed, '');
      place.put(told ? this.root : null);
    }
  }
}

/** The banners of all open notebooks. It asks only when something has happened that they are about. */
export class Banners {
  /**
   * @param {Ways} ways
   * @param {() => Place[]} places
   */
  constructor(ways, places) {
    this.ways = ways;
    this.places = places;
    /** @type {WeakMap<object, Banner>} */
    this.made = new WeakMap();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.due = 0;
    this.late = false;
    /** Whether there is something to tell now: then it looks again by itself. */
    this.active = true;
    document.addEventListener('visibilitychange', () => {
      if (this.late) this.soon();
    });
    this.soon();
  }

  /**
   * A notice of the server's event stream; without one, something was missed.
   * @param {{kind: string}} [notice]
   */
  heard(notice) {
    if (!notice || this.active || KINDS.includes(notice.kind)) this.soon();
  }

  /** Notebooks were opened or closed. */
  moved() {
    if (this.active) this.soon();
  }

  /** @param {number} [wait] */
  soon(wait = SOON) {
    const due = Date.now() + wait;
    if (this.timer !== undefined && this.due <= due) return;
    clearTimeout(this.timer);
    this.due = due;
    this.timer = setTimeout(() => void this.look(), wait);
  }

  async look() {
    this.timer = undefined;
    this.late = document.visibilityState !== 'visible';
    if (this.late) return;
    try {
      this.show(await this.ways.ask('GET', ASK));
    } catch {
      this.active = true; // what is shown stays; the panel says what is wrong with the server
    }
    if (this.active) this.soon(AGAIN);
  }

  /** @param {Status} status */
  show(status) {
    const may = status.server.may;
    const kernels = status.running.filter(job => job.kind === 'kernel');
    let shown = false;
    for (const place of this.places()) {
      const job = kernels.find(one => notebookOf(one, status.server.folder) === place.path);
      const told = job ? toldOf(job, status) : null;
      shown ||= told !== null;
      let banner = this.made.get(place.key);
      if (!banner) {
        if (!told) continue;
        banner = new Banner(this.ways, place, () => this.soon());
        this.made.set(place.key, banner);
      }
      banner.update(place, told, may ? may.write : true);
    }
    this.active = shown || Boolean(status.mode && status.mode.name !== 'normal');
  }
}
