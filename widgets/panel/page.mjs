// The page at <base>/gpuqueue/: the view over the whole window.

import { serverSource, show } from './view.mjs';

const root = /** @type {HTMLElement} */ (document.getElementById('panel'));
const base = root.dataset.base || '/';
const lab = root.dataset.lab;

const view = show(root, {
  source: serverSource(base, root.dataset.xsrf),
  refresh: 5,
  titled: true,
  openNotebook: lab
    ? path => window.open(`${base}${lab}/tree/${path.split('/').map(encodeURIComponent).join('/')}`)
    : undefined,
});

const follow = () => {
  const found = /^#job=(\d+)$/.exec(location.hash);
  if (found) view.open(Number(found[1]));
};
addEventListener('hashchange', follow);
follow();
