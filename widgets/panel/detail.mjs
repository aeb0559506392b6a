// One job: what it is, what it asked for, how far it is, what it wrote, and what to do with it.

import { cancelButton, copy, may, retryButton } from './actions.mjs';
import { ICONS, Rows, attr, button, h, icon, put, show, style } from './dom.mjs';
import { bytes, clock, duration, metric } from './format.mjs';
import { Log } from './log.mjs';
import { NextStart } from './nextstart.mjs';
import { CellOutputs } from './outputs.mjs';
import { startWords, whyWords } from './queue.mjs';
import { Share, resizable } from './share.mjs';
import { over, placeOf, progressOf, ranFor, reasonOf } from './rows.mjs';
import { S, stateWords } from './strings.mjs';
import { sentence } from './follow.mjs';

/** @typedef {import('./types.mjs').Job} Job */
/** @typedef {import('./actions.mjs').Context} Context */

const ENDED = ['succeeded', 'failed', 'cancelled'];
const LINES = 3;

/** @param {Job} job */
function askedWords(job) {
  const { request } = job;
  /** @type {string[]} */
  const words = [S.presets[request.preset] || request.preset];
  if (request.gpus) words.push(`${request.gpus} GPU`);
  if (request.share) words.push(`${request.share / 10}%`);
  if (request.memory) words.push(bytes(request.memory));
  if (request.eta) words.push(`~${duration(request.eta)}`);
  if (request.priority) words.push(`priority ${request.priority}`);
  return words.join(', ');
}

/**
 * The path of the notebook that a job came from, below the server's root; empty where there is none.
 * @param {Job} job
 * @param {string | undefined} root
 */
export function notebookOf(job, root) {
  const { path } = job.origin;
  if (!path.endsWith('.ipynb') || !root) return '';
  if (!path.startsWith('/')) return path;
  const folder = root.endsWith('/') ? root : `${root}/`;
  return path.startsWith(folder) ? path.slice(folder.length) : '';
}

/**
 * The folder that a job works in, below the server's root; null where it is elsewhere.
 * @param {Job} job
 * @param {string | undefined} root
 */
export function folderOf(job, root) {
  if (!root || !job.cwd) return null;
  const folder = root.endsWith('/') ? root : `${root}/`;
  return `${job.cwd}/`.startsWith(folder) ? job.cwd.slice(folder.length) : null;
}

/** Small lines of the metrics that a job has noted. */
class Sparks {
  constructor() {
    this.root = h('div', 'sparks', { hidden: true });
    this.rows = new Rows(
      this.root,
      /** @param {{name: string}} one */
      one => {
        const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
        attr(svg, 'viewBox', '0 0 100 24');
        attr(svg, 'preserveAspectRatio', 'none');
        attr(svg, 'role', 'img');
        svg.append(document.createElementNS('http://www.w3.org/2000/svg', 'polyline'));
        return h('div', 'spark', {}, h('span', 'dim', {}, one.name), svg, h('span', 'num', {}));
      },
      (node, /** @type {{name: string, values: number[]}} */ { name, values }) => {
        const least = Math.min(...values);
        const span = Math.max(...values) - least || 1;
        const step = 100 / Math.max(1, values.length - 1);
        const points = values.map(
          (value, i) => `${(i * step).toFixed(1)},${(22 - ((value - least) / span) * 20).toFixed(1)}`,
        );
        const svg = /** @type {Element} */ (node.querySelector('svg'));
        attr(/** @type {Element} */ (svg.firstElementChild), 'points', points.join(' '));
        attr(svg, 'aria-label', `${name}: ${values.map(metric).slice(-3).join(', ')}`);
        put(/** @type {HTMLElement} */ (node.lastElementChild), metric(values[values.length - 1]));
      },
    );
  }

  /** @param {import('./types.mjs').Note[]} points */
  update(points) {
    /** @type {Map<string, number[]>} */
    const series = new Map();
    for (const { metrics } of points) {
      for (const [name, value] of Object.entries(metrics)) {
        if (typeof value !== 'number' || name.endsWith('steps')) continue;
        const known = series.get(name);
        if (known) known.push(value);
        else series.set(name, [value]);
      }
    }
    const shown = [...series].filter(([, values]) => values.length > 1).slice(0, LINES);
    this.rows.update(shown.map(([name, values]) => ({ name, values })), one => one.name);
    show(this.root, shown.length > 0);
  }
}

