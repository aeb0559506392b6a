// The JupyterLab extension, written by hand: nothing is built and nobody needs Node.
//
// JupyterLab loads this file, hands its shared modules to `init` and asks `get` for the extension.
// The view itself is in the folder panel, beside this file once it is installed.

(() => {
  const NAME = 'jupyter-gpuqueue';
  const EVENTS = 'https://schemas.gpuqueue.org/queue/v1';
  const COMMAND = 'gpuqueue:open';

  /**
   * JupyterLab's modules by name and version. They carry no types here.
   * @typedef {Record<string, Record<string, {loaded?: unknown, get: () => Promise<() => any>}>>} Scope
   */

  const script = /** @type {HTMLScriptElement | null} */ (document.currentScript);
  /** @param {string} file */
  const beside = file => new URL(file, script ? script.src : document.baseURI).href;

  /** @type {Scope | null} */
  let scope = null;

  /**
   * A module of JupyterLab's, in the version that it uses itself.
   * @param {string} name
   */
  async function shared(name) {
    const versions = Object.values((scope && scope[name]) || {});
    // the one that is in use; never by the name of its owner, which has changed before
    const best = versions.find(version => version.loaded) || versions[0];
    if (!best) throw new Error(`gpuqueue: this application does not share ${name}`);
    return (await best.get())();
  }

  /**
   * Something that the view can do without, such as a token that the application may not know.
   * @param {string} module
   * @param {string} name
   */
  async function token(module, name) {
    try {
      return (await shared(module))[name];
    } catch {
      return undefined;
    }
  }

  const ICON =
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
    '<g class="jp-icon3" fill="#616161"><path d="M2 6h17a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2H2v-2h17V8H2z"/>' +
    '<path d="M1 4h2v16H1z"/><circle cx="9" cy="12" r="2.6"/><circle cx="15.5" cy="12" r="2.6"/></g></svg>';

  async function plugin() {
    const [{ Widget }, { ServerConnection }, { URLExt }, { LabIcon }] = await Promise.all(
      [
        '@lumino/widgets',
        '@jupyterlab/services',
        '@jupyterlab/coreutils',
        '@jupyterlab/ui-components',
      ].map(shared),
    );
    const tokens = await Promise.all([
      token('@jupyterlab/application', 'ILayoutRestorer'),
      token('@jupyterlab/apputils', 'ICommandPalette'),
      token('@jupyterlab/settingregistry', 'ISettingRegistry'),
      token('@jupyterlab/statusbar', 'IStatusBar'),
      token('@jupyterlab/notebook', 'INotebookTracker'),
    ]);

    /** @param {any} app */
    function sourceOf(app) {
      const server = app.serviceManager.serverSettings;
      const api = URLExt.join(server.baseUrl, 'gpuqueue/api/v1');
      /** @type {Set<(notice: any) => void>} */
      const heard = new Set();
      // the stream is a part of JupyterLab's service manager that not every application has
      const { events } = app.serviceManager;
      if (events) {
        events.stream.connect((/** @type {unknown} */ _, /** @type {any} */ event) => {
          if (event.schema_id === EVENTS) for (const one of heard) one(event);
        });
      }
      return {
        kind: 'server',
        heard,
        /**
         * @param {string} method
         * @param {string} path
         * @param {unknown} [body]
         */
        async ask(method, path, body) {
          const { Refused } = await import(beside('panel/view.mjs'));
          const how = method === 'POST' ? { method, body: JSON.stringify(body || {}) } : { method };
          const response = await ServerConnection.makeRequest(api + path, how, server);
          const answer = await response.json().catch(() => null);
          if (response.ok && answer) return answer;
          throw new Refused(response.status, (answer && answer.message) || '', answer && answer.field);
        },
        /** @param {(notice?: any) => void} changed */
        onChange(changed) {
          heard.add(changed);
          return () => heard.delete(changed);
        },
      };
    }

    /**
     * The path of the notebook that a widget shows; empty where it shows none.
     * @param {any} widget
     */
    function notebookIn(widget) {
      const path = String((widget && widget.context && widget.context.path) || '');
      // a path may carry the name of a drive before a colon
      return path.endsWith('.ipynb') ? path.replace(/^[^/]*:/, '') : '';
    }

    /**
     * Hear when the kernel of an open notebook begins or ends something.
     * @param {any} tracker
     * @param {() => void} heard
     */
    function activityOf(tracker, heard) {
      /** @type {ReturnType<typeof setTimeout> | undefined} */
      let soon;
      /** @type {ReturnType<typeof setTimeout>[]} */
      let later = [];
      const changed = () => {
        // the kernel notes it for the queue a moment after it has said so, on a busy machine later
        soon ??= setTimeout(() => {
          soon = undefined;
          heard();
        }, 300);
        later.forEach(clearTimeout);
        later = [1500, 6000].map(delay => setTimeout(heard, delay));
      };
      /** @type {(_: unknown, panel: any) => void} */
      const added = (_, panel) => panel.sessionContext.statusChanged.connect(changed);
      tracker.forEach((/** @type {any} */ panel) => added(null, panel));
      tracker.widgetAdded.connect(added);
      return () => {
        clearTimeout(soon);
        later.forEach(clearTimeout);
        tracker.widgetAdded.disconnect(added);
        tracker.forEach((/** @type {any} */ panel) => panel.sessionContext.statusChanged.disconnect(changed));
      };
    }

    /**
     * Paths of the notebooks that are open.
     * @param {any} app
     */
    const notebooksOf = app => [...app.shell.widgets('main')].map(notebookIn).filter(Boolean);

    /**
     * @param {any} app
     * @param {any[]} services In the order of `tokens`; null where there is none.
     */
    async function activate(app, ...services) {
      // tokens that the application does not know are left out of the list that it fills
      const found = tokens.map(known => (known ? services.shift() : null));
      const [restorer, palette, registry, statusBar, tracker] = found;
      const icon = new LabIcon({ name: 'gpuqueue:gpu', svgstr: ICON });
      const style = document.createElement('link');
      style.rel = 'stylesheet';
      style.href = beside('panel/panel.css');
      document.head.append(style);
      const { show } = await import(beside('panel/view.mjs'));
      const { Notifier, isFrom } = await import(beside('panel/notices.mjs'));
      const { Banners } = await import(beside('panel/paused.mjs'));
      const { counts, placesOf } = await import(beside('lab.mjs'));
      const source = sourceOf(app);
      /** @type {any} */
      const home = {
        source,
        refresh: 10,
        visible: () => widget.isVisible,
        notebook: () => notebookIn(app.shell.currentWidget),
        onActivity: (/** @type {() => void} */ heard) => (tracker ? activityOf(tracker, heard) : () => {}),
        /** @param {string} path */
        openNotebook: path => void app.commands.execute('docmanager:open', { path }),
        /** @param {string} path */
        openFolder(path) {
          const goTo = 'filebrowser:go-to-path';
          if (app.commands.hasCommand(goTo)) void app.commands.execute(goTo, { path: `/${path}` });
          // Notebook 7 has its files on a page of their own
          else window.open(URLExt.join(app.serviceManager.serverSettings.baseUrl, 'tree', URLExt.encodeParts(path)));
        },
      };

      /** @type {{look: () => void, open: (job: number) => void, close: () => void} | null} */
      let view = null;
      class QueueWidget extends Widget {
        onAfterShow() {
          if (view) view.look();
        }

        dispose() {
          if (view) view.close();
          super.dispose();
        }
      }
      const widget = new QueueWidget();
      widget.id = `${NAME}-panel`;
      widget.title.icon = icon;
      widget.title.caption = 'GPU queue';
      // the view takes the size of what it is in
      const inner = document.createElement('div');
      widget.node.append(inner);
      view = show(inner, home);
      app.shell.add(widget, 'left', { rank: 650 });
      if (restorer) restorer.add(widget, widget.id);

      const open = () => app.shell.activateById(widget.id);
      app.commands.addCommand(COMMAND, { label: 'Show the GPU Queue', icon, execute: open });
      if (palette) palette.addItem({ command: COMMAND, category: 'GPU' });

      const settings = { which: 'all', desktop: false };
      const toast = await token('@jupyterlab/apputils', 'Notification');
      /** @param {number} job */
      const openJob = job => {
        open();
        if (view) view.open(job);
      };
      const notifier = new Notifier({
        ask: source.ask,
        mine: (/** @type {{kind: string, path: string}} */ origin) => isFrom(origin, notebooksOf(app)),
        show: (/** @type {string} */ text, /** @type {string} */ kind, /** @type {number} */ job) => {
          if (!toast) return; // older ones have none
          const actions = job ? [{ label: 'Show', callback: () => openJob(job) }] : [];
          toast.emit(text, kind, { autoClose: kind === 'error' ? false : 8000, actions });
        },
        settings,
      });
      home.cancels = (/** @type {number} */ job) => notifier.known(job);
      source.heard.add(notice => void notifier.heard(notice));
      const banners = new Banners(source, placesOf(app, Widget, notebookIn));
      source.heard.add(notice => banners.heard(notice));
      for (const signal of ['currentChanged', 'layoutModified']) {
        if (app.shell[signal]) app.shell[signal].connect(() => banners.moved());
      }
      if (statusBar) {
        const item = new Widget();
        const shown = counts(item.node, source, open);
        source.heard.add(() => shown.changed());
        statusBar.registerStatusItem(`${NAME}:counts`, { item, align: 'left', rank: 90 });
      }
      if (registry) void follow(registry, home, settings);
    }

    /**
     * Let the settings of the panel hold, now and when they change.
     * @param {any} registry
     * @param {{refresh: number}} home
     * @param {{which: string, desktop: boolean}} told
     */
    async function follow(registry, home, told) {
      try {
        const settings = await registry.load(`${NAME}:panel`);
        const read = () => {
          home.refresh = Number(settings.get('refresh').composite) || 10;
          told.which = String(settings.get('notifications').composite || 'all');
          told.desktop = settings.get('desktop').composite === true;
        };
        settings.changed.connect(read);
        read();
      } catch (error) {
        console.warn('gpuqueue: the settings of the panel cannot be read; defaults hold.', error);
      }
    }

    return {
      id: `${NAME}:panel`,
      description: 'Shows the GPUs and the queue of this server in the sidebar.',
      autoStart: true,
      optional: tokens.filter(Boolean),
      activate,
    };
  }

  const container = {
    /** @param {Scope} given */
    init(given) {
      if (scope && scope !== given) throw new Error('gpuqueue: loaded twice by different pages');
      scope = given;
    },
    /** @param {string} module */
    async get(module) {
      if (module !== './extension') throw new Error(`gpuqueue: there is no module ${module}`);
      const made = await plugin();
      return () => ({ __esModule: true, default: made });
    },
  };

  const page = /** @type {{_JUPYTERLAB?: Record<string, unknown>}} */ (
    /** @type {unknown} */ (window)
  );
  page._JUPYTERLAB = Object.assign(page._JUPYTERLAB || {}, { [NAME]: container });
})();
