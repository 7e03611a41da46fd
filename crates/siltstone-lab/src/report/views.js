// What stands where: the overview, the comparison of two, a view for each strategy or keyspace. The address names the view.

const view = document.getElementById('view');
const heading = (words, note) => [el('h2', {}, words), note && el('p', { class: 'note' }, note)];
const hasTime = DATA.subjects.some(subject => subject.windows);
const hasTrees = DATA.subjects.some(subject => subject.trees.length);

function facts() {
  return [DATA.notes.map(note => el('p', { class: 'notice' }, note)),
    el('dl', { class: 'facts' }, DATA.facts.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))))];
}

function overview() {
  if (DATA.kind === 'store') return [facts(), ...heading('Keyspaces'), figureTable(), ...DATA.subjects.slice(0, 1).flatMap(treeSection)];
  const chartsFor = SHOWN.filter(m => !/ (p99|max)$/.test(m.label) || m.label.startsWith('Compaction'));
  return [
    facts(),
    heading('Figures', 'Medians, with the spread over repetitions where there are several. The best of each column is marked ★; press a title to sort.'), figureTable(),
    el('div', { id: 'trade-off' }, scatterCard()), latencyCard(),
    hasTime && heading('Over time', 'Move over a chart to read it; drag to look closer, double-click to go back.'),
    hasTime && el('div', { class: 'cards wide' }, GAUGES.map(gauge => seriesCard(gauge[0], gauge[1], linesOf(gauge, DATA.subjects), gauge[3]))),
    heading('Each measure'), el('div', { class: 'cards' }, chartsFor.map(barCard)),
    ALL_ROWS.some(row => row.levels) && heading('The trees at the end'),
    ALL_ROWS.some(row => row.levels) && el('div', { class: 'cards' }, DATA.subjects.map(shapeCard)),
    machineSection(),
    heading('What the figures mean'), el('dl', { class: 'terms' }, SHOWN.filter(m => !/ (p99|max|op\/s)$/.test(m.label)).map(m => [el('dt', {}, m.label), el('dd', {}, m.meaning)])),
  ];
}

function treeSection(subject) {
  if (!subject.trees.length) return [];
  let shown = 0;
  const holder = el('div', {});
  const draw = () => {
    const tree = new TreeView(subject, shown);
    holder.replaceChildren(tree.node);
    requestAnimationFrame(() => tree.draw());
    current = tree;
  };
  let current = null;
  draw();
  const names = subject.trees.map(tree => tree.keyspace);
  const isStill = subject.trees[0].at.length < 2;
  return [card(isStill ? `The tree of ${subject.name}` : `The tree over time: ${subject.name}`, isStill ? null : 'Move the slider, or press play. Space plays and pauses, “,” and “.” step.', {
    chart: () => current.svg(860), body: holder, alone: true,
    tools: names.length > 1 ? [choice('Keyspace', names.map((name, i) => [i, name]), 0, value => { shown = Number(value); draw(); })] : [],
  })];
}

function strategyView(subject) {
  if (DATA.kind === 'store') return [el('p', { class: 'note' }, `Strategy ${subject.text}.`), treeSection(subject)];
  const rank = measure => {
    const value = median(subject, measure.of);
    const all = DATA.subjects.map(s => median(s, measure.of)).filter(v => v !== null);
    if (!measure.better || value === null || all.length < 2) return '';
    return `${1 + all.filter(v => (v - value) * measure.better > 0).length} of ${all.length}`;
  };
  const at = DATA.subjects.indexOf(subject);
  return [
    treeSection(subject),
    hasTime && subject.windows && [...heading('Over time'), el('div', { class: 'cards wide' },
      BY_KIND.map(gauge => seriesCard(gauge[0], gauge[1], linesByKind(gauge, subject), gauge[3])),
      GAUGES.slice(2).map(gauge => seriesCard(gauge[0], gauge[1], linesOf(gauge, [subject]), gauge[3])))],
    heading('Figures'),
    el('div', { class: 'card' }, dataTable(['figure', 'median', 'spread', 'rank'], SHOWN.map(m => { const f = figure(subject, m.of); return [m.label, show(f && f.median, m.unit), spread(f), rank(m)]; }))),
    KINDS.length > 0 && [...heading('Latency by operation'), el('div', { class: 'card' }, dataTable(['operation', 'count', 'found', 'mean', ...PERCENTILES.map(([, name]) => name)], KINDS.map(k => [k.label,
      ...['count', 'found'].map(name => show(median(subject, r => dig(phaseOf(r, k.phase), `kinds.${k.kind}.${name}`)), 'count')), show(median(subject, r => latencyOf(r, k, 'mean_ns')), 'ns'), ...PERCENTILES.map(([field]) => show(median(subject, r => latencyOf(r, k, field)), 'ns'))])))],
    el('div', { class: 'cards' }, subject.rows[0].levels && shapeCard(subject, at)),
    subject.text && subject.text.includes('\n') && [...heading('The strategy'), el('pre', { tabindex: 0 }, subject.text)],
  ];
}

