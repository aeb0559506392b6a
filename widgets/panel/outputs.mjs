// What a cell showed, as outputs: text, pictures, and HTML only inside a locked frame.

import { attr, h } from './dom.mjs';
import { plain } from './log.mjs';
import { S } from './strings.mjs';

const MOST = 200;
const PICTURES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];

/** @param {unknown} value */
function joined(value) {
  return Array.isArray(value) ? value.join('') : String(value ?? '');
}

/** @param {Record<string, unknown>} data */
function rich(data) {
  for (const kind of PICTURES) {
    if (!data[kind]) continue;
    const source = `data:${kind};base64,${joined(data[kind]).replace(/\s/g, '')}`;
    return h('img', 'picture', { src: source, alt: joined(data['text/plain']) || S.image });
  }
  if (data['image/svg+xml']) {
    // a picture runs no scripts and loads nothing
    const source = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(joined(data['image/svg+xml']))}`;
    return h('img', 'picture', { src: source, alt: joined(data['text/plain']) || S.image });
  }
  if (data['text/html']) return framed(joined(data['text/html']));
  const text = joined(data['text/plain'] ?? data['text/markdown'] ?? data['application/json']);
  return h('pre', 'text', {}, plain(text));
}

/**
 * HTML in a frame that may run nothing, open nothing and ask for nothing.
 * @param {string} html
 */
function framed(html) {
  const frame = h('iframe', 'frame', { sandbox: '', title: S.html, loading: 'lazy' });
  const policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:";
  attr(
    frame,
    'srcdoc',
    `<!doctype html><meta http-equiv="Content-Security-Policy" content="${policy}">` +
      '<style>body{font:13px system-ui,sans-serif;margin:4px;background:#fff;color:#111}' +
      'table{border-collapse:collapse}td,th{padding:2px 6px;border-bottom:1px solid #ddd;' +
      `text-align:right}</style>${html}`,
  );
  return frame;
}

/** @param {Record<string, any>} output */
function shown(output) {
  switch (output.output_type) {
    case 'stream':
      return h('pre', `text ${output.name === 'stderr' ? 'stderr' : 'stdout'}`, {}, plain(joined(output.text)));
    case 'error':
      return h('pre', 'text error', {}, plain((output.traceback || [`${output.ename}: ${output.evalue}`]).join('\n')));
    case 'display_data':
    case 'execute_result':
      return rich(output.data || {});
    default:
      return null;
  }
}

export class CellOutputs {
  /**
   * @param {import('./actions.mjs').Context} context
   * @param {number} job
   */
  constructor(context, job) {
    this.context = context;
    this.job = job;
    this.next = 0;
    this.attempt = 0;
    this.clear = false;
    this.asking = false;
    this.closed = false;
    this.list = h('div', 'outputs', {});
    this.none = h('p', 'empty', {}, S.noOutputs);
    this.root = h('div', '', {}, this.none, this.list);
    void this.look();
  }

  async look() {
    if (this.asking || this.closed) return;
    this.asking = true;
    try {
      for (;;) {
        const path = `/jobs/${this.job}/outputs?offset=${this.next}`;
        /** @type {import('./types.mjs').Outputs} */
        const found = await this.context.home.source.ask('GET', path);
        if (this.closed) return;
        if (this.attempt && found.attempt !== this.attempt) {
          this.attempt = found.attempt;
          this.next = 0;
          this.list.replaceChildren();
          continue;
        }
        this.attempt = found.attempt;
        this.next = found.next;
        for (const output of found.outputs) this.add(output);
        if (found.ended || !found.outputs.length) break;
      }
    } catch {
      // it is asked again with the next change
    } finally {
      this.asking = false;
    }
    this.none.hidden = this.list.childElementCount > 0;
  }

  /** @param {Record<string, any>} output */
  add(output) {
    if (output.output_type === 'clear_output') {
      if (output.wait) this.clear = true;
      else this.list.replaceChildren();
      return;
    }
    if (this.clear) {
      this.list.replaceChildren();
      this.clear = false;
    }
    const id = output.transient && output.transient.display_id;
    if (output.output_type === 'update_display_data') {
      for (const node of this.list.children) {
        if (node.getAttribute('data-display') === String(id)) node.replaceChildren(rich(output.data || {}));
      }
      return;
    }
    const last = this.list.lastElementChild;
    const name = output.output_type === 'stream' ? output.name : null;
    if (name && last && last.getAttribute('data-stream') === name) {
      const text = /** @type {HTMLElement} */ (last.firstElementChild);
      text.textContent = plain((text.textContent || '') + joined(output.text));
      return;
    }
    const made = shown(output);
    if (!made) return;
    this.list.append(h('div', 'output', { 'data-display': id, 'data-stream': name }, made));
    while (this.list.childElementCount > MOST) this.list.firstElementChild?.remove();
  }

  close() {
    this.closed = true;
  }
}