export class Detail {
  /**
   * @param {Context} context
   * @param {() => void} close
   * @param {() => boolean} visible
   */
  constructor(context, close, visible) {
    this.context = context;
    this.visible = visible;
    /** @type {Job | null} */
    this.job = null;
    this.id = 0;
    /** @type {Log | null} */
    this.log = null;
    /** @type {CellOutputs | null} */
    this.outputs = null;
    /** @type {Share | null} */
    this.share = null;
    this.sharing = h('div', '', {});
    this.asking = false;

    this.back = button('quiet back', S.back, close, icon(ICONS.back));
    this.name = h('h2', 'title', { tabindex: -1 });
    this.state = h('span', 'state', {});
    this.tools = h('div', 'bar', {});
    this.reason = h('p', 'reason', {});
    this.note = h('p', 'note', { role: 'status', hidden: true });
    this.bar = h('i', 'fill', {});
    this.track = h('div', 'track thin', { 'aria-hidden': 'true' }, this.bar);
    this.words = h('p', 'line', {});
    this.sparks = new Sparks();
    this.list = h('dl', 'facts', {});
    this.facts = new Rows(
      this.list,
      /** @param {[string, string]} fact */ ([name]) => h('div', '', {}, h('dt', '', {}, name), h('dd', '', {})),
      (node, [, words]) => put(/** @type {HTMLElement} */ (node.lastElementChild), words),
    );
    this.written = h('div', '', {});
    this.root = h(
      'aside', 'detail', { 'aria-label': S.details, hidden: true },
      h('div', 'head', {}, this.back, this.name, this.state),
      this.note, this.tools, this.reason, this.track, this.words, this.sharing, this.sparks.root,
      h('div', 'sides', {}, this.written, this.list),
    );
    this.root.addEventListener('keydown', event => {
      if (event.key === 'Escape') close();
    });
  }

  /** @param {number} id */
  open(id) {
    this.close();
    this.id = id;
    this.job = null;
    put(this.name, S.job(id));
    put(this.state, '');
    this.share = null;
    for (const part of [this.tools, this.written, this.sharing]) part.replaceChildren();
    this.facts.update([], fact => fact[0]);
    this.sparks.update([]);
    for (const part of [this.reason, this.words, this.note]) put(part, '');
    show(this.track, false);
    show(this.root, true);
    void this.look();
  }

  close() {
    this.id = 0;
    if (this.log) this.log.close();
    if (this.outputs) this.outputs.close();
    this.log = this.outputs = null;
    show(this.root, false);
  }

  /** Ask how the job is now. */
  async look() {
    const id = this.id;
    if (!id || this.asking || !this.visible()) return;
    this.asking = true;
    try {
      /** @type {Job} */
      const job = await this.context.home.source.ask('GET', `/jobs/${id}`);
      if (id !== this.id) return;
      put(this.note, '');
      this.update(job);
      const wanted = `/jobs/${id}/progress?points=100`;
      const progress = job.attempt ? await this.context.home.source.ask('GET', wanted) : null;
      if (id === this.id && progress) this.sparks.update(progress.points);
    } catch (error) {
      if (id === this.id) put(this.note, sentence(error, this.context.home.source.kind));
    } finally {
      this.asking = false;
      if (id !== this.id) void this.look();
    }
  }

  /** @param {Job} job */
  update(job) {
    const before = this.job;
    this.job = job;
    put(this.name, `${job.id} ${job.tag}`);
    put(this.state, stateWords(job.state));
    attr(this.state, 'data-state', job.state);
    const wrong = ENDED.includes(job.state) && job.state !== 'succeeded';
    const why = job.reason.includes('\n') ? job.reason : reasonOf(job);
    put(this.reason, wrong ? [why, job.failure?.line].filter(Boolean).join('\n') : '');
    if (!before || before.state !== job.state) this.buttons(job);
    if (!this.written.childElementCount) this.writings(job);
    else if (before && (before.state !== job.state || before.attempt !== job.attempt)) this.log?.changed();
    this.shares(job);
    void this.outputs?.look();
    const ended = ENDED.includes(job.state);
    this.log?.nothing(job.attempt ? S.noLog : S.noLogYet);
    this.tick(this.context.follow.status?.at || Date.now() / 1000);
    this.facts.update(this.told(job, ended), fact => fact[0]);
  }

