// The tree over time: its picture, the controls that move it, and every compaction with why it was chosen.

const what = c => (c.kind === 'flush' ? 'flush → L0' : c.kind === 'drop' ? `drop from L${c.from}` : `${c.kind} L${c.from} → L${c.to}`);
const plain = x => (x === null ? '∞' : x.toLocaleString('en', { maximumSignificantDigits: 4 }));
const why = c => (c.kind === 'flush' ? 'the memtable was full, or asked for' : c.reason === 'manual' ? 'asked for' : `${c.reason}: ${c.trigger} ${plain(c.value)} ≥ ${plain(c.threshold)}`);

class TreeView {
  constructor(subject, n, { list = true, still = false } = {}) {
    this.subject = subject;
    this.t = timelineOf(subject.trees[n]);
    this.c = this.t.last;
    this.shade = 'tombstones';
    this.kind = 'all';
    this.picked = null;
    this.node = el('div', { class: 'tree', 'data-changes': this.t.last + 1 });
    this.picture = el('div', { class: 'picture' });
    this.strip = el('div', { class: 'strip' });
    this.now = el('div', { class: 'now', 'aria-live': 'off' });
    this.list = el('div', { class: 'list' });
    // A tree that never changes needs nothing to move it.
    this.moves = !still && this.t.last > 0;
    this.node.append(...[this.moves && this.#controls(), this.picture, this.#legend(!this.moves), this.moves && this.strip, !still && this.now,
      hidden('This tree as a table', () => (this.table = el('div', {}), this.#table(), this.table)), list && this.list].filter(Boolean));
    this.listed = list;
    this.still = still;
    this.onmove = () => {};
    redraw.add(() => { if (this.node.isConnected) this.draw(); });
  }

  #controls() {
    const button = (words, label, press) => el('button', { type: 'button', 'aria-label': label, title: label, onclick: press }, words);
    this.play = el('button', { type: 'button', class: 'main', onclick: () => this.toggle() }, '▶ Play');
    this.slider = el('input', { type: 'range', min: 0, max: this.t.last, value: this.c, step: 1, 'aria-label': `Time of the tree of ${this.subject.name}`, oninput: event => { this.stop(); this.go(Number(event.target.value)); } });
    this.when = el('span', { class: 'when' });
    this.speed = 10;
    const node = el('div', { class: 'controls' }, this.play,
      button('|◀', 'To the begin', () => this.go(0)), button('◀', 'One change back', () => this.go(this.c - 1)), button('▶', 'One change on', () => this.go(this.c + 1)), button('▶|', 'To the end', () => this.go(this.t.last)),
      this.slider, this.when,
      choice('Speed', [[2, '2/s'], [10, '10/s'], [50, '50/s'], [250, '250/s']], 10, value => { this.speed = Number(value); }));
    node.addEventListener('keydown', event => {
      const step = { ',': -1, '.': 1 }[event.key];
      if (step) { this.stop(); this.go(this.c + step); }
      if (event.key === ' ' && event.target === this.slider) { event.preventDefault(); this.toggle(); }
    });
    return node;
  }

  #legend(still) {
    const sample = (classes, words, style = '') => {
      const mark = svg(30, 14, '', `${STRIPES}<rect x="1" y="1" width="28" height="12" class="${classes}" style="${style}"/>`);
      mark.setAttribute('aria-hidden', 'true');
      return el('li', {}, mark, words);
    };
    return el('ul', { class: 'legend' }, !still && sample('new', 'written or moved by this change'), !still && sample('taken', 'taken by the next change (striped)'),
      sample('file', 'other files', 'fill-opacity:.25'), sample('file', 'with many tombstones (stronger)', 'fill-opacity:.95'),
      el('li', {}, 'Across: keys in order; down: levels, in each its runs, newest first.'));
  }

  toggle() { if (this.timer) this.stop(); else this.start(); }
  start() {
    if (this.c === this.t.last) this.go(0);
    let last = performance.now();
    let left = 0;
    const frame = now => {
      if (!this.node.isConnected) { this.stop(); return; }
      left += ((now - last) / 1000) * this.speed;
      last = now;
      const steps = Math.floor(left);
      left -= steps;
      if (steps) this.go(this.c + steps);
      if (this.c >= this.t.last) this.stop(); else this.timer = requestAnimationFrame(frame);
    };
    this.timer = requestAnimationFrame(frame);
    this.play.textContent = '❚❚ Pause';
  }
  stop() { cancelAnimationFrame(this.timer); this.timer = 0; if (this.play) this.play.textContent = '▶ Play'; }

  go(change) {
    this.c = Math.min(Math.max(change, 0), this.t.last);
    this.picked = null;
    this.draw();
    this.onmove(this.t.at[this.c]);
  }
  goTime(seconds) { this.c = this.t.before(seconds); this.draw(); }

  draw() {
    this.picture.replaceChildren(this.svg(Math.max(this.node.clientWidth || 860, 300)));
    if (this.table && this.table.isConnected) this.#table();
    if (this.still) return;
    if (this.moves) this.#place();
    this.#now();
    if (this.listed) this.#list();
  }

  // Tells where in time the picture is.
  #place() {
    this.slider.value = this.c;
    const words = `${duration(this.t.at[this.c] * 1e9)} · change ${this.c + 1} of ${this.t.last + 1}`;
    this.slider.setAttribute('aria-valuetext', words);
    this.when.textContent = words;
    this.#strip();
  }

  svg(width) {
    const { t, c } = this;
    const left = width < 500 ? 62 : 84;
    const rows = t.rows.reduce((a, n) => a + Math.max(n, 1), 0);
    const least = Math.min(Math.max(380 / Math.max(rows, 1), 4), 24);
    const scale = (width - left - 2) / t.positions;
    const levels = t.levels(c);
    let [y, body] = [4, STRIPES];
    levels.forEach((runs, level) => {
      const height = Math.max(t.rows[level] * least, 34);
      const row = height / Math.max(t.rows[level], 1);
      const files = runs.flat();
      body += `<rect x="${left}" y="${y}" width="${width - left}" height="${height}" class="band"/>${text(2, y + 14, `L${level}`, 'strong')}${text(2, y + 28, files.length ? show(files.reduce((a, i) => a + t.bytes[i], 0), 'bytes') : 'empty', 'soft')}`;
      runs.forEach((files, n) => {
        const top = y + n * row + 1;
        for (const i of files) {
          const x = left + t.low[i] * scale;
          const w = Math.max((t.high[i] - t.low[i]) * scale, 1.5);
          const isNew = !this.still && t.born[i] === c && t.last > 0;
          const taken = !this.still && t.died[i] === c + 1;
          const share = t.tombstones[i] / Math.max(t.entries[i], 1);
          body += `<rect x="${x.toFixed(1)}" y="${top.toFixed(1)}" width="${w.toFixed(1)}" height="${Math.max(row - 2, 2).toFixed(1)}" rx="1.5" class="file${taken ? ' taken' : isNew ? ' new' : ''}"${taken || isNew ? '' : ` style="fill-opacity:${(0.28 + 0.7 * Math.min(share * 1.5, 1)).toFixed(2)}"`}><title>file ${t.id[i]}, L${level} run ${t.run[i]}: ${show(t.bytes[i], 'bytes')}, ${plural(t.entries[i], 'record')}, ${plural(t.tombstones[i], 'tombstone')}\n${escaped(t.keyAt(t.low[i]))} … ${escaped(t.keyAt(t.high[i]))}</title></rect>`;
        }
      });
      y += height + 5;
    });
    const marks = width < 500 ? 2 : 5;
    for (let n = 0; n < marks; n += 1) {
      const place = (n / (marks - 1)) * (t.positions - 1);
      const words = shorten(t.keyAt(Math.round(place)).replace('after ', ''), Math.floor((width - left) / marks / 7));
      body += text(left + place * scale, y + 11, words, `soft ${n === 0 ? '' : n === marks - 1 ? 'end' : 'mid'}`);
    }
    if (!levels.length) body += text(left, 20, 'The tree is empty.', 'soft');
    const shape = levels.map((runs, n) => `L${n} ${plural(runs.length, 'run')}, ${plural(runs.flat().length, 'file')}`).join('; ');
    return svg(width, y + 16, `The tree of ${this.subject.name} at ${duration(t.at[c] * 1e9)}: ${shape}`, body);
  }

  // Debt, runs and bytes over the whole time; a click goes there.
  #strip() {
    const { t } = this;
    const width = Math.max(this.node.clientWidth || 860, 300);
    if (this.stripFor !== width) {
      this.stripFor = width;
      const w = this.subject.windows;
      const lanes = [['runs', t.at, t.runsAt, 'count'], ['bytes', t.at, t.bytesAt, 'bytes']];
      if (w && measured(w.debt_bytes)) lanes.unshift(['debt', w.at, w.debt_bytes, 'bytes']);
      const left = width < 500 ? 62 : 84;
      const end = Math.max(t.at[t.last], w ? w.at[w.at.length - 1] : 0, 1e-9);
      this.x = seconds => left + (seconds / end) * (width - left - 2);
      const step = Math.max(1, Math.floor(t.at.length / width / 2));
      let body = '';
      lanes.forEach(([name, at, values, unit], lane) => {
        const [top, height] = [lane * 44, 38];
        const most = values.reduce((a, v) => Math.max(a, v ?? 0), 0) || 1;
        let d = `M${left},${top + height}`;
        let [peak, before] = [0, 0];
        values.forEach((v, i) => {
          peak = Math.max(peak, v ?? 0);
          if (i % step && i !== values.length - 1) return;
          const y = (top + height - (peak / most) * (height - 4)).toFixed(1);
          d += `L${this.x(at[i]).toFixed(1)},${before || y}L${this.x(at[i]).toFixed(1)},${y}`;
          [before, peak] = [y, 0];
        });
        body += `<rect x="${left}" y="${top}" width="${width - left}" height="${height}" class="band"/><path class="area" d="${d}V${top + height}Z"><title>${name}</title></path>${text(2, top + 15, name, 'strong')}${text(2, top + 29, show(most, unit), 'soft')}`;
      });
      const height = lanes.length * 44;
      const chart = svg(width, height, `${lanes.map(l => l[0]).join(', ')} over time`, `${body}<line class="cursor" y1="0" y2="${height - 6}"/>`);
      chart.addEventListener('click', event => {
        const box = chart.getBoundingClientRect();
        const seconds = (((event.clientX - box.left) / box.width) * width - left) / (width - left - 2) * end;
        this.stop();
        this.go(t.before(Math.max(seconds, 0)));
      });
      this.cursor = chart.querySelector('.cursor');
      this.strip.replaceChildren(chart);
    }
    const x = this.x(t.at[this.c]);
    this.cursor.setAttribute('x1', x);
    this.cursor.setAttribute('x2', x);
  }

