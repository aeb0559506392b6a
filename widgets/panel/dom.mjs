// Elements made once and then changed only where something differs.

/**
 * @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Props
 */

/**
 * An element. Text goes in as text, never as markup: a job may be called anything.
 * @template {keyof HTMLElementTagNameMap} N
 * @param {N} name
 * @param {string} kind Its class, after `gq-`; several with spaces.
 * @param {Props} [props] Attributes; functions are listeners, by the name of the event.
 * @param {(Node | string | null | false)[]} content
 * @returns {HTMLElementTagNameMap[N]}
 */
export function h(name, kind, props, ...content) {
  const made = document.createElement(name);
  if (kind) made.className = kind.split(' ').map(one => `gq-${one}`).join(' ');
  for (const [key, value] of Object.entries(props || {})) {
    if (typeof value === 'function') made.addEventListener(key, value);
    else attr(made, key, value);
  }
  for (const one of content) if (one) made.append(one);
  return made;
}

/**
 * Set an attribute where it differs; null, undefined and false take it away.
 * @param {Element} node
 * @param {string} name
 * @param {string | number | boolean | null | undefined} value
 */
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const text = value === true ? '' : String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/**
 * Set a text where it differs, and hide what has none.
 * @param {HTMLElement} node
 * @param {string} words
 */
export function put(node, words) {
  if (node.textContent !== words) node.textContent = words;
  if (node.hidden !== !words) node.hidden = !words;
}

/**
 * @param {HTMLElement} node
 * @param {boolean} there
 */
export function show(node, there) {
  if (node.hidden === there) node.hidden = !there;
}

/**
 * Set a style where it differs.
 * @param {HTMLElement} node
 * @param {string} name
 * @param {string} value
 */
export function style(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

/**
 * A button that says what it does; one with words is called by them.
 * @param {string} kind
 * @param {string} label What is read out and shown as a tip.
 * @param {(event: MouseEvent) => void} click
 * @param {Node | string} content
 */
export function button(kind, label, click, content) {
  const name = typeof content === 'string' ? null : label;
  return h('button', `button ${kind}`, { type: 'button', title: label, 'aria-label': name, click }, content);
}

const SVG = 'http://www.w3.org/2000/svg';

/**
 * One of our small pictures, drawn with a single path.
 * @param {string} path
 */
export function icon(path) {
  const made = document.createElementNS(SVG, 'svg');
  attr(made, 'viewBox', '0 0 16 16');
  attr(made, 'class', 'gq-icon');
  attr(made, 'aria-hidden', 'true');
  const line = document.createElementNS(SVG, 'path');
  attr(line, 'd', path);
  made.append(line);
  return made;
}

export const ICONS = {
  close: 'M4 4l8 8M12 4l-8 8',
  grip: 'M6 4v.01M6 8v.01M6 12v.01M10 4v.01M10 8v.01M10 12v.01',
  retry: 'M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3',
  copy: 'M6 6h7v7H6zM3 10V3h7',
  open: 'M9 3h4v4M13 3L7.5 8.5M11 9.5V13H3V5h3.5',
  back: 'M10 3L5 8l5 5',
  plus: 'M8 3v10M3 8h10',
  sliders: 'M2 5h6M12 5h2M10 3v4M2 11h2M8 11h6M6 9v4',
};

/**
 * Children of an element, one for each item, known by their keys.
 * @template T
 */
export class Rows {
  /**
   * @param {HTMLElement} parent
   * @param {(item: T) => HTMLElement} make
   * @param {(node: HTMLElement, item: T) => void} patch
   */
  constructor(parent, make, patch) {
    this.parent = parent;
    this.make = make;
    this.patch = patch;
    /** @type {Map<string | number, HTMLElement>} */
    this.nodes = new Map();
  }

  /**
   * @param {T[]} items
   * @param {(item: T) => string | number} key
   */
  update(items, key) {
    const keys = items.map(key);
    const wanted = new Set(keys);
    const active = document.activeElement;
    const held = active instanceof HTMLElement && this.parent.contains(active) ? active : null;
    for (const [known, node] of this.nodes) {
      if (wanted.has(known)) continue;
      node.remove();
      this.nodes.delete(known);
    }
    let at = this.parent.firstElementChild;
    items.forEach((item, index) => {
      let node = this.nodes.get(keys[index]);
      if (!node) {
        node = this.make(item);
        this.nodes.set(keys[index], node);
      }
      this.patch(node, item);
      if (node === at) at = at.nextElementSibling;
      else this.parent.insertBefore(node, at);
    });
    // an element that is moved loses the focus
    if (held && held !== document.activeElement && held.isConnected) held.focus({ preventScroll: true });
  }
}
