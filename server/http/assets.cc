// What the pages look like, and what keeps them fresh. Everything is in the binary: nothing is loaded from elsewhere.

#include "absl/strings/str_cat.h"
#include "engine/observe/stage_state.h"
#include "engine/observe/state_ink.h"
#include "server/http/status_pages.h"

namespace penstock {
namespace {

constexpr std::string_view kStyle = R"css(:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2530; --soft: #5b6875; --line: #dfe4ea; --accent: #00697d;
  --good: #1b7f3b; --bad: #c62828; --ideal: #c2185b; --shade: #eef1f4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12171c; --card: #1a2128; --ink: #e3e8ec; --soft: #93a1ad; --line: #2c363f; --accent: #5ec8da;
    --good: #66c98a; --bad: #ff8a80; --ideal: #ff79b0; --shade: #222b33;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 26px; padding: 12px 28px;
  background: var(--card); border-bottom: 1px solid var(--line); }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 8px; top: 8px; padding: 4px 10px; background: var(--card); z-index: 1; }
.name { font-weight: 700; font-size: 17px; letter-spacing: .01em; color: var(--ink); text-decoration: none; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; }
nav a { color: var(--soft); text-decoration: none; padding: 2px 0; border-bottom: 2px solid transparent; }
nav a:hover { color: var(--ink); }
nav a[aria-current] { color: var(--ink); border-color: var(--accent); }
a { color: var(--accent); }
main:focus { outline: none; }
a:focus-visible, button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 2px; }
main { max-width: 1160px; margin: 0 auto; padding: 22px 28px 8px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
.line { margin: 2px 0 20px; color: var(--soft); }
.stale .line::after { content: " - the daemon does not answer this page: this is old"; color: var(--bad);
  font-weight: 600; }
button { font: inherit; font-size: 13px; padding: 0 10px; border: 1px solid var(--soft); border-radius: 4px;
  cursor: pointer; background: var(--shade); color: var(--ink); display: none; }
.scripted button { display: inline-block; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 20px;
  margin: 0 0 18px; }
h2 { font-size: 16px; margin: 0 0 8px; }
.note, .empty { color: var(--soft); margin: 0 0 12px; max-width: 110ch; }
.empty { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; font-size: 13px; color: var(--soft); white-space: nowrap; }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
td { overflow-wrap: break-word; }
.number { text-align: right; white-space: nowrap; }
th:last-child, td:last-child { padding-right: 0; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); gap: 12px 24px; margin: 0; }
dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.state, .swatch { box-shadow: inset 0 0 0 1px rgb(128 128 128 / .35); }
.state { display: inline-block; padding: 0 8px; border-radius: 4px; font-size: 13px; line-height: 20px;
  white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; } .chosen { font-weight: 600; }
.lanes { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 12px 30px; }
.lanes li { position: relative; flex: 1 1 150px; max-width: 260px; padding: 10px 14px; border: 1px solid var(--line);
  border-left-width: 6px; border-radius: 6px; background: var(--shade); }
.lanes li + li::before { content: "\2192"; position: absolute; left: -27px; top: calc(50% - 12px); color: var(--soft); }
.lanes .state { display: table; margin: 6px 0; }
.where, .small { color: var(--soft); font-size: 13px; }
.small { display: block; overflow-wrap: anywhere; }
.gantt { display: block; width: 100%; min-width: 640px; height: auto; }
.gantt text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink); }
.gantt .lane { font-weight: 600; }
.gantt .lane-device, .gantt .tick { fill: var(--soft); font-size: 11px; }
.gantt .on-bar { text-anchor: middle; font-size: 11px; pointer-events: none; }
.gantt .on-wait { text-anchor: middle; font-size: 9px; pointer-events: none; }
.gantt .grid { stroke: var(--line); stroke-width: 1; }
.gantt .ideal { stroke: var(--ideal); stroke-width: 1.5; stroke-dasharray: 5 3; }
.gantt .ideal-text { fill: var(--ideal); font-size: 11px; font-weight: 600; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 10px 0 0; padding: 0;
  font-size: 13px; font-variant-numeric: tabular-nums; }
.swatch { display: inline-block; min-width: 18px; height: 18px; border-radius: 3px; margin-right: 6px; font-size: 11px;
  line-height: 18px; text-align: center; vertical-align: middle; }
footer { max-width: 1160px; margin: 0 auto; padding: 0 28px 28px; color: var(--soft); font-size: 13px; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
)css";

constexpr std::string_view kScript = R"js("use strict";
// Puts what the server says now in the place of what it said before, each second, while somebody looks.
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");  // buttons work
  const main = () => document.querySelector("main");
  const stops = (part) => [...part.querySelectorAll("a, button")];
  const look = async () => {
    // What is being copied stays.
    const chosen = getSelection();
    if (document.hidden || (!chosen.isCollapsed && main().contains(chosen.anchorNode))) return;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (!answer.ok) throw answer.status;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const old = main();
    const at = stops(old).indexOf(document.activeElement);
    const shifts = [...old.querySelectorAll(".wide")].map((part) => part.scrollLeft);
    old.replaceWith(document.adoptNode(fresh));
    // Whoever goes by keyboard, or has scrolled a table, is where they were.
    if (at >= 0) stops(fresh)[at]?.focus({ preventScroll: true });
    fresh.querySelectorAll(".wide").forEach((part, i) => { part.scrollLeft = shifts[i] ?? 0; });
    root.classList.remove("stale");
  };
  // Where the daemon is away, what is shown stays, and says so.
  const again = () => look().catch(() => root.classList.add("stale")).finally(() => setTimeout(again, 1000));
  setTimeout(again, 1000);
  document.addEventListener("click", (event) => {
    const path = event.target.dataset?.change;
    if (path === undefined) return;
    const change = async () => {
      const answer = await fetch(path, { method: "POST", headers: { "X-Penstock-Change": "page" } });
      if (answer.ok) await look();
      else alert(await answer.text());
    };
    change().catch(() => root.classList.add("stale"));
  });
})();
)js";

constexpr std::string_view kIcon =
    R"svg(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="#1f77b4" d="M1 2h6v3H1z"/>)svg"
    R"svg(<path fill="#2ca02c" d="M8 2h7v3H8z"/><path fill="#1f77b4" d="M3 7h6v3H3z"/>)svg"
    R"svg(<path fill="#ff7043" d="M10 7h3v3h-3z"/><path fill="#2ca02c" d="M5 12h9v3H5z"/></svg>)svg";

}  // namespace

std::string StyleSheet() {
  std::string out(kStyle);
  for (const StageStateInfo& info : StageStates()) {
    const std::string name(info.name);
    const std::string colour(info.colour);
    const std::string ink = WantsWhiteInk(info.colour) ? "#fff" : "#111";
    absl::StrAppend(&out, ".s-", name, " { background: ", colour, "; fill: ", colour, "; color: ", ink, "; }\n");
    absl::StrAppend(&out, ".lanes .edge-", name, " { border-left-color: ", colour, "; }\n.gantt .t-", name,
                    " { fill: ", ink, "; }\n");
  }
  return out;
}

std::string_view RefreshScript() { return kScript; }
std::string_view Icon() { return kIcon; }

}  // namespace penstock
