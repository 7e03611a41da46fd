// What is measured, how repetitions become one figure, and the table.

const MEASURES = [
  ['ops_per_s', 'Throughput', 'rate', 1, 'Operations per second over the phases that count.'],
  ['write_amplification', 'Write amplification', 'ratio', -1, 'Bytes that flushes and compactions wrote per byte of keys and values put or deleted; the log is not counted.'],
  ['read_amplification', 'Read amplification', 'ratio', -1, 'Data blocks that point lookups looked into, cached or not, per lookup that found its key.'],
  ['space_amplification', 'Space amplification', 'ratio', -1, 'Bytes of overwritten and deleted records still in the tree per byte of live records; 0 is perfect.'],
  ['log_write_amplification', 'Log writes', 'ratio', -1, 'Bytes written to the log per byte put or deleted.'],
  ['disk_reads_per_get', 'Disk reads per lookup', 'ratio', -1, 'Blocks that a point lookup had to fetch from files.'],
  ['runs_probed_per_get', 'Runs asked per lookup', 'ratio', -1, 'Sorted runs whose filter a point lookup asked.'],
  ['cache_hit_ratio', 'Cache hits', 'share', 1, 'Share of block reads that the block cache answered.'],
  ['stall_s', 'Stalled', 's', -1, 'Time that writers waited for flushes and compactions.'],
  ['settle_s', 'Settling', 's', -1, 'Time until nothing was left to flush or merge after the load: the debt that it left.'],
  ['compactions', 'Compactions', 'count', 0, 'Merges that rewrote data; moves without rewriting are not counted.'],
  ['trivial_moves', 'Moves', 'count', 0, 'Files that changed their level without being rewritten.'],
  ['flushes', 'Flushes', 'count', 0, 'Memtables written to L0.'],
  ['compaction_bytes_read', 'Compactions read', 'bytes', -1, 'Bytes that merges read.'],
  ['compaction_bytes_written', 'Compactions wrote', 'bytes', -1, 'Bytes that merges wrote.'],
  ['compaction_latency.p99_ns', 'Compaction p99', 'ns', -1, 'From picking to the new tree: 99 % of merges took no longer.'],
  ['compaction_latency.max_ns', 'Longest compaction', 'ns', -1, 'The longest merge, from picking to the new tree.'],
  ['compaction_cpu_s', 'Compaction CPU', 's', -1, 'Time of merges in computing.'],
  ['compaction_io_s', 'Compaction I/O', 's', -1, 'Time of merges in file calls.'],
  ['tombstones', 'Tombstones left', 'count', -1, 'Tombstones in the tree at the end.'],
  ['oldest_tombstone_s', 'Oldest tombstone', 's', -1, 'How long the oldest tombstone at the end had been there.'],
  ['runs', 'Sorted runs', 'count', -1, 'Sorted runs at the end: what a lookup may have to ask.'],
  ['files', 'Files', 'count', 0, 'Files at the end.'],
  ['disk_bytes', 'Disk', 'bytes', -1, 'Bytes of the files at the end.'],
  ['entries', 'Records', 'count', 0, 'Records in the files, all versions and tombstones.'],
  ['tombstone_share', 'Tombstone share', 'share', -1, 'Tombstones per record in the files.'],
  ['memtable_bytes', 'In memory', 'bytes', 0, 'Bytes of memtables.'],
  ['cpu_s', 'CPU', 's', -1, 'Processor time of the whole process.'],
  ['memory_bytes', 'Memory', 'bytes', -1, 'The most memory that the process had.'],
].map(([path, label, unit, better, meaning]) => ({ path, label, unit, better, meaning, of: row => dig(row, path) }));
const PERCENTILES = [['p50_ns', 'p50'], ['p90_ns', 'p90'], ['p99_ns', 'p99'], ['p999_ns', 'p99.9'], ['max_ns', 'max']];

function dig(row, path) {
  const value = path.split('.').reduce((at, name) => (at === null || at === undefined ? undefined : at[name]), row);
  return typeof value === 'number' ? value : null;
}

