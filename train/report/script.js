"use strict";
const root = document.documentElement;
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
document.getElementById("theme").addEventListener("click", () => {
  const now = root.dataset.theme || (dark() ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
const search = document.getElementById("search");
if (search) {
  const outcome = document.getElementById("outcome");
  const examples = [...document.querySelectorAll(".example")].map((node) => [node, node.textContent.toLowerCase()]);
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [node, text] of examples) {
      const fits = words.every((word) => text.includes(word)) && (!outcome.value || node.dataset.outcome === outcome.value);
      node.hidden = !fits;
      shown += fits;
    }
    document.getElementById("count").textContent = `${shown} of ${examples.length} turns`;
  };
  search.addEventListener("input", filter);
  outcome.addEventListener("change", filter);
  filter();
}
addEventListener("beforeprint", () => document.querySelectorAll("#systems details, #gaming details, #settings details").forEach((d) => (d.open = true)));