const pair = [0, Math.min(1, DATA.subjects.length - 1)];
function compareView() {
  const [a, b] = pair.map(i => DATA.subjects[i]);
  const pick = (label, n) => choice(label, DATA.subjects.map((s, i) => [i, s.name]), pair[n], value => { pair[n] = Number(value); go(); document.querySelectorAll('#view select')[n].focus(); });
  const rows = SHOWN.map(m => {
    const [x, y] = [median(a, m.of), median(b, m.of)];
    if (x === null && y === null) return null;
    const change = x === null || y === null || x === 0 ? null : (y / x - 1) * 100;
    const same = show(x, m.unit) === show(y, m.unit);
    const verdict = !m.better || same || x === null || y === null ? '' : (y - x) * m.better > 0 ? 'better' : 'worse';
    return [m.label, show(x, m.unit), show(y, m.unit), same ? '=' : change === null ? '–' : `${change > 0 ? '+' : '−'}${digits(Math.abs(change))} %`, el('span', { class: verdict }, verdict && `${verdict === 'better' ? '▲' : '▼'} ${verdict}`)];
  }).filter(Boolean);
  const trees = [a, b].map(s => (s.trees.length ? new TreeView(s, 0, { list: false, still: true }) : null));
  return [
    el('div', { class: 'row', id: 'pick' }, pick('Compare', 0), pick('with', 1)),
    el('div', { class: 'card figures' }, dataTable(['figure', a.name, b.name, `${b.name} against ${a.name}`, ''], rows)),
    hasTime && [...heading('Over time'), el('div', { class: 'cards wide' }, GAUGES.map(gauge => seriesCard(gauge[0], gauge[1], linesOf(gauge, a === b ? [a] : [a, b]), gauge[3])))],
    trees[0] && trees[1] && [...heading('The trees side by side', 'Both at the same time since the begin.'), sideBySide(trees)],
    !hasTrees && el('div', { class: 'pair' }, pair.map(i => shapeCard(DATA.subjects[i], i))),
  ];
}

function sideBySide(trees) {
  const end = Math.max(...trees.map(tree => tree.t.at[tree.t.last]), 1e-9);
  const when = el('span', { class: 'when' });
  const slider = el('input', { type: 'range', min: 0, max: 1000, value: 1000, 'aria-label': 'Time of both trees', oninput: () => move() });
  const move = () => {
    const seconds = (slider.value / 1000) * end;
    when.textContent = duration(seconds * 1e9);
    slider.setAttribute('aria-valuetext', when.textContent);
    trees.forEach(tree => tree.goTime(seconds));
  };
  requestAnimationFrame(move);
  return el('div', { class: 'tree' }, el('div', { class: 'controls' }, slider, when),
    el('div', { class: 'pair' }, trees.map(tree => card(tree.subject.name, null, { chart: () => tree.svg(560), body: tree.node }))));
}

const VIEWS = [['overview', DATA.kind === 'store' ? 'Store' : 'Overview', overview],
  ...(DATA.kind !== 'store' && DATA.subjects.length > 1 ? [['compare', 'Compare two', compareView]] : []),
  ...(DATA.kind === 'comparison' ? [] : DATA.subjects.map(subject => [slug(subject), subject.name, () => strategyView(subject)]))];

function go() {
  const asked = location.hash.slice(1);
  const [name, label, make] = VIEWS.find(([name]) => name === asked) || VIEWS[0];
  document.getElementById('views').replaceChildren(...(VIEWS.length > 1 ? VIEWS : []).map(([other, words]) => el('a', { href: `#${other}`, 'aria-current': other === name ? 'page' : null }, words)));
  const current = document.querySelector('#views [aria-current]');
  const bar = current && current.parentElement;
  if (bar && current.offsetLeft + current.offsetWidth > bar.offsetLeft + bar.clientWidth) bar.scrollLeft = current.offsetLeft - bar.offsetLeft - 40;
  document.title = name === 'overview' ? DATA.title : `${label} – ${DATA.title}`;
  document.getElementById('title').textContent = name === 'overview' ? DATA.title.replace('Siltstone: ', '') : label;
  view.replaceChildren(...[make()].flat(Infinity).filter(Boolean));
}
addEventListener('hashchange', () => {
  if (document.getElementById(location.hash.slice(1))) return;
  go();
  scrollTo(0, 0);
  document.getElementById('main').focus({ preventScroll: true });
});
go();
// Whoever measures how long the page takes until it answers finds it here, in milliseconds.
document.documentElement.dataset.ready = Math.round(performance.now());
