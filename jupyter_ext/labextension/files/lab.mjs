// What JupyterLab shows of the queue besides the panel: counts in the status bar, and places for
// banners above a notebook's cells.

const PAUSE = 3000;

/**
 * How many jobs run and wait, in the status bar; asked for when something changed, never else.
 * @param {HTMLElement} node
 * @param {{ask: (method: string, path: string) => Promise<any>}} ways
 * @param {() => void} open
 * @returns {{changed: () => void}}
 */
export function counts(node, ways, open) {
  const shown = document.createElement('button');
  shown.type = 'button';
  shown.className = 'gq-counts';
  shown.hidden = true;
  shown.onclick = open;
  shown.style.cssText =
    'border:0;background:none;color:inherit;font:inherit;padding:0 4px;cursor:pointer;height:100%';
  node.append(shown);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let late = false;
  let asked = 0;
  const look = async () => {
    timer = undefined;
    if (document.visibilityState !== 'visible') {
      late = true;
      return;
    }
    late = false;
    asked = Date.now();
    try {
      const found = await ways.ask('GET', '/counts');
      const { waiting, notebooks = 0 } = found;
      const kernels = notebooks ? `, ${notebooks === 1 ? '1 notebook' : `${notebooks} notebooks`}` : '';
      const text = `GPU: ${found.running - notebooks} running, ${waiting} waiting${kernels}`;
      shown.textContent = text;
      shown.title = 'Show the GPU queue';
      shown.hidden = false;
    } catch {
      shown.hidden = true; // a number that may be wrong is worse than none
    }
  };
  const changed = () => {
    if (timer === undefined) timer = setTimeout(look, Math.max(0, PAUSE - (Date.now() - asked)));
  };
  document.addEventListener('visibilitychange', () => {
    if (late) changed();
  });
  changed();
  return { changed };
}

/**
 * Where banners go: above the cells of each open notebook.
 * @param {any} app JupyterLab or Notebook.
 * @param {any} Widget Lumino's.
 * @param {(widget: any) => string} pathOf The path of the notebook that a widget shows, or nothing.
 */
export function placesOf(app, Widget, pathOf) {
  /** @type {WeakMap<object, any>} */
  const bars = new WeakMap();
  return () =>
    [...app.shell.widgets('main')]
      .filter(widget => widget.contentHeader && pathOf(widget))
      .map(widget => ({
        key: widget,
        path: pathOf(widget),
        restart: () => widget.sessionContext.restartKernel(),
        put: (/** @type {HTMLElement | null} */ node) => {
          const old = bars.get(widget);
          if (old) old.dispose();
          bars.delete(widget);
          if (node) bars.set(widget, bar(widget.contentHeader, Widget, node));
        },
      }));
}

/**
 * A widget that is as high as what is in it: such a layout asks for a height in pixels.
 * @param {any} header
 * @param {any} Widget
 * @param {HTMLElement} node
 */
function bar(header, Widget, node) {
  const made = new Widget();
  made.node.append(node);
  const size = () => {
    const high = `${Math.ceil(node.getBoundingClientRect().height)}px`;
    if (made.node.style.minHeight === high) return;
    made.node.style.minHeight = made.node.style.maxHeight = high;
    header.fit();
  };
  const watch = new ResizeObserver(size);
  watch.observe(node);
  made.disposed.connect(() => watch.disconnect());
  header.addWidget(made);
  size();
  return made;
}
