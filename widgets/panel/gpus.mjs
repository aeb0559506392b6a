// The GPUs: what is promised, what is used, and who holds it; and the rest of the machine.

import { may } from './actions.mjs';
import { ICONS, Rows, attr, button, h, icon, put, show, style } from './dom.mjs';
import { bytes } from './format.mjs';
import { Share, sizeOf, sized } from './share.mjs';
import { S } from './strings.mjs';

/**
 * A part of a bar.
 * @typedef {{key: string, from: number, size: number, kind: string, tone?: string, tip: string}} Part
 */

/** A bar of parts, with its words. */
class Bar {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    this.track = h('div', 'track', { role: 'img' });
    this.words = h('span', 'num', {});
    this.label = h('span', 'dim', {}, name);
    this.root = h('div', 'meter', {}, this.label, this.track, this.words);
    this.parts = new Rows(
      this.track,
      /** @param {Part} part */ part => h('i', part.kind, {}),
      (node, part) => {
        attr(node, 'data-tone', part.tone || null);
        attr(node, 'title', part.tip);
        style(node, 'left', `${(part.from * 100).toFixed(2)}%`);
        style(node, 'width', `${(part.size * 100).toFixed(2)}%`);
      },
    );
  }

  /** @param {string} name */
  rename(name) {
    this.name = name;
    put(this.label, name);
  }

  /**
   * @param {Part[]} parts
   * @param {string} words
   */
  update(parts, words) {
    this.parts.update(parts, part => part.key);
    put(this.words, words);
    attr(this.track, 'aria-label', S.label(this.name, words));
  }
}

/**
 * @param {import('./types.mjs').Gpu} gpu
 * @param {import('./tones.mjs').Tones} tones
 */
function computeParts(gpu, tones) {
  /** @type {Part[]} */
  const parts = [];
  let at = 0;
  for (const grant of gpu.grants) {
    const has = grant.compute - (grant.lent || 0);
    const size = Math.min(has / 1000, 1 - at);
    if (size <= 0) continue;
    const tip = `${grant.job} ${grant.tag}: ${Math.round(has / 10)}%`;
    parts.push({ key: `g${grant.job}`, from: at, size, kind: 'promised', tone: tones.of(grant.job), tip });
    at += size;
  }
  const load = gpu.reading && gpu.reading.utilization;
  if (load !== null && load !== undefined) {
    parts.push({ key: 'load', from: 0, size: load / 100, kind: 'load', tip: S.busy(load) });
  }
  return parts;
}

/**
 * @param {import('./types.mjs').Gpu} gpu
 * @param {import('./tones.mjs').Tones} tones
 */
function memoryParts(gpu, tones) {
  /** @type {Part[]} */
  const parts = [];
  if (!gpu.memory) return parts;
  let at = 0;
  /**
   * @param {string} key
   * @param {number} size
   * @param {string} kind
   * @param {string} tip
   * @param {string} [colour]
   */
  const add = (key, size, kind, tip, colour) => {
    const part = Math.min(size / (gpu.memory || 1), 1 - at);
    if (part > 0) parts.push({ key, from: at, size: part, kind, tone: colour, tip });
    return part;
  };
  if (gpu.outside) {
    at += add('outside', gpu.outside, 'outside', `${S.outside}: ${bytes(gpu.outside)}`);
  }
  for (const grant of gpu.grants) {
    const name = `${grant.job} ${grant.tag}`;
    const used = typeof grant.used === 'number' ? grant.used : 0;
    const room = Math.max(grant.memory, used);
    const words = `${name}: ${bytes(grant.memory)}${used ? `, ${S.uses(bytes(used))}` : ''}`;
    const taken = add(`p${grant.job}`, room, 'promised', words, tones.of(grant.job));
    if (used) add(`u${grant.job}`, used, 'used', words, tones.of(grant.job));
    at += taken;
  }
  return parts;
}

/** @param {import('./types.mjs').GrantShown} grant */
export function grantWords(grant) {
  const part = grant.whole
    ? S.whole
    : [grant.compute && `${grant.compute / 10}%`, grant.memory && bytes(grant.memory)].filter(Boolean).join(', ')
      || S.light;
  return typeof grant.used === 'number' ? `${part}, ${S.uses(bytes(grant.used))}` : part;
}

