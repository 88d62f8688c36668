"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const time = (us) => us == null ? "-" : us < 1e3 ? us.toFixed(0) + " us" : us < 1e6 ? (us / 1e3).toFixed(1) + " ms" : (us / 1e6).toFixed(1) + " s";
  const rate = (value) => value >= 100 ? value.toFixed(0) : value.toFixed(1);
  const span = (s) => s < 60 ? s + " s" : s < 3600 ? Math.floor(s / 60) + " min " + s % 60 + " s" :
    s < 86400 ? Math.floor(s / 3600) + " h " + Math.floor(s / 60) % 60 + " min" : Math.floor(s / 86400) + " d " + Math.floor(s / 3600) % 24 + " h";
  const reads = {
    requests: [(p) => p.requests_per_second],
    errors: [(p) => p.errors_per_second],
    p50: [(p) => p.added_us && p.added_us.p50, (p) => p.upstream_us && p.upstream_us.p50],
    p99: [(p) => p.added_us && p.added_us.p99, (p) => p.upstream_us && p.upstream_us.p99],
  };
  const shown = { requests: (v) => rate(v) + "/s", errors: (v) => rate(v) + "/s", p50: time, p99: time };
  const hour = document.body.dataset.span === "hour";
  let points = [];

  const draw = () => {
    for (const svg of document.querySelectorAll("svg[data-series]")) {
      const name = svg.dataset.series;
      const lists = reads[name].map((read) => points.map((p) => read(p) || 0));
      const top = Math.max(1e-9, ...lists.flat());
      svg.querySelectorAll("polyline").forEach((line, index) => {
        const list = lists[index] || [];
        const step = 600 / Math.max(1, list.length - 1);
        line.setAttribute("points", list.map((v, at) => (at * step).toFixed(1) + "," + (116 - v / top * 110).toFixed(1)).join(" "));
      });
      const top_text = svg.parentNode.querySelector(".top");
      if (top_text) top_text.textContent = shown[name](top < 1e-6 ? 0 : top);
    }
  };
  const text = (id, value) => { const element = $(id); if (element && element.textContent !== value) element.textContent = value; };

  fetch("history").then((answer) => answer.json()).then((history) => {
    points = hour ? history.hour : history.minute;
    draw();
  }).catch(() => {});

  const stream = new EventSource("events?overview=1&requests=1");
  stream.onopen = () => text("live", "live");
  stream.onerror = () => text("live", "not connected: these figures are old");
  stream.addEventListener("second", (event) => {
    const now = JSON.parse(event.data), point = now.point;
    text("live", "live");
    text("verdict", now.verdict.text);
    $("verdict").className = now.verdict.who;
    text("uptime", span(now.uptime_seconds));
    text("now-requests", rate(point.requests_per_second) + "/s");
    text("now-errors", rate(point.errors_per_second) + "/s");
    text("now-added", time(point.added_us && point.added_us.p50) + " / " + time(point.added_us && point.added_us.p99));
    text("now-upstream", time(point.upstream_us && point.upstream_us.p50) + " / " + time(point.upstream_us && point.upstream_us.p99));
    text("now-open", String(point.connections_open));
    text("now-pending", String(point.pending));
    if (!hour) {
      points.push(point);
      points = points.slice(-60);
      draw();
    }
  });
  stream.addEventListener("request", (event) => {
    const body = $("tail"), seen = JSON.parse(event.data), row = document.createElement("tr");
    const cells = [new Date(seen.unix_ms).toISOString().slice(11, 23), seen.status || "-", seen.reason || (seen.status >= 500 ? "error" : seen.grpc_status && seen.grpc_status !== "OK" ? seen.grpc_status : "slow"),
      (seen.method + " " + seen.host + seen.path).trim() || (seen.cluster ? "(TCP)" : "(malformed or incomplete)"), seen.route || seen.listener, seen.endpoint || "-", String(seen.attempts),
      time(seen.added_us), time(seen.upstream_us), seen.client];
    for (const value of cells) row.appendChild(document.createElement("td")).textContent = value;
    body.insertBefore(row, body.firstChild);
    while (body.children.length > 100) body.lastChild.remove();
  });
  stream.addEventListener("passed_over", (event) => text("passed", event.data + " more in the last second"));

  // The tables come from the server as they are, so that this script needs to know nothing about them.
  setInterval(() => {
    if (document.visibilityState !== "visible") return;
    const here = new URL(location.href);
    // The other replicas are only asked when somebody wants it.
    here.searchParams.delete("replicas");
    fetch(here, { headers: { accept: "text/html" } }).then((answer) => answer.ok ? answer.text() : "").then((html) => {
      const page = html && new DOMParser().parseFromString(html, "text/html");
      if (!page) return;
      for (const part of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(part.id);
        if (fresh && !part.contains(document.activeElement) && !part.querySelector("details[open]")) part.replaceChildren(...fresh.childNodes);
      }
    }).catch(() => {});
  }, 5000);
})();
