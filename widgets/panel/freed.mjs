// What jobs still hold of the GPUs while the person has them, a row each, with the way to release it.

import { cancelButton, may } from './actions.mjs';
import { Rows, h, put } from './dom.mjs';
import { bytes } from './format.mjs';
import { S } from './strings.mjs';

const MOST = 20;

/** @typedef {import('./types.mjs').Mode} Mode */

/**
 * One job: what it holds and what of it is on the host, in words; nothing is ''. `notebook` is the
 * name of the notebook whose kernel it is.
 * @typedef {{job: number, notebook: string | undefined, holds: string, moved: string}} Row
 */

/**
 * The rows of a mode.
 * @param {Mode} mode
 * @returns {Row[]}
 */
export function rowsOf(mode) {
  /** @type {Map<number, Row>} */
  const rows = new Map();
  /** @param {{job: number, tag: string, notebook?: boolean}} one */
  const row = one => {
    const made = rows.get(one.job) || {
      job: one.job, notebook: one.notebook ? one.tag : undefined, holds: '', moved: '',
    };
    rows.set(one.job, made);
    return made;
  };
  for (const one of mode.holding || []) {
    const size = one.memory === null ? null : bytes(one.memory);
    const told = row(one);
    told.holds = told.holds
      ? `${told.holds}, ${S.heldPart(size, one.gpu)}`
      : S.holding(one.job, one.tag, size, one.gpu);
  }
  for (const one of mode.moved || []) {
    if (one.memory <= 0) continue;
    const told = row(one);
    told.moved = [told.moved, S.onHost(one.job, one.tag, bytes(one.memory), one.gpu)].filter(Boolean).join(' · ');
  }
  return [...rows.values()];
}

export class Freed {
  /** @param {import('./actions.mjs').Context} context */
  constructor(context) {
    this.root = h('ul', 'freed', { hidden: true });
    /** @type {WeakMap<HTMLElement, {words: HTMLElement, cancel: HTMLElement}>} */
    this.made = new WeakMap();
    this.context = context;
    this.rows = new Rows(
      this.root,
      /** @param {Row} one */ one => this.make(one),
      (node, one) => this.patch(node, one),
    );
  }

  /** @param {Row} one */
  make(one) {
    const words = h('span', 'grow', {});
    const cancel = cancelButton(this.context, one.job, true, one.notebook);
    const node = h('li', 'line head', { 'data-held': one.job }, words, cancel);
    this.made.set(node, { words, cancel });
    return node;
  }

  /**
   * @param {HTMLElement} node
   * @param {Row} one
   */
  patch(node, one) {
    const parts = /** @type {{words: HTMLElement, cancel: HTMLElement}} */ (this.made.get(node));
    put(parts.words, [one.holds, one.moved].filter(Boolean).join(' · '));
    parts.cancel.hidden = !one.holds || !may(this.context, 'write');
  }

  /** @param {Mode | undefined} mode */
  update(mode) {
    const rows = mode ? rowsOf(mode).slice(0, MOST) : [];
    this.root.hidden = rows.length === 0;
    this.rows.update(rows, one => one.job);
  }
}
