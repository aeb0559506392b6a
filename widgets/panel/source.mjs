// The two ways to the queue: a server's REST interface, and a notebook's kernel.

/** The other side understood and said no. */
export class Refused extends Error {
  /**
   * @param {number} status The HTTP status.
   * @param {string} message What it said.
   * @param {string | null} [field] What of the request it is about.
   */
  constructor(status, message, field) {
    super(message);
    this.status = status;
    this.field = field || null;
  }
}

export const API = 'gpuqueue/api/v1';
export const EVENTS = 'https://schemas.gpuqueue.org/queue/v1';
const AGAIN = 5000;

/**
 * The server at a base URL, asked with the browser's own cookies.
 * @param {string} base Ends in a slash.
 * @param {string} [xsrf] The page's own token against forged requests, where it was given one.
 * @returns {import('./types.mjs').Source}
 */
export function serverSource(base, xsrf) {
  return {
    kind: 'server',
    async ask(method, path, body) {
      /** @type {Record<string, string>} */
      const headers = { 'X-XSRFToken': cookie('_xsrf') || xsrf || '' };
      if (method === 'POST') headers['Content-Type'] = 'application/json';
      const response = await fetch(`${base}${API}${path}`, {
        method,
        headers,
        credentials: 'same-origin',
        body: method === 'POST' ? JSON.stringify(body || {}) : undefined,
      });
      const answer = await response.json().catch(() => null);
      if (response.ok && answer) return answer;
      throw new Refused(response.status, (answer && answer.message) || '', answer && answer.field);
    },
    onChange: changed => listen(base, changed),
  };
}

/** @param {string} name */
function cookie(name) {
  const found = document.cookie.split('; ').find(pair => pair.startsWith(`${name}=`));
  return found ? decodeURIComponent(found.slice(name.length + 1)) : '';
}

/**
 * Hear of changes through the server's event stream; without one, the view looks now and then.
 * @param {string} base
 * @param {(notice?: any) => void} changed
 */
function listen(base, changed) {
  let stopped = false;
  /** @type {WebSocket | null} */
  let socket = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let failed = 0;
  const open = () => {
    if (stopped) return;
    const url = new URL(`${base}api/events/subscribe`, location.href);
    url.protocol = url.protocol.replace('http', 'ws');
    socket = new WebSocket(url.href);
    socket.onopen = () => {
      // what happened while nobody listened
      if (failed) changed();
      failed = 0;
    };
    socket.onmessage = message => {
      try {
        const event = JSON.parse(message.data);
        if (event.schema_id === EVENTS) changed(event);
      } catch {
        // somebody else's event
      }
    };
    socket.onclose = () => {
      failed += 1;
      timer = setTimeout(open, Math.min(60000, AGAIN * 2 ** Math.min(failed - 1, 4)));
    };
  };
  open();
  return () => {
    stopped = true;
    clearTimeout(timer);
    if (socket) socket.close();
  };
}

/**
 * What of a widget's model is used here; see anywidget.
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(content: unknown) => void} send
 * @property {(event: string, heard: (content: any) => void) => void} on
 * @property {(event: string, heard: (content: any) => void) => void} off
 */

const PATIENCE = 20000;
const LOOK = 2000;

/**
 * The kernel that a widget belongs to.
 * @param {Model} model
 * @param {AbortSignal} [signal] When it ends.
 * @returns {import('./types.mjs').Source}
 */
export function kernelSource(model, signal) {
  let number = 0;
  const prefix = Math.random().toString(36).slice(2);
  /** @type {Map<string, (answer: {status: number, body: any}) => void>} */
  const open = new Map();
  /** @param {{id?: string, status?: any, body?: any}} content */
  const heard = content => {
    const done = content && content.id && open.get(content.id);
    if (done) done({ status: content.status, body: content.body });
  };
  model.on('msg:custom', heard);
  if (signal) signal.addEventListener('abort', () => model.off('msg:custom', heard));
  return {
    kind: 'kernel',
    async ask(method, path, body) {
      const id = `${prefix}-${(number += 1)}`;
      /** @type {Promise<{status: number, body: any}>} */
      const answered = new Promise((done, failed) => {
        const timer = setTimeout(() => failed(new Error('the kernel is silent')), PATIENCE);
        open.set(id, answer => {
          clearTimeout(timer);
          done(answer);
        });
      });
      model.send({ id, method, path, body: body === undefined ? null : body });
      try {
        const { status, body: answer } = await answered;
        if (status < 400) return answer;
        throw new Refused(status, (answer && answer.message) || '', answer && answer.field);
      } finally {
        open.delete(id);
      }
    },
    onChange(changed) {
      const timer = setInterval(changed, LOOK);
      return () => clearInterval(timer);
    },
  };
}
