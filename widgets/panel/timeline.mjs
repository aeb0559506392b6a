// Who has held, holds and is expected to hold which GPU.

import { Rows, attr, button, h, put, show, style } from './dom.mjs';
import { clock } from './format.mjs';
import { S } from './strings.mjs';

/** @typedef {import('./types.mjs').Bar & {key: string, level: number, until: number}} Placed */

const RANGES = /** @type {[string, number][]} */ ([['1 h', 3600], ['6 h', 21600], ['24 h', 86400]]);
const LEVEL = 18;
const LEAST = 600;
const DIGIT = 7;
const EDGES = 9;

export class Timeline {
  /** @param {import('./actions.mjs').Context} context */
  constructor(context) {
    this.context = context;
    this.back = 3600;
    this.asking = false;
    this.from = 0;
    this.to = 1;
    /** @type {Map<string, Rows<Placed>>} */
    this.bars = new Map();
    this.ranges = RANGES.map(([name, seconds]) =>
      button('plain small', S.range(name), () => {
        this.back = seconds;
        void this.look();
      }, name));
    this.axis = h('div', 'axis', { 'aria-hidden': 'true' });
    this.lanes = h('div', 'lanes', {});
    this.root = h(
      'section', 'timeline', { 'aria-label': S.timeline, hidden: true },
      h('h2', '', {}, S.timeline, h('span', 'grow', {}), ...this.ranges), this.lanes, this.axis,
    );
    this.ticks = new Rows(
      this.axis,
      /** @param {{key: string}} _tick */ _tick => h('span', 'tick num', {}),
      (node, /** @type {{key: string, at: number, words: string}} */ tick) => {
        put(node, tick.words);
        style(node, 'left', this.x(tick.at));
        node.classList.toggle('gq-now', tick.key === 'now');
      },
    );
    this.rows = new Rows(
      this.lanes,
      /** @param {{uuid: string, index: number}} gpu */ gpu => this.lane(gpu),
      (node, gpu) => this.fill(node, gpu.uuid),
    );
    /** @type {Map<string, Placed[]>} */
    this.placed = new Map();
    this.at = 0;
    /** @type {import('./types.mjs').Timeline | null} */
    this.last = null;
    // another width has room for more or fewer words below
    new ResizeObserver(() => this.last && this.draw(this.last)).observe(this.axis);
  }

  /** @param {{uuid: string, index: number}} gpu */
  lane(gpu) {
    const track = h('ul', 'lane', { 'aria-label': S.gpu(gpu.index) });
    this.bars.set(
      gpu.uuid,
      new Rows(
        track,
        bar => {
          const open = h('button', 'stay', {
            type: 'button', click: () => this.context.open(bar.job),
          });
          return h('li', '', {}, open);
        },
        (node, bar) => this.patch(/** @type {HTMLElement} */ (node.firstElementChild), bar),
      ),
    );
    return h('div', 'lanerow', {}, h('span', 'dim num', {}, S.gpu(gpu.index)), track);
  }

  /** @param {number} at */
  x(at) {
    const part = (at - this.from) / (this.to - this.from);
    return `${(Math.max(0, Math.min(1, part)) * 100).toFixed(2)}%`;
  }

  /**
   * @param {HTMLElement} node
   * @param {Placed} bar
   */
  patch(node, bar) {
    const wide = ((bar.until - bar.start) / (this.to - this.from)) * this.lanes.clientWidth;
    // a number that is cut off would read as another one
    const words = wide >= String(bar.job).length * DIGIT + EDGES ? String(bar.job) : '';
    if (node.textContent !== words) node.textContent = words;
    attr(node, 'data-tone', this.context.tones.of(bar.job));
    attr(node, 'data-when', bar.when);
    attr(node, 'data-state', bar.state);
    attr(node, 'data-open', bar.end === null);
    const left = Number.parseFloat(this.x(bar.start));
    const right = Number.parseFloat(this.x(bar.until));
    style(node, 'left', `${left}%`);
    style(node, 'width', `${(right - left).toFixed(2)}%`);
    style(node, 'top', `${bar.level * LEVEL + 2}px`);
    const end = bar.end === null ? S.open_end : clock(bar.end, this.at);
    const label = S.bar(bar.job, bar.tag, S[bar.when], clock(bar.start, this.at), end);
    attr(node, 'aria-label', label);
    attr(node, 'title', label);
  }

