// Hand-made SVG charts of figures: bars, the trade-off, latencies, the shape of a tree.

const NAME_WIDTH = Math.min(150, 18 + 6.6 * Math.max(...DATA.subjects.map(subject => subject.name.length), 4));
const fitted = name => shorten(name, 20);

function bars(measure, subjects = DATA.subjects) {
  const found = subjects.map(subject => figure(subject, measure.of));
  const most = Math.max(...found.map(f => (f ? f.high : 0)), 0);
  const [width, row] = [420, 27];
  const scale = most > 0 ? (width - NAME_WIDTH - 84) / most : 0;
  const mark = best(measure, subjects);
  const body = subjects.map((subject, i) => {
    const [y, f] = [i * row + 4, found[i]];
    if (!f) return text(NAME_WIDTH - 8, y + 14, fitted(subject.name), 'end') + text(NAME_WIDTH, y + 14, 'not measured', 'soft');
    const w = Math.max(f.median * scale, 1);
    const words = show(f.median, measure.unit);
    const far = NAME_WIDTH + Math.max(w, f.high * scale) + 7;
    const whisker = f.values.length > 1
      ? `<path class="mean" d="M${NAME_WIDTH + f.low * scale},${y + 9}H${NAME_WIDTH + f.high * scale}m0,-4v8M${NAME_WIDTH + f.low * scale},${y + 5}v8"/>` : '';
    return `<g><title>${escaped(subject.name)}: ${escaped(words)} ${escaped(spread(f))}</title>${text(NAME_WIDTH - 8, y + 14, fitted(subject.name), 'end')}`
      + `<rect x="${NAME_WIDTH}" y="${y}" width="${w.toFixed(1)}" height="18" rx="2" class="s${i % SERIES}" stroke="none" fill-opacity=".85"/>${whisker}`
      + `${text(far, y + 14, words + (words === mark ? ' ★' : ''), words === mark ? 'strong' : '')}</g>`;
  });
  return svg(width, subjects.length * row + 4, `${measure.label}: ${subjects.map((s, i) => `${s.name} ${show(found[i] && found[i].median, measure.unit)}`).join(', ')}`, body.join(''));
}

function barCard(measure) {
  const arrow = { 1: 'Longer is better.', '-1': 'Shorter is better.', 0: '' }[measure.better];
  return card(measure.label, `${measure.meaning} ${arrow}`, {
    chart: () => bars(measure),
    table: () => dataTable(['strategy', 'median', 'least', 'most'], DATA.subjects.map(subject => {
      const f = figure(subject, measure.of);
      return [subject.name, ...(f ? [f.median, f.low, f.high] : [null, null, null]).map(x => show(x, measure.unit))];
    })),
  });
}

const niceSteps = (low, high, count) => {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(f => f * power).find(s => s >= raw);
  const first = Math.ceil(low / step - 1e-9) * step;
  return Array.from({ length: Math.floor((high - first) / step + 1e-9) + 1 }, (_, i) => first + i * step);
};

