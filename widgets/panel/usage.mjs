// Who has held how much of the GPUs, as a small table; nothing is asked for while it is folded.

import { reasonOf } from './actions.mjs';
import { h, put, show } from './dom.mjs';
import { S } from './strings.mjs';

/**
 * @typedef {{gpu_hours: number, gib_hours: number, jobs: number, [key: string]: unknown}} Row
 */

const AGAIN = 60; // seconds
const MOST = 20;

/**
 * Hours, short.
 * @param {number} value
 */
export function hours(value) {
  if (value > 0 && value < 0.005) return '<0.01';
  return value >= 100 ? String(Math.round(value)) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/**
 * What a row is about.
 * @param {Row} row
 * @param {string} by
 */
function nameOf(row, by) {
  const name = String((by === 'gpu' && row.name) || row[by] || '');
  return by === 'notebook' ? name.slice(name.lastIndexOf('/') + 1) : name;
}

export class Usage {
  /** @param {import('./actions.mjs').Context} context */
  constructor(context) {
    this.context = context;
    this.asked = 0; // for what, by number: an answer to what was asked before is of no use
    this.at = -Infinity;
    this.since = this.choice('since', S.usageSince, S.usageSpans);
    this.by = this.choice('by', S.usageBy, S.usageKeys);
    this.note = h('p', 'line', { role: 'status' });
    this.caption = h('caption', 'unseen', {});
    this.head = h('th', '', { scope: 'col' });
    this.body = h('tbody', '', {});
    this.foot = h('tfoot', '', {});
    this.table = h(
      'table', 'table', { hidden: true }, this.caption,
      h('thead', '', {}, h('tr', '', {}, this.head,
        h('th', 'num', { scope: 'col', title: S.usageGpuTip }, S.usageGpuHours),
        h('th', 'num', { scope: 'col', title: S.usageGibTip }, S.usageGibHours),
        h('th', 'num', { scope: 'col' }, S.usageJobs))),
      this.body, this.foot,
    );
    this.fold = h('details', '', { toggle: () => this.again() },
      h('summary', '', { title: S.usageTip }, h('h2', '', {}, S.usage)),
      h('div', 'bar', {},
        h('label', 'check', {}, S.usageSince, this.since), h('label', 'check', {}, S.usageBy, this.by)),
      this.note, this.table);
    this.root = h('section', 'usage', { 'aria-label': S.usage }, this.fold);
  }

  /**
   * @param {string} name
   * @param {string} label
   * @param {Record<string, string>} values
   */
  choice(name, label, values) {
    return h('select', 'field', { name, 'aria-label': label, change: () => this.again() },
      ...Object.entries(values).map(([value, text]) => h('option', '', { value }, text)));
  }

  /** Ask now. */
  again() {
    this.at = -Infinity;
    void this.look();
  }

  /** Ask, where somebody looks and the last answer is no longer new. */
  async look() {
    const now = Date.now() / 1000;
    if (!this.fold.open || now - this.at < AGAIN) return;
    this.at = now;
    const number = (this.asked += 1);
    const since = this.since.value;
    const by = this.by.value;
    try {
      const found = await this.context.home.source.ask('GET', `/usage?since=${since}&by=${by}`);
      if (number === this.asked) this.draw(found.rows, by, since);
    } catch (error) {
      if (number !== this.asked) return;
      put(this.note, reasonOf(error));
      show(this.table, false);
    }
  }

  /**
   * @param {Row[]} rows The most GPU hours first.
   * @param {string} by
   * @param {string} since
   */
  draw(rows, by, since) {
    const span = S.usageSpans[since];
    put(this.note, rows.length ? '' : S.usageNone(span));
    show(this.table, rows.length > 0);
    put(this.caption, S.usageCaption(S.usageKeys[by], span));
    put(this.head, S.usageKeys[by]);
    const most = Math.max(...rows.map(row => row.gpu_hours), Number.MIN_VALUE);
    const shown = rows.slice(0, MOST);
    this.body.replaceChildren(...shown.map(row => {
      const name = h('th', '', { scope: 'row', title: String(row[by] || '') },
        h('span', 'what', {}, nameOf(row, by) || S.usageElsewhere));
      const part = h('i', 'part', { 'aria-hidden': 'true' });
      part.style.width = `${((row.gpu_hours / most) * 100).toFixed(1)}%`;
      name.append(part);
      return line(name, row);
    }));
    const left = rows.slice(MOST);
    this.foot.replaceChildren();
    if (left.length) this.foot.append(line(h('th', '', { scope: 'row' }, S.usageMore(left.length)), sum(left)));
    if (rows.length > 1) this.foot.append(line(h('th', '', { scope: 'row' }, S.usageAll), sum(rows)));
  }
}

/**
 * Jobs have no sum: one on two GPUs is in two rows.
 * @param {Row[]} rows
 */
const sum = rows => ({
  gpu_hours: rows.reduce((all, row) => all + row.gpu_hours, 0),
  gib_hours: rows.reduce((all, row) => all + row.gib_hours, 0),
});

/**
 * @param {HTMLElement} name
 * @param {{gpu_hours: number, gib_hours: number, jobs?: number}} row
 */
function line(name, { gpu_hours, gib_hours, jobs }) {
  const cells = [hours(gpu_hours), hours(gib_hours), jobs === undefined ? '' : String(jobs)];
  return h('tr', '', {}, name, ...cells.map(words => h('td', 'num', {}, words)));
}
