// The GPU queue as a view: who has the GPUs, what runs, what waits and why, what came of the rest.
//
// It knows no home: a sidebar, a notebook cell or a page gives it an element and a `Home`.

import { Detail } from './detail.mjs';
import { button, h, put, show as reveal } from './dom.mjs';
import { Filter } from './filter.mjs';
import { Follow } from './follow.mjs';
import { Gpus } from './gpus.mjs';
import { ModeBar } from './mode.mjs';
import { Notebooks } from './notebooks.mjs';
import { Picks } from './picks.mjs';
import { Queue } from './queue.mjs';
import { Recent, Running, jobsRunning } from './rows.mjs';
import { S } from './strings.mjs';
import { SubmitForm } from './submit.mjs';
import { Timeline } from './timeline.mjs';
import { Tones } from './tones.mjs';
import { Usage } from './usage.mjs';
import { VERSION } from './version.mjs';

export { Refused, kernelSource, serverSource } from './source.mjs';
export { translate } from './strings.mjs';

const TOLD = 6000;
const UNDONE = 12000; // also for those who reach a button by the keyboard

function invitation() {
  return h(
    'div', 'invitation', {},
    h('p', '', {}, S.emptyHead),
    h('p', 'dim', {}, S.emptyCell), h('pre', '', {}, S.cell),
    h('p', 'dim', {}, S.emptyShell), h('pre', '', {}, S.shell),
  );
}

class View {
  /**
   * @param {HTMLElement} root
   * @param {import('./types.mjs').Home} home
   */
  constructor(root, home) {
    this.root = root;
    this.home = home;
    this.inSight = false;
    this.closed = false;
    /** @type {number | null} What the server's clock is ahead of ours, in seconds. */
    this.ahead = null;
    this.drawn = 0;
    /** @type {Element | null} */
    this.came = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;

    const visible = () => this.visible();
    this.follow = new Follow(home, visible);
    this.filter = new Filter(root, () => this.find());
    this.deaf = home.job ? () => {} : this.filter.listen(Boolean(home.titled));
    this.context = /** @type {import('./actions.mjs').Context} */ ({
      follow: this.follow,
      home,
      warn: words => put(this.refusal, words),
      say: (words, undo) => this.say(words, undo),
      open: job => this.open(job),
      tones: new Tones(),
    });
    this.picks = this.context.picks = new Picks(this.context, root);
    this.note = h('p', 'note', { role: 'status', hidden: true });
    this.warning = h('p', 'note', { hidden: true });
    this.refusal = h('p', 'note wrong', { role: 'alert', hidden: true });
    this.told = h('p', 'told', { role: 'status', 'aria-live': 'polite' });
    this.looking = h('p', 'empty', {}, S.looking);
    this.mode = new ModeBar(this.context, () => this.form.open());
    this.form = new SubmitForm(this.context, () => this.mode.submit.focus());
    this.gpus = new Gpus(this.context);
    this.timeline = new Timeline(this.context);
    this.running = new Running(this.context);
    this.notebooks = new Notebooks(this.context);
    this.queue = new Queue(this.context);
    this.recent = new Recent(this.context);
    this.usage = new Usage(this.context);
    this.detail = new Detail(this.context, () => this.back(), visible);
    this.idle = invitation();
    this.main = h(
      'div', 'main', { hidden: true },
      h('div', 'column', {}, this.gpus.root, this.timeline.root),
      h('div', 'column', {}, this.idle, this.filter.root, this.picks.root, this.running.root, this.notebooks.root, this.queue.root, this.recent.root),
      this.usage.root,
    );
    root.classList.add('gq-view');
    root.replaceChildren(
      this.note, this.warning, this.refusal, this.looking, this.mode.root, this.form.root, this.main,
      this.detail.root, ...(home.foot ? [home.foot] : []), this.told,
    );
    reveal(this.mode.root, false);
    this.follow.heard.add(() => this.draw());
    // what notebooks' kernels do is no change of the queue
    this.idly = home.onActivity?.(() => {
      if (this.follow.status?.counts.notebooks) this.follow.changed();
    });
    this.watcher = new IntersectionObserver(entries => {
      const before = this.visible();
      this.inSight = entries[entries.length - 1].isIntersecting;
      if (!before) this.look();
    });
    this.watcher.observe(root);
    this.awake = () => this.look();
    document.addEventListener('visibilitychange', this.awake);
    this.clock = setInterval(() => this.tick(), 1000);
    if (home.job) this.open(home.job);
  }

