// What JupyterLab shows of the queue besides the panel: counts in the status bar.

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