/**
 * How far those that have a share of a GPU are held to it; nothing where nobody has one.
 * @param {import('./types.mjs').Gpu} gpu
 * @param {import('./types.mjs').Status} status
 */
function enforcedWords(gpu, status) {
  const shares = new Set(gpu.grants.filter(grant => !grant.whole).map(grant => grant.job));
  const words = new Set(status.running.flatMap(job =>
    shares.has(job.id) && job.hold ? [S.holds(job.hold.compute, job.hold.memory)] : []));
  if (!words.size) return '';
  return S.label(S.held, words.size === 1 ? [...words][0] : S.heldDiffers);
}

/** One GPU. */
class Card {
  /** @param {import('./actions.mjs').Context} context */
  constructor(context) {
    this.context = context;
    /** @type {Share | null} */
    this.share = null;
    this.name = h('span', 'name', {});
    this.model = h('span', 'dim grow', {});
    this.side = h('span', 'num dim', {});
    this.compute = new Bar(S.compute);
    this.memory = new Bar(S.memory);
    this.list = h('ul', 'holders', {});
    this.enforced = h('p', 'line enforced', { title: S.heldTip });
    this.root = h(
      'li', 'card', {},
      h('div', 'head', {}, this.name, this.model, this.side),
      this.compute.root, this.memory.root, this.list, this.enforced,
    );
    this.holders = new Rows(
      this.list,
      /** @param {{key: string, job: number, tag: string, words: string, resizable: boolean}} holder */
      holder => {
        const dot = h('i', 'dot', { 'data-tone': 'none' });
        if (!holder.job) return h('li', '', {}, dot, h('span', 'words', {}));
        const link = h('button', 'link words', {
          type: 'button', title: S.open(holder.job, holder.tag), click: () => context.open(holder.job),
        });
        const resize = button('quiet resize', S.resizeOpen(holder.job), () => this.resize(holder.job), icon(ICONS.sliders));
        attr(resize, 'aria-expanded', 'false');
        return h('li', '', { 'data-holder': holder.job }, dot, link, h('span', 'dim', {}), resize);
      },
      (node, holder) => {
        const dot = /** @type {HTMLElement} */ (node.firstElementChild);
        if (holder.job) attr(dot, 'data-tone', context.tones.of(holder.job));
        const [words, part] = [...node.querySelectorAll('span, .gq-link')];
        put(/** @type {HTMLElement} */ (words), holder.job ? `${holder.job} ${holder.tag}` : holder.words);
        if (part) put(/** @type {HTMLElement} */ (part), holder.words);
        const resize = /** @type {HTMLElement | null} */ (node.querySelector('.gq-resize'));
        if (resize) show(resize, holder.resizable);
      },
    );
  }

  /** @param {import('./types.mjs').Gpu} gpu */
  update(gpu) {
    put(this.name, S.gpu(gpu.index));
    put(this.model, gpu.name);
    const reading = gpu.reading;
    const warm = reading && reading.temperature;
    const power = reading && reading.power;
    put(
      this.side,
      [
        gpu.drained && S.drained,
        typeof warm === 'number' && S.temperature(warm),
        typeof power === 'number' && S.power(power),
      ].filter(Boolean).join(' · '),
    );
    const load = reading && reading.utilization;
    const promised = Math.round(gpu.grants.reduce((sum, grant) => sum + grant.compute - (grant.lent || 0), 0) / 10);
    const compute = [promised ? S.promised(promised) : S.idle];
    if (typeof load === 'number') compute.push(S.busy(load));
    this.compute.update(computeParts(gpu, this.context.tones), compute.join(' · '));
    const used = reading && reading.memory_used;
    this.memory.update(memoryParts(gpu, this.context.tones), S.of(bytes(used), bytes(gpu.memory)));
    const holders = [
      ...gpu.grants.map(grant => ({
        key: `j${grant.job}`, job: grant.job, tag: grant.tag, words: grantWords(grant),
        resizable: sized(grant) && may(this.context, 'write'),
      })),
      ...gpu.outside_holders.map((words, index) => ({ key: `o${index}`, job: 0, tag: '', words, resizable: false })),
    ];
    if (gpu.outside && !gpu.outside_holders.length) {
      const words = `${S.outside}: ${bytes(gpu.outside)}`;
      holders.push({ key: 'o', job: 0, tag: '', words, resizable: false });
    }
    this.holders.update(holders, holder => holder.key);
    show(this.list, holders.length > 0);
    const { status } = this.context.follow;
    put(this.enforced, status ? enforcedWords(gpu, status) : '');
    if (this.share && status) {
      if (sizeOf(status, this.share.job)) this.share.update(status);
      else this.close();
    }
  }