  visible() {
    const here = this.home.visible ? this.home.visible() : true;
    return !this.closed && here && this.inSight && document.visibilityState === 'visible';
  }

  look() {
    if (this.visible()) void this.follow.look();
  }

  /** Ask for the jobs that the filter lets through. */
  find() {
    this.follow.query = this.filter.query;
    if (this.follow.query !== this.follow.shown) this.look();
  }

  /**
   * @param {string} words
   * @param {() => void} [undo]
   */
  say(words, undo) {
    clearTimeout(this.timer);
    const away = () => this.told.replaceChildren();
    this.told.replaceChildren(words);
    if (undo) {
      this.told.append(' ', button('plain', S.undo, () => {
        away();
        undo();
      }, S.undo));
    }
    this.timer = setTimeout(away, undo ? UNDONE : TOLD);
  }

  /** Show the state anew, where something differs. */
  draw() {
    if (this.closed) return;
    const { status, note } = this.follow;
    put(this.note, note);
    reveal(this.looking, !status && !note);
    reveal(this.mode.root, Boolean(status) && !this.home.job);
    reveal(this.main, Boolean(status) && !this.home.job);
    if (!status) return;
    this.ahead = status.at - Date.now() / 1000;
    const other = status.server.version !== VERSION;
    const warnings = [
      other && S.otherVersion(status.server.version, VERSION),
      status.warning,
      status.server.problem,
    ];
    put(this.warning, warnings.filter(Boolean).join(' '));
    try {
      if (!this.home.job) this.sections(status);
    } catch (error) {
      // one odd answer must not blank the panel for good
      console.error('gpuqueue:', error);
      put(this.note, S.broken);
    }
    void this.detail.look();
    this.drawn += 1;
  }

  /** @param {import('./types.mjs').Status} status */
  sections(status) {
    this.context.tones.held(status.gpus);
    this.mode.update(status);
    this.gpus.update(status);
    this.running.update(status);
    this.notebooks.update(status);
    this.queue.update(status);
    this.recent.update(status);
    this.filter.update(status);
    this.picks.update(status);
    const { counts, matches } = status;
    const live = counts.running > 0 || counts.waiting > 0;
    reveal(this.idle, !live && !matches);
    // of what is looked for only what there is
    reveal(this.running.root, matches ? jobsRunning(matches) > 0 : live);
    reveal(this.queue.root, matches ? matches.waiting > 0 : live);
    void this.timeline.look();
    void this.usage.look();
  }

  /** Let durations go on between two looks. */
  tick() {
    if (this.ahead === null || !this.visible()) return;
    const now = Date.now() / 1000 + this.ahead;
    this.running.tick(now);
    this.notebooks.tick(now);
    this.detail.tick(now);
  }

  /** @param {number} job */
  open(job) {
    if (!this.detail.id) this.came = document.activeElement;
    this.root.classList.add('gq-opened');
    reveal(this.detail.back, !this.home.job);
    this.detail.open(job);
    if (!this.home.job) this.detail.name.focus({ preventScroll: true });
  }

  back() {
    if (this.home.job) return;
    this.root.classList.remove('gq-opened');
    this.detail.close();
    if (this.came instanceof HTMLElement && this.came.isConnected) this.came.focus();
    this.came = null;
  }

  close() {
    this.closed = true;
    clearInterval(this.clock);
    clearTimeout(this.timer);
    document.removeEventListener('visibilitychange', this.awake);
    this.watcher.disconnect();
    this.deaf();
    this.idly?.();
    this.detail.close();
    this.follow.close();
    this.root.classList.remove('gq-view', 'gq-opened', 'gq-picking');
    this.root.replaceChildren();
  }
}

/**
 * Show the queue in an element for as long as it is there.
 * @param {HTMLElement} root
 * @param {import('./types.mjs').Home} home
 * @returns {{look: () => void, open: (job: number) => void, close: () => void}} `look` when the
 *   view comes into sight in a way that the browser does not see.
 */
export function show(root, home) {
  const view = new View(root, home);
  return {
    look: () => view.look(),
    open: job => view.open(job),
    close: () => view.close(),
  };
}
