// The GPU queue as a view: who uses the GPUs, what runs, what waits and why.
//
// It knows no home: a sidebar, a notebook cell or a page gives it an element and a `Home`, through
// which it asks and learns of changes. No imports, so that all three can load it as it is.

/**
 * Where the view is and how it asks.
 * @typedef {object} Home
 * @property {() => Promise<unknown>} status Gives the answer of `GET status`; fails with `Refused`
 *   where the server refused, with anything else where it could not be reached.
 * @property {(changed: () => void) => (() => void)} onChange Calls back when something changed;
 *   returns how to stop that.
 * @property {() => boolean} visible Whether anybody can see the view now.
 * @property {(job: number) => Promise<unknown>} [cancel] Cancels a job; fails as `status` does.
 *   Without it there are no buttons.
 * @property {number} refresh Seconds between looks while nothing is heard; at least 5.
 */

/**
 * @typedef {object} Grant
 * @property {number} job
 * @property {string} tag
 * @property {number} compute
 * @property {number} memory
 * @property {boolean} whole
 * @property {number | null} [used]
 */

/**
 * @typedef {object} Gpu
 * @property {number} index
 * @property {string} name
 * @property {number | null} memory
 * @property {Grant[]} grants
 * @property {string[]} outside_holders
 * @property {number} outside
 * @property {{memory_used: number | null, utilization: number | null} | null} reading
 */

/**
 * @typedef {object} Job
 * @property {number} id
 * @property {string} tag
 * @property {string} state
 * @property {string} owner
 * @property {string} reason
 * @property {string} command
 * @property {number | null} started
 * @property {number | null} ended
 * @property {{eta: number | null, memory?: number | null}} request
 * @property {number | null} [peak]
 * @property {number} [excess]
 * @property {{position: number, expected: number | null, sentence: string} | null} [wait]
 */

/**
 * @typedef {object} Status
 * @property {number} schema
 * @property {number} at
 * @property {object | null} lead
 * @property {string} problem
 * @property {string} warning
 * @property {Gpu[]} gpus
 * @property {Job[]} running
 * @property {Job[]} waiting
 * @property {Job[]} recent
 * @property {{running: number, waiting: number}} counts
 * @property {{version: string, problem: string}} server
 */

/**
 * What a job that has not ended has beside its name: a button, or nothing.
 * @typedef {(job: Job) => HTMLElement[]} Button
 */

const SCHEMA = 1;
const SOONEST = 500;
const SLOWEST = 60000;
const MOST_ROWS = 50;
const SURE = 5000;

