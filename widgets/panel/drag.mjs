// A row that is dragged by its handle to another place of a list.

import { show, style } from './dom.mjs';

const EDGE = 28;

/**
 * Follow the pointer until it is let go.
 * @param {object} list
 * @param {HTMLElement} list.scroller What the rows scroll in.
 * @param {HTMLElement} list.mark Shows where the row would go.
 * @param {number} list.total How many rows there are.
 * @param {(from: number, to: number) => Promise<void>} list.move
 * @param {HTMLElement} grip
 * @param {{ root: HTMLElement, index: number }} row
 * @param {number} height Of a row, in pixels.
 * @param {PointerEvent} began
 */
export function drag(list, grip, row, height, began) {
  const from = row.index;
  let gap = from;
  let y = began.clientY;
  row.root.classList.add('gq-dragged');
  const place = () => {
    const box = list.scroller.getBoundingClientRect();
    const within = y - box.top + list.scroller.scrollTop;
    gap = Math.max(0, Math.min(list.total, Math.round(within / height)));
    show(list.mark, true);
    style(list.mark, 'transform', `translateY(${gap * height}px)`);
  };
  const roll = setInterval(() => {
    const box = list.scroller.getBoundingClientRect();
    const step = y < box.top + EDGE ? -height / 4 : y > box.bottom - EDGE ? height / 4 : 0;
    if (step) {
      list.scroller.scrollTop += step;
      place();
    }
  }, 50);
  /** @param {PointerEvent} event */
  const moved = event => {
    y = event.clientY;
    place();
  };
  /** @param {Event} event */
  const over = event => {
    clearInterval(roll);
    show(list.mark, false);
    row.root.classList.remove('gq-dragged');
    grip.removeEventListener('pointermove', moved);
    grip.removeEventListener('pointerup', over);
    grip.removeEventListener('pointercancel', over);
    grip.removeEventListener('keydown', escaped);
    // the gap above or below itself is where it is
    const to = gap > from ? gap - 1 : gap;
    if (event.type === 'pointerup' && to !== from) void list.move(from, to);
  };
  /** @param {KeyboardEvent} event */
  const escaped = event => {
    if (event.key === 'Escape') over(event);
  };
  grip.addEventListener('pointermove', moved);
  grip.addEventListener('pointerup', over);
  grip.addEventListener('pointercancel', over);
  grip.addEventListener('keydown', escaped);
}