// One measure against another; the area of a mark is a third. Names that would collide are moved apart.
function scatter(xs, ys, sizes) {
  const narrow = innerWidth < 720;
  const [width, height, left, bottom, top, right] = narrow ? [360, 330, 52, 44, 14, 16] : [860, 420, 64, 46, 16, 30];
  const points = DATA.subjects.map((subject, i) => ({ subject, i, x: median(subject, xs.of), y: median(subject, ys.of), size: sizes ? median(subject, sizes.of) : null }))
    .filter(point => point.x !== null && point.y !== null);
  if (!points.length) return svg(width, 40, 'nothing to show', text(8, 24, 'No strategy has both figures.'));
  const range = of => {
    const values = points.map(of);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const low = least >= 0 && least < most * 0.6 ? 0 : least - (most - least) * 0.25 - Math.abs(most) * 0.02;
    return [least >= 0 ? Math.max(low, 0) : low, most + (most - low || 1) * 0.14];
  };
  const [[x0, x1], [y0, y1]] = [range(p => p.x), range(p => p.y)];
  const x = v => left + ((v - x0) / (x1 - x0)) * (width - left - right);
  const y = v => height - bottom - ((v - y0) / (y1 - y0)) * (height - bottom - top);
  const most = Math.max(...points.map(p => p.size || 0), 1e-12);
  let body = niceSteps(x0, x1, narrow ? 3 : 6).map(v => line(x(v), top, x(v), height - bottom, 'grid') + text(x(v), height - bottom + 17, tick(v, xs.unit), 'soft mid')).join('');
  body += niceSteps(y0, y1, 5).map(v => line(left, y(v), width - right, y(v), 'grid') + text(left - 7, y(v) + 4, tick(v, ys.unit), 'soft end')).join('');
  body += text((left + width - right) / 2, height - 6, `${xs.label} ${arrowOf(xs, '←', '→')}`, 'mid');
  const middle = (top + height - bottom) / 2;
  body += `<text class="mid" transform="translate(13 ${middle}) rotate(-90)">${escaped(ys.label)} ${arrowOf(ys, '↓', '↑')}</text>`;
  const taken = [];
  const free = box => taken.every(other => box[2] < other[0] || other[2] < box[0] || box[3] < other[1] || other[3] < box[1]);
  for (const p of points) {
    p.r = sizes && p.size !== null ? 5 + 15 * Math.sqrt(Math.max(p.size, 0) / most) : 7;
    taken.push([x(p.x) - p.r, y(p.y) - p.r, x(p.x) + p.r, y(p.y) + p.r]);
  }
  for (const p of points) {
    const words = fitted(p.subject.name);
    const w = words.length * 6.6;
    const places = [[p.r + 5, 4], [-p.r - 5 - w, 4], [-w / 2, -p.r - 6], [-w / 2, p.r + 15], [p.r + 3, -p.r - 2], [p.r + 3, p.r + 12], [p.r + 5, 20], [p.r + 5, -14], [p.r + 5, 34]];
    const box = ([dx, dy]) => [x(p.x) + dx, y(p.y) + dy - 11, x(p.x) + dx + w, y(p.y) + dy + 3];
    const fits = place => { const b = box(place); return b[0] >= left && b[2] <= width && b[1] >= 0 && free(b); };
    const [dx, dy] = places.find(fits) || places[0];
    taken.push(box([dx, dy]));
    body += `<g><title>${escaped(p.subject.name)}: ${escaped(xs.label)} ${show(p.x, xs.unit)}, ${escaped(ys.label)} ${show(p.y, ys.unit)}${sizes ? `, ${escaped(sizes.label)} ${show(p.size, sizes.unit)}` : ''}</title>`
      + `${marker(p.i, x(p.x), y(p.y), p.r, '" fill-opacity=".6')}${text(x(p.x) + dx, y(p.y) + dy, words)}</g>`;
  }
  return svg(width, height, `${ys.label} against ${xs.label}: ${points.map(p => `${p.subject.name} ${show(p.x, xs.unit)}, ${show(p.y, ys.unit)}`).join('; ')}`, body);
}
const arrowOf = (measure, low, high) => (measure.better ? `(${measure.better > 0 ? high : low} better)` : '');

function scatterCard() {
  const pick = [measureNamed('Write amplification') || SHOWN[0], measureNamed('Read amplification') || SHOWN[1], measureNamed('Space amplification') || null];
  const holder = el('div', {});
  const entries = SHOWN.map((measure, i) => [i, measure.label]);
  const draw = () => holder.replaceChildren(scatter(...pick));
  const tool = (label, n, list) => choice(label, list, pick[n] ? SHOWN.indexOf(pick[n]) : -1, value => { pick[n] = SHOWN[value] || null; draw(); });
  draw();
  redraw.add(draw);
  return card('The trade-off', 'One mark a strategy, told apart by shape and name; its area is the third measure. No strategy wins everywhere: that is the point of choosing.', {
    chart: () => scatter(...pick),
    body: el('div', {}, el('div', { class: 'row' }, tool('Across', 0, entries), tool('Up', 1, entries), tool('Area', 2, [[-1, 'the same'], ...entries])), holder),
    table: () => dataTable(['strategy', ...pick.filter(Boolean).map(m => m.label)], DATA.subjects.map(s => [s.name, ...pick.filter(Boolean).map(m => show(median(s, m.of), m.unit))])),
    alone: true,
  });
}

// Percentiles of one kind of operation, a row a strategy, on a logarithmic axis.
function latencies(kind, clock) {
  const narrow = innerWidth < 720;
  const [width, row] = [narrow ? 360 : 860, 40];
  const left = Math.min(NAME_WIDTH, narrow ? 96 : 150);
  const values = DATA.subjects.map(subject => PERCENTILES.map(([field]) => median(subject, r => latencyOf(r, kind, field, clock))));
  const logs = values.flat().filter(ns => ns !== null).map(ns => Math.log10(Math.max(ns, 1)));
  const [low, high] = [Math.floor(Math.min(...logs)), Math.max(Math.ceil(Math.max(...logs)), Math.floor(Math.min(...logs)) + 1)];
  const x = ns => left + ((Math.log10(Math.max(ns, 1)) - low) / (high - low)) * (width - left - 30);
  const height = DATA.subjects.length * row + 34;
  let body = '';
  for (let decade = low; decade <= high; decade += 1) body += line(x(10 ** decade), 0, x(10 ** decade), height - 24, 'grid') + text(x(10 ** decade), height - 8, tick(10 ** decade, 'ns'), 'soft mid');
  DATA.subjects.forEach((subject, i) => {
    const y = i * row + 16;
    body += text(left - 10, y + 4, shorten(subject.name, narrow ? 13 : 20), 'end');
    const points = values[i].map((ns, n) => [ns, PERCENTILES[n][1]]).filter(([ns]) => ns !== null);
    if (!points.length) { body += text(left, y + 4, 'none', 'soft'); return; }
    body += `<line x1="${x(points[0][0])}" x2="${x(points[points.length - 1][0])}" y1="${y}" y2="${y}" class="l${i % SERIES}" opacity=".5"/>`;
    let end = -99;
    points.forEach(([ns, name], n) => {
      body += `<g><title>${escaped(subject.name)} ${name}: ${duration(ns)}</title>${marker(i, x(ns), y, 4.5)}</g>`;
      const at = n === 0 ? Math.max(x(ns), left + 8) : x(ns);
      if (at - end > name.length * 6 + 4) { body += text(at, y + 18, name, 'soft mid'); end = at; }
    });
  });
  return svg(width, height, `Latency of ${kind.label}, logarithmic`, body);
}

