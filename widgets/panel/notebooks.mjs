// Notebooks whose kernels hold a share of a GPU: who sits where, what only idles, and its size.

import { cancelButton, may } from './actions.mjs';
import { notebookOf } from './detail.mjs';
import { ICONS, Rows, attr, button, h, icon, put, show } from './dom.mjs';
import { clock, rough } from './format.mjs';
import { grantWords } from './gpus.mjs';
import { NextStart } from './nextstart.mjs';
import { ownerOf } from './rows.mjs';
import { Share, resizable } from './share.mjs';
import { S } from './strings.mjs';

/** @typedef {import('./types.mjs').Job} Job */
/** @typedef {import('./types.mjs').Status} Status */
/** @typedef {import('./actions.mjs').Context} Context */

/**
 * One notebook: with the job that is its kernel's share, or without one.
 * @typedef {{key: string, job: Job | null, path: string, name: string, here: boolean}} Notebook
 */

/**
 * Whether a kernel works, and if not, since when.
 * @param {Job} job
 * @param {number} now
 */
export function activityWords(job, now) {
  const words = { starting: S.starting, evicting: S.evicting, frozen: S.frozen };
  const state = /** @type {Record<string, string>} */ (words)[job.state];
  if (job.state === 'frozen' && job.loan && job.loan.borrows) return job.reason;
  if (state) return state;
  if (job.busy) return S.kernelBusy;
  return typeof job.idle_since === 'number' ? S.kernelIdle(rough(Math.max(0, now - job.idle_since))) : '';
}

class Row {
  /**
   * @param {Context} context
   * @param {Notebook} notebook
   */
  constructor(context, notebook) {
    this.context = context;
    this.notebook = notebook;
    const { job, name } = notebook;
    /** @type {Share | null} */
    this.share = null;
    /** @type {NextStart | null} */
    this.next = null;
    this.dot = h('i', 'dot', { 'data-tone': 'none' });
    this.name = h('span', 'name', {});
    this.side = h('span', 'num side', {});
    this.open = h('button', 'open', { type: 'button', click: () => this.go() }, this.dot, this.name, this.side);
    this.sliders = button('quiet resize', S.notebookShare(name), () => this.toggle(), icon(ICONS.sliders));
    attr(this.sliders, 'aria-expanded', 'false');
    const tools = h('span', 'tools', {}, this.sliders);
    this.place = h('span', '', {});
    this.line = h('div', 'line', {}, this.place);
    if (job) {
      if (may(context, 'write')) tools.append(cancelButton(context, job.id, false, name));
      const link = h('button', 'link', { type: 'button', click: () => context.open(job.id) }, S.job(job.id));
      attr(link, 'aria-label', S.open(job.id, name));
      this.line.prepend(link, ' · ');
    }
    this.second = h('div', 'line', {});
    this.more = h('div', 'more', { hidden: true });
    this.root = h(
      'li', 'row notebook', { 'data-job': job ? job.id : null, title: notebook.path },
      h('div', 'head', {}, this.open, tools), this.line, this.second, this.more,
    );
    this.more.addEventListener('keydown', event => {
      if (event.key !== 'Escape') return;
      event.stopPropagation();
      this.toggle();
      this.sliders.focus();
    });
  }

  /** Open the notebook where that can be, else what is known of its kernel. */
  go() {
    const { job, path } = this.notebook;
    const { openNotebook } = this.context.home;
    const below = job ? notebookOf(job, this.context.follow.status?.server.folder) : path;
    if (below && openNotebook) openNotebook(below);
    else if (job) this.context.open(job.id);
  }

  toggle() {
    const opens = this.more.hidden;
    show(this.more, opens);
    attr(this.sliders, 'aria-expanded', String(opens));
    this.share = this.next = null;
    this.more.replaceChildren();
    if (!opens) return;
    const { job, path } = this.notebook;
    if (job) {
      this.share = new Share(this.context, job.id);
      this.more.append(this.share.root);
    }
    if (path) {
      this.next = new NextStart(this.context, path);
      this.more.append(this.next.root);
    }
    if (this.context.follow.status) this.share?.update(this.context.follow.status);
    if (this.share && !this.share.root.hidden) this.share.compute.field.focus();
    else this.next?.share.focus();
  }

