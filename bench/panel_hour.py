"""An hour of the panel in a minute: what stays in the browser's memory after many updates.

Run ``python bench/panel_hour.py [--updates 3600]``. The view is shown with a source of its own:
1,000 jobs wait, 20 run and note their progress, and with each update one ends and another starts.
Every tenth update opens a job with its log and closes it again, asks for others by the filter,
chooses some and opens the sliders of a share. Notices come with each end. After each tenth of the
updates the view is put back to where it began, everything that nobody needs is collected, and what
is left is counted in a heap snapshot:

* heap_mb: what scripts hold (objects, functions, strings, arrays), in MB
* objects: how many objects and functions that is
* nodes: of the document, texts included
* detached: nodes that scripts keep though they are out of the document
* listeners
* code_mb: what V8 has compiled of the panel's functions and noted about them. That grows as
  functions run often enough to be worth it, whatever they do, so it is told and not counted in.

The last line is one JSON object. ``growth_mb`` is of ``heap_mb``, from the second reading to the
last; the first has what is made once. The exit code is 1 if that is more than ``--most`` MB.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

FILES = Path(__file__).parents[1] / "widgets" / "panel"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
KINDS = {".mjs": "text/javascript", ".css": "text/css"}
SITE = "http://panel.test/"
HTML = """<!doctype html><html lang="en"><link rel="stylesheet" href="panel.css">
<body class="gq-own"><main></main>"""

PLAY = """async () => {
  const { show } = await import('/view.mjs');
  const { Corner, Notifier } = await import('/notices.mjs');
  const { VERSION } = await import('/version.mjs');
  const GIB = 1 << 30;
  let first = 1;
  const job = (id, state) => ({
    id, kind: 'script', tag: `train-${id}`, state, owner: id % 3 ? 'ann' : 'bo',
    reason: state === 'failed' ? 'exit code 1' : '', command: `python train.py --seed ${id}`, cwd: '/w',
    submitted: 1e9, started: state === 'queued' ? null : 1e9 + id, ended: /failed|succeeded/.test(state) ? 1e9 + id + 60 : null,
    attempt: 1, request: { preset: 'one', eta: 600, memory: null, priority: 0, gpus: null, share: null, after: [] },
    origin: { kind: 'terminal', path: '', session: '' }, peak: null, excess: 0, retry_of: null,
    placement: state === 'running' ? { grants: [{ gpu: 'g', compute: 50, memory: GIB, whole: false }], slots: 1 } : null,
    progress: state === 'running' ? { at: 1e9, step: first, metrics: { loss: 1 / first, total_steps: 1e6 } } : null,
    wait: state === 'queued' ? { position: id - first - 19, expected: 1e9 + id * 60, later_than: null, by: null,
      reason: 'gpu', sentence: `waits for job ${first}`, hint: '' } : null,
  });
  const several = (from, count, state) => Array.from({ length: count }, (_, i) => job(from + i, state));
  const status = () => ({
    schema: 1, at: 1e9 + first, home: '/h', problem: '', warning: '',
    gpus: [{ uuid: 'g', index: 0, name: 'H200', memory: 141 * GIB, outside: 0, outside_holders: [],
      grants: several(first, 20, 'running').map(one => ({ job: one.id, tag: one.tag, compute: 50, memory: GIB, whole: false, used: GIB / 2 })),
      compute_promised: 1000, memory_promised: 20 * GIB, reading: { memory_used: GIB, utilization: first % 100, temperature: 40, power: 300 } }],
    running: several(first, 20, 'running'), waiting: several(first + 20, 100, 'queued'),
    recent: several(Math.max(1, first - 20), Math.min(20, first - 1), 'succeeded').reverse(),
    counts: { running: 20, waiting: 1000 }, server: { version: VERSION, problem: '', may: { write: true, execute: true } },
    mode: { name: 'normal', by: '', soft: false, since: null, program: '', holding: [] },
    host: { cpu: first % 100, cpus: 8, memory: { used: GIB, total: 9 * GIB }, disks: [{ path: '/h', free: GIB, total: 9 * GIB }] },
  });
  let asked = 0;
  let matched = false;
  const ask = async (method, path) => {
    asked += 1;
    const asking = path.split('?')[0];
    if (method === 'POST') return { message: 'done', share: 50, memory: GIB };
    if (asking === '/status') {
      matched = path.includes('match=');
      return status();
    }
    if (asking === '/queue') {
      const offset = Number(/offset=(\\d+)/.exec(path)[1]);
      return { at: 1e9, total: 1000, offset, jobs: several(first + 20 + offset, 100, 'queued') };
    }
    if (asking === '/timeline') {
      const bars = several(first, 40, 'running').map((one, i) => ({ job: one.id, tag: one.tag, state: 'running', gpu: 'g',
        when: i < 20 ? 'now' : 'next', start: 1e9 + first + i, end: 1e9 + first + i + 600 }));
      return { at: 1e9 + first, gpus: [{ uuid: 'g', index: 0, name: 'H200' }], bars };
    }
    if (asking.endsWith('/log')) return { text: 'a line of the log\\n'.repeat(200), offset: 0, next: 3600, size: 3600, ended: true, attempt: 1 };
    if (asking.endsWith('/progress')) return { points: [1, 2, 3].map(step => ({ at: 1, step, metrics: { loss: 1 / step } })), count: 3, ended: false };
    return job(Number(asking.slice(6)), 'running');
  };
  const root = document.querySelector('main');
  const view = show(root, { source: { kind: 'server', ask, onChange: () => () => {} }, refresh: 1e6, titled: true });
  const corner = new Corner(() => {});
  document.body.append(corner.root);
  const settings = { which: 'all', desktop: false };
  const notifier = new Notifier({ ask: async (_, path) => job(Number(path.slice(6)), 'succeeded'), mine: () => true,
    show: (...told) => corner.show(...told), settings }, 0);
  // one channel for all: one that is open is kept
  const { port1, port2 } = new MessageChannel();
  const pause = () => new Promise(done => { port1.onmessage = done; port2.postMessage(0); });
  const settle = async () => { for (let i = 0; i < 4; i += 1) await pause(); };
  const field = root.querySelector('[name=filter]');
  window.update = async number => {
    first += 1;
    view.look();
    await settle();
    await notifier.heard({ job: first - 1, kind: 'ended', state: 'succeeded' });
    if (number % 10) return;
    view.open(first);
    await settle();
    root.querySelector('.gq-back')?.click();
    field.value = number % 20 ? 'train' : '';
    field.dispatchEvent(new Event('input'));
    const scroller = root.querySelector('.gq-scroller');
    scroller.scrollTop = (number * 97) % scroller.scrollHeight;
    for (const box of [...root.querySelectorAll('[data-pick]')].slice(0, 5)) box.click();
    root.querySelector('.gq-resize')?.click();
    await settle();
    [...root.querySelectorAll('.gq-picked button')].at(-1).click();
    root.querySelector('.gq-resize[aria-expanded=true]')?.click();
    await settle();
  };
  window.rest = async () => {
    field.value = '';
    field.dispatchEvent(new Event('input'));
    root.querySelector('.gq-scroller').scrollTop = 0;
    await settle();
    view.look();
    // the field waits for the next letter before it asks
    do await settle(); while (matched);
    const all = document.createTreeWalker(document);
    let count = 1;
    while (all.nextNode()) count += 1;
    return count;
  };
  window.updates = async (from, to) => { for (let i = from; i < to; i += 1) await update(i); return asked; };
}"""  # noqa: E501


def snapshot(session: Any) -> dict[str, Any]:
    """All that is on the page's heap once nobody needs the rest, as V8 tells it."""
    chunks: list[str] = []

    def heard(event: dict[str, str]) -> None:
        chunks.append(event["chunk"])

    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    session.on("HeapProfiler.addHeapSnapshotChunk", heard)
    session.send("HeapProfiler.takeHeapSnapshot", {"reportProgress": False})
    session.remove_listener("HeapProfiler.addHeapSnapshotChunk", heard)
    return dict(json.loads("".join(chunks)))


