// The report page in a real browser. The stage `browser` of .ci/run makes the pages and says where they are:
//
//   SYNTHETIC  the page of 10,000 compactions    LONG  of 40,000, thinned out    RUN  of a small real run    COMPARE  of `compare`    INSPECT  of `inspect --html`
//   SHOTS      a folder for screenshots, if wanted

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

const PAGES = ['RUN', 'SYNTHETIC', 'COMPARE', 'INSPECT'].filter(name => process.env[name]);
const addressOf = name => pathToFileURL(process.env[name]).href;
let browser;

before(async () => {
  assert.ok(PAGES.length, 'name pages in RUN, SYNTHETIC, COMPARE or INSPECT');
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run'],
  });
});
after(() => browser && browser.close());

// Opens a page, runs `look` on it, and fails on anything that the console or the network has seen meanwhile.
async function open(name, { width = 1280, colorScheme = 'light', hash = '' }, look) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
  const page = await context.newPage();
  const troubles = [];
  page.on('console', message => troubles.push(`console ${message.type()}: ${message.text()}`));
  page.on('pageerror', error => troubles.push(`error: ${error.stack}`));
  page.on('request', request => { if (!/^(file|blob|data):/.test(request.url())) troubles.push(`request: ${request.url()}`); });
  await page.goto(addressOf(name) + hash);
  await page.waitForSelector('html[data-ready]');
  await look(page);
  assert.deepEqual(troubles, []);
  await context.close();
}

const views = page => page.$$eval('#views a', links => links.map(link => link.getAttribute('href')));
const visit = async (page, href) => {
  await page.click(`#views a[href="${href}"]`);
  await page.waitForSelector(`#views a[href="${href}"][aria-current]`);
};

// Scrolls through the view, so that whatever waits for being seen is drawn.
async function scrollThrough(page) {
  await page.evaluate(async () => {
    for (let y = 0; y < document.body.scrollHeight; y += 500) {
      scrollTo(0, y);
      await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    }
    scrollTo(0, 0);
  });
}

// Names of the charts of a view that show nothing: an SVG without marks, a plot whose canvas is blank.
const blankCharts = page => page.$$eval('[data-chart]', cards => cards.filter(card => {
  const plot = card.querySelector('.plot');
  if (plot) {
    const canvas = plot.querySelector('canvas');
    return !canvas || !new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer).some(Boolean);
  }
  const svg = card.querySelector('svg.chart');
  return !svg || !svg.querySelector('rect, path, circle') || svg.getBoundingClientRect().width < 50 || /NaN|Infinity|undefined/.test(svg.outerHTML);
}).map(card => card.dataset.chart));

for (const name of PAGES) {
  test(`${name}: every chart of every view is drawn, at desk and phone width, light and dark`, async () => {
    for (const [width, colorScheme] of [[1280, 'light'], [390, 'dark']]) {
      await open(name, { width, colorScheme }, async page => {
        const all = await views(page);
        for (const href of all.length ? all : ['']) {
          if (href) await visit(page, href);
          await scrollThrough(page);
          const charts = await page.$$eval('[data-chart]', cards => cards.length);
          if (name !== 'INSPECT' || !href.includes('overview')) assert.ok(charts > 0, `${href} has charts`);
          assert.deepEqual(await blankCharts(page), [], `${name} ${href} at ${width}`);
          const reach = await page.evaluate(() => { scrollTo(9999, 0); const x = scrollX; scrollTo(0, 0); return x; });
          assert.equal(reach, 0, `${name} ${href} scrolls sideways at ${width}`);
          if (process.env.SHOTS) {
            const file = `${process.env.SHOTS}/${name}-${width}-${href.replace(/[^a-z0-9-]+/gi, '_')}.png`;
            await page.screenshot({ path: file, fullPage: true });
          }
        }
      });
    }
  });
}

