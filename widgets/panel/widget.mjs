// The view as a notebook's widget: by the server where it can be reached, else by the kernel.

import { Refused, kernelSource, serverSource, show } from './view.mjs';

/**
 * The base URL of the Jupyter server that this page came from; null where it is none.
 */
function baseUrl() {
  const config = document.getElementById('jupyter-config-data');
  try {
    const found = JSON.parse((config && config.textContent) || '{}').baseUrl;
    return typeof found === 'string' ? found : null;
  } catch {
    return null;
  }
}

/**
 * The source to use: the server, if it answers for the same queue as the kernel does.
 *
 * It goes first because it answers while a cell keeps the kernel busy.
 * @param {import('./source.mjs').Model} model
 * @param {AbortSignal | undefined} signal
 */
async function sourceFor(model, signal) {
  const kernel = kernelSource(model, signal);
  const base = baseUrl();
  if (base !== null) {
    const server = serverSource(base);
    try {
      const status = await server.ask('GET', '/status?limit=0&recent=0');
      if (status.home === model.get('home')) return server;
    } catch (error) {
      // not allowed is an answer too; without the extension, or without a server, it is the kernel
      if (error instanceof Refused && error.status === 403) return server;
    }
  }
  return kernel;
}

export default {
  /** @param {{model: import('./source.mjs').Model, el: HTMLElement, signal?: AbortSignal}} given */
  render({ model, el, signal }) {
    const root = document.createElement('div');
    // JupyterLab's theme colours it there; elsewhere it has colours of its own
    if (!getComputedStyle(document.body).getPropertyValue('--jp-layout-color1')) {
      root.classList.add('gq-own');
    }
    root.classList.add('gq-incell');
    root.setAttribute('role', 'region');
    root.setAttribute('aria-label', 'GPU queue');
    el.append(root);
    let closed = false;
    /** @type {{close: () => void} | null} */
    let view = null;
    void sourceFor(model, signal).then(source => {
      if (closed) return;
      view = show(root, { source, refresh: 5, job: model.get('job') || undefined });
    });
    return () => {
      closed = true;
      if (view) view.close();
    };
  },
};