def reading(session: Any, nodes: int) -> dict[str, float]:
    """What is left after collection."""
    taken = snapshot(session)
    meta, flat = taken["snapshot"]["meta"], taken["nodes"]
    width = len(meta["node_fields"])
    kinds, sizes, links = (
        flat[meta["node_fields"].index(name) :: width]
        for name in ("type", "self_size", "detachedness")
    )
    names = [meta["node_types"][0][kind] for kind in kinds]
    size = dict.fromkeys(names, 0)
    for name, part in zip(names, sizes, strict=True):
        size[name] += part
    # the rest is the browser's own: compiled code, shapes, what stands behind DOM nodes
    scripts = ("object", "closure", "array", "string", "concatenated string", "sliced string")
    return {
        "heap_mb": round(sum(size.get(name, 0) for name in scripts) / 1e6, 3),
        "objects": sum(name in ("object", "closure") for name in names),
        "nodes": nodes,
        "detached": links.count(2),
        "listeners": session.send("Memory.getDOMCounters")["jsEventListeners"],
        "code_mb": round(size.get("code", 0) / 1e6, 2),
    }


def play(browser: Any, updates: int, parts: int = 10) -> list[dict[str, float]]:
    """Readings after each of so many equal parts of the updates."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})

    def answer(route: Any) -> None:
        name = route.request.url.removeprefix(SITE)
        path = FILES / name
        if name and path.is_file():
            route.fulfill(body=path.read_text(), content_type=KINDS[path.suffix])
        else:
            route.fulfill(body=HTML if not name else "", content_type="text/html")

    page.route(f"{SITE}**", answer)
    page.goto(SITE)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_default_timeout(600_000)
    page.evaluate(PLAY)
    page.evaluate("update(0)")
    page.wait_for_selector(".gq-queued", timeout=20_000)
    session = page.context.new_cdp_session(page)
    readings = []
    for part in range(parts):
        played = updates * (part + 1) // parts
        asked = page.evaluate(f"updates({updates * part // parts}, {played})")
        nodes = page.evaluate("rest()")
        readings.append({"updates": played, "asked": asked, **reading(session, nodes)})
    page.close()
    if problems:
        sys.exit(f"bench/panel_hour.py: {problems[0]}")
    return readings


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=3600)
    parser.add_argument("--most", type=float, default=0.5, help="MB by which the heap may grow")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    asked = parser.parse_args()
    began = time.monotonic()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=asked.browser, args=FLAGS)
        readings = play(browser, asked.updates)
        browser.close()
    for each in readings:
        print("  ".join(f"{name} {value}" for name, value in each.items()))
    growth = round(readings[-1]["heap_mb"] - readings[1]["heap_mb"], 3)
    told = {"bench": "panel_hour", "growth_mb": growth, "readings": readings}
    print(json.dumps(told | {"wall_s": round(time.monotonic() - began, 1)}))
    if growth > asked.most:
        sys.exit(1)


if __name__ == "__main__":
    main()