for (const name of PAGES.filter(name => ['RUN', 'SYNTHETIC'].includes(name))) {
  test(`${name}: the slider, the keys and the list move the tree`, async () => {
    await open(name, {}, async page => {
      const href = (await views(page)).find(href => href.startsWith('#of/'));
      await visit(page, href);
      const picture = () => page.$eval('.tree .picture', node => node.innerHTML);
      const at = () => page.$eval('.tree input[type=range]', node => Number(node.value));
      const last = await at();
      assert.ok(last > 5, 'the tree has changed now and then');
      const seen = new Set([await picture()]);
      await page.focus('.tree input[type=range]');
      for (const key of ['Home', 'ArrowRight', 'ArrowRight', '.']) {
        await page.keyboard.press(key);
        seen.add(await picture());
      }
      assert.equal(await at(), 3);
      assert.ok(seen.size >= 4, 'the picture follows');
      assert.ok(await page.$$eval('.tree .picture .new, .tree .picture .taken', nodes => nodes.length) > 0, 'inputs or outputs are marked');
      assert.match(await page.$eval('.tree input[type=range]', node => node.getAttribute('aria-valuetext')), /change 4 of/);

      await page.selectOption('.tree .list select', 'merge');
      await page.click('.tree .list tbody button >> nth=1');
      assert.match(await page.textContent('.tree .now strong'), /^merge L\d+ → L\d+/);
      assert.match(await page.textContent('.tree .now'), /≥|asked for/, 'the rule, its value and its threshold');
      if (await page.$('.tree .now details')) {
        await page.click('.tree .now summary');
        await page.waitForSelector('.tree .now tbody tr');
        assert.match(await page.textContent('.tree .now tbody'), /taken/);
      }

      await page.click('.tree button[title="To the begin"]');
      await page.selectOption('.tree .controls select', '50');
      await page.click('.tree .controls .main');
      await page.waitForFunction(() => Number(document.querySelector('.tree input[type=range]').value) > 3);
      await page.click('.tree .strip svg', { position: { x: 600, y: 20 } });
      assert.match(await page.textContent('.tree .controls .main'), /Play/, 'a click into the strip ends the play');
    });
  });

  test(`${name}: two strategies are compared`, async () => {
    await open(name, { hash: '#compare' }, async page => {
      const names = await page.$eval('#pick select', select => [...select.options].map(choice => choice.text));
      await page.selectOption('#pick select >> nth=0', '1');
      await page.selectOption('#pick select >> nth=1', '0');
      assert.equal(await page.textContent('.figures thead th >> nth=1'), names[1]);
      assert.equal(await page.textContent('.figures thead th >> nth=2'), names[0]);
      const verdicts = await page.$$eval('.figures tbody tr', rows => rows.map(row => row.textContent));
      assert.ok(verdicts.some(text => /%.*(better|worse)/.test(text)));
      const pictures = () => page.$$eval('.pair .picture', nodes => nodes.map(node => node.innerHTML));
      const before = await pictures();
      assert.equal(before.length, 2);
      await page.focus('input[aria-label="Time of both trees"]');
      await page.keyboard.press('Home');
      const now = await pictures();
      assert.ok(now[0] !== before[0] && now[1] !== before[1], 'both trees follow one slider');
    });
  });

  test(`${name}: the table sorts, axes change, a chart is saved, the colours switch`, async () => {
    await open(name, {}, async page => {
      await page.click('.figures thead button:has-text("Write amplification")');
      const sorted = await page.$$eval('.figures tbody tr', rows => rows.map(row => parseFloat(row.children[2].textContent.replace('★', ''))));
      assert.deepEqual(sorted, [...sorted].sort((a, b) => a - b));
      assert.ok(await page.$('.figures th[aria-sort=ascending]'));

      const before = await page.$eval('#trade-off svg.chart', node => node.outerHTML);
      await page.selectOption('#trade-off select >> nth=0', { label: 'Throughput' });
      assert.notEqual(await page.$eval('#trade-off svg.chart', node => node.outerHTML), before);

      const [saved] = await Promise.all([page.waitForEvent('download'), page.click('#trade-off button.small')]);
      assert.equal(saved.suggestedFilename(), 'the-trade-off.svg');
      const { readFile } = await import('node:fs/promises');
      const image = await readFile(await saved.path(), 'utf8');
      assert.match(image, /^<svg[^>]*xmlns/);
      assert.match(image, /--ink:\s*#/, 'it brings its colours along');

      const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const light = await paper();
      await page.click('#theme');
      await page.click('#theme');
      assert.notEqual(await paper(), light);
      await scrollThrough(page);
      assert.deepEqual(await blankCharts(page), []);
    });
  });
}

for (const name of PAGES.filter(name => ['RUN', 'SYNTHETIC'].includes(name))) {
  test(`${name}: the machine is told, and a noisy one is marked`, async () => {
    await open(name, {}, async page => {
      const rows = await page.$$eval('.machine tbody tr', rows => rows.map(row => row.textContent));
      assert.ok(rows.length >= 2, 'a row a trial');
      assert.equal(rows.filter(text => text.includes('⚠')).length, name === 'SYNTHETIC' ? 1 : 0, rows.join('\n'));
      assert.match(await page.textContent('#view'), /Processor/);
    });
  });
}

test('LONG: what is left out of a long history is told, and the tree still moves', { skip: !process.env.LONG }, async () => {
  await open('LONG', {}, async page => {
    assert.match(await page.textContent('.notice'), /up to \d+ successive changes of a tree are shown as one/);
    await visit(page, '#of/toy-leveling');
    assert.match(await page.textContent('.tree .list'), /smaller ones are left out of the page/);
    const before = await page.$eval('.tree .picture', node => node.innerHTML);
    await page.focus('.tree input[type=range]');
    await page.keyboard.press('Home');
    assert.notEqual(await page.$eval('.tree .picture', node => node.innerHTML), before);
    await scrollThrough(page);
    assert.deepEqual(await blankCharts(page), []);
  });
});

test('10,000 compactions: the page answers within two seconds', { skip: !process.env.SYNTHETIC }, async () => {
  const times = [];
  for (let i = 0; i < 3; i += 1) {
    await open('SYNTHETIC', { hash: '#of/toy-leveling' }, async page => {
      // From the click on the link to a slider that has moved the tree.
      await page.keyboard.press('Tab');
      await page.focus('.tree input[type=range]');
      await page.keyboard.press('ArrowLeft');
      await page.waitForFunction(() => /change \d+ of/.test(document.querySelector('.tree .when').textContent));
      times.push(await page.evaluate(() => performance.now()));
    });
  }
  times.sort((a, b) => a - b);
  console.log(`interactive after ${times.map(Math.round).join(', ')} ms`);
  assert.ok(times[1] < 2000, `${times} ms`);
});
