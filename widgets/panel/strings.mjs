// All words of the panel, in one place. `translate` replaces some or all of them.

import { duration } from './format.mjs';

export const S = {
  title: 'GPU queue',
  looking: 'Looking at the queue…',
  back: 'Back to the queue',
  more: 'Show more',

  unreachable: 'The server cannot be reached. What you see may be out of date. Trying again.',
  kernelSilent:
    'This notebook’s kernel does not answer. While a cell runs it may have to wait. Trying again.',
  noExtension:
    'This Jupyter server does not have the server part of gpuqueue. Install it where the server ' +
    'runs (pip install jupyter-gpuqueue) and restart the server.',
  forbidden: 'You are not allowed to see the queue of this server.',
  /** @param {number} status */
  answered: status => `The server answered with status ${status}.`,
  /** @param {string} there @param {string} here */
  otherSchema: (there, here) =>
    `This panel (${here}) and the server part of gpuqueue${there ? ` (${there})` : ''} are of ` +
    'different versions. Reload the page; if that does not help, restart the Jupyter server.',
  /** @param {string} there @param {string} here */
  otherVersion: (there, here) =>
    `The server part of gpuqueue is ${there}, this panel is ${here}. Reload the page, or restart ` +
    'the Jupyter server after an update.',
  broken: 'The panel met an error of its own and goes on with the next look.',
  /** @param {string} words */
  failed: words => words || 'The server did not do it.',

  counts: /** @param {number} running @param {number} waiting @param {number} notebooks */ (running, waiting, notebooks) =>
    `${running} running, ${waiting} waiting${notebooks ? `, ${S.kernels(notebooks)}` : ''}`,
  /** @param {number} count */
  kernels: count => (count === 1 ? '1 notebook' : `${count} notebooks`),
  gpus: 'GPUs',
  running: 'Running',
  waiting: 'Waiting',
  notebooks: 'Notebooks',
  recent: 'Recent',
  timeline: 'Timeline',
  noGpus: 'No GPUs',
  noGpusWhy: 'Jobs run on the CPU.',
  nothingRuns: 'Nothing runs.',
  nothingWaits: 'Nothing waits.',
  emptyHead: 'The GPUs are idle.',
  emptyCell: 'To queue a cell, write this at its top:',
  emptyShell: 'For a script, in a terminal:',
  cell: '%%gpu',
  shell: 'jupyter gpuqueue submit -- python train.py',

  compute: 'Compute',
  memory: 'Memory',
  cpu: 'CPU',
  slots: 'Slots',
  slotsTip: 'Each job takes at least one slot of the processors, so that not too many run at once',
  /** @param {number} used @param {number} total */
  slotsUsed: (used, total) => `${used} of ${total} taken`,
  disks: ['Job disk', 'Home disk'],
  disk: 'Disk',
  /** @param {string} path */
  diskAt: path => `the disk of ${path}`,
  /** @param {number} cores */
  cores: cores => (cores === 1 ? '1 core' : `${cores} cores`),
  /** @param {number} part @param {number} cores */
  coresBusy: (part, cores) => `${part}% of ${cores}`,
  /** @param {string} size */
  free: size => `${size} free`,
  /** @param {string} used @param {string} total */
  of: (used, total) => `${used} of ${total}`,
  /** @param {string} what @param {string} words */
  label: (what, words) => `${what}: ${words}`,
  /** @param {number} part */
  busy: part => `${part}% busy`,
  /** @param {number} part */
  promised: part => `${part}% promised`,
  idle: 'free',
  whole: 'whole GPU',
  light: 'light: beside others',
  /** @param {string} size */
  uses: size => `uses ${size}`,
  outside: 'Other programs',
  drained: 'takes no new jobs',
  /** @param {number} degrees */
  temperature: degrees => `${degrees} °C`,
  /** @param {number} watts */
  power: watts => `${Math.round(watts)} W`,
  /** @param {number} index */
  gpu: index => `GPU ${index}`,
  /** @param {number[]} indices */
  onGpus: indices =>
    indices.length === 1 ? `GPU ${indices[0]}` : `GPUs ${indices.join(', ')}`,
  onCpu: 'CPU',

  /** @param {string} ran @param {string} whole */
  ofAbout: (ran, whole) => `${ran} of ~${whole}`,
  /** @param {number} step @param {number | null} all */
  step: (step, all) => (all ? `step ${step} of ${all}` : `step ${step}`),
  /** @param {number} seconds */
  noted: seconds => `noted ${duration(seconds)} ago`,
  starting: 'starting',
  evicting: 'stopping, to make room',
  frozen: 'frozen',
  /** @param {string} peak @param {string} asked */
  over: (peak, asked) => `has used ${peak} of GPU memory, asked for ${asked}`,
  /** @param {string} peak */
  peak: peak => `peak ${peak}`,

  /** @param {string} time */
  starts: time => `in ${time}`,
  /** @param {string} from @param {string} to */
  startsRange: (from, to) => `in ${from} to ${to}`,
  /** @param {string} time */
  startsLater: time => `not before ${time}`,
  startsNow: 'starts now',
  waitsFree: 'nothing starts until you resume',
  startsUnknown: 'start unknown',
  /** @param {string} time */
  waits: time => `queued ${time} ago`,
  /** @param {string} time */
  done: time => `done by ${time}`,

  /** @param {number} id */
  job: id => `Job ${id}`,
  /** @param {number} id @param {string} tag */
  open: (id, tag) => `Job ${id}, ${tag}: show log and details`,
  /** @param {number} id */
  cancel: id => `Cancel job ${id}`,
  /** @param {number} id */
  cancelSure: id => `Cancel job ${id}: sure?`,
  cancelAsk: 'Cancel?',
  undo: 'Undo',
  /** @param {number} id */
  cancelled: id => `Job ${id} is cancelled.`,
  /** @param {number} id @param {number} made */
  uncancelled: (id, made) => `Job ${id} is back in the queue, as job ${made}.`,
  /** @param {number} id @param {string} words */
  notCancelled: (id, words) => `Job ${id} was not cancelled. ${words}`,
  /** @param {number} id */
  retry: id => `Run job ${id} again`,
  retryShort: 'Run again',
  /** @param {number} id @param {number} made */
  retried: (id, made) => `Job ${id} is queued again as job ${made}.`,
  /** @param {number} id @param {string} words */
  notRetried: (id, words) => `Job ${id} was not queued again. ${words}`,
  cancelShort: 'Cancel',
  /** @param {number} id @param {number} position @param {number} all */
  grip: (id, position, all) =>
    `Move job ${id}, at position ${position} of ${all}: arrow keys, Home for the front`,
  /** @param {number} id @param {number} position */
  moved: (id, position) => `Job ${id} is at position ${position}.`,
  /** @param {number} id @param {string} words */
  notMoved: (id, words) => `Job ${id} was not moved. ${words}`,
  filter: 'Filter jobs',
  filterTip: 'Words in name, owner, command or notebook, or a number. / leads here, Escape clears it',
  filterStates: 'Only jobs that are',
  /** @param {string} state */
  onlyState: state => `Only ${state}`,
  /** @param {number} running @param {number} waiting @param {number} notebooks @param {string} ended */
  matched: (running, waiting, notebooks, ended) => `${S.counts(running, waiting, notebooks)}, ${ended} ended`,
  noMatch: 'No job matches.',
  /** @param {number} shown @param {number} all */
  ofAll: (shown, all) => `${shown} of ${all}`,
  picked: 'Chosen jobs',
  /** @param {number} id @param {string} tag */
  pick: (id, tag) => `Choose job ${id}, ${tag}`,
  pickTip: 'Space chooses, Shift with arrow keys or a click chooses a range',
  /** @param {number} count */
  pickedCount: count => (count === 1 ? '1 chosen' : `${count} chosen`),
  /** @param {number} count */
  pickAll: count => `All ${count} waiting`,
  unpick: 'Choose none',
  /** @param {number} count */
  cancelMany: count => `Cancel ${count}`,
  /** @param {number} count */
  cancelManySure: count => `Cancel ${count}: sure?`,
  /** @param {number} count */
  cancelledMany: count => (count === 1 ? '1 job is cancelled.' : `${count} jobs are cancelled.`),
  /** @param {number} count */
  frontMany: count => `To the front ${count}`,
  /** @param {number} count */
  frontManySure: count => `To the front ${count}: sure?`,
  /** @param {number} count */
  frontedMany: count => (count === 1 ? '1 job is at the front.' : `${count} jobs are at the front.`),
  /** @param {number} count */
  retryMany: count => `Run again ${count}`,
  /** @param {number} count */
  retryManySure: count => `Run again ${count}: sure?`,
  /** @param {number} count */
  retriedMany: count => (count === 1 ? '1 job is queued again.' : `${count} jobs are queued again.`),
  /** @param {number} ready @param {number} all */
  doingMany: (ready, all) => `${ready} of ${all} done`,
  /** @param {number} id @param {string} words */
  refusedOne: (id, words) => `Job ${id}: ${words}`,
  /** @param {number} count @param {number} all @param {string} why */
  refusedMany: (count, all, why) => `Not done for ${count} of ${all}. ${why}`,
  /** @param {number} id */
  resize: id => `Share of job ${id}`,
  /** @param {number} id */
  resizeOpen: id => `Change the share of job ${id}`,
  resizeGo: 'Give it that',
  resizeTip: 'Change what the job has of its GPUs, while it runs',
  resizeUndo: 'Leave it',
  /** @param {string} where @param {string} left */
  resizeLeft: (where, left) => `That leaves ${left} on ${where}.`,
  /** @param {string} where */
  resizeOver: where => `That is more than is free on ${where}.`,
  resizeWaits: 'It waits, and asks for that from then on.',
  /** @param {number} part */
  leftShare: part => `${Math.round(part)}% free`,
  /** @param {string} size */
  leftMemory: size => `${size} of memory`,
  /** @param {number} id @param {string} words */
  notResized: (id, words) => `The share of job ${id} stays. ${words}`,
  noNotebooks: 'No notebook holds a share of a GPU. To give it one, write %gpu attach 0.25 20G in it.',
  /** @param {string} path */
  notebookOpen: path => `Open ${path}`,
  /** @param {string} name */
  notebookShare: name => `Change the share of ${name}`,
  openHere: 'open here',
  noShare: 'no share',
  noShareHere: 'It is open here. %gpu attach 0.25 20G in it gives it a share now.',
  kernelBusy: 'busy',
  /** @param {string} time */
  kernelIdle: time => `idle for ${time}`,
  /** @param {string} time */
  idleSince: time => `Idle since ${time}`,
  shutDownShort: 'Shut down',
  /** @param {string} name */
  shutDown: name => `Shut down the kernel of ${name}`,
  /** @param {string} name */
  shutDownTip: name => `Shut down the kernel of ${name}: its variables are lost, its share is free`,
  shutDownAsk: 'End its kernel?',
  /** @param {string} name */
  shutDownSure: name => `End the kernel of ${name}, with its variables: sure?`,
  /** @param {string} name @param {string} words */
  notShutDown: (name, words) => `The kernel of ${name} was not shut down. ${words}`,
  nextStart: 'At its next start',
  /** @param {string} words */
  nextIs: words => `At its next start it asks for ${words}.`,
  nextIsNone: 'At its next start it asks for what the notebook, its kernelspec and the settings say.',
  /** @param {number} count */
  nextGpus: count => `each of ${count} GPUs`,
  nextShare: 'Compute',
  nextShareHint: 'such as 0.25',
  nextMemory: 'Memory',
  nextMemoryHint: 'such as 20G',
  nextGo: 'Ask for it',
  nextTip: 'Its kernel asks for that whenever it starts; one that runs with a share gets it now where there is room',
  nextForget: 'Forget it',
  nextForgetTip: 'The notebook, its kernelspec and the settings count again',
  nextNothing: 'Write a share, such as 0.25, or a size, such as 20G.',
  nextNoted: 'Noted.',
  nextForgotten: 'Forgotten.',
  /** @param {string} words */
  nextRefused: words => `That was not noted. ${words}`,
  held: 'Enforced',
  /** @type {Record<string, string>} How far something is held to its share. */
  standing: {
    capped: 'capped', advised: 'advised only', 'admitted only': 'counted only', 'not isolated': 'not kept apart',
  },
  /** @param {string} compute @param {string} memory */
  holds: (compute, memory) =>
    `compute is ${S.standing[compute] || compute}, memory is ${S.standing[memory] || memory}`,
  heldTip:
    'Capped: what is over is refused. Advised only: frameworks are told. Counted only: it is counted when ' +
    'jobs are placed, and nothing holds them to it.',
  heldDiffers: 'not the same for all; see each job',
  /** @param {number} id @param {string} tag @param {string} state */
  ending: (id, tag, state) => `Job ${id} (${tag}) ${state === 'cancelled' ? 'was cancelled' : state}`,
  /** @param {string} program */
  freeingFor: program => `The GPUs are being freed for ${program || 'another program'}.`,
  freeOver: 'The queue has the GPUs again.',
  notices: 'Notices',
  noticeShow: 'Show',
  noticeAway: 'Put it away',
  notify: 'Which ends of jobs are told on this page and, where the browser may, on the desktop',
  notifyWhich: { all: 'Tell all ends', failures: 'Tell failures', off: 'Tell nothing' },
  notifyHere: 'The browser does not let this page tell them on the desktop.',
  copy: 'Copy command',
  copied: 'Copied.',
  notCopied: 'The browser does not let it be copied.',
  notebook: 'Open notebook',
  openFolder: 'Open folder',

  details: 'Details',
  command: 'Command',
  folder: 'Folder',
  owner: 'Owner',
  asked: 'Asked for',
  where: 'Where',
  submitted: 'Queued',
  started: 'Started',
  ended: 'Ended',
  took: 'Took',
  peakMemory: 'Peak GPU memory',
  after: 'Comes after',
  hint: 'Sooner if',
  attempt: 'Attempt',
  origin: 'From',
  /** @type {Record<string, string>} */
  origins: { rest: 'the panel or REST', terminal: 'a terminal', python: 'Python', notebook: 'a notebook', widget: 'the panel' },
  log: 'Log',
  outputs: 'Outputs',
  noLog: 'It has not written anything.',
  noLogYet: 'It has not started; its log will be here.',
  noOutputs: 'It has shown nothing.',
  follow: 'Follow',
  search: 'Search the log',
  /** @param {number} at @param {number} all */
  found: (at, all) => (all ? `${at} of ${all}` : 'not found'),
  logCut: 'The beginning is left out.',
  html: 'HTML output, without scripts',
  image: 'Image output',

  /** @param {string} name */
  mode: name => ({ normal: 'Normal', freeing: 'Freeing', free: 'Free' })[name] || name,
  modeBy: /** @param {string} by */ by => ({ person: 'by you', automatic: 'automatic' })[by] || by,
  modeFree: 'No job starts until you resume.',
  modeFreeSoft: 'Jobs are frozen where they were; they keep their GPU memory.',
  modeFreeing: 'Jobs are asked to save and let go of the GPUs.',
  /** @param {string} program */
  modeFor: program => `for ${program}`,
  /** @param {string} time */
  modeSince: time => `since ${time}`,
  stillHeld: 'What jobs and notebooks still hold',
  /** @param {string | null} size null: nobody knows @param {number | null} index of the GPU */
  holdingOf: (size, index) => `${size ?? 'memory'}${index === null ? '' : ` of GPU ${index}`}`,
  /** @param {string[]} parts */
  holding: parts => `holds ${parts.join(', ')}`,
  /** @param {string} size @param {number | null} index */
  onHost: (size, index) => `${size} moved${index === null ? '' : ` from GPU ${index}`} to the host`,
  /** @param {number} count */
  moreHeld: count => `and ${count} more`,
  freeNow: 'The GPUs are yours.',
  /** What becomes of so many jobs, in the order in which it is told. */
  does: {
    /** @param {number} count */
    evict: count => (count === 1 ? '1 job saves and steps aside' : `${count} jobs save and step aside`),
    /** @param {number} count */
    restart: count => (count === 1 ? '1 is stopped and starts again later' : `${count} are stopped and start again later`),
    /** @param {number} count */
    freeze: count => (count === 1 ? '1 is frozen' : `${count} are frozen`),
    /** @param {number} count */
    idle: count => (count === 1 ? '1 notebook idles and lets go of what it can' : `${count} notebooks idle and let go of what they can`),
    /** @param {number} count */
    continue: count => (count === 1 ? '1 job goes on' : `${count} jobs go on`),
    /** @param {number} count */
    back: count => (count === 1 ? '1 notebook gets its GPU memory back' : `${count} notebooks get their GPU memory back`),
    /** @param {number} count */
    start: count => (count === 1 ? '1 starts again in its turn' : `${count} start again in their turn`),
  },
  /** @param {string} program */
  pausedFor: program => `The GPUs are free for ${program || 'the person at the machine'}`,
  /** @param {string} who */
  paused: who => `This notebook's kernel is paused. ${who}.`,
  /** @param {string} who @param {string} size */
  pausedMoved: (who, size) =>
    `${who}. ${size} of this notebook's GPU memory are on the host: cells that use the GPU wait until Resume.`,
  /** @param {string} who @param {string[]} held */
  pausedHolds: (who, held) =>
    `${who}. This notebook still holds ${held.join(' and ')}; a cell that runs now is paused until Resume.`,
  /** @param {string} reason */
  pausedWaits: reason => `This notebook's kernel cannot go on yet: ${reason}.`,
  pausedRelease: 'Release',
  pausedReleaseTip: 'Restart this notebook\'s kernel: its GPU memory is free, its variables are lost',
  pausedReleaseAsk: 'Restart its kernel? Variables are lost',
  freeFull: 'Free GPUs',
  freeFullTip: 'Take the GPUs back: jobs save and go on later; those that cannot are frozen',
  freeSoft: 'Freeze',
  freeSoftTip: 'Freeze jobs where they are, at once: they keep their GPU memory',
  resume: 'Resume',
  resumeTip: 'Give the GPUs back to the queue',
  /** @param {string} words */
  notDone: words => `That was not done. ${words}`,

  submit: 'Queue a command',
  submitShort: 'New job',
  submitCommand: 'Command',
  submitHint: 'A line for the shell, or the path of a .py or .ipynb file',
  submitPreset: 'Size',
  /** @type {Record<string, string>} */
  presets: { one: 'one GPU', light: 'light', two: 'two GPUs', exclusive: 'whole machine', cpu: 'CPU only' },
  submitMemory: 'Memory of each GPU',
  submitMemoryHint: 'such as 6G',
  submitEta: 'Takes about',
  submitEtaHint: 'such as 40m',
  submitTag: 'Name',
  submitGo: 'Queue it',
  submitClose: 'Close',
  /** @param {number} id */
  submittedAs: id => `Queued as job ${id}.`,
  /** @param {string} where */
  wouldStart: where => `Would start at once on ${where}`,
  /** @param {number} position @param {string} when */
  wouldWait: (position, when) => `Would be at position ${position}, ${when}`,
  previewFirst: 'Write a command to see where and when it would run.',

  usage: 'Usage',
  usageTip: 'Who has held how much of the GPUs',
  usageSince: 'Of the last',
  usageBy: 'By',
  /** @type {Record<string, string>} */
  usageSpans: { '24h': '24 hours', '7d': '7 days' },
  /** @type {Record<string, string>} */
  usageKeys: { owner: 'owner', notebook: 'notebook or script', tag: 'name', gpu: 'GPU' },
  usageGpuHours: 'GPU h',
  usageGpuTip: 'Compute held for how long: half of a GPU for an hour is 0.5',
  usageGibHours: 'GiB h',
  usageGibTip: 'GPU memory held for how long, in GiB for an hour',
  usageJobs: 'Jobs',
  /** @param {string} by @param {string} span */
  usageCaption: (by, span) => `Usage of the GPUs in the last ${span}, by ${by}`,
  /** @param {string} span */
  usageNone: span => `Nobody has held a GPU in the last ${span}. Queue a job, and it is counted here.`,
  usageAll: 'all',
  /** @param {number} count */
  usageMore: count => `${count} more`,
  usageElsewhere: 'none',

  past: 'ended',
  now: 'running',
  next: 'expected',
  /** @param {string} name */
  range: name => `Show ${name} back`,
  /** @param {number} job @param {string} tag @param {string} what @param {string} from @param {string} to */
  bar: (job, tag, what, from, to) => `Job ${job} ${tag}, ${what}: ${from} to ${to}`,
  open_end: 'unknown',
  states: {
    queued: 'waiting', starting: 'starting', running: 'running', frozen: 'frozen',
    evicting: 'stopping', succeeded: 'succeeded', failed: 'failed', cancelled: 'cancelled',
  },
};

/**
 * Replace words, for another language.
 * @param {Partial<typeof S>} words
 */
export function translate(words) {
  Object.assign(S, words);
}

/** @param {string} state */
export function stateWords(state) {
  return /** @type {Record<string, string>} */ (S.states)[state] || state;
}
