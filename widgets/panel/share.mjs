// What a job has of its GPUs, to be changed while it runs: two sliders and what came of them.

import { may, reasonOf } from './actions.mjs';
import { attr, button, h, put, show } from './dom.mjs';
import { bytes } from './format.mjs';
import { S } from './strings.mjs';

/** @typedef {import('./types.mjs').Status} Status */

const STEP = 50; // thousandths of a GPU
const GIB = 1 << 30;
const ENDED = ['succeeded', 'failed', 'cancelled'];

/**
 * What a job has of each of its GPUs, and what is free beside it; null where it has no share.
 * @typedef {{share: number, memory: number, freeShare: number, freeMemory: number | null,
 *   most: number | null, gpus: number[]}} Size
 */

/**
 * @param {Status} status
 * @param {number} id
 * @returns {Size | null}
 */
export function sizeOf(status, id) {
  /** @type {Size | null} */
  let found = null;
  for (const gpu of status.gpus) {
    const grant = gpu.grants.find(one => one.job === id);
    if (!grant) continue;
    if (grant.whole) return null;
    const free = gpu.memory === null ? null : Math.max(0, gpu.memory - gpu.memory_promised - gpu.outside);
    /** @type {Size} */
    const before = found || {
      share: grant.compute, memory: grant.memory, freeShare: 1000, freeMemory: free, most: gpu.memory, gpus: [],
    };
    found = {
      ...before,
      freeShare: Math.max(0, Math.min(before.freeShare, 1000 - gpu.compute_promised)),
      freeMemory: free === null || before.freeMemory === null ? before.freeMemory : Math.min(before.freeMemory, free),
      most: gpu.memory === null || before.most === null ? before.most : Math.min(before.most, gpu.memory),
      gpus: [...before.gpus, gpu.index],
    };
  }
  return found;
}

/**
 * What a waiting job asks for of each GPU; null where it asks for no share.
 * @param {Status} status
 * @param {import('./types.mjs').Job} job
 * @returns {Size | null}
 */
function askedOf(status, job) {
  const { share, memory } = job.request;
  if (job.state !== 'queued' || !share) return null;
  const sizes = status.gpus.flatMap(gpu => (gpu.memory === null ? [] : [gpu.memory]));
  return {
    share, memory: memory || 0, freeShare: 1000 - share, freeMemory: null,
    most: sizes.length ? Math.max(...sizes) : null, gpus: [],
  };
}

/** The sliders of one job. */
export class Share {
  /**
   * @param {import('./actions.mjs').Context} context
   * @param {number} job
   */
  constructor(context, job) {
    this.context = context;
    this.job = job;
    this.busy = false;
    /** @type {Size | null} */
    this.size = null;
    this.compute = this.slider('share', S.compute);
    this.memory = this.slider('mem', S.memory);
    this.free = h('p', 'line', {});
    this.go = button('primary', S.resizeTip, () => void this.resize(), S.resizeGo);
    this.undo = button('plain', S.resizeUndo, () => this.reset(), S.resizeUndo);
    this.doing = h('div', 'bar', { hidden: true }, this.go, this.undo);
    this.told = h('p', 'line', { role: 'status' });
    this.wrong = h('p', 'note wrong', { role: 'alert', hidden: true });
    this.root = h(
      'div', 'share', { role: 'group', 'aria-label': S.resize(job), hidden: true },
      this.compute.root, this.memory.root, this.free, this.doing, this.told, this.wrong,
    );
    this.root.addEventListener('keydown', event => {
      if (event.key !== 'Escape' || this.doing.hidden) return;
      event.stopPropagation();
      this.reset();
    });
  }

  /**
   * @param {string} name
   * @param {string} label
   */
  slider(name, label) {
    const field = h('input', 'slider', { type: 'range', name, 'data-lm-suppress-shortcuts': 'true', input: () => this.moved() });
    const words = h('span', 'num', {});
    return { field, words, root: h('label', 'meter', {}, h('span', 'dim', {}, label), field, words) };
  }

  /** What the sliders say, in thousandths and bytes. */
  get wanted() {
    const size = /** @type {Size} */ (this.size);
    const share = Number(this.compute.field.value);
    const memory = Number(this.memory.field.value) * GIB;
    // a size between two steps stays what it is until the slider is moved
    const same = Math.abs(memory - size.memory) < GIB / 4;
    return { share: share === round(size.share) ? size.share : share, memory: same ? size.memory : memory };
  }

  get changed() {
    if (!this.size) return false;
    const { share, memory } = this.wanted;
    return share !== this.size.share || memory !== this.size.memory;
  }

