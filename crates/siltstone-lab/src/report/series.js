// Time series: uPlot on the screen, the same lines as SVG for a paper, a summary as a table.

const sum = lists => lists.reduce((a, list) => a.map((x, i) => x + (list[i] || 0)), lists[0] ? lists[0].map(() => 0) : []);
const per = (list, length) => (list ? list.map((n, i) => (n === null || !length[i] ? null : n / length[i])) : null);
const measured = list => (list && list.some(x => x !== null) ? list : null);

// Name, unit, the values of one subject's windows (null if not measured), what it means.
const GAUGES = [
  ['Throughput', 'rate', w => per(sum(Object.values(w.operations)), w.length), 'Operations per second.'],
  ['Longest latency', 'ns', w => measured(w.at.map((_, i) => Object.values(w.longest_ns).reduce((a, l) => (l[i] === null ? a : Math.max(a ?? 0, l[i])), null))), 'The longest operation that ended in each window: where writes or reads stood still.'],
  ['Runs', 'count', w => measured(w.runs), 'Sorted runs of the tree.'],
  ['Debt', 'bytes', w => measured(w.debt_bytes), 'Bytes that must still be merged before the tree has the shape that its strategy wants.'],
  ['Cache hits', 'share', w => measured(w.cache_hits.map((h, i) => (h === null || h + w.cache_misses[i] === 0 ? null : h / (h + w.cache_misses[i])))), 'Share of block reads that the block cache answered.'],
  ['Size of the tree', 'bytes', w => measured(w.tree_bytes), 'Bytes of all files.'],
  ['Stalled', 'share', w => measured(per(w.stall_s, w.length)), 'Share of the time that writers waited.'],
  ['Waiting operations', 'count', w => (w.queued.some(n => n) ? w.queued : null), 'Open loop: operations that are due and have not begun.'],
  ['CPU', 'ratio', w => measured(per(w.cpu_s, w.length)), 'Processors in use.'],
  ['Memory', 'bytes', w => measured(w.memory_bytes), 'Memory of the process.'],
];
const BY_KIND = [
  ['Throughput by operation', 'rate', w => Object.entries(w.operations).map(([kind, list]) => [kind, per(list, w.length)]), 'Operations per second, by kind.'],
  ['Longest latency by operation', 'ns', w => Object.entries(w.longest_ns), 'The longest operation that ended in each window, by kind.'],
];

// Lines of one gauge for some subjects: {name, i, at, values}.
const linesOf = (gauge, subjects) => subjects.filter(s => s.windows)
  .map(s => ({ name: s.name, i: DATA.subjects.indexOf(s), at: s.windows.at, values: gauge[2](s.windows) })).filter(l => l.values);
const linesByKind = (gauge, subject) => gauge[2](subject.windows).map(([name, values], i) => ({ name, i, at: subject.windows.at, values }));

function seriesCard(title, unit, lines, note) {
  if (!lines.length) return null;
  const holder = el('div', { class: 'plot', role: 'img', 'aria-label': `${title} over time: ${lines.map(l => l.name).join(', ')}` });
  const read = el('p', { class: 'note', 'aria-hidden': 'true' }, note);
  let plot = null;
  const draw = () => {
    if (!holder.isConnected || !holder.clientWidth) return;
    if (plot) plot.destroy();
    plot = timePlot(holder, unit, lines, (at, values) => {
      read.textContent = at === null ? note : `${duration(at * 1e9)}: ${lines.map((l, i) => `${l.name} ${show(values[i], unit)}`).join(', ')}`;
    });
  };
  seen.observe(holder);
  drawers.set(holder, draw);
  const node = card(title, null, {
    chart: () => timeSvg(title, unit, lines),
    body: el('div', {}, read, holder, lines.length > 1 && legendOf(lines)),
    table: () => dataTable(['', 'least', 'median', 'most', 'last'], lines.map(l => {
      const values = l.values.filter(v => v !== null).sort((a, b) => a - b);
      const last = l.values.filter(v => v !== null).pop() ?? null;
      return [l.name, ...[values[0], values[values.length >> 1], values[values.length - 1], last].map(x => show(x, unit))];
    })),
  });
  return node;
}
function legendOf(lines) {
  return el('ul', { class: 'legend' }, lines.map(l => {
    const mark = svg(40, 16, '', `<line x1="0" x2="40" y1="8" y2="8" class="l${l.i % SERIES}"${dashes(l.i)}/>`);
    mark.setAttribute('aria-hidden', 'true');
    return el('li', {}, mark, l.name);
  }));
}

