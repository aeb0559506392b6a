// The page at <base>/gpuqueue/: the view over the whole window.

import { Corner, Notifier, choice } from './notices.mjs';
import { serverSource, show } from './view.mjs';

const root = /** @type {HTMLElement} */ (document.getElementById('panel'));
const base = root.dataset.base || '/';
const lab = root.dataset.lab;
const server = serverSource(base, root.dataset.xsrf);

/** @type {Set<(notice?: any) => void>} One stream of events is enough for all that listen. */
const heard = new Set();
server.onChange(notice => {
  for (const one of heard) one(notice);
});
const settings = { which: 'all', desktop: true };
// nobody is asked for permission but by the choice
const told = { get which() { return settings.which; }, get desktop() { return allowed(); } };
const allowed = () => 'Notification' in globalThis && Notification.permission === 'granted';
const corner = new Corner(job => view.open(job));
const notifier = new Notifier({
  ask: server.ask,
  mine: () => true,
  show: (text, kind, job) => corner.show(text, kind, job),
  settings: told,
});
heard.add(notice => void notifier.heard(notice));

/** @param {string} path Below the server's root. */
const inLab = path =>
  void window.open(`${base}${lab}/tree/${path.split('/').map(encodeURIComponent).join('/')}`);

const view = show(root, {
  source: {
    ...server,
    onChange(changed) {
      heard.add(changed);
      return () => void heard.delete(changed);
    },
  },
  refresh: 5,
  titled: true,
  cancels: job => notifier.known(job),
  foot: choice('gpuqueue.notices', settings),
  openNotebook: lab ? path => inLab(path) : undefined,
  openFolder: lab ? path => inLab(path) : undefined,
});
root.after(corner.root);

const follow = () => {
  const found = /^#job=(\d+)$/.exec(location.hash);
  if (found) view.open(Number(found[1]));
};
addEventListener('hashchange', follow);
follow();