// Phases and kinds of operations that any row has, in the order of the phases.
const ALL_ROWS = DATA.subjects.flatMap(subject => subject.rows);
const PHASES = [...new Set(ALL_ROWS.flatMap(row => (row.phases || []).map(phase => phase.name)))];
const phaseOf = (row, name) => (row.phases || []).find(phase => phase.name === name);
const KINDS = PHASES.flatMap(phase => {
  const kinds = new Set(ALL_ROWS.flatMap(row => Object.entries((phaseOf(row, phase) || {}).kinds || {}).filter(([, kind]) => kind.count > 0).map(([kind]) => kind)));
  return [...kinds].map(kind => ({ phase, kind, label: PHASES.length > 1 ? `${phase}: ${kind}` : kind }));
});
const latencyOf = (row, { phase, kind }, field, clock = 'latency') => dig(phaseOf(row, phase), `kinds.${kind}.${clock}.${field}`);
for (const phase of PHASES.length > 1 ? PHASES : []) {
  MEASURES.push({ label: `${phase} op/s`, unit: 'rate', better: 1, meaning: `Operations per second in phase ${phase}.`, of: row => dig(phaseOf(row, phase), 'ops_per_s') });
}
for (const kind of KINDS) {
  for (const [field, name] of [['p99_ns', 'p99'], ['max_ns', 'max']]) {
    MEASURES.push({ label: `${kind.label} ${name}`, unit: 'ns', better: -1, meaning: `Latency of ${kind.kind} operations in phase ${kind.phase}: ${name}.`, of: row => latencyOf(row, kind, field) });
  }
}
// Only what somebody has measured.
const SHOWN = MEASURES.filter(measure => ALL_ROWS.some(row => measure.of(row) !== null));
const measureNamed = label => SHOWN.find(measure => measure.label === label);

// The median over repetitions, with the least and the most.
function figure(subject, of) {
  const values = subject.rows.map(of).filter(value => value !== null).sort((a, b) => a - b);
  if (!values.length) return null;
  const middle = values.length >> 1;
  const median = values.length % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return { median, low: values[0], high: values[values.length - 1], values };
}
const median = (subject, of) => { const found = figure(subject, of); return found && found.median; };
function spread(found) {
  if (!found || found.values.length < 2 || found.median === 0) return '';
  return `${digits((found.low / found.median - 1) * 100)} … +${digits((found.high / found.median - 1) * 100)} %`;
}

// How the best value of a measure shows; none where all show alike, since nothing is best then.
function best(measure, subjects = DATA.subjects) {
  const values = subjects.map(subject => median(subject, measure.of)).filter(value => value !== null);
  if (!measure.better || values.length < 2) return null;
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (show(least, measure.unit) === show(most, measure.unit)) return null;
  return show(measure.better > 0 ? most : least, measure.unit);
}

function figureTable() {
  let sort = { measure: null, up: true };
  const holder = el('div', { class: 'scroll card figures' });
  const draw = focus => {
    const subjects = [...DATA.subjects];
    if (sort.measure) {
      const value = subject => median(subject, sort.measure.of) ?? Infinity;
      subjects.sort((a, b) => (value(a) - value(b)) * (sort.up ? 1 : -1));
    } else if (!sort.up) subjects.reverse();
    const head = (label, measure, meaning) => {
      const on = sort.measure === measure && (measure || !sort.up);
      const press = () => { sort = { measure, up: sort.measure === measure ? !sort.up : measure ? measure.better <= 0 : true }; draw(label); };
      return el('th', { scope: 'col', 'aria-sort': on ? (sort.up ? 'ascending' : 'descending') : null, title: meaning },
        el('button', { type: 'button', onclick: press }, label, on ? (sort.up ? ' ▲' : ' ▼') : ''));
    };
    const body = subjects.map(subject => el('tr', {},
      el('th', { scope: 'row' }, DATA.kind === 'comparison' ? subject.name : el('a', { href: `#${slug(subject)}` }, subject.name)),
      SHOWN.map(measure => {
        const found = figure(subject, measure.of);
        const words = show(found && found.median, measure.unit);
        return el('td', { class: words === best(measure) ? 'best' : null }, words, found && found.values.length > 1 && el('span', { class: 'spread' }, spread(found)));
      })));
    holder.replaceChildren(el('table', {},
      el('thead', {}, el('tr', {}, head(DATA.kind === 'store' ? 'keyspace' : 'strategy', null, ''), SHOWN.map(measure => head(measure.label, measure, measure.meaning)))),
      el('tbody', {}, body)));
    if (focus) [...holder.querySelectorAll('thead button')].find(button => button.textContent.startsWith(focus)).focus();
  };
  draw();
  return holder;
}
const slug = subject => `of/${encodeURIComponent(subject.name)}`;
