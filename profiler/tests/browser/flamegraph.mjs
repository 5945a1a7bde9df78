// Opens a flame graph in Chromium and uses it as a person would.
//
//   node flamegraph.mjs FLAMEGRAPH.svg [SCREENSHOT.png]
//
// CHROMIUM names the browser (default: /usr/bin/chromium). Exits 1 and says what is wrong if anything is.

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

const [svg, screenshot] = process.argv.slice(2);
if (!svg) {
  console.error('usage: node flamegraph.mjs FLAMEGRAPH.svg [SCREENSHOT.png]');
  process.exit(2);
}
const url = pathToFileURL(resolve(svg)).href;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: [
    '--headless',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
  ],
});

let checks = 0;
async function check(what, test) {
  await test();
  checks += 1;
  console.log(`ok ${checks} - ${what}`);
}

try {
  const page = await browser.newPage({ viewport: { width: 1280, height: 720 } });
  const complaints = [];
  page.on('console', (message) => {
    if (['error', 'assert'].includes(message.type())) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));

  // The frames as they are drawn now: hidden ones are left out.
  const frames = () =>
    page.evaluate(() =>
      [...document.querySelectorAll('#frames > *')]
        .filter((group) => !group.classList.contains('hide'))
        .map((group) => {
          const box = group.querySelector('rect').getBoundingClientRect();
          return {
            title: group.querySelector('title').textContent,
            label: group.querySelector('text').textContent,
            fill: group.querySelector('rect').getAttribute('fill'),
            x: box.x,
            y: box.y,
            width: box.width,
            height: box.height,
          };
        }),
    );
  const text = (id) => page.evaluate((name) => document.getElementById(name).textContent.trim(), id);
  const settled = () => page.waitForTimeout(50);

  await page.goto(url);
  await settled();
  const whole = await frames();
  const root = whole.find((frame) => frame.title.startsWith('all ('));
  if (screenshot) {
    // Asked of the browser itself: playwright's own screenshots wait for parts of an HTML page that an SVG lacks.
    const session = await page.context().newCDPSession(page);
    const { data } = await session.send('Page.captureScreenshot', { format: 'png' });
    await writeFile(screenshot, Buffer.from(data, 'base64'));
  }

  await check('it fills the window and is well formed', async () => {
    assert.ok(root, 'there is a frame for all samples');
    assert.ok(root.width > 1200, `the root is ${root.width} wide`);
    assert.equal(await page.evaluate(() => document.querySelector('parsererror')), null);
  });

  await check('title, subtitle and legend are visible, whole and not on top of each other', async () => {
    const boxes = await page.evaluate(() =>
      ['title', 'subtitle', 'legend'].map((id) => {
        const { left, right, top, bottom } = document.getElementById(id).getBoundingClientRect();
        return { id, left, right, top, bottom };
      }),
    );
    const highest = Math.min(...whole.map((frame) => frame.y));
    for (const [index, box] of boxes.entries()) {
      assert.ok(box.left >= 0 && box.right <= 1280, `${box.id} is clipped: ${JSON.stringify(box)}`);
      assert.ok(box.right - box.left > 20, `${box.id} is empty`);
      const below = boxes[index + 1]?.top ?? highest;
      assert.ok(box.bottom <= below + 3, `${box.id} touches what is below it`);
    }
    assert.match(await text('subtitle'), /open in a browser: click to zoom, Ctrl\+F to search/);
  });

  await check('a tooltip carries samples and share, and for Python the file', async () => {
    for (const frame of whole) {
      assert.match(frame.title, /\((.*, )?[\d,]+ samples, [\d.]+%\)$/);
    }
    if ((await text('legend')).includes('Python')) {
      assert.ok(whole.some((frame) => /\.py\) \(\/.*\.py, [\d,]+ samples, [\d.]+%\)$/.test(frame.title)));
    }
  });

  await check('wide frames are labelled with the function, not with the tooltip', async () => {
    const wide = whole.filter((frame) => frame.width > 300 && frame !== root);
    assert.ok(wide.length > 0);
    for (const frame of wide) {
      assert.ok(frame.label.length > 3 && frame.title.startsWith(frame.label.replace(/\.\.$/, '').trim()), frame.title);
      assert.doesNotMatch(frame.label, /samples/);
    }
  });

  await check('the mouse shows a frame’s facts', async () => {
    const frame = whole.find((candidate) => candidate.width > 100 && candidate !== root);
    await page.mouse.move(frame.x + frame.width / 2, frame.y + frame.height / 2);
    assert.match(await text('details'), /^Function: .*samples/);
  });

  // A frame narrower than all of the picture and wide enough to be hit, that has something on top of it.
  const target = whole
    .filter((frame) => frame.width > 40 && frame.width < root.width * 0.6)
    .sort((a, b) => b.y - a.y)[0];

  await check('a click zooms in', async () => {
    await page.mouse.click(target.x + target.width / 2, target.y + target.height / 2);
    await settled();
    const zoomed = await frames();
    const same = zoomed.find((frame) => frame.title === target.title && Math.abs(frame.y - target.y) < 1);
    assert.ok(same.width > root.width * 0.99, `it is ${same.width} wide after the click`);
    assert.ok(zoomed.length <= whole.length);
  });

  await check('“Reset Zoom” restores the picture', async () => {
    await page.click('#unzoom');
    await page.mouse.move(1, 1);
    await settled();
    assert.deepEqual(await frames(), whole);
  });

  const term = target.title.split(' ')[0].replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

  await check('Ctrl+F searches, marks and says how much matched', async () => {
    page.once('dialog', (dialog) => dialog.accept(term));
    await page.keyboard.press('Control+f');
    await settled();
    assert.match(await text('matched'), /^Matched: [\d.]+%$/);
    const marked = (await frames()).filter((frame) => frame.fill === 'rgb(230,0,230)');
    assert.ok(marked.length > 0);
    assert.ok(marked.every((frame) => new RegExp(term).test(frame.title)));
  });

  await check('the search can be taken back', async () => {
    await page.click('#search');
    await page.mouse.move(1, 1);
    await settled();
    assert.deepEqual(await frames(), whole);
  });

  await check('a link can carry a search', async () => {
    await page.goto(`${url}?s=${encodeURIComponent(term)}`);
    await settled();
    assert.match(await text('matched'), /^Matched: [\d.]+%$/);
  });

  await check('a narrow window shortens the labels', async () => {
    await page.goto(url);
    await page.setViewportSize({ width: 500, height: 720 });
    await settled();
    for (const frame of await frames()) assert.ok(frame.x + frame.width <= 501);
  });

  await check('the console stays silent', async () => assert.deepEqual(complaints, []));
} catch (error) {
  console.error(`not ok ${checks + 1} - ${error.message ?? error}`);
  process.exitCode = 1;
} finally {
  await browser.close();
}