function latencyCard() {
  if (!KINDS.length) return null;
  let kind = KINDS.find(k => k.kind !== 'insert') || KINDS[0];
  let clock = 'latency';
  const holder = el('div', {});
  const draw = () => holder.replaceChildren(latencies(kind, clock));
  draw();
  redraw.add(draw);
  const both = ALL_ROWS.some(row => KINDS.some(k => latencyOf(row, k, 'p99_ns') !== latencyOf(row, k, 'p99_ns', 'processing') && latencyOf(row, k, 'p99_ns', 'processing') !== null));
  return card('Latency', 'Percentiles of each kind of operation; the axis is logarithmic. In an open loop latency counts from the intended start, so that a stall is charged to every operation that it delayed.', {
    chart: () => latencies(kind, clock),
    body: el('div', {}, el('div', { class: 'row' }, choice('Operation', KINDS.map((k, i) => [i, k.label]), KINDS.indexOf(kind), value => { kind = KINDS[value]; draw(); }),
      both && choice('From', [['latency', 'the intended start'], ['processing', 'the real start']], clock, value => { clock = value; draw(); })), holder),
    table: () => dataTable(['strategy', 'operation', 'count', ...PERCENTILES.map(([, name]) => name)], DATA.subjects.flatMap(s => KINDS.map(k => [s.name, k.label, show(median(s, r => dig(phaseOf(r, k.phase), `kinds.${k.kind}.count`)), 'count'), ...PERCENTILES.map(([field]) => show(median(s, r => latencyOf(r, k, field)), 'ns'))]))),
    alone: true,
  });
}
// Charts whose shape depends on the width of the window.
const redraw = new Set();
let resizing = 0;
addEventListener('resize', () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(() => redraw.forEach(draw => draw())); });

// The tree at the end: a line a level, a box a run, as wide as the square root of its bytes; one scale for all trees.
const LARGEST_LEVEL = Math.max(1, ...ALL_ROWS.flatMap(row => (row.levels || []).map(level => level.runs.reduce((a, b) => a + b, 0))));
function shape(subject, i) {
  const levels = (subject.rows[0] || {}).levels || [];
  const width = 420;
  const body = levels.map(({ level, runs }, n) => {
    const total = runs.reduce((a, b) => a + b, 0);
    const y = n * 27 + 4;
    let x = 36;
    const room = (width - 36 - 130) * Math.sqrt(total / LARGEST_LEVEL);
    const gap = runs.length > 1 ? Math.min(3, room / runs.length / 3) : 0;
    const boxes = runs.map((run, r) => {
      const w = Math.max((room - gap * (runs.length - 1)) * (run / Math.max(total, 1)), 0.7);
      const box = `<rect x="${x.toFixed(1)}" y="${y}" width="${w.toFixed(1)}" height="19" rx="2" class="s${i % SERIES}" stroke="none" fill-opacity=".75"><title>L${level}, run ${r + 1} of ${runs.length}: ${show(run, 'bytes')}</title></rect>`;
      x += w + gap;
      return box;
    });
    return text(26, y + 14, `L${level}`, 'end strong') + boxes.join('') + text(x + 6, y + 14, runs.length ? `${show(total, 'bytes')}${runs.length > 1 ? `, ${runs.length} runs` : ''}` : 'empty', 'soft');
  });
  return svg(width, Math.max(levels.length * 27 + 4, 10), `${subject.name}: ${levels.map(l => `L${l.level} ${plural(l.runs.length, 'run')}`).join(', ')}`, body.join(''));
}
const shapeCard = (subject, i) => card(`${subject.name}: the tree at the end`, 'A line is a level, a box a sorted run, newest first; widths grow with the square root of bytes, on one scale for all strategies.', {
  chart: () => shape(subject, i),
  table: () => dataTable(['level', 'runs', 'bytes', 'files', 'records', 'tombstones'], ((subject.rows[0] || {}).levels || []).map(l => [`L${l.level}`, l.runs.length, show(l.runs.reduce((a, b) => a + b, 0), 'bytes'), show(l.files ?? null, 'count'), show(l.entries ?? null, 'count'), show(l.tombstones ?? null, 'count')])),
});