  #now() {
    const { t, c } = this;
    const made = this.picked !== null ? t.compactions[this.picked] : t.compactions[t.by[c]];
    const next = c < t.last ? t.compactions[t.by[c + 1]] : null;
    this.now.replaceChildren(...(made ? record(made) : [el('p', {}, t.last ? 'Files were ingested, or no record of this change was kept.' : 'The tree as it stands.')]),
      next ? el('p', { class: 'note' }, `Next: ${what(next)}, ${why(next)}.`) : '');
  }

  #list() {
    const { t } = this;
    const kinds = ['all', ...new Set(t.compactions.map(x => x.kind))];
    const of = t.compactions.filter(x => this.kind === 'all' || x.kind === this.kind);
    const current = this.picked !== null ? this.picked : t.by[this.c];
    const size = 12;
    let at = of.findIndex(x => x.i === current);
    if (at < 0) { at = of.findIndex(x => t.changeOf[x.i] > this.c); if (at < 0) at = of.length - 1; }
    if (this.page === undefined || this.pageFor !== `${this.kind} ${this.c}`) this.page = Math.max(Math.floor(at / size), 0);
    this.pageFor = `${this.kind} ${this.c}`;
    const pages = Math.max(Math.ceil(of.length / size), 1);
    const turn = by => () => { this.page = Math.min(Math.max(this.page + by, 0), pages - 1); this.#list(); };
    const pick = x => () => { this.stop(); this.c = t.changeOf[x.i]; this.picked = x.i; this.draw(); this.onmove(t.at[this.c]); };
    const rows = of.slice(this.page * size, this.page * size + size).map(x => el('tr', { 'aria-current': x.i === current ? 'true' : null },
      el('td', {}, el('button', { type: 'button', onclick: pick(x), 'aria-label': `Show ${what(x)} at ${duration(x.at * 1e9)}` }, duration(x.at * 1e9))),
      el('td', {}, what(x) + (x.ending === 'done' ? '' : ` (${x.ending.split(':')[0]})`)), el('td', {}, why(x)), el('td', { class: 'n' }, show(x.read, 'bytes')), el('td', { class: 'n' }, show(x.written, 'bytes')), el('td', { class: 'n' }, duration(x.took * 1e9))));
    const head = ['when', 'what', 'why', 'read', 'wrote', 'took'].map(words => el('th', { scope: 'col' }, words));
    const focused = this.list.contains(document.activeElement) ? [...this.list.querySelectorAll('button, select')].indexOf(document.activeElement) : -1;
    this.list.replaceChildren(
      el('h3', {}, `Flushes and compactions (${of.length.toLocaleString('en')})`),
      t.leftOut ? el('p', { class: 'note' }, `${t.leftOut.toLocaleString('en')} smaller ones are left out of the page: of up to ${t.joined} successive changes the largest is shown.`) : '',
      el('div', { class: 'row' }, choice('Show', kinds.map(kind => [kind, kind === 'all' ? 'all' : `${kind} only`]), this.kind, value => { this.kind = value; this.page = undefined; this.#list(); }),
        el('button', { type: 'button', disabled: this.page === 0, onclick: turn(-1) }, 'Earlier'), el('button', { type: 'button', disabled: this.page >= pages - 1, onclick: turn(1) }, 'Later'), el('span', { class: 'note' }, `page ${this.page + 1} of ${pages}${this.moves ? '' : '; times count from the first decision that was kept'}`)),
      el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, head)), el('tbody', {}, rows))));
    if (focused >= 0) { const again = [...this.list.querySelectorAll('button, select')][focused]; if (again && !again.disabled) again.focus(); }
  }

  #table() {
    const { t } = this;
    const rows = t.levels(this.c).flatMap((runs, level) => runs.map(files => {
      const total = list => files.reduce((a, i) => a + list[i], 0);
      return [`L${level}`, t.run[files[0]], files.length, show(total(t.bytes), 'bytes'), show(total(t.entries), 'count'), show(total(t.tombstones), 'count'), t.keyAt(Math.min(...files.map(i => t.low[i]))), t.keyAt(Math.max(...files.map(i => t.high[i])))];
    }));
    this.table.replaceChildren(dataTable(['level', 'run', 'files', 'bytes', 'records', 'tombstones', 'first key', 'last key'], rows));
  }
}