  /**
   * @param {Status} status
   * @param {import('./types.mjs').Job} [job] As it is, where it may wait.
   */
  update(status, job) {
    const found = sizeOf(status, this.job) || (job ? askedOf(status, job) : null);
    const size = may(this.context, 'write') ? found : null;
    show(this.root, size !== null);
    if (!size) return;
    const moved = this.changed; // by somebody who has not let it be done yet
    this.size = size;
    for (const [name, value] of /** @type {[string, number][]} */ ([['min', STEP], ['max', 1000], ['step', STEP]])) {
      attr(this.compute.field, name, value);
    }
    show(this.memory.root, size.most !== null && size.memory > 0);
    for (const [name, value] of /** @type {[string, number][]} */ ([['min', 0.5], ['max', Math.floor((size.most || 0) / GIB)], ['step', 0.5]])) {
      attr(this.memory.field, name, value);
    }
    if (moved) this.draw();
    else this.place();
  }

  /** Somebody moves a slider: what was refused before is over. */
  moved() {
    put(this.wrong, '');
    this.draw();
  }

  reset() {
    put(this.wrong, '');
    this.place();
  }

  /** Put the sliders where the job is; why it stays there is kept, whatever is seen meanwhile. */
  place() {
    if (!this.size) return;
    this.compute.field.value = String(round(this.size.share));
    this.memory.field.value = String(Math.round(this.size.memory / GIB * 2) / 2);
    this.draw();
  }

  draw() {
    const { size } = this;
    if (!size) return;
    const { share, memory } = this.wanted;
    const percent = `${share / 10}%`;
    put(this.compute.words, percent);
    put(this.memory.words, bytes(memory));
    if (!this.busy) show(this.doing, this.changed);
    if (!size.gpus.length) {
      attr(this.compute.field, 'aria-valuetext', percent);
      attr(this.memory.field, 'aria-valuetext', bytes(memory));
      put(this.free, S.resizeWaits);
      return;
    }
    const left = S.leftShare(Math.max(0, (size.freeShare + size.share - share) / 10));
    attr(this.compute.field, 'aria-valuetext', `${percent}, ${left}`);
    const room = size.freeMemory === null ? null : size.freeMemory + size.memory - memory;
    attr(this.memory.field, 'aria-valuetext', room === null ? bytes(memory) : `${bytes(memory)}, ${S.free(bytes(Math.max(0, room)))}`);
    const free = [left, room === null ? '' : S.leftMemory(bytes(Math.max(0, room)))].filter(Boolean).join(', ');
    const over = share > size.share + size.freeShare || (room !== null && room < 0);
    put(this.free, over ? S.resizeOver(S.onGpus(size.gpus)) : S.resizeLeft(S.onGpus(size.gpus), free));
  }

  async resize() {
    const { size } = this;
    if (!size || this.busy) return;
    const { share, memory } = this.wanted;
    /** @type {Record<string, string>} */
    const body = {};
    if (share !== size.share) body.share = String(share / 1000);
    if (memory !== size.memory) body.mem = `${memory / GIB}G`;
    this.busy = this.go.disabled = true;
    put(this.wrong, '');
    put(this.told, '');
    try {
      const answer = await this.context.home.source.ask('POST', `/jobs/${this.job}/resize`, body);
      put(this.told, answer.message || '');
      // it has that now, whenever the next look comes
      this.size = {
        ...size,
        share: answer.share ?? share,
        memory: answer.memory ?? memory,
        freeShare: size.freeShare + size.share - (answer.share ?? share),
        freeMemory: size.freeMemory === null ? null : size.freeMemory + size.memory - (answer.memory ?? memory),
      };
      this.reset();
    } catch (error) {
      this.reset();
      put(this.wrong, S.notResized(this.job, reasonOf(error)));
    }
    this.busy = this.go.disabled = false;
    if (this.doing.contains(document.activeElement)) this.compute.field.focus();
    this.draw();
    this.context.follow.changed();
  }
}

/**
 * Whether somebody has a part of a GPU that has a size.
 * @param {import('./types.mjs').Grant} grant
 */
export const sized = grant => !grant.whole && Boolean(grant.compute || grant.memory);

/** @param {number} share */
const round = share => Math.max(STEP, Math.round(share / STEP) * STEP);

/**
 * Whether a job could have another share: it has a part of a GPU, or waits for one.
 * @param {import('./types.mjs').Job} job
 */
export const resizable = job =>
  job.state === 'queued'
    ? Boolean(job.request.share)
    : !ENDED.includes(job.state) && Boolean(job.placement?.grants.some(sized));
