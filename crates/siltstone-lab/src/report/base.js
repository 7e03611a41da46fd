// Numbers as text, elements, colours and the theme. Everything after this file builds on it.

const DATA = JSON.parse(document.getElementById('figures').textContent);
const SERIES = 8;
const SVG = 'http://www.w3.org/2000/svg';

// ---- numbers as text

const digits = x => {
  const a = Math.abs(x);
  const text = x.toFixed(a >= 99.95 || a === 0 ? 0 : a >= 9.995 ? 1 : 2);
  return text.endsWith('.00') ? text.slice(0, -3) : text;
};
const scaled = (x, step, units) => {
  let unit = 0;
  while (Math.abs(x) >= step * 0.9995 && unit + 1 < units.length) { x /= step; unit += 1; }
  return `${digits(x)}${units[unit] ? ` ${units[unit]}` : ''}`;
};
const duration = ns => {
  const a = Math.abs(ns);
  if (a < 999.5e9) return scaled(ns, 1000, ['ns', 'µs', 'ms', 's']);
  return a < 1e13 ? `${digits(ns / 6e10)} min` : a < 2e14 ? `${digits(ns / 3.6e12)} h` : `${digits(ns / 8.64e13)} days`;
};
const small = x => (x !== 0 && Math.abs(x) < 0.01 ? x.toPrecision(2) : digits(x));
const FORMATS = {
  bytes: x => scaled(x, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']),
  rate: x => scaled(x, 1000, ['', 'K', 'M', 'G']),
  count: x => (Number.isInteger(x) && Math.abs(x) < 1000 ? String(x) : scaled(x, 1000, ['', 'K', 'M', 'G'])),
  ns: duration,
  s: x => duration(x * 1e9),
  ratio: small,
  share: x => `${digits(x * 100)} %`,
};
const show = (x, unit) => (x === null || x === undefined || !Number.isFinite(x) ? '–' : FORMATS[unit](x));
// The same on an axis: 0 has no unit, and no digit says nothing.
const tick = (x, unit) => (x === 0 ? '0' : show(x, unit).replace(/(\.\d*?)0+(?= |$)/, '$1').replace(/\.(?= |$)/, ''));
const plural = (n, what) => `${n} ${what}${n === 1 ? '' : 's'}`;

// A key is written as text where it is one, as hex where not.
function keyText(hex) {
  const bytes = hex.match(/../g) || [];
  const codes = bytes.map(byte => parseInt(byte, 16));
  return codes.every(code => code >= 32 && code < 127) ? String.fromCharCode(...codes) : `0x${hex}`;
}
const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// ---- elements

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const escaped = text => String(text).replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);
const option = (value, text, selected) => el('option', { value, selected }, text);

function choice(label, entries, chosen, changed) {
  const select = el('select', { onchange: event => changed(event.target.value) },
    entries.map(([value, text]) => option(value, text, String(value) === String(chosen))));
  return el('label', {}, label, select);
}

function dataTable(heads, rows, caption) {
  const head = el('tr', {}, heads.map(text => el('th', { scope: 'col' }, text)));
  const body = rows.map(row => el('tr', {}, row.map((cell, i) => el(i ? 'td' : 'th', i ? {} : { scope: 'row' }, cell))));
  return el('div', { class: 'scroll' }, el('table', {}, caption && el('caption', {}, caption), el('thead', {}, head), el('tbody', {}, body)));
}

// A table that is made when it is opened: most never are.
function hidden(summary, make) {
  const details = el('details', {}, el('summary', {}, summary));
  details.addEventListener('toggle', () => { if (details.open && details.children.length === 1) details.append(make()); });
  return details;
}

// ---- charts as SVG: style and download

const CHART_STYLE = `
.chart text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.chart .soft { fill: var(--soft); font-size: 11px; } .chart .strong { font-weight: 700; }
.chart .end { text-anchor: end; } .chart .mid { text-anchor: middle; }
.chart .grid { stroke: var(--line); stroke-width: 1; } .chart .axis { stroke: var(--soft); stroke-width: 1; }
.chart .mean { stroke: var(--ink); stroke-width: 1.5; fill: none; }
.chart .band { fill: var(--faint); } .chart .cursor { stroke: var(--accent); stroke-width: 2; }
.chart .area { fill: var(--s0); fill-opacity: .25; stroke: var(--s0); stroke-width: 1.2; }
.chart .file { fill: var(--s0); fill-opacity: .55; stroke: var(--card); stroke-width: .6; }
.chart .new { fill: var(--s2); fill-opacity: 1; stroke: var(--ink); stroke-width: 1.2; }
.chart .taken { fill: url(#stripes); fill-opacity: 1; stroke: var(--s1); stroke-width: 1.4; }
.chart .chosen { stroke: var(--ink); stroke-width: 2.5; }
${Array.from({ length: SERIES }, (_, i) => `.chart .s${i} { fill: var(--s${i}); stroke: var(--s${i}); } .chart .l${i} { fill: none; stroke: var(--s${i}); stroke-width: 2; }`).join('\n')}`;
document.head.append(el('style', {}, CHART_STYLE));
const STRIPES = '<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="var(--card)"/><rect width="3" height="6" fill="var(--s1)"/></pattern></defs>';

