'use strict';
// Points at plots: shows the values under the pointer. The page is complete without it.
(() => {
  const tip = document.getElementById('tip');
  const SVG = 'http://www.w3.org/2000/svg';
  const three = (v) => v === 0 ? '0' : Math.abs(v) >= 99.95 ? v.toFixed(0) : Math.abs(v) >= 9.995 ? v.toFixed(1) : v.toFixed(2);
  const scaled = (v, steps) => { const [size, name] = steps.find(([size]) => v >= size) || steps[steps.length - 1]; return three(v / size) + ' ' + name; };
  const SI = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']];
  const show = (v, unit) => {
    if (unit === 'ns') return scaled(v, [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']]);
    if (unit === 's') return v.toFixed(2) + ' s';
    if (unit === 'p') return 'p' + (100 - 100 / v).toFixed(Math.max(0, Math.ceil(Math.log10(v)) - 1));
    return scaled(v, SI.map(([size, name]) => [size, name + (unit === 'req/s' && name ? ' ' : '') + unit]));
  };
  const axis = (text) => {
    const [kind, p0, p1, v0, v1, unit = ''] = text.split(' ').map((word, i) => i > 0 && i < 5 ? +word : word);
    const value = (p) => { const s = (p - p0) / (p1 - p0); return kind === 'log' ? v0 * (v1 / v0) ** s : v0 + s * (v1 - v0); };
    return { p0, p1, show: (p) => show(value(p), unit) };
  };
  const points = (path) => (path.points ||= (path.getAttribute('d').match(/[-\d.]+ [-\d.]+/g) || []).map((pair) => pair.split(' ').map(Number)));
  const place = (event, text) => {
    tip.textContent = text;
    tip.hidden = false;
    const left = event.clientX + 14 + tip.offsetWidth > innerWidth ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14;
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, event.clientY - tip.offsetHeight - 10)}px)`;
  };
  const clear = (svg) => { tip.hidden = true; svg.querySelectorAll('.cursor, .dot').forEach((mark) => mark.remove()); };
  const add = (svg, name, attributes) => {
    const mark = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) mark.setAttribute(key, value);
    svg.append(mark);
  };
  const pointed = (svg, event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height];
  };
  const overLines = (svg, event) => {
    const [x, y] = pointed(svg, event);
    for (const group of svg.querySelectorAll('.pick')) {
      const ax = axis(group.dataset.x), ay = axis(group.dataset.y);
      const [top, bottom] = [Math.min(ay.p0, ay.p1), Math.max(ay.p0, ay.p1)];
      if (x < ax.p0 || x > ax.p1 || y < top || y > bottom) continue;
      const near = new Map();
      for (const path of group.querySelectorAll('path[data-name]')) {
        for (const point of points(path)) {
          const best = near.get(path.dataset.name);
          if (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x)) near.set(path.dataset.name, point);
        }
      }
      if (!near.size) continue;
      const first = near.values().next().value;
      add(svg, 'line', { class: 'cursor', x1: first[0], x2: first[0], y1: top, y2: bottom });
      const lines = [[group.dataset.title, ax.show(first[0])].filter(Boolean).join(' · ')];
      near.forEach(([px, py], name) => {
        add(svg, 'circle', { class: 'dot', cx: px, cy: py, r: 3.5 });
        lines.push((name ? name + '  ' : '') + ay.show(py));
      });
      group.querySelectorAll('[data-event]').forEach((mark) => {
        if (Math.abs(mark.getAttribute('x1') - x) < 6) lines.push(mark.dataset.event);
      });
      return place(event, lines.join('\n'));
    }
  };
  const overCells = (svg, event) => {
    const group = event.target.closest('.cells');
    if (!group) return;
    const [x] = pointed(svg, event), at = svg.dataset.at.split(' ').map(Number);
    const index = at.findLastIndex((edge) => edge <= x);
    if (index >= 0) place(event, `${group.dataset.title}  ${group.dataset.v.split(' ')[index]} % busy`);
  };
  // A table or a drawing that is wider than the page says that it scrolls.
  const wide = (box) => box.classList.toggle('more', box.scrollWidth > box.clientWidth + 1);
  const watch = new ResizeObserver((changes) => changes.forEach((change) => wide(change.target)));
  document.querySelectorAll('.scroll, .drawing').forEach((box) => { wide(box); watch.observe(box); });
  document.querySelectorAll('svg.plot').forEach((svg) => {
    svg.querySelectorAll('title').forEach((title) => title.remove());
    svg.addEventListener('pointermove', (event) => { clear(svg); (svg.matches('.heat') ? overCells : overLines)(svg, event); });
    svg.addEventListener('pointerleave', () => clear(svg));
  });
})();
