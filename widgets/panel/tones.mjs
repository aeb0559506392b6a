// Which colour a job has, the same one everywhere: another one than those that are beside it.

/** @typedef {import('./types.mjs').Bar & {level: number, until: number}} Placed */

const TONES = 7;
const BESIDE = 1000; // of the weight of one that is only on the same GPU

/**
 * Colours of jobs, as numbers.
 *
 * A job begins with the one of its number and takes the next one as long as somebody near has it. One
 * that holds a GPU, or has held it, keeps its colour for as long as it is shown; one that is only foreseen
 * may get another as what is foreseen changes.
 */
export class Tones {
  constructor() {
    /** @type {Map<number, number>} */
    this.kept = new Map();
    /** @type {Map<number, number>} */
    this.foreseen = new Map();
    /** @type {Set<number>} Jobs of the timeline, as it was last. */
    this.drawn = new Set();
  }

  /** @param {number} job */
  of(job) {
    return String(this.known(job) ?? job % TONES);
  }

  /** @param {number} job */
  known(job) {
    return this.kept.get(job) ?? this.foreseen.get(job);
  }

  /**
   * Jobs hold these GPUs now.
   * @param {import('./types.mjs').Gpu[]} gpus
   */
  held(gpus) {
    const lists = gpus.map(gpu => gpu.grants.map(grant => grant.job));
    const now = new Set(lists.flat());
    for (const job of this.kept.keys()) if (!now.has(job) && !this.drawn.has(job)) this.kept.delete(job);
    for (const job of [...now].filter(one => !this.kept.has(one)).sort((a, b) => a - b)) {
      const weights = lists.filter(list => list.includes(job)).flatMap(list => {
        const at = list.indexOf(job);
        return list.flatMap((other, i) =>
          this.kept.has(other) ? [{ job: other, weight: Math.abs(i - at) === 1 ? BESIDE : 1 }] : []);
      });
      this.kept.set(job, this.chosen(job, weights));
    }
  }

  /**
   * Bars are drawn on these lanes: what was, what is and what is foreseen.
   * @param {Placed[][]} lanes Each by the time of its bars' begin.
   */
  lanes(lanes) {
    const all = lanes.flat();
    this.drawn = new Set(all.map(bar => bar.job));
    for (const job of this.foreseen.keys()) if (!this.drawn.has(job)) this.foreseen.delete(job);
    const past = new Set(all.filter(bar => bar.when !== 'next').map(bar => bar.job));
    // what is foreseen gives way to what is
    const inTurn = [...this.drawn].sort((a, b) => Number(past.has(b)) - Number(past.has(a)) || a - b);
    /** @type {Set<number>} */
    const done = new Set(this.kept.keys());
    for (const job of inTurn) {
      if (done.has(job)) continue;
      done.add(job);
      const weights = lanes.flatMap(bars => near(bars, job)).filter(one => done.has(one.job));
      const tone = this.chosen(job, weights);
      if (past.has(job)) this.kept.set(job, tone);
      else this.foreseen.set(job, tone);
    }
  }

  /**
   * @param {number} job
   * @param {{job: number, weight: number}[]} others
   */
  chosen(job, others) {
    const weights = Array.from({ length: TONES }, () => 0);
    for (const other of others) {
      const tone = other.job === job ? undefined : this.known(other.job);
      if (tone !== undefined) weights[tone] += other.weight;
    }
    const first = this.foreseen.get(job) ?? job % TONES;
    const least = Math.min(...weights);
    for (let step = 0; step < TONES; step += 1) {
      if (weights[(first + step) % TONES] === least) return (first + step) % TONES;
    }
    return first;
  }
}

/**
 * Jobs whose bars are beside or above and below those of one, on one lane.
 * @param {Placed[]} bars
 * @param {number} job
 */
function near(bars, job) {
  return bars.filter(bar => bar.job === job).flatMap(own => {
    /** @type {Placed | undefined} */
    let before;
    /** @type {Placed | undefined} */
    let after;
    const found = [];
    for (const bar of bars) {
      if (bar === own) continue;
      if (bar.start < own.until && bar.until > own.start) found.push({ job: bar.job, weight: 1 });
      if (bar.level !== own.level) continue;
      if (bar.start < own.start) before = bar;
      else after ||= bar;
    }
    for (const bar of [before, after]) if (bar) found.push({ job: bar.job, weight: BESIDE });
    return found;
  });
}
