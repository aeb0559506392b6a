// Numbers for people, as `gpuqueue.units` writes them.

/**
 * Bytes, such as 6G.
 * @param {number | null | undefined} size
 */
export function bytes(size) {
  if (size === null || size === undefined) return '?';
  let unit = 0;
  while (Math.abs(size) >= 1023.5 && unit < 4) {
    size /= 1024;
    unit += 1;
  }
  return `${size < 100 ? Math.round(size * 10) / 10 : Math.round(size)}${'BKMGT'[unit]}`;
}

/**
 * Seconds in at most two units.
 * @param {number} seconds
 */
export function duration(seconds) {
  let left = Math.max(0, Math.round(seconds));
  if (left < 60) return `${left}s`;
  if (left >= 3600) left = Math.round(left / 60) * 60;
  /** @type {string[]} */
  const parts = [];
  let taken = 0;
  for (const [name, size] of /** @type {[string, number][]} */ ([
    ['d', 86400], ['h', 3600], ['m', 60], ['s', 1],
  ])) {
    if (left >= size || taken) {
      const count = Math.floor(left / size);
      if (count) parts.push(`${count}${name}`);
      left %= size;
      taken += 1;
    }
    if (taken === 2) break;
  }
  return parts.join(' ');
}

/**
 * Seconds that are only foreseen, no more precise than that is worth.
 * @param {number} seconds
 */
export function rough(seconds) {
  if (seconds < 60) return duration(seconds);
  if (seconds < 36000) return duration(Math.round(seconds / 60) * 60);
  return duration(Math.round(seconds / 3600) * 3600);
}

/**
 * A moment of today as a clock shows it, of another day with the day.
 * @param {number} at Seconds since the epoch.
 * @param {number} now
 */
export function clock(at, now) {
  const then = new Date(at * 1000);
  const time = then.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  if (then.toDateString() === new Date(now * 1000).toDateString()) return time;
  return `${then.toLocaleDateString([], { month: 'short', day: 'numeric' })} ${time}`;
}

/**
 * A metric, short.
 * @param {unknown} value
 */
export function metric(value) {
  if (typeof value !== 'number') return String(value);
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 0.001 && size < 10000 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}
