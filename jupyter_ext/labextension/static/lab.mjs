// What JupyterLab shows of the queue besides the panel: notifications, and counts in the status bar.

const ENDED = ['succeeded', 'failed', 'cancelled'];
const PAUSE = 3000;

/**
 * @typedef {object} Ways How it asks and tells.
 * @property {(method: string, path: string) => Promise<any>} ask
 * @property {() => string[]} notebooks Paths of the notebooks that are open, below the root.
 * @property {(job: number) => void} open Shows a job in the panel.
 * @property {any} [Notification] JupyterLab's; older ones have none.
 * @property {{which: string, desktop: boolean}} settings
 */

/**
 * Whether a job came from one of these notebooks.
 * @param {{kind: string, path: string}} origin
 * @param {string[]} notebooks
 */
export function isFrom(origin, notebooks) {
  return origin.path !== '' && notebooks.some(path => `/${origin.path}`.endsWith(`/${path}`));
}

/**
 * What to say of a job that has ended.
 * @param {{id: number, tag: string, state: string, reason: string}} job
 */
export function words(job) {
  const reason = job.state === 'succeeded' ? '' : job.reason.split('\n')[0];
  const head = `Job ${job.id} (${job.tag}) ${job.state === 'cancelled' ? 'was cancelled' : job.state}`;
  return reason && reason !== job.state ? `${head}: ${reason}` : head;
}

/** Tells of the ends of jobs that came from this browser's notebooks, and of automatic free mode. */
export class Notifier {
  /** @param {Ways} ways */
  constructor(ways) {
    this.ways = ways;
    /** @type {Set<number>} */
    this.told = new Set();
    this.since = Date.now() / 1000;
    this.mode = '';
  }

  /**
   * A notice of the server's event stream.
   * @param {{job: number | null, kind: string, state: string | null}} notice
   */
  async heard(notice) {
    if (this.ways.settings.which === 'off') return;
    try {
      if (notice.kind === 'mode') await this.look();
      else if (notice.job === null) await this.look();
      else if (notice.state && ENDED.includes(notice.state)) {
        if (this.ways.notebooks().length) this.end(await this.ways.ask('GET', `/jobs/${notice.job}`));
      }
    } catch {
      // the panel says what is wrong with the server; a toast about a toast helps nobody
    }
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
    if (mode.by === 'automatic' && mode.name !== 'normal') {
      this.tell(`The GPUs are being freed for ${mode.program || 'another program'}.`, 'info');
    } else if (before.endsWith(' automatic') && mode.name === 'normal') {
      this.tell('The queue has the GPUs again.', 'info');
    }
  }

  /** @param {any} job */
  end(job) {
    const { which } = this.ways.settings;
    if (job.kind === 'kernel') return; // JupyterLab tells of its notebooks' kernels itself
    if (this.told.has(job.id) || !isFrom(job.origin, this.ways.notebooks())) return;
    this.told.add(job.id);
    if (this.told.size > 1000) this.told = new Set([...this.told].slice(500));
    if (which === 'failures' && job.state !== 'failed') return;
    const kind = { failed: 'error', succeeded: 'success' }[/** @type {'failed'} */ (job.state)] || 'info';
    this.tell(words(job), kind, job.id);
  }

  /**
   * @param {string} text
   * @param {string} kind
   * @param {number} [job]
   */
  tell(text, kind, job) {
    const { Notification: toast, open, settings } = this.ways;
    if (toast) {
      const actions = job ? [{ label: 'Show', callback: () => open(job) }] : [];
      toast.emit(text, kind, { autoClose: kind === 'error' ? false : 8000, actions });
    }
    if (!settings.desktop || !('Notification' in globalThis)) return;
    if (Notification.permission === 'granted') new Notification('GPU queue', { body: text });
    else if (Notification.permission === 'default') void Notification.requestPermission();
  }
}

/**
 * How many jobs run and wait, in the status bar; asked for when something changed, never else.
 * @param {HTMLElement} node
 * @param {Pick<Ways, 'ask'>} ways
 * @param {() => void} open
 * @returns {{changed: () => void}}
 */
export function counts(node, ways, open) {
  const shown = document.createElement('button');
  shown.type = 'button';
  shown.className = 'gq-counts';
  shown.hidden = true;
  shown.onclick = open;
  shown.style.cssText =
    'border:0;background:none;color:inherit;font:inherit;padding:0 4px;cursor:pointer;height:100%';
  node.append(shown);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let late = false;
  let asked = 0;
  const look = async () => {
    timer = undefined;
    if (document.visibilityState !== 'visible') {
      late = true;
      return;
    }
    late = false;
    asked = Date.now();
    try {
      const found = await ways.ask('GET', '/counts');
      const text = `GPU: ${found.running} running, ${found.waiting} waiting`;
      shown.textContent = text;
      shown.title = 'Show the GPU queue';
      shown.hidden = false;
    } catch {
      shown.hidden = true; // a number that may be wrong is worse than none
    }
  };
  const changed = () => {
    if (timer === undefined) timer = setTimeout(look, Math.max(0, PAUSE - (Date.now() - asked)));
  };
  document.addEventListener('visibilitychange', () => {
    if (late) changed();
  });
  changed();
  return { changed };
}