  /**
   * @param {Notebook} notebook
   * @param {Status} status
   */
  update(notebook, status) {
    this.notebook = notebook;
    const { job, name, path } = notebook;
    const { openNotebook } = this.context.home;
    put(this.name, name);
    attr(this.root, 'aria-current', notebook.here ? 'true' : null);
    const opens = openNotebook && (!job || notebookOf(job, status.server.folder));
    attr(this.open, 'title', opens ? S.notebookOpen(path) : null);
    show(this.sliders, Boolean(path) || (job !== null && resizable(job) && may(this.context, 'write')));
    if (!job) {
      put(this.side, S.noShare);
      put(this.place, S.noShareHere);
      return;
    }
    attr(this.root, 'data-state', job.state);
    attr(this.dot, 'data-tone', this.context.tones.of(job.id));
    const places = status.gpus.flatMap(gpu => {
      const grant = gpu.grants.find(one => one.job === job.id);
      return grant ? [`${S.gpu(gpu.index)}: ${grantWords(grant)}`] : [];
    });
    put(this.place, [...places, ownerOf(this.context, job), notebook.here && S.openHere].filter(Boolean).join(' · '));
    put(this.second, job.hold ? S.label(S.held, S.holds(job.hold.compute, job.hold.memory)) : '');
    this.share?.update(status);
    this.tick(status.at);
  }

  /** @param {number} now */
  tick(now) {
    const { job } = this.notebook;
    if (!job) return;
    put(this.side, activityWords(job, now));
    attr(this.side, 'data-busy', job.state === 'running' && job.busy ? 'true' : null);
    const since = job.busy === false && typeof job.idle_since === 'number' ? job.idle_since : null;
    attr(this.side, 'title', since === null ? null : S.idleSince(clock(since, now)));
  }
}

/** The section. */
export class Notebooks {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    /** @type {WeakMap<HTMLElement, Row>} */
    this.made = new WeakMap();
    /** @type {Row[]} */
    this.shown = [];
    this.count = h('span', 'count', {});
    this.none = h('p', 'empty', {});
    this.list = h('ul', 'rows', {});
    this.root = h('section', 'notebooks', { 'aria-label': S.notebooks },
      h('h2', '', {}, S.notebooks, this.count), this.none, this.list);
    this.rows = new Rows(
      this.list,
      /** @param {Notebook} notebook */
      notebook => {
        const row = new Row(context, notebook);
        this.made.set(row.root, row);
        return row.root;
      },
      (node, notebook) => {
        const row = /** @type {Row} */ (this.made.get(node));
        row.update(notebook, /** @type {Status} */ (this.status));
        this.shown.push(row);
      },
    );
    /** @type {Status | null} */
    this.status = null;
    this.here = '';
  }

  /** @param {Status} status */
  update(status) {
    this.status = status;
    this.here = this.context.home.notebook ? this.context.home.notebook() : '';
    const { folder } = status.server;
    /** @type {Notebook[]} */
    const found = status.running.filter(job => job.kind === 'kernel').map(job => ({
      key: String(job.id),
      job,
      path: job.origin.path,
      name: job.tag,
      here: Boolean(this.here) && notebookOf(job, folder) === this.here,
    }));
    const { counts, matches } = status;
    const held = counts.notebooks || 0;
    if (this.here && !matches && status.gpus.length && !found.some(one => one.here)) {
      const name = this.here.slice(this.here.lastIndexOf('/') + 1);
      found.unshift({ key: this.here, job: null, path: this.here, name, here: true });
    }
    this.shown = [];
    this.rows.update(found, one => one.key);
    put(this.count, matches ? S.ofAll(matches.notebooks || 0, held) : held ? String(held) : '');
    put(this.none, found.length ? '' : S.noNotebooks);
    show(this.root, found.length > 0 || (!matches && status.gpus.length > 0));
  }

  /** @param {number} now Seconds since the epoch, by the server's clock. */
  tick(now) {
    const here = this.context.home.notebook ? this.context.home.notebook() : '';
    if (here !== this.here && this.status) this.update(this.status);
    for (const row of this.shown) row.tick(now);
  }
}
