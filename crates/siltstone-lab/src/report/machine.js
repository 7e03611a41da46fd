// Where the figures were measured, and how quiet it was before and after each trial.

// Probes that differ by more than this before and after, or from the best trial's, tell of a noisy machine.
const NOISY = 1.15;
const PROBES = [['cpu_ns', 'processor', 'ns'], ['memory_ns', 'memory', 'ns'], ['disk_sync_ns', 'sync', 'ns']];
const probe = (noise, name) => (noise.probes ? noise.probes[name] : null);

// The different values of a field, over all trials.
const distinct = of => [...new Set(DATA.machines.map(of))];

function machineFacts() {
  const began = DATA.machines.map(m => m.began_unix_s);
  const day = s => new Date(s * 1000).toISOString().replace('T', ' ').slice(0, 16);
  const [first, last] = [Math.min(...began), Math.max(...began)];
  return [
    ['Processor', distinct(m => `${m.cpu}, ${plural(m.cores, 'core')}`).join('; ')],
    ['Memory', distinct(m => show(m.memory_bytes, 'bytes')).join('; ')],
    ['System', distinct(m => m.system).join('; ')],
    ['Build', distinct(m => m.build).join('; ')],
    ['Began (UTC)', first === last ? day(first) : `${day(first)} to ${day(last)}`],
  ];
}

function machineTable() {
  const best = Object.fromEntries(PROBES.map(([name]) => [name, Math.min(...DATA.machines.flatMap(m => [m.before, m.after]).map(noise => probe(noise, name) ?? Infinity))]));
  const pair = (a, b, unit) => (a === null || b === null ? '–' : `${show(a, unit)}, ${show(b, unit)}`);
  const rows = DATA.machines.map(m => [m.trial, show(m.wall_s, 's'), pair(m.before.load_average, m.after.load_average, 'ratio'),
    ...PROBES.map(([name, , unit]) => {
      const [a, b] = [probe(m.before, name), probe(m.after, name)];
      const isNoisy = a !== null && b !== null && name !== 'disk_sync_ns' && Math.max(a, b) > best[name] * NOISY;
      return pair(a, b, unit) + (isNoisy ? ' ⚠' : '');
    })]);
  return dataTable(['trial', 'took', 'load', ...PROBES.map(([, words]) => words)], rows);
}

function machineSection() {
  if (!DATA.machines.length) return [];
  const measured = DATA.machines.some(m => m.before.probes);
  const note = measured
    ? `Before and after each trial: processes that ran or wanted to, and short probes (a million steps of a random generator, a dependent read of memory, a sync of 4 KiB). ⚠ marks a probe that was ${Math.round((NOISY - 1) * 100)} % or more above the best one.`
    : 'Nothing that the figures depend on: time was simulated.';
  return [heading('The machine', note), el('dl', { class: 'facts' }, machineFacts().map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value)))),
    el('div', { class: 'card machine' }, machineTable())];
}