  /**
   * @param {HTMLElement} node
   * @param {string} uuid
   */
  fill(node, uuid) {
    const bars = this.placed.get(uuid) || [];
    const levels = bars.reduce((most, bar) => Math.max(most, bar.level + 1), 1);
    const track = /** @type {HTMLElement} */ (node.lastElementChild);
    style(track, 'height', `${levels * LEVEL + 4}px`);
    style(track, '--gq-now', this.x(this.at));
    this.bars.get(uuid)?.update(bars, bar => bar.key);
  }

  async look() {
    if (this.asking) return;
    this.asking = true;
    try {
      const path = `/timeline?back=${this.back}&limit=200`;
      this.draw(await this.context.home.source.ask('GET', path));
    } catch {
      // the status says what is wrong
    } finally {
      this.asking = false;
    }
  }

  /** @param {import('./types.mjs').Timeline} found */
  draw(found) {
    this.last = found;
    show(this.root, found.gpus.length > 0); // only what is there has a width
    this.at = found.at;
    // no more of the past than there is
    const first = Math.min(found.at - LEAST, ...found.bars.map(bar => bar.start - 60));
    this.from = Math.max(found.at - this.back, first);
    const ends = found.bars.map(bar => bar.end).filter(end => end !== null && end > found.at);
    // as much of the future as is foreseen, but not more than three times what is shown of the past
    const last = Math.max(found.at + LEAST, .../** @type {number[]} */ (ends));
    this.to = Math.min(last + 60, found.at + this.back * 3);
    this.placed.clear();
    for (const gpu of found.gpus) {
      const bars = found.bars
        .filter(bar => bar.gpu === gpu.uuid && bar.start < this.to)
        .sort((a, b) => a.start - b.start || a.job - b.job);
      /** @type {number[]} */
      const free = [];
      /** @type {Map<number, number>} */
      const levels = new Map();
      this.placed.set(gpu.uuid, bars.map(bar => {
        const until = bar.end === null ? this.to : bar.when === 'now' ? Math.max(bar.end, found.at) : bar.end;
        // one that was frozen, or has another size now, goes on where it was
        const before = levels.get(bar.job) ?? -1;
        let level = free[before] <= bar.start + 0.5 ? before : free.findIndex(moment => moment <= bar.start + 0.5);
        if (level < 0) level = free.push(0) - 1;
        levels.set(bar.job, level);
        free[level] = until;
        return { ...bar, key: `${bar.job} ${bar.start}`, level, until };
      }));
    }
    this.context.tones.lanes([...this.placed.values()]);
    this.rows.update(found.gpus, gpu => gpu.uuid);
    const most = Math.max(1, Math.min(5, Math.floor(this.axis.clientWidth / 85)));
    const step = (this.to - this.from) / most;
    const ticks = Array.from({ length: most }, (_, i) => this.from + step * (i + (i ? 0 : 0.02)));
    const apart = ticks.filter(at => Math.abs(at - found.at) > step * 0.7);
    this.ticks.update(
      [
        ...apart.map((at, i) => ({ key: String(i), at, words: clock(at, found.at) })),
        { key: 'now', at: found.at, words: clock(found.at, found.at) },
      ],
      tick => tick.key,
    );
    this.ranges.forEach((one, i) => attr(one, 'aria-pressed', RANGES[i][1] === this.back ? 'true' : 'false'));
  }
}