function svg(width, height, label, body) {
  const holder = document.createElement('template');
  holder.innerHTML = `<svg xmlns="${SVG}" class="chart" viewBox="0 0 ${width} ${height}" role="img" aria-label="${escaped(label)}">${body}</svg>`;
  return holder.content.firstChild;
}
const text = (x, y, words, classes = '') => `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" class="${classes}">${escaped(words)}</text>`;
const line = (x1, y1, x2, y2, classes) => `<line x1="${x1.toFixed(1)}" y1="${y1.toFixed(1)}" x2="${x2.toFixed(1)}" y2="${y2.toFixed(1)}" class="${classes}"/>`;

// A figure for a paper: the light colours, whatever the page shows, and nothing outside the file.
function download(chart, name) {
  const copy = chart.cloneNode(true);
  const theme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = 'light';
  const style = getComputedStyle(document.documentElement);
  const names = ['ink', 'soft', 'paper', 'card', 'line', 'faint', 'accent', ...Array.from({ length: SERIES }, (_, i) => `s${i}`)];
  const colours = names.map(colour => `--${colour}:${style.getPropertyValue(`--${colour}`).trim()}`).join(';');
  document.documentElement.dataset.theme = theme;
  copy.setAttribute('style', `${colours};background:#fff`);
  const [, , width, height] = copy.getAttribute('viewBox').split(' ');
  copy.setAttribute('width', width);
  copy.setAttribute('height', height);
  copy.insertAdjacentHTML('afterbegin', `<style>${CHART_STYLE}</style>`);
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: 'image/svg+xml' }));
  const link = el('a', { href: url, download: `${name.toLowerCase().replace(/[^a-z0-9]+/g, '-')}.svg` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// A chart with its name, a word on how to read it, its SVG and its figures as a table.
// `chart` makes the SVG (to be downloaded), `body` what is shown if that is something else.
function card(title, note, { chart, body, table, tools = [], alone = false }) {
  const shown = body || chart();
  const save = chart && el('button', { type: 'button', class: 'small', onclick: () => download(body ? chart() : shown, title), 'aria-label': `Save ${title} as SVG` }, 'SVG');
  return el('section', { class: `card${alone ? ' alone' : ''}`, 'data-chart': title },
    el('header', {}, el('h3', {}, title), el('span', { class: 'tools' }, tools, save)),
    note && el('p', { class: 'note' }, note), shown, table && hidden('Figures as a table', table));
}

// ---- what tells series apart without colour

const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 4], [12, 4], [3, 3, 9, 3]];
function marker(i, x, y, r, classes = '') {
  const path = [
    `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
    `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    `M${x},${y - 1.25 * r}l${1.15 * r},${2.1 * r}h${-2.3 * r}z`,
    `M${x},${y - 1.35 * r}l${1.35 * r},${1.35 * r}l${-1.35 * r},${1.35 * r}l${-1.35 * r},${-1.35 * r}z`,
    `M${x},${y + 1.25 * r}l${1.15 * r},${-2.1 * r}h${-2.3 * r}z`,
    `M${x - r / 2.4},${y - r}h${r / 1.2}v${r / 1.7}h${r / 1.7}v${r / 1.2}h${-r / 1.7}v${r / 1.7}h${-r / 1.2}v${-r / 1.7}h${-r / 1.7}v${-r / 1.2}h${r / 1.7}z`,
    `M${x - r},${y - r / 2}l${r},${-r / 1.6}l${r},${r / 1.6}v${r}l${-r},${r / 1.6}l${-r},${-r / 1.6}z`,
    `M${x - 1.3 * r},${y - r / 2}h${2.6 * r}v${r}h${-2.6 * r}z`,
  ][i % SERIES];
  return `<path d="${path}" class="s${i % SERIES} ${classes}"/>`;
}
const dashes = i => (DASHES[i % SERIES].length ? ` stroke-dasharray="${DASHES[i % SERIES].join(' ')}"` : '');
function key(names) {
  return el('ul', { class: 'legend' }, names.map((name, i) => {
    const sample = `<line x1="0" x2="40" y1="8" y2="8" class="l${i % SERIES}"${dashes(i)}/>`;
    const mark = svg(40, 16, '', sample);
    mark.setAttribute('aria-hidden', 'true');
    return el('li', {}, mark, name);
  }));
}

// ---- theme: the system's until a reader says otherwise

const redrawn = new Set();
const systemDark = matchMedia('(prefers-color-scheme: dark)');
let theme = 'system';
const themeButton = document.getElementById('theme');
function applyTheme() {
  document.documentElement.dataset.theme = theme === 'system' ? (systemDark.matches ? 'dark' : 'light') : theme;
  themeButton.textContent = { system: '◐ System', light: '☀ Light', dark: '☾ Dark' }[theme];
  themeButton.setAttribute('aria-label', `Colours: ${theme}. Change`);
  for (const redraw of redrawn) redraw();
}
themeButton.addEventListener('click', () => {
  theme = { system: 'light', light: 'dark', dark: 'system' }[theme];
  applyTheme();
});
systemDark.addEventListener('change', applyTheme);
applyTheme();