// A compaction with its decision record.
function record(c) {
  const cost = c.kind === 'flush' ? `wrote ${show(c.written, 'bytes')}` : `read ${show(c.read, 'bytes')} (planned ${show(c.plannedRead, 'bytes')}), wrote ${show(c.written, 'bytes')} (at most ${show(c.plannedWritten, 'bytes')})`;
  const time = `took ${duration(c.took * 1e9)}${c.predicted === null || c.kind === 'flush' ? '' : ` (predicted ${duration(c.predicted * 1e3)})`}`;
  const dropped = c.dropped[0] || c.dropped[1] ? `, dropped ${plural(c.dropped[0], 'old version')} and ${plural(c.dropped[1], 'tombstone')}` : '';
  const lines = [el('p', {}, el('strong', {}, what(c)), c.job === null || c.kind === 'flush' ? '' : ` (job ${c.job})`, ` — ${why(c)}`, c.ending === 'done' ? '' : ` — ${c.ending}`), el('p', { class: 'note' }, `${cost}, ${time}${dropped}.`)];
  const list = c.candidates;
  if (!list.length) return lines;
  const name = x => (x.runs ? `${plural(x.runs, 'run')} from file ${x.file}` : `file ${x.file}`);
  const left = c.total - list.length;
  const rows = list.map(x => [name(x), x.chosen ? '✔ taken' : x.blocked ? '✖ blocked by a running job' : 'not taken', x.scores.map(plain).join(', ') || '–']);
  lines.push(hidden(`${plural(c.total, 'candidate')}: ${list.filter(x => x.chosen).length} of those shown taken${left ? `; ${left} more left out here` : ''}`, () => dataTable(['candidate', '', 'scores, smaller goes first'], rows)));
  lines[lines.length - 1].className = 'candidates';
  return lines;
}