  /** @param {number} now */
  tick(now) {
    const job = this.job;
    if (!job) return;
    if (ENDED.includes(job.state)) {
      show(this.track, false);
      put(this.words, over(job));
      return;
    }
    const { part, words, sure } = progressOf(job, now);
    show(this.track, part !== null && job.state !== 'queued');
    style(this.bar, 'width', `${((part || 0) * 100).toFixed(1)}%`);
    this.track.classList.toggle('gq-guess', !sure);
    put(this.words, [words, over(job)].filter(Boolean).join(' · '));
  }

  /**
   * @param {Job} job
   * @param {boolean} ended
   * @returns {[string, string][]}
   */
  told(job, ended) {
    const status = this.context.follow.status;
    const now = status ? status.at : Date.now() / 1000;
    /** @param {number | null} at */
    const when = at => (at === null ? '' : clock(at, now));
    /** @type {[string, string][]} */
    const facts = [
      [S.waiting, job.wait ? `${startWords(job.wait, now)} · ${whyWords(job.wait)}` : ''],
      [S.hint, job.wait ? job.wait.hint : ''],
      [S.where, status ? placeOf(status, job) : ''],
      [S.asked, askedWords(job)],
      [S.held, !ended && job.hold ? S.holds(job.hold.compute, job.hold.memory) : ''],
      [S.command, job.command],
      [S.folder, job.cwd],
      [S.owner, job.owner],
      [S.submitted, when(job.submitted)],
      [S.started, when(job.started)],
      [S.ended, when(job.ended)],
      [S.took, job.started && job.ended ? duration(ranFor(job, 0)) : ''],
      [S.peakMemory, job.peak ? bytes(job.peak) : ''],
      [S.after, job.request.after.join(', ')],
      [S.attempt, job.attempt > 1 ? String(job.attempt) : ''],
      [S.origin, job.origin.path || S.origins[job.origin.kind] || job.origin.kind],
    ];
    return facts.filter(([name, words]) => words && !(ended && name === S.waiting));
  }

  /** @param {Job} job */
  shares(job) {
    const { status } = this.context.follow;
    if (!resizable(job) || !status) {
      this.share = null;
      this.sharing.replaceChildren();
      return;
    }
    if (!this.share) {
      this.share = new Share(this.context, job.id);
      this.sharing.replaceChildren(this.share.root);
    }
    this.share.update(status, job);
  }

  /** @param {Job} job */
  buttons(job) {
    const tools = [];
    const { home, follow } = this.context;
    if (!ENDED.includes(job.state) && may(this.context, 'write')) {
      tools.push(cancelButton(this.context, job.id, true, job.kind === 'kernel' ? job.tag : undefined));
    }
    if (ENDED.includes(job.state) && job.kind !== 'kernel' && may(this.context, 'execute')) {
      tools.push(retryButton(this.context, job.id, true));
    }
    const path = notebookOf(job, follow.status?.server.folder);
    const openNotebook = home.openNotebook;
    if (path && openNotebook) {
      tools.push(button('plain', S.notebook, () => openNotebook(path), S.notebook));
    }
    const folder = folderOf(job, follow.status?.server.folder);
    const { openFolder } = home;
    if (folder !== null && openFolder) {
      tools.push(button('plain', S.openFolder, () => openFolder(folder), S.openFolder));
    }
    if (job.command) {
      tools.push(button('plain', S.copy, () => void copy(this.context, job.command), S.copy));
    }
    const held = this.tools.contains(document.activeElement);
    this.tools.replaceChildren(...tools);
    if (held) this.back.focus();
  }

  /** @param {Job} job */
  writings(job) {
    if (job.kind === 'kernel') {
      // what it writes is in its notebook
      const path = job.origin.path;
      this.written.append(path ? new NextStart(this.context, path).root : h('div', '', {}));
      return;
    }
    const visible = () => this.visible();
    if (job.kind === 'cell') {
      this.outputs = new CellOutputs(this.context, job.id);
      this.written.append(h('h3', '', {}, S.outputs), this.outputs.root);
    }
    this.log = new Log(this.context, job.id, visible);
    this.written.append(h('h3', '', {}, S.log), this.log.root);
  }
}