/** The server understood and said no. */
export class Refused extends Error {
  /**
   * @param {number} status The HTTP status.
   * @param {string} message What the server said.
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Bytes for people.
 * @param {number | null} size
 */
export function bytes(size) {
  if (size === null) return '?';
  let unit = 0;
  while (Math.abs(size) >= 1023.5 && unit < 4) {
    size /= 1024;
    unit += 1;
  }
  return `${size < 100 ? Math.round(size * 10) / 10 : Math.round(size)}${'BKMGT'[unit]}`;
}

/**
 * Seconds for people, in at most two units.
 * @param {number} seconds
 */
export function duration(seconds) {
  let left = Math.max(0, Math.round(seconds));
  if (left < 60) return `${left}s`;
  if (left >= 3600) left = Math.round(left / 60) * 60;
  const parts = [];
  for (const [name, size] of /** @type {[string, number][]} */ ([
    ['d', 86400], ['h', 3600], ['m', 60], ['s', 1],
  ])) {
    if (left >= size || parts.length) {
      parts.push([Math.floor(left / size), name]);
      left %= size;
    }
    if (parts.length === 2) break;
  }
  return parts.filter(([count]) => count).map(([count, name]) => `${count}${name}`).join(' ');
}

/**
 * An element with text and children. All text goes in as text: a job may be called anything.
 * @param {string} name
 * @param {string} kind Its class, after `gq-`.
 * @param {(Node | string)[]} content
 */
function element(name, kind, ...content) {
  const made = document.createElement(name);
  if (kind) made.className = `gq-${kind}`;
  made.append(...content);
  return made;
}

/**
 * @param {string} title
 * @param {Node[]} rows
 */
function section(title, rows) {
  return element('section', '', element('h3', '', title), element('ul', '', ...rows));
}

/**
 * @param {string} head
 * @param {string} side
 * @param {string[]} lines
 */
function row(head, side, ...lines) {
  const top = element('div', 'head', element('span', 'name', head), element('span', 'side', side));
  const below = lines.filter(Boolean).map(line => element('div', 'line', line));
  return element('li', '', top, ...below);
}

/** @param {Gpu} gpu */
function gpuRow(gpu) {
  const used = gpu.reading && gpu.reading.memory_used;
  const load = gpu.reading && gpu.reading.utilization;
  const side = gpu.grants.length ? '' : gpu.outside ? 'used outside the queue' : 'free';
  const words = [`${bytes(used)} of ${bytes(gpu.memory)}`];
  if (load !== null) words.push(`${load}% busy`);
  return row(
    `GPU ${gpu.index}`,
    side,
    `${gpu.name}, ${words.join(', ')}`,
    ...gpu.grants.map(grant => {
      const part = grant.whole
        ? 'whole'
        : [grant.compute && `${grant.compute / 10}%`, bytes(grant.memory)].filter(Boolean).join(', ');
      const uses = typeof grant.used === 'number' ? `, uses ${bytes(grant.used)}` : '';
      return `job ${grant.job} ${grant.tag}: ${part}${uses}`;
    }),
    ...gpu.outside_holders,
  );
}

/** @param {Job} job */
function over(job) {
  if (!job.excess) return '';
  return `has used ${bytes(job.peak ?? null)} of GPU memory, asked for ${bytes(job.request.memory ?? null)}`;
}

/**
 * @param {Status} status
 * @param {Job} job
 */
function runningRow(status, job) {
  const ran = job.started === null ? job.state : duration(status.at - job.started);
  const eta = job.request.eta ? ` of about ${duration(job.request.eta)}` : '';
  const state = job.state === 'running' || job.state === 'starting' ? '' : job.state;
  return row(`${job.id} ${job.tag}`, `${ran}${eta}`, state, over(job), job.owner);
}

/**
 * @param {Status} status
 * @param {Job} job
 */
function waitingRow(status, job) {
  const wait = job.wait;
  const when = wait && wait.expected !== null ? `in ${duration(wait.expected - status.at)}` : '';
  return row(`${job.id} ${job.tag}`, when, wait ? wait.sentence : 'about to start', job.owner);
}

/**
 * @param {Status} _status
 * @param {Job} job
 */
function recentRow(_status, job) {
  const took = job.started && job.ended ? ` ${duration(job.ended - job.started)}` : '';
  const made = row(`${job.id} ${job.tag}`, `${job.state}${took}`, job.reason.split('\n')[0], over(job));
  made.dataset.state = job.state;
  return made;
}

/**
 * @param {string} title
 * @param {Status} status
 * @param {Job[]} jobs
 * @param {number} all
 * @param {(status: Status, job: Job) => HTMLElement} show
 * @param {Button} [button]
 */
function jobs(title, status, jobs, all, show, button) {
  const rows = jobs.slice(0, MOST_ROWS).map(job => {
    const made = show(status, job);
    made.dataset.job = String(job.id);
    made.title = job.command;
    if (button) made.querySelector('.gq-head')?.append(...button(job));
    return made;
  });
  if (all > rows.length) rows.push(element('li', 'line', `and ${all - rows.length} more`));
  return rows.length ? [section(title, rows)] : [];
}

function invitation() {
  return element(
    'div',
    'empty',
    element('p', '', 'Nothing runs and nothing waits.'),
    element('p', '', 'To queue a cell, write this at its top:'),
    element('pre', '', '%%gpu'),
    element('p', '', 'or, for a script, in a terminal:'),
    element('pre', '', 'jupyter gpuqueue submit -- python train.py'),
  );
}

/**
 * The whole view of one status.
 * @param {Status} status
 * @param {Button} button
 */
function contents(status, button) {
  const gpus = status.gpus.map(gpuRow);
  if (!gpus.length) {
    const why = status.problem || 'Jobs run on the CPU.';
    gpus.push(row('No GPUs', '', why));
  }
  const notes = [status.warning, status.server.problem].filter(Boolean);
  const idle = !status.counts.running && !status.counts.waiting;
  return [
    ...notes.map(note => element('p', 'note', note)),
    section('GPUs', gpus),
    ...jobs('Running', status, status.running, status.counts.running, runningRow, button),
    ...jobs('Waiting', status, status.waiting, status.counts.waiting, waitingRow, button),
    ...(idle ? [invitation()] : []),
    ...jobs('Recent', status, status.recent, status.recent.length, recentRow),
  ];
}

/**
 * What to say where there is no status to show, and what to do about it.
 * @param {unknown} error
 */
export function sentence(error) {
  if (!(error instanceof Refused)) return 'The server cannot be reached. Trying again.';
  if (error.status === 404) {
    return (
      'This Jupyter server does not have the server part of gpuqueue. Install it where the ' +
      'server runs (pip install jupyter-gpuqueue) and restart the server.'
    );
  }
  if (error.status === 403) return 'You are not allowed to see the queue of this server.';
  return error.message || `The server answered with status ${error.status}.`;
}

/**
 * The buttons that cancel jobs. The first click asks, the second one within some seconds does it.
 * @param {Home} home
 * @param {() => void} draw Show the jobs anew, as they were known last.
 * @param {(words: string) => void} tell Say what went wrong, or nothing.
 * @param {() => void} changed Ask how things are now.
 * @returns {Button}
 */
function canceller(home, draw, tell, changed) {
  /** @type {number | null} */
  let sure = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  /** @type {Set<number>} */
  const going = new Set();

  /** @param {number | null} job */
  const ask = job => {
    sure = job;
    clearTimeout(timer);
    if (job !== null) timer = setTimeout(() => ask(null), SURE);
    draw();
  };

  /** @param {number} job */
  async function cancel(job) {
    going.add(job);
    tell('');
    ask(null);
    try {
      await home.cancel?.(job);
    } catch (error) {
      const words = error instanceof Refused ? error.message : '';
      tell(`Job ${job} was not cancelled. ${words || 'The server did not do it.'}`);
    }
    going.delete(job);
    changed();
  }

  return job => {
    if (!home.cancel) return [];
    const words = sure === job.id ? 'cancel?' : '×';
    const made = /** @type {HTMLButtonElement} */ (element('button', 'cancel', words));
    made.type = 'button';
    made.title = `Cancel job ${job.id}`;
    made.setAttribute('aria-label', sure === job.id ? `${made.title}: sure?` : made.title);
    made.disabled = going.has(job.id);
    made.onclick = () => (sure === job.id ? void cancel(job.id) : ask(job.id));
    return [made];
  };
}

/**
 * @param {unknown} answer
 * @returns {Status}
 */
function checked(answer) {
  const status = /** @type {Status} */ (answer);
  if (status && status.schema === SCHEMA && status.counts && status.server) return status;
  const version = status && status.server && status.server.version;
  throw new Refused(
    200,
    `This panel and the server part of gpuqueue${version ? ` (${version})` : ''} are of different ` +
      'versions. Reload the page; if that does not help, restart the Jupyter server.',
  );
}

const STYLE = `
.gq-view { padding: 8px 12px; overflow: auto; height: 100%; box-sizing: border-box;
  color: var(--jp-ui-font-color1, inherit); font-size: var(--jp-ui-font-size1, 13px);
  font-family: var(--jp-ui-font-family, system-ui, sans-serif); line-height: 1.4; }
.gq-view h3 { font-size: var(--jp-ui-font-size0, 11px); font-weight: 600; margin: 14px 0 4px;
  text-transform: uppercase; letter-spacing: 0.06em; color: var(--jp-ui-font-color2, inherit); }
.gq-view section:first-child h3 { margin-top: 4px; }
.gq-view ul { list-style: none; margin: 0; padding: 0; }
.gq-view li { padding: 5px 0; border-top: 1px solid var(--jp-border-color2, #8884); }
.gq-view .gq-head { display: flex; gap: 8px; justify-content: space-between; }
.gq-view .gq-name { font-weight: 600; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.gq-view .gq-name { flex: 1; }
.gq-view .gq-cancel { flex: none; border: 0; padding: 0 4px; background: none; color: inherit;
  font: inherit; cursor: pointer; opacity: 0.7; }
.gq-view .gq-cancel:hover, .gq-view .gq-cancel:focus-visible { opacity: 1;
  background: var(--jp-layout-color2, #8882); }
.gq-view .gq-side { flex: none; color: var(--jp-ui-font-color2, inherit); }
.gq-view .gq-line { color: var(--jp-ui-font-color2, inherit); overflow-wrap: anywhere; }
.gq-view [data-state=failed] .gq-side { color: var(--jp-error-color1, #c62828); }
.gq-view [data-state=succeeded] .gq-side { color: var(--jp-success-color1, #2e7d32); }
.gq-view .gq-note { margin: 4px 0 8px; padding: 6px 8px; overflow-wrap: anywhere;
  border-left: 3px solid var(--jp-warn-color1, #e65100); background: var(--jp-layout-color2, #8882); }
.gq-view .gq-empty p { margin: 10px 0 4px; }
.gq-view pre { margin: 0; padding: 5px 8px; white-space: pre-wrap; overflow-wrap: anywhere;
  font-family: var(--jp-code-font-family, monospace); font-size: var(--jp-code-font-size, 13px);
  color: inherit; background: var(--jp-layout-color2, #8882); }
`;

/**
 * Show the queue in an element for as long as it is there.
 * @param {HTMLElement} root
 * @param {Home} home
 * @returns {{look: () => void, close: () => void}} `look` when the view comes into sight.
 */
export function show(root, home) {
  const style = document.createElement('style');
  style.textContent = STYLE;
  const note = element('p', 'note');
  note.setAttribute('role', 'status');
  note.hidden = true;
  const refusal = element('p', 'note');
  refusal.setAttribute('role', 'alert');
  refusal.hidden = true;
  const body = element('div', '', element('p', 'line', 'Looking at the queue…'));
  root.classList.add('gq-view');
  root.replaceChildren(style, note, refusal, body);

  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let asking = false;
  let again = false;
  let closed = false;
  let failures = 0;
  let asked = 0;
  /** @type {Status | null} */
  let known = null;

  const draw = () => {
    // whoever uses the keyboard stays where they were
    const at = document.activeElement?.closest('[data-job]')?.getAttribute('data-job');
    const here = at && body.contains(document.activeElement);
    body.replaceChildren(...(known && !closed ? contents(known, button) : []));
    if (!here) return;
    const same = body.querySelector(`[data-job="${at}"] .gq-cancel`);
    if (same instanceof HTMLElement) same.focus();
  };
  const button = canceller(
    home,
    draw,
    words => {
      refusal.textContent = words;
      refusal.hidden = !words;
    },
    () => void look(),
  );

  /** @param {number} delay In milliseconds. */
  const later = delay => {
    clearTimeout(timer);
    if (!closed) timer = setTimeout(() => void look(), delay);
  };

  async function look() {
    // whoever comes into sight looks again by itself: nothing is asked for nobody
    if (closed || !home.visible()) return;
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    again = false;
    asked = Date.now();
    try {
      const status = checked(await home.status());
      if (closed) return;
      known = status;
      draw();
      note.hidden = true;
      failures = 0;
    } catch (error) {
      if (closed) return;
      failures += 1;
      note.textContent = sentence(error);
      note.hidden = false;
      // what was seen before is no longer true for sure
      if (error instanceof Refused) {
        known = null;
        draw();
      }
    } finally {
      asking = false;
    }
    const pause = Math.max(5, home.refresh) * 1000;
    later(again ? SOONEST : Math.min(SLOWEST, pause * 2 ** Math.min(failures, 4)));
  }

  const stop = home.onChange(() => {
    if (home.visible()) later(Math.max(0, SOONEST - (Date.now() - asked)));
  });
  void look();
  return {
    look: () => void look(),
    close() {
      closed = true;
      clearTimeout(timer);
      stop();
      root.replaceChildren();
    },
  };
}