// Plots are made when they come near the screen: a page with many opens at once.
const drawers = new Map();
const drawn = new Set();
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) {
    if (entry.isIntersecting && !drawn.has(entry.target)) { drawn.add(entry.target); drawers.get(entry.target)(); }
  }
}, { rootMargin: '300px' });
const redrawPlots = () => {
  for (const holder of [...drawers.keys()]) {
    if (!holder.isConnected) { drawers.delete(holder); drawn.delete(holder); seen.unobserve(holder); }
  }
  for (const holder of drawn) drawers.get(holder)();
};
redrawn.add(redrawPlots);
redraw.add(redrawPlots);

// Steps of an axis of bytes.
const POWERS = Array.from({ length: 52 }, (_, i) => 2 ** i);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function timePlot(holder, unit, lines, moved) {
  const data = lines.length === 1 ? [lines[0].at, lines[0].values] : uPlot.join(lines.map(l => [l.at, l.values]));
  const axis = { stroke: colour('--soft'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui' };
  return new uPlot({
    width: holder.clientWidth, height: 190, legend: { show: false },
    cursor: { y: false, points: { size: 7 } },
    scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.06] } },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map(t => tick(t, 's')), space: 70, size: 28, gap: 4 },
      { ...axis, values: (_, ticks) => ticks.map(t => tick(t, unit)), size: 72, ...(unit === 'bytes' ? { incrs: POWERS } : {}) },
    ],
    series: [{}, ...lines.map(l => ({ stroke: colour(`--s${l.i % SERIES}`), width: 1.6, dash: DASHES[l.i % SERIES], spanGaps: true, points: { show: l.values.length < 3 } }))],
    hooks: { setCursor: [u => { const i = u.cursor.idx; moved(i === null || i === undefined ? null : u.data[0][i], u.data.slice(1).map(column => (i === null || i === undefined ? null : column[i]))); }] },
  }, data, holder);
}

function timeSvg(title, unit, lines) {
  const [width, height, left, bottom, top, right] = [860, 320, 80, 40, 30, 130];
  const values = lines.flatMap(l => l.values.filter(v => v !== null));
  const end = Math.max(...lines.map(l => l.at[l.at.length - 1]), 1e-9);
  const most = values.reduce((a, b) => Math.max(a, b), 0) * 1.06 || 1;
  const x = t => left + (t / end) * (width - left - right);
  const y = v => height - bottom - (v / most) * (height - bottom - top);
  let body = text(left, 16, title, 'strong');
  for (const v of niceSteps(0, most, 5)) body += line(left, y(v), width - right, y(v), 'grid') + text(left - 7, y(v) + 4, tick(v, unit), 'soft end');
  for (const t of niceSteps(0, end, 6)) body += text(x(t), height - bottom + 17, tick(t, 's'), 'soft mid');
  let lastY = -99;
  const ends = lines.map(l => [l, l.values.filter(v => v !== null).pop() ?? 0]).sort((a, b) => b[1] - a[1]);
  for (const [l, last] of ends) {
    let d = '';
    l.values.forEach((v, i) => { if (v !== null) d += `${d ? 'L' : 'M'}${x(l.at[i]).toFixed(1)},${y(v).toFixed(1)}`; });
    lastY = Math.max(y(last) + 4, lastY + 13);
    body += `<path d="${d}" class="l${l.i % SERIES}"${dashes(l.i)}/>${text(width - right + 6, lastY, fitted(l.name))}`;
  }
  return svg(width, height, title, body);
}
