"""Find faults of a page that the browser shows: contrast, missing labels, content that does not fit
into the window, errors in the browser's log."""

from __future__ import annotations

from typing import Any

from support.webdriver import Browser

HOSTILE = '"><img src=x onerror="document.title=`owned`"><script>document.title=`owned`</script>'
"""A name or value that changes the page's title if a page does not escape it."""
LOOKS: dict[str, dict[str, Any]] = {
    "narrow": {"width": 390, "height": 844},
    "dark": {"dark": True},
    "light": {},
}
"""The arguments of ``Browser.show`` for each look in which a page is checked."""
CONTRAST_MIN = 4.5
FAULTS = """
const faults = [];
function numbers(text) { return text.match(/[\\d.]+/g).map(Number); }
function light([r, g, b]) {
  const part = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
}
function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const found = numbers(getComputedStyle(at).backgroundColor);
    if (found.length < 4 || found[3] > 0.99) return found;
  }
  return [255, 255, 255];
}
const contrastMin = arguments[0];
function check(element, text, pseudo) {
  const box = element.getBoundingClientRect();
  if (!text.trim() || box.width < 3) return;
  const colour = getComputedStyle(element, pseudo).color;
  const levels = [light(numbers(colour)), light(ground(element))];
  const ratio = (Math.max(...levels) + 0.05) / (Math.min(...levels) + 0.05);
  if (ratio < contrastMin) faults.push(`contrast ${ratio.toFixed(2)}: ${text.trim().slice(0, 40)}`);
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) check(walker.currentNode.parentElement, walker.currentNode.data);
for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
  if (!field.labels.length) faults.push(`no label: ${field.name}`);
  check(field, field.value);
  check(field, field.placeholder ?? "", "::placeholder");
}
for (const table of document.querySelectorAll("table")) {
  if (!table.caption) faults.push("a table without a caption");
}
for (const image of document.querySelectorAll("svg")) {
  const hidden = image.getAttribute("aria-hidden") === "true";
  if (!hidden && !image.getAttribute("aria-label")) faults.push("a picture without words");
}
function shown(element) { return element.getClientRects().length > 0; }
function words(element) {
  const own = element.getAttribute("aria-label") || element.textContent;
  return own.trim();
}
const controls = "a[href], button, summary";
for (const element of document.querySelectorAll(controls)) {
  if (!words(element)) faults.push(`no words: ${element.outerHTML.slice(0, 80)}`);
  if (element.parentElement.closest(controls)) faults.push("a control in another");
  if (element.closest("[aria-hidden=true]")) faults.push("a control that is hidden from readers");
}
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) faults.push(`two ids ${id}`);
for (const element of document.querySelectorAll("[aria-describedby]")) {
  if (!ids.includes(element.getAttribute("aria-describedby"))) faults.push("no description");
}
for (const element of document.querySelectorAll("[tabindex]")) {
  if (element.tabIndex > 0) faults.push("an order of focus of its own");
}
for (const element of document.querySelectorAll("main *, header *")) {
  const wide = element.scrollWidth > element.clientWidth + 1;
  const style = getComputedStyle(element);
  const scrolls = ["auto", "scroll"].includes(style.overflowX);
  const cuts = ["hidden", "clip"].includes(style.overflowX) && style.textOverflow !== "ellipsis";
  if (wide && cuts && element instanceof HTMLElement && !element.closest(".sr, input")) {
    faults.push(`cut off: ${element.outerHTML.slice(0, 80)}`);
  }
  if (wide && scrolls && shown(element) && element.tabIndex < 0 && !element.querySelector("a")) {
    faults.push(`the keyboard cannot scroll ${element.outerHTML.slice(0, 80)}`);
  }
}
for (const element of document.querySelectorAll("nav, [role=region]")) {
  if (!element.getAttribute("aria-label")) faults.push("a part of the page without a name");
}
let level = 0;
for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
  const now = Number(heading.tagName[1]);
  if (now > level + 1) faults.push(`h${now} after h${level}`);
  level = now;
}
if (!document.documentElement.lang) faults.push("no language");
if (document.querySelectorAll("main").length !== 1) faults.push("not one main");
if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
// Not innerWidth: a narrow window zooms out until it shows the whole width of the page.
const { scrollWidth, clientWidth } = document.documentElement;
if (scrollWidth > clientWidth) faults.push(`${scrollWidth} pixels wide, not ${clientWidth}`);
return faults;
"""


def faults_of(page: Browser, status: int = 200) -> list[str]:
    """Return the faults of the open page in every look; at the end the page is light and wide.

    ``status`` is the HTTP status that the page must have. With an error status, the browser's log
    has a line about it, which is not a fault."""
    faults = [] if page.status == status else [f"status {page.status}, not {status}"]
    for name, look in LOOKS.items():
        page.show(**look)
        faults += [f"{name}: {fault}" for fault in page.run(FAULTS, CONTRAST_MIN)]
    if "owned" in page.title:
        faults.append("a value ran as a script")
    expected = f"the server responded with a status of {status}"
    return faults + [line for line in page.complaints() if status == 200 or expected not in line]