  /**
   * Show the sliders of a job, or put them away.
   * @param {number} job
   */
  resize(job) {
    const before = this.share?.job;
    this.close();
    const { status } = this.context.follow;
    if (before === job || !status) return;
    this.share = new Share(this.context, job);
    this.share.update(status);
    this.list.after(this.share.root);
    this.opener(job)?.setAttribute('aria-expanded', 'true');
    this.share.compute.field.focus();
  }

  /** @param {number} job */
  opener(job) {
    return this.holders.nodes.get(`j${job}`)?.querySelector('.gq-resize');
  }

  close() {
    if (!this.share) return;
    this.opener(this.share.job)?.setAttribute('aria-expanded', 'false');
    this.share.root.remove();
    this.share = null;
  }
}

/** All GPUs, and beside them the rest of the machine. */
export class Gpus {
  /** @param {import('./actions.mjs').Context} context */
  constructor(context) {
    /** @type {WeakMap<HTMLElement, Card>} */
    this.cards = new WeakMap();
    this.list = h('ul', 'cards', {});
    this.none = h('p', 'empty', {});
    this.cpu = new Bar(S.cpu);
    this.memory = new Bar(S.memory);
    this.disks = h('div', '', {});
    this.slots = new Bar(S.slots);
    attr(this.slots.root, 'title', S.slotsTip);
    this.host = h('div', 'machine', {}, this.slots.root, this.cpu.root, this.memory.root, this.disks);
    this.root = h('section', 'gpus', { 'aria-label': S.gpus }, h('h2', '', {}, S.gpus), this.none, this.list, this.host);
    this.rows = new Rows(
      this.list,
      () => {
        const card = new Card(context);
        this.cards.set(card.root, card);
        return card.root;
      },
      (node, /** @type {import('./types.mjs').Gpu} */ gpu) => this.cards.get(node)?.update(gpu),
    );
    /** @type {Map<string, Bar>} */
    this.bars = new Map();
    this.diskRows = new Rows(
      this.disks,
      /** @param {{path: string}} disk */
      disk => {
        const bar = new Bar(S.disk);
        this.bars.set(disk.path, bar);
        return bar.root;
      },
      (_, /** @type {import('./types.mjs').Host['disks'][0]} */ disk) => {
        const words = S.free(bytes(disk.free));
        const size = disk.total ? 1 - disk.free / disk.total : 0;
        const tip = `${S.diskAt(disk.path)}: ${words}`;
        const bar = this.bars.get(disk.path);
        if (bar) attr(bar.root, 'title', tip);
        bar?.update([{ key: 'd', from: 0, size, kind: 'plain', tip }], words);
      },
    );
  }

  /** @param {import('./types.mjs').Status} status */
  update(status) {
    this.rows.update(status.gpus, gpu => gpu.uuid || gpu.index);
    put(this.none, status.gpus.length ? '' : `${S.noGpus}. ${status.problem || S.noGpusWhy}`);
    show(this.host, Boolean(status.host));
    const { slots } = status;
    show(this.slots.root, Boolean(slots?.total));
    if (slots?.total) {
      const told = S.slotsUsed(slots.used, slots.total);
      this.slots.update([{ key: 's', from: 0, size: Math.min(1, slots.used / slots.total), kind: 'plain', tip: told }], told);
    }
    if (!status.host) return;
    const { cpu, cpus, memory, disks } = status.host;
    const load = cpu === null ? 0 : cpu / 100;
    const words = cpu === null ? S.cores(cpus) : S.coresBusy(Math.round(cpu), cpus);
    this.cpu.update([{ key: 'c', from: 0, size: load, kind: 'plain', tip: words }], words);
    const size = memory.total ? memory.used / memory.total : 0;
    const told = S.of(bytes(memory.used), bytes(memory.total));
    this.memory.update([{ key: 'm', from: 0, size, kind: 'plain', tip: told }], told);
    this.diskRows.update(disks, disk => disk.path);
    disks.forEach((disk, i) => this.bars.get(disk.path)?.rename(disks.length > 1 ? S.disks[i] : S.disk));
  }
}
