// What the server tells and what a home gives, as types. See openapi.yaml for the meaning.

/**
 * @typedef {{gpu: string, compute: number, memory: number, whole: boolean}} Grant
 * @typedef {Grant & {job: number, tag: string, lent?: number, used?: number | null}} GrantShown
 * @typedef {{memory_used: number | null, utilization: number | null, temperature: number | null,
 *   power: number | null}} Reading
 * @typedef {{at: number, step: number | null, metrics: Record<string, unknown>}} Note
 * @typedef {{position: number, expected: number | null, later_than: number | null,
 *   by: number | null, reason: string, sentence: string, hint: string}} Wait
 */

/**
 * @typedef {object} Gpu
 * @property {string} uuid
 * @property {number} index
 * @property {string} name
 * @property {number | null} memory
 * @property {boolean} [drained]
 * @property {GrantShown[]} grants
 * @property {number} compute_promised
 * @property {number} memory_promised
 * @property {number} outside
 * @property {string[]} outside_holders
 * @property {Reading | null} reading
 */

/**
 * @typedef {object} Job
 * @property {number} id
 * @property {string} kind
 * @property {string} tag
 * @property {string} state
 * @property {string} owner
 * @property {string} reason
 * @property {string} command
 * @property {string} cwd
 * @property {{kind: string, path: string, session: string}} origin
 * @property {number} submitted
 * @property {number | null} started
 * @property {number | null} ended
 * @property {number} attempt
 * @property {number | null} [learned]
 * @property {{eta: number | null, memory: number | null, preset: string, priority: number,
 *   gpus: number | null, share: number | null, after: number[]}} request
 * @property {{grants: Grant[], slots: number} | null} placement
 * @property {number | null} peak
 * @property {number} excess
 * @property {number} [frozen]
 * @property {number | null} [frozen_at]
 * @property {number | null} retry_of
 * @property {Wait | null} [wait]
 * @property {Note | null} [progress]
 * @property {{error: string, line: string | null}} [failure]
 * @property {{share: number | null, memory: number | null} | null} [resized]
 * @property {{compute: string, memory: string} | null} [hold]
 * @property {{borrows: boolean, away: [string, number][]} | null} [loan]
 * @property {boolean | null} [busy] Of a notebook's kernel.
 * @property {number | null} [idle_since]
 */

/**
 * @typedef {object} Mode
 * @property {string} name `normal`, `freeing` or `free`.
 * @property {string} by `person`, `automatic` or nothing.
 * @property {boolean} soft
 * @property {number | null} since
 * @property {string} program
 * @property {{job: number, tag: string, notebook?: boolean, gpu: number | null, memory: number | null}[]} holding
 * @property {{job: number, tag: string, gpu: number | null, memory: number}[]} [moved]
 */

/**
 * @typedef {object} Host What the machine has besides GPUs.
 * @property {number | null} cpu
 * @property {number} cpus
 * @property {{used: number, total: number}} memory
 * @property {{path: string, free: number, total: number}[]} disks
 */

/**
 * How many jobs there are; `notebooks` are those of the running that are a notebook's kernel.
 * @typedef {{running: number, waiting: number, notebooks?: number}} Counts
 */

/**
 * @typedef {object} Status
 * @property {number} schema
 * @property {number} at
 * @property {string} home
 * @property {string} problem
 * @property {string} warning
 * @property {Gpu[]} gpus
 * @property {Job[]} running
 * @property {Job[]} waiting
 * @property {Job[]} recent
 * @property {Counts} counts Of all jobs.
 * @property {{used: number, total: number}} [slots] Of the processors, of which a job takes at least one.
 * @property {Counts} [matches] Of those that were asked for.
 * @property {Host} [host]
 * @property {Mode} [mode]
 * @property {{version: string, problem: string, folder?: string,
 *   may?: {write: boolean, execute: boolean}}} server
 */

/**
 * @typedef {{job: number, tag: string, state: string, gpu: string, when: 'past' | 'now' | 'next',
 *   start: number, end: number | null}} Bar
 * @typedef {{at: number, gpus: {uuid: string, index: number, name: string}[], bars: Bar[]}} Timeline
 * @typedef {{text: string, offset: number, next: number, size: number, ended: boolean,
 *   attempt: number}} LogPart
 * @typedef {{outputs: Record<string, any>[], next: number, ended: boolean, attempt: number}} Outputs
 * @typedef {{points: Note[], count: number, ended: boolean}} Progress
 * @typedef {{at: number, total: number, offset: number, jobs: Job[]}} Page
 * @typedef {{at: number, command: string, cwd: string, tag: string, kind: string, now: boolean,
 *   wait: Wait | null, gpus: number[], end: number | null}} Preview
 */

/**
 * Gives state and takes actions. `ask` fails with `Refused` where the other side said no, with
 * anything else where it could not be reached.
 * @typedef {object} Source
 * @property {(method: string, path: string, body?: unknown) => Promise<any>} ask
 * @property {(changed: (notice?: any) => void) => (() => void)} onChange Calls back when something
 *   changed, with the notice where there is one; returns how to stop that.
 * @property {string} kind `server` or `kernel`.
 */

/**
 * Where the view is.
 * @typedef {object} Home
 * @property {Source} source
 * @property {number} refresh Seconds between looks while nothing is heard; at least 2.
 * @property {() => boolean} [visible] Whether anybody can see it, besides what the browser knows.
 * @property {(path: string) => void} [openNotebook] Opens a file below the server's root.
 * @property {(path: string) => void} [openFolder] Shows a folder below the server's root; empty for the root.
 * @property {(heard: () => void) => (() => void)} [onActivity] Calls back when a kernel has begun or ended
 *   something; returns how to stop that.
 * @property {() => string} [notebook] The notebook that is open in front, below the server's root.
 * @property {number} [job] Show this job alone.
 * @property {boolean} [titled] Put a title above it.
 * @property {(job: number) => () => void} [cancels] Somebody cancels a job here and need not be told of its
 *   end; returns how to take that back.
 * @property {HTMLElement} [foot] What the home puts below the view.
 */

export {};
