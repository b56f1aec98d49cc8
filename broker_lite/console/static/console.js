// Conveniences over pages that work without them: refresh, copying, a key for the search.
"use strict";

const REFRESH_MS = 5000;
let refreshing = false;

// Replace the parts of the page that the sampler feeds. What the user works in stays, and so
// does a page marked as still: each view of it is a search.
async function refresh() {
  if (refreshing) return;
  refreshing = true;
  try { await replaceParts(); } finally { refreshing = false; }
}

async function replaceParts() {
  const parts = document.querySelectorAll("[data-live]");
  if (document.hidden || parts.length === 0 || document.querySelector("[data-still]")) return;
  let answer;
  try {
    answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Logbus-Refresh": "1" } });
  } catch {
    return warn("The console does not answer. Is 'logbus console' running?");
  }
  if (answer.redirected) return location.reload();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!answer.ok) {
    const reason = fresh.querySelector("main .card p");
    return warn(reason ? reason.textContent : "The page cannot be refreshed.");
  }
  warn("");
  for (const part of parts) {
    const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (!next || part.contains(document.activeElement) || part.isEqualNode(next)) continue;
    const left = part.scrollLeft;
    part.replaceWith(next);
    next.scrollLeft = left;
  }
}

function warn(text) {
  let line = document.getElementById("warning");
  if (!text) return line?.remove();
  if (!line) {
    line = document.createElement("div");
    line.id = "warning";
    line.className = "banner warn";
    line.setAttribute("role", "alert");
    document.getElementById("main").prepend(line);
  }
  line.textContent = text;
}

function copying() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
}

document.addEventListener("keydown", (event) => {
  const search = document.querySelector("input[type=search]");
  if (event.key !== "/" || !search || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  search.focus();
});

// A narrow window shows only some sections of the navigation: scroll it to the current one.
document.querySelector(".rail [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

copying();
setInterval(refresh, REFRESH_MS);

// The live tail: the server sends rows as it shows them; the newest come first.
const TAIL_ROWS = 500;

function tailing() {
  const button = document.getElementById("tail");
  const body = document.querySelector("#records tbody");
  if (!button || !body || !window.EventSource) return;
  button.hidden = false;
  let source = null, last = "", skipped = 0, seen = 0, wanted = false;

  function open() {
    const fields = new URLSearchParams(location.search);
    const kept = new URLSearchParams();
    for (const name of ["partition", "key", "text", "header"]) {
      if (fields.get(name)) kept.set(name, fields.get(name));
    }
    if (last) kept.set("after", last);
    source = new EventSource(`${button.dataset.tail}?${kept}`);
    source.onmessage = (event) => {
      last = event.lastEventId;
      const update = JSON.parse(event.data);
      const holder = document.createElement("template");
      holder.innerHTML = update.html;
      const rows = [...holder.content.querySelectorAll("tr")];
      for (const row of rows) { row.classList.add("fresh"); body.prepend(row); }
      while (body.rows.length > TAIL_ROWS) body.lastElementChild.remove();
      document.getElementById("empty")?.remove();
      seen += rows.length;
      skipped += update.skipped;
      say();
    };
    source.addEventListener("begun", (event) => { last = event.lastEventId; });
    source.addEventListener("ended", (event) => { stop(); warn(JSON.parse(event.data)); });
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) {
        stop();
        warn("The live tail ended: too many run already, or you may no longer read the topic.");
      }
    };
  }

  function close() { source?.close(); source = null; }

  function stop() {
    wanted = false;
    close();
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Live tail";
  }

  function say() {
    const more = skipped ? `, ${skipped.toLocaleString("en")} skipped` : "";
    button.textContent = `Stop the tail (${seen.toLocaleString("en")} new${more})`;
  }

  button.addEventListener("click", () => {
    if (wanted) return stop();
    wanted = true;
    last = "";
    seen = skipped = 0;
    button.setAttribute("aria-pressed", "true");
    say();
    open();
  });
  document.addEventListener("visibilitychange", () => {
    if (!wanted) return;
    if (document.hidden) close(); else if (!source) open();
  });
}

tailing();
