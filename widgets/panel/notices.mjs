// Ends of jobs, told to whoever is not looking: which of them, in what words, and where.

import { button, h, icon, ICONS, put } from './dom.mjs';
import { S } from './strings.mjs';

const ENDED = ['succeeded', 'failed', 'cancelled'];
const STAYS = 8000;
const GATHER = 300;
const MOST = 4;

/** @typedef {{kind: string, path: string}} Origin */

/**
 * @typedef {object} Ways How it asks and tells.
 * @property {(method: string, path: string) => Promise<any>} ask
 * @property {(origin: Origin) => boolean} mine Whether somebody here waits for jobs from there.
 * @property {(text: string, kind: string, job?: number) => void} show Tells it within the page;
 *   the kind is `error`, `success` or `info`.
 * @property {{which: string, desktop: boolean}} settings Which: `all`, `failures` or `off`.
 */

/**
 * Whether a job was queued in a terminal, or came from one of these notebooks.
 * @param {Origin} origin
 * @param {string[]} notebooks Paths below the server's root.
 */
export function isFrom(origin, notebooks) {
  if (origin.kind === 'terminal') return true;
  return origin.path !== '' && notebooks.some(path => `/${origin.path}`.endsWith(`/${path}`));
}

/**
 * What to say of a job that has ended.
 * @param {{id: number, tag: string, state: string, reason: string}} job
 */
export function words(job) {
  const reason = job.state === 'succeeded' ? '' : job.reason.split('\n')[0];
  const head = S.ending(job.id, job.tag, job.state);
  return reason && reason !== job.state ? `${head}: ${reason}` : head;
}

/** Tells of the ends of jobs, each once, and of automatic free mode. */
export class Notifier {
  /**
   * @param {Ways} ways
   * @param {number} [gather] For how long ends are gathered, in milliseconds.
   */
  constructor(ways, gather = GATHER) {
    this.ways = ways;
    this.gather = gather;
    /** @type {Set<number>} */
    this.ended = new Set();
    /** @type {Promise<void> | null} */
    this.gathering = null;
    /** @type {Set<number>} */
    this.told = new Set();
    this.since = Date.now() / 1000;
    this.mode = '';
  }

  /**
   * A notice of the server's event stream; without one, something was missed.
   * @param {{job: number | null, kind: string, state: string | null}} [notice]
   */
  async heard(notice) {
    if (this.ways.settings.which === 'off') return;
    try {
      if (!notice || notice.kind === 'mode' || notice.job === null) await this.look();
      else if (notice.state && ENDED.includes(notice.state)) {
        this.ended.add(notice.job);
        this.gathering ||= this.take();
        await this.gathering;
      }
    } catch {
      // the panel says what is wrong with the server; a notice about a notice helps nobody
    }
  }

  /**
   * The end of a job is no news to whoever ends it here.
   * @param {number} job
   * @returns {() => void} How to take that back.
   */
  known(job) {
    this.told.add(job);
    return () => void this.told.delete(job);
  }

  /** Ask for what has ended: a burst of ends is one question. */
  async take() {
    await new Promise(done => setTimeout(done, this.gather));
    const [first, ...more] = this.ended;
    this.ended.clear();
    this.gathering = null;
    if (more.length) await this.look();
    else this.end(await this.ways.ask('GET', `/jobs/${first}`));
  }

  /** Many changes at once, or the mode: see for oneself. */
  async look() {
    const status = await this.ways.ask('GET', '/status?limit=0&recent=50');
    for (const job of status.recent) if (job.ended > this.since) this.end(job);
    const { mode } = status;
    if (!mode) return;
    const now = `${mode.name} ${mode.by}`;
    if (now === this.mode) return;
    const before = this.mode;
    this.mode = now;
    if (this.ways.settings.which !== 'all') return;
    if (mode.by === 'automatic' && mode.name !== 'normal') this.tell(S.freeingFor(mode.program), 'info');
    else if (before.endsWith(' automatic') && mode.name === 'normal') this.tell(S.freeOver, 'info');
  }

  /** @param {any} job */
  end(job) {
    if (job.kind === 'kernel') return; // JupyterLab tells of its notebooks' kernels itself
    if (this.told.has(job.id) || !ENDED.includes(job.state) || !this.ways.mine(job.origin)) return;
    this.told.add(job.id);
    if (this.told.size > 1000) this.told = new Set([...this.told].slice(500));
    if (this.ways.settings.which === 'failures' && job.state !== 'failed') return;
    const kind = { failed: 'error', succeeded: 'success' }[/** @type {'failed'} */ (job.state)] || 'info';
    this.tell(words(job), kind, job.id);
  }

  /**
   * @param {string} text
   * @param {string} kind
   * @param {number} [job]
   */
  tell(text, kind, job) {
    const { settings } = this.ways;
    this.ways.show(text, kind, job);
    if (!settings.desktop || !('Notification' in globalThis)) return;
    if (Notification.permission === 'granted') new Notification(S.title, { body: text });
    else if (Notification.permission === 'default') void Notification.requestPermission();
  }
}

/** Notices in a corner of a page; failures stay until they are put away. */
export class Corner {
  /** @param {(job: number) => void} open */
  constructor(open) {
    this.open = open;
    /** @type {Set<() => void>} How to put away each that is there, oldest first. */
    this.shown = new Set();
    this.root = h('div', 'corner', { role: 'region', 'aria-label': S.notices });
    // one that is there beforehand is read out when something comes into it
    this.list = h('div', '', { role: 'log', 'aria-live': 'polite' });
    this.root.append(this.list);
  }

  /**
   * @param {string} text
   * @param {string} kind
   * @param {number} [job]
   */
  show(text, kind, job) {
    const made = h('div', 'notice', { 'data-kind': kind }, h('span', 'grow', {}, text));
    // a timer that runs on would keep what has long been pushed out
    const timer = kind === 'error' ? undefined : setTimeout(() => away(), STAYS);
    const away = () => {
      clearTimeout(timer);
      this.shown.delete(away);
      made.remove();
    };
    if (job) {
      made.append(button('plain', S.noticeShow, () => {
        away();
        this.open(job);
      }, S.noticeShow));
    }
    made.append(button('quiet', S.noticeAway, away, icon(ICONS.close)));
    this.list.append(made);
    this.shown.add(away);
    for (const oldest of this.shown) if (this.shown.size > MOST) oldest();
  }
}

/**
 * A choice of what is told, kept in this browser.
 * @param {string} name Under which it is kept.
 * @param {{which: string, desktop: boolean}} settings Is changed.
 */
export function choice(name, settings) {
  const field = h('select', 'field', { name: 'notices', 'aria-label': S.notify, title: S.notify },
    ...Object.entries(S.notifyWhich).map(([value, text]) => h('option', '', { value }, text)));
  const told = h('span', 'dim', { role: 'status' });
  const known = kept(name);
  if (known && known in S.notifyWhich) settings.which = known;
  field.value = settings.which;
  field.addEventListener('change', async () => {
    settings.which = field.value;
    try {
      localStorage.setItem(name, field.value);
    } catch {
      // a browser that keeps nothing: it holds for as long as the page is open
    }
    put(told, '');
    if (field.value === 'off' || !('Notification' in globalThis)) return;
    // browsers ask only where somebody has just done something
    const allowed = Notification.permission === 'default' ? await Notification.requestPermission() : Notification.permission;
    put(told, allowed === 'granted' ? '' : S.notifyHere);
  });
  return h('label', 'notify', {}, field, told);
}

/** @param {string} name */
function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}
