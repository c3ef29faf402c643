"use strict";
// Texts of rows are anybody's: they go into text nodes and attributes, never into HTML.
(() => {
  const perPage = 25, points = 150, timeline = 300e3, kept = 200;
  const $ = id => document.getElementById(id);
  let token = document.querySelector("meta[name=token]").content;
  const rows = new Map(); // by name
  const kinds = new Map(); // kind -> Map of its rows
  const unsorted = new Set(), order = new Intl.Collator("en", {numeric: true}); // 10 comes after 9
  let chosen = null, stream, fresh = true, skew = 0;
  try { chosen = decodeURIComponent(location.hash.slice(1)) || null; } catch { /* what somebody has typed */ }

  // el makes an element: el("p", {class: "quiet"}, "text", other).
  const svgNS = "http://www.w3.org/2000/svg";
  function el(tag, attrs, ...children) {
    const svg = /^(svg|path|circle|line|text|title|g)$/.test(tag);
    const e = svg ? document.createElementNS(svgNS, tag) : document.createElement(tag);
    for (const [k, v] of Object.entries(attrs || {})) if (v !== undefined && v !== false) e.setAttribute(k, v === true ? "" : v);
    e.append(...children.filter(c => c !== null && c !== undefined && c !== ""));
    return e;
  }
  // put replaces what is in e, if it has changed.
  function put(e, ...children) {
    const next = el("div", null, ...children);
    if (e.innerHTML !== next.innerHTML) e.replaceChildren(...next.childNodes);
  }
  let quiet;
  function say(text) {
    $("said").textContent = text;
    clearTimeout(quiet);
    quiet = setTimeout(() => { $("said").textContent = ""; }, 6000);
  }
  const all = kind => [...(kinds.get(kind) || new Map()).values()];
  const pill = (text, tone) => el("span", {class: "pill " + (tone || "")}, text);

  const number = n => n >= 1e6 ? (n / 1e6).toFixed(1) + " M" : n >= 1e4 ? (n / 1e3).toFixed(1) + " k" : n >= 100 || Number.isInteger(n) ? String(Math.round(n)) : n.toFixed(1);
  const bytes = n => n >= 1 << 30 ? (n / (1 << 30)).toFixed(1) + " GiB" : n >= 1 << 20 ? (n / (1 << 20)).toFixed(1) + " MiB" : n >= 1024 ? (n / 1024).toFixed(1) + " KiB" : Math.round(n) + " B";
  const span = s => s >= 1 ? s.toFixed(2) + " s" : s >= 1e-3 ? (s * 1e3).toFixed(1) + " ms" : Math.round(s * 1e6) + " µs";
  const percent = x => (100 * x).toFixed(x > 0 && x < .1 ? 2 : 1) + " %";
  const clock = at => new Date(at).toLocaleTimeString([], {hour12: false});
  function age(at) {
    if (!at) return "";
    const s = Math.max(0, (Date.now() + skew - new Date(at)) / 1000);
    return s < 60 ? Math.floor(s) + " s" : s < 3600 ? Math.floor(s / 60) + " min" : s < 86400 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
  }

  // A sheet shows rows as a table in pages. Its elements stay the same from one
  // moment to the next, and with them the focus.
  function sheet(name, label, columns, what) {
    const body = $(name + "-t").tBodies[0], shown = new Map();
    let at = 0;
    $(name + "-t").setAttribute("aria-label", label);
    $(name + "-t").tHead.append(el("tr", null, ...columns.map(c => el("th", {scope: "col"}, c.title))));
    const nav = $(name + "-n"), count = el("span", {class: "quiet num"});
    const turn = (text, by) => { const b = el("button", {type: "button"}, text); b.onclick = () => { at += by; draw(); }; return b; };
    const back = turn("Previous", -1), on = turn("Next", 1);
    function draw() {
      const list = what(), last = Math.max(0, Math.ceil(list.length / perPage) - 1);
      at = Math.min(Math.max(at, 0), last);
      const part = list.slice(at * perPage, (at + 1) * perPage), want = [];
      const live = new Set();
      for (const [key, row] of part) {
        let line = shown.get(key);
        if (!line) {
          line = el("tr", null, ...columns.map(c => el("td", {class: c.class, "data-label": c.title})));
          shown.set(key, line);
        }
        live.add(key);
        columns.forEach((c, i) => c.draw(line.cells[i], row, line));
        want.push(line);
      }
      for (const key of shown.keys()) if (!live.has(key)) shown.delete(key);
      if (want.length !== body.children.length || want.some((line, i) => body.children[i] !== line)) {
        const focus = document.activeElement;
        body.replaceChildren(...want);
        if (focus && focus.isConnected && focus !== document.body && document.activeElement !== focus) focus.focus();
      }
      if (nav) {
        if (last === 0) nav.replaceChildren();
        else if (!nav.firstChild) nav.append(back, count, on);
        count.textContent = `${list.length ? at * perPage + 1 : 0}–${at * perPage + part.length} of ${list.length}`;
        back.disabled = at === 0;
        on.disabled = at === last;
      }
    }
    return draw;
  }
  const col = (title, f, cls) => ({title, class: cls, draw: (td, row) => { const x = f(row); td.classList.toggle("empty", x === "" || x === null || x === undefined); put(td, x ?? ""); }});
  const finds = (id, ...texts) => { const q = $(id).value.trim().toLowerCase(); return !q || texts.some(t => t && t.toLowerCase().includes(q)); };

  const tones = {fresh: "good", stale: "warn", failing: "bad", unknown: "warn", ready: "good", failed: "bad", ejected: "bad", disabled: "warn", withdrawn: "warn", unprobed: "warn", weightless: "warn", unroutable: "warn", LIVE: "good", DRAINING: "warn", INITIALIZING: "warn"};
  const state = s => pill(s, tones[s]);
  // block is an element with one part below the other.
  const block = (...parts) => el("div", null, ...parts.filter(Boolean).map(p => el("div", null, p)));
  const small = (text, cls) => text ? el("span", {class: "small " + (cls || "quiet")}, text) : null;

  const drawClusters = sheet("clusters", "Clusters", [
    {title: "Cluster", draw: (td, c, line) => {
      if (!td.firstChild) { const b = el("button", {type: "button", class: "link"}); b.onclick = () => choose(b.textContent, true); td.append(b); }
      const b = td.firstChild;
      if (b.textContent !== c.name) b.textContent = c.name;
      b.setAttribute("aria-pressed", c.name === chosen);
      line.classList.toggle("chosen", c.name === chosen);
    }},
    col("Origin", c => c.origin),
    col("Ready", c => c.aggregate ? "" : pill(`${c.ready} of ${c.listed}`, c.listed && c.ready === c.listed ? "good" : c.ready ? "warn" : "bad"), "num"),
    col("Discovery", c => block(el("span", null, state(c.source.state), " ", small(c.source.since ? "for " + age(c.source.since) : "")), small(c.source.restored ? "of before the restart" : ""), small(c.source.error, "text-bad"))),
    col("Generation", c => block(String(c.generation), small(c.waiting || c.unsupported, "text-bad")), "num"),
    col("Open", c => number(c.active), "num"),
    col("Opened", c => number(c.opened), "num"),
    col("Failed dials", c => number(c.failed), "num"),
    col("Connect p50, p99", c => c.connect ? [.5, .99].map(q => span(quantile(q, c.connect))).join(", ") : "–", "num"),
  ], () => all("cluster").filter(c => finds("clusters-find", c.name, c.origin, c.source.state)).map(c => [c.name, c]));

  const listed = () => all("endpoint").filter(e => {
    const show = $("endpoints-show").value;
    return (!show || (show === "ready") === (e.state === "ready")) && finds("endpoints-find", e.address, e.state, e.zone, e.why);
  });
  const drawEndpoints = sheet("endpoints", "Endpoints", [
    col("Endpoint", e => block(el("span", {class: "mono"}, e.address), small([e.zone, e.priority ? "priority " + e.priority : ""].filter(Boolean).join(", ")))),
    col("State", e => block(el("span", null, state(e.state), e.degraded ? pill("degraded", "warn") : "", " ", small(e.since ? "for " + age(e.since) : "")), small(e.why))),
    col("Weight", e => String(e.weight), "num"),
    col("Open", e => number(e.active), "num"),
    col("Opened", e => number(e.opened), "num"),
    col("Failed dials", e => number(e.failed), "num"),
    {title: "Action", draw: (td, e) => {
      const agent = rows.get("agent|");
      if (!agent || !agent.enable) return;
      if (!td.firstChild) { const b = el("button", {type: "button"}); b.onclick = () => enable(b.dataset.address, b.dataset.to); td.append(b); }
      const b = td.firstChild, to = e.disabled ? "enable" : "disable";
      if (b.dataset.to === to && b.dataset.address === e.address) return;
      b.dataset.to = to;
      b.dataset.address = e.address;
      b.textContent = to === "enable" ? "Enable" : "Disable";
      b.setAttribute("aria-label", b.textContent + " " + e.address);
    }},
  ], () => listed().map(e => [e.address, e]));

  const drawListeners = sheet("listeners", "Listeners", [
    col("Listener", l => block(l.name, small(l.origin))),
    col("Address", l => el("span", {class: "mono"}, l.address || "–")),
    col("Cluster", l => l.cluster + (l.selector ? " / " + l.selector : "")),
    col("State", l => l.unsupported ? block(pill("closed", "bad"), small(l.unsupported, "text-bad")) : l.draining ? pill("draining", "warn") : pill("open", "good")),
    col("Open", l => number(l.active), "num"),
    col("Accepted", l => number(l.accepted), "num"),
    col("Not well ended", l => number(l.failed), "num"),
  ], () => all("listener").map(l => [l.name + "|" + l.address, l]));

  const drawTypes = sheet("control", "Resource types", [
    col("Type", t => t.name), col("Version", t => t.version ? el("span", {class: "mono"}, t.version) : ""), col("Resources", t => String(t.resources), "num"),
    col("Accepted", t => t.acked ? age(t.acked) + " ago" : ""), col("Refused", t => t.nacked ? block(age(t.nacked) + " ago", small(t.nack, "text-bad")) : ""),
  ], () => ((rows.get("control|") || {}).types || []).map(t => [t.name, t]));

  // quantile returns the time that a share of q of the connects did not exceed, of those
  // since there were the older counts; null if there are none. As forwarder.LatencyCounts.
  function quantile(q, counts, older) {
    const n = counts.map((c, i) => c - (older ? older[i] : 0)), sum = n.reduce((a, b) => a + b, 0), {bounds} = rows.get("agent|");
    if (sum <= 0 || n.some(c => c < 0)) return null; // a cluster has left, with its counts
    let below = 0, from = 0;
    for (let i = 0; i < bounds.length; i++) {
      if (n[i] > 0 && below + n[i] >= q * sum) return from + (bounds[i] - from) * (q * sum - below) / n[i];
      below += n[i];
      from = bounds[i];
    }
    return from;
  }

  // Graphs: one point for each moment that the agent tells of.
  const charts = [
    {title: "Connections open", of: a => a.active, text: number},
    {title: "New connections a second", of: (a, b, s) => (a.accepted - b.accepted) / s, text: number},
    {title: "Time to connect, p50 and p99", of: (a, b) => quantile(.5, a.connect, b.connect), also: (a, b) => quantile(.99, a.connect, b.connect), text: span},
    {title: "Bytes a second, both ways", of: (a, b, s) => (a.in + a.out - b.in - b.out) / s, text: n => bytes(n)},
  ].map(c => {
    const value = el("div", {class: "big"}, "–"), peak = el("div", {class: "quiet small"}, " ");
    const area = el("path", {class: "area"}), line = el("path", {class: "line"}), more = el("path", {class: "line more"});
    const svg = el("svg", {class: "spark", viewBox: "0 0 29 50", preserveAspectRatio: "none", role: "img"}, area, line, more);
    $("traffic").append(el("div", {class: "card"}, el("div", {class: "quiet small"}, c.title), value, svg, peak));
    return {...c, value, peak, area, line, more, svg, data: [], second: []};
  });
  let before;
  function measure(a) {
    const s = before ? (new Date(a.now) - new Date(before.now)) / 1000 : 0;
    if (before && s > 0 && a.started === before.started) for (const c of charts) {
      c.data.push(c.of(a, before, s));
      c.second.push(c.also ? c.also(a, before, s) : null);
      if (c.data.length > points) { c.data.shift(); c.second.shift(); }
      const top = Math.max(...c.data.map(x => x || 0), ...c.second.map(x => x || 0)), wide = Math.max(30, c.data.length), from = wide - c.data.length;
      const now = [c.data.at(-1), c.second.at(-1)].filter(x => x !== null).map(c.text).join(", ");
      c.value.textContent = now || "–";
      c.peak.textContent = "at most " + c.text(top);
      c.svg.setAttribute("aria-label", `${c.title}: now ${now || "none"}, at most ${c.text(top)}`);
      const at = (x, i) => `${from + i},${(48 - 46 * (x || 0) / (top || 1)).toFixed(1)}`;
      const path = data => data.map((x, i) => x === null ? "" : i && data[i - 1] !== null ? "L" + at(x, i) : `M${at(x, i)}h0`).join(""); // with gaps
      c.line.setAttribute("d", path(c.data));
      c.more.setAttribute("d", path(c.second));
      c.area.setAttribute("d", `M${from},50L${c.data.map(at).join("L")}L${wide - 1},50Z`);
      c.svg.setAttribute("viewBox", `0 0 ${wide - 1} 50`);
    }
    before = a;
  }

  // Rebuilds and changes of endpoints are told from one moment to the next.
  const rebuilds = [], seen = [];
  function compare(kind, was, is) {
    const now = Date.now() + skew;
    if (kind === "cluster") for (const s of is.selectors || []) {
      const old = ((was || {}).selectors || []).find(o => o.name === s.name);
      if (old ? s.rebuilds > old.rebuilds : was && s.rebuilds > 0) rebuilds.push({at: now, name: is.name + " / " + s.name, times: s.rebuilds - (old ? old.rebuilds : 0), generation: s.generation, queue: s.queue_seconds, build: s.build_seconds});
    }
    if (kind === "cluster" && was && was.source.state !== is.source.state) seen.push({at: now, level: is.source.state === "fresh" ? "INFO" : "WARN", text: `${is.name}: discovery was ${was.source.state} and is ${is.source.state}`});
    if (kind === "endpoint" && was && was.state !== is.state) seen.push({at: now, level: is.state === "ready" ? "INFO" : "WARN", text: `${chosen}: ${is.address} was ${was.state} and is ${is.state}${is.why ? ": " + is.why : ""}`});
    if (kind === "endpoint" && !was) seen.push({at: now, level: "INFO", text: `${chosen}: ${is.address} is new`});
    if (seen.length > kept) seen.splice(0, seen.length - kept);
    if (rebuilds.length > kept) rebuilds.splice(0, rebuilds.length - kept);
  }
  function drawRebuilds() {
    const now = Date.now() + skew, recent = rebuilds.filter(r => now - r.at < timeline);
    const names = [...new Set(recent.map(r => r.name))].sort().slice(0, 12);
    const wide = $("rebuilds").clientWidth || 600, high = names.length * 26 + 20, x = at => wide - 8 - (now - at) / timeline * (wide - 16);
    const longest = Math.max(1e-6, ...recent.map(r => r.build));
    const svg = el("svg", {viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `${recent.length} rebuilds in five minutes`});
    for (let m = 5; m >= 0; m--) {
      const at = x(now - m * 60e3);
      svg.append(el("line", {x1: at, x2: at, y1: 0, y2: high - 16}), el("text", {x: at, y: high - 3, "text-anchor": m === 0 ? "end" : m === 5 ? "start" : "middle"}, m ? `−${m} min` : "now"));
    }
    names.forEach((name, i) => {
      svg.append(el("text", {x: 8, y: i * 26 + 11}, name.length > 60 ? name.slice(0, 59) + "…" : name));
      for (const r of recent) if (r.name === name) svg.append(el("circle", {cx: x(r.at).toFixed(1), cy: i * 26 + 17, r: (2 + 5 * Math.sqrt(r.build / longest)).toFixed(1)}, el("title", null, `generation ${r.generation}, built in ${span(r.build)}`)));
    });
    put($("rebuilds"), svg);
    put($("rebuilds-l"), ...(recent.length ? recent.slice(-6).reverse().map(r => el("li", {class: "small"}, el("span", {class: "quiet num"}, clock(r.at) + " "), `${r.name}: generation ${r.generation}${r.times > 1 ? `, ${r.times} rebuilds, the last` : ""} waited ${span(r.queue)}, built in ${span(r.build)}`)) : [el("li", {class: "quiet small"}, "None since the page was opened.")]));
  }
  function drawLog() {
    const lines = [...all("log"), ...seen].map(l => ({...l, at: new Date(l.at)})).sort((a, b) => b.at - a.at).slice(0, kept);
    put($("log"), ...lines.map(l => el("li", {class: "small"}, el("span", {class: "quiet num"}, clock(l.at) + " "), l.level === "INFO" || l.level === "DEBUG" ? "" : pill(l.level.toLowerCase(), l.level === "ERROR" ? "bad" : "warn"), " ", l.text)));
  }

  // An endpoint has one colour in all pictures, of hues far from each other.
  const hues = new Map();
  const paint = parts => parts.slice(0, 12).map(p => {
    if (!hues.has(p.address)) hues.set(p.address, hues.size);
    const i = hues.get(p.address);
    return `oklch(${[0.66, 0.56, 0.74][i % 3]} 0.13 ${(i * 137.5 + 250) % 360})`;
  });
  function ringOf(s, colours) {
    const svg = el("svg", {viewBox: "-50 -50 100 100", role: "img", "aria-label": `Ring of ${s.selector}: who gets keys, from hash 0 at the top clockwise, ${s.ring.length} sectors`});
    const n = s.ring.length, at = (i, r) => `${(r * Math.sin(2 * Math.PI * i / n)).toFixed(2)},${(-r * Math.cos(2 * Math.PI * i / n)).toFixed(2)}`;
    for (let i = 0; i < n;) {
      let j = i + 1;
      while (j < n && s.ring[j] === s.ring[i]) j++;
      const big = j - i > n / 2 ? 1 : 0, end = j - i === n ? j - .01 : j;
      const p = el("path", {d: `M${at(i, 48)}A48,48 0 ${big} 1 ${at(end, 48)}L${at(end, 30)}A30,30 0 ${big} 0 ${at(i, 30)}Z`});
      p.style.fill = colours[s.ring[i]] || "var(--other)";
      if (s.ring[i] !== -1 && !colours[s.ring[i]]) p.style.opacity = [1, .75, .5][Math.abs(s.ring[i]) % 3];
      if (s.ring[i] >= 0) p.append(el("title", null, s.parts[s.ring[i]].address));
      svg.append(p);
      i = j;
    }
    return svg;
  }
  const drawn = new Map(); // shares, by selector: what was drawn of them
  function drawSelectors(cluster) {
    const cards = [];
    for (const sel of cluster.selectors || []) {
      const s = (kinds.get("shares") || new Map()).get("shares|" + sel.name), text = JSON.stringify([s, sel]);
      let card = drawn.get(sel.name);
      if (!card || card.text !== text) {
        const e = el("div", {class: "card"}, el("h3", null, sel.name + " ", el("span", {class: "quiet"}, sel.policy)),
          el("p", {class: "quiet small"}, `generation ${sel.generation}, ${sel.rebuilds} rebuild${sel.rebuilds === 1 ? "" : "s"}, the last in ${span(sel.build_seconds)} after ${span(sel.queue_seconds)}, ${bytes(sel.bytes)}` + (s && s.keys ? `; shares of ${s.keys} evenly spread keys` : "")));
        if (sel.panic) e.append(el("p", null, pill("panic: connections go to all endpoints", "bad")));
        if (sel.error) e.append(el("p", {class: "small text-bad"}, sel.error));
        if (s) {
          const colours = paint(s.parts), list = el("ul", {class: "shares"}), most = Math.max(...s.parts.map(p => p.share), 0) || 1;
          s.parts.slice(0, 12).forEach((p, i) => {
            const dot = el("span", {class: "dot"}), fill = el("span", {class: "fill"});
            dot.style.background = colours[i];
            fill.style.width = 100 * p.share / most + "%";
            list.append(el("li", {class: "small"}, dot, el("span", {class: "name"}, fill, el("span", {class: "mono"}, p.address)), el("span", {class: "sum num"}, percent(p.share))));
          });
          const more = s.parts.slice(12), others = more.length + (s.others || 0), rest = more.reduce((sum, p) => sum + p.share, s.rest || 0);
          if (others) list.append(el("li", {class: "small quiet"}, el("span", {class: "dot"}), el("span", {class: "name"}, `${others} others`), el("span", {class: "sum num"}, percent(rest))));
          if (!s.parts.length) list.append(el("li", {class: "small"}, el("span", {class: "dot"}), el("span", null, "nobody takes connections"), ""));
          e.append(el("div", {class: s.ring ? "pick ring" : "pick"}, s.ring ? ringOf(s, colours) : null, list));
        }
        card = {text, e};
        drawn.set(sel.name, card);
      }
      cards.push(card.e);
    }
    const box = $("selectors");
    if (cards.length !== box.children.length || cards.some((c, i) => box.children[i] !== c)) box.replaceChildren(...cards);
  }
  function drawDetail() {
    const c = rows.get("cluster|" + chosen);
    $("detail").hidden = !c;
    if (!c) return;
    $("detail-h").textContent = c.name;
    const line = s => el("p", {class: "small"}, el("strong", null, s.kind || "discovery"), " ", state(s.state), " ",
      el("span", {class: "quiet"}, [s.since ? `for ${age(s.since)}` : "", s.confirmed ? `confirmed ${age(s.confirmed)} ago` : "", `updates ${s.updates}`, s.kind ? `endpoints ${s.endpoints || 0}` : "", s.restored ? "of before the restart" : ""].filter(Boolean).join(", ")), s.error ? el("span", {class: "text-bad"}, " " + s.error) : "");
    put($("sources"), c.aggregate ? el("p", null, "An aggregate of " + c.aggregate.join(", ")) : line(c.source), ...(c.blocks || []).map(line), c.waiting ? el("p", {class: "text-bad small"}, c.waiting) : "");
    drawSelectors(c);
    const eps = all("endpoint");
    $("endpoints-count").textContent = `${eps.filter(e => e.state === "ready").length} of ${eps.length} ready`;
    drawEndpoints();
  }
  function draw() {
    const a = rows.get("agent|");
    if (a) {
      document.title = `gatehouse ${a.node}`;
      $("about").textContent = `${a.node}, ${a.version}, up for ${age(a.started)}`;
      $("state").textContent = a.state;
      $("state").className = "pill " + (tones[a.state] || "");
      $("drain").hidden = !a.drain || a.state === "DRAINING";
      put($("notes"), ...[...(a.waiting || []), ...(a.restored || [])].map(t => el("p", {class: "note"}, t)));
    }
    drawClusters();
    drawDetail();
    drawListeners();
    const x = rows.get("control|");
    $("control").hidden = !x;
    if (x) {
      put($("control-p"), el("span", {class: "mono"}, x.server), " ", x.connected ? pill("connected", "good") : pill("not connected", "bad"), " ", small("for " + age(x.since)), " ", small(!x.connected && x.error, "text-bad") || "");
      drawTypes();
    }
    drawRebuilds();
    drawLog();
  }

  function take(e) {
    for (const name of e.gone || []) {
      const kind = name.slice(0, name.indexOf("|")), row = rows.get(name);
      if (kind === "endpoint") seen.push({at: Date.now() + skew, level: "INFO", text: `${chosen}: ${row.address} is gone`});
      rows.delete(name);
      kinds.get(kind).delete(name);
    }
    for (const [name, row] of Object.entries(e.set || {})) {
      const kind = name.slice(0, name.indexOf("|"));
      if (kind === "agent") {
        skew = new Date(row.now) - Date.now();
        if (before && before.started !== row.started) renew();
      }
      if (!fresh) compare(kind, rows.get(name), row);
      if (!rows.has(name)) unsorted.add(kind);
      rows.set(name, row);
      if (kind === "agent") measure(row);
      if (!kinds.has(kind)) kinds.set(kind, new Map());
      kinds.get(kind).set(name, row);
    }
    if (e.more) return;
    fresh = false;
    for (const kind of unsorted) if (kinds.has(kind)) kinds.set(kind, new Map([...kinds.get(kind)].sort((a, b) => order.compare(a[0], b[0]))));
    unsorted.clear();
    if (!rows.has("cluster|" + chosen)) {
      const first = all("cluster")[0];
      if (first && first.name !== chosen) { choose(first.name); return; }
    }
    draw();
  }
  const link = (text, tone) => { const e = $("link"); if (e.textContent !== text) { e.textContent = text; e.className = "pill " + tone; } };
  let again;
  function connect() {
    if (stream) stream.close();
    clearTimeout(again);
    let whole = true;
    stream = new EventSource("events?cluster=" + encodeURIComponent(chosen || ""));
    stream.onopen = () => link("connected", "good");
    stream.onmessage = m => {
      if (whole) { rows.clear(); kinds.clear(); drawn.clear(); hues.clear(); fresh = true; whole = false; }
      take(JSON.parse(m.data));
    };
    stream.onerror = () => { // the agent is gone, or too many look
      link("disconnected, trying again", "bad");
      $("state").textContent = "";
      stream.close();
      again = setTimeout(connect, 2000);
    };
  }
  function choose(name, move) {
    if (name !== chosen) {
      chosen = name;
      history.replaceState(null, "", "#" + encodeURIComponent(name));
      connect();
    }
    if (move) { $("detail").scrollIntoView({block: "start"}); }
  }

  // renew takes over the token of an agent that has started anew.
  async function renew() {
    try {
      const page = new DOMParser().parseFromString(await (await fetch("./")).text(), "text/html");
      token = page.querySelector("meta[name=token]").content;
    } catch { /* it is gone again: the next one has one too */ }
  }
  async function act(path, done) {
    try {
      const r = await fetch(path, {method: "POST", headers: {"X-Gatehouse-Token": token}});
      say(r.ok ? done : await r.text());
    } catch (err) {
      say(String(err));
    }
  }
  const enable = (address, to) => act(`endpoints/${encodeURIComponent(chosen)}/${encodeURIComponent(address)}/${to}`, `${address} is ${to}d`);
  $("drain").onclick = () => $("ask").showModal();
  $("ask-no").onclick = () => $("ask").close();
  $("ask-yes").onclick = () => { $("ask").close(); act("drain_listeners?graceful", "The listeners drain."); };
  for (const id of ["clusters-find", "endpoints-find", "endpoints-show"]) $(id).addEventListener("input", draw);
  connect();
})();
