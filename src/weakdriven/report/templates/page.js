"use strict";
(() => {
  const read = (id) => {
    const place = document.getElementById(id);
    return place ? JSON.parse(place.textContent) : null;
  };
  const make = (tag, options, ...children) => {
    const element = Object.assign(document.createElement(tag), options);
    element.append(...children);
    return element;
  };

  // The reader's choice of light or dark, remembered where the browser allows it.
  const root = document.documentElement;
  const toggle = document.getElementById("theme");
  const remembered = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("weakdriven-theme");
      localStorage.setItem("weakdriven-theme", value);
    } catch { /* browsers deny storage to some local files */ }
    return null;
  };
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (remembered()) root.dataset.theme = remembered();
  const label = () => { toggle.textContent = isDark() ? "Light" : "Dark"; };
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();

  // Draw the figures in view first and the others when the browser is idle, so that a print shows them all.
  const figures = read("figures") || { specs: {} };
  const places = [...document.querySelectorAll("[data-figure]")];
  const draw = (place) => {
    if (place.dataset.state) return Promise.resolve();
    place.dataset.state = "drawing";
    const actions = { export: { svg: true, png: true }, source: false, compiled: false, editor: false };
    const legend = { ...figures.config.legend, columns: place.clientWidth < 460 ? 1 : figures.config.legend.columns };
    const config = { ...figures.config, legend };
    const options = { renderer: "svg", ast: true, config, actions, downloadFileName: place.dataset.figure };
    return window.vegaEmbed(place, figures.specs[place.dataset.figure], options)
      .then(() => { place.dataset.state = "drawn"; })
      .catch((error) => {
        place.dataset.state = "failed";
        place.textContent = `This figure could not be drawn: ${error.message}`;
        console.error(error);
      });
  };
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 30));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "200px" });
  places.forEach((place) => seen.observe(place));
  const rest = () => {
    const next = places.find((place) => !place.dataset.state);
    if (next) draw(next).then(() => idle(rest));
    else root.dataset.figures = "done";
  };
  idle(rest);

  // The page of a followed run: reload every few seconds and return to the same scroll position.
  const reload = document.getElementById("reload");
  if (reload) {
    const key = `weakdriven-follow${location.pathname}`;
    const details = () => [...document.querySelectorAll("details:not(.plot details)")];
    history.scrollRestoration = "manual";
    let kept = null;
    try { kept = JSON.parse(sessionStorage.getItem(key)); } catch { /* browsers deny storage to some local files */ }
    if (kept) {
      details().forEach((one, place) => { one.open = Boolean(kept.open[place]); });
      places.forEach((place) => { place.style.minHeight = `${kept.heights[place.dataset.figure] || 40}px`; });
      scrollTo(0, kept.y);
    }
    setInterval(() => {
      if (document.hidden || !getSelection().isCollapsed) return; // the page is hidden, or text is selected
      const heights = Object.fromEntries(places.map((place) => [place.dataset.figure, place.offsetHeight]));
      const state = { y: scrollY, open: details().map((one) => one.open), heights };
      try { sessionStorage.setItem(key, JSON.stringify(state)); } catch { /* as above */ }
      location.reload();
    }, 1000 * Number(reload.content));
  }

  // The token view.
  const tokens = read("tokens");
  const view = document.getElementById("token-view");
  if (!tokens || !view) return;
  const V = Object.fromEntries(tokens.values.map((name, place) => [name, place + 1]));
  const first = tokens.values.length + 1, width = tokens.negative_values.length + 1;
  const N = Object.fromEntries(tokens.negative_values.map((name, place) => [name, place + 1]));
  const shades = {
    disagreement: ["weak and strong disagree", (token) => token[V.disagreement], "share of probability that weak and strong give to different tokens"],
    unsure: ["strong model unsure", (token) => 1 - token[V.strong_probability], "1 - P(true token) under the strong model"],
    gained: ["gained in the round", (token) => token[V.after_probability] === null ? null : token[V.after_probability] - token[V.strong_probability], "rise of P(true token) in the round"],
    lost: ["lost in the round", (token) => token[V.after_probability] === null ? null : token[V.strong_probability] - token[V.after_probability], "fall of P(true token) in the round"],
  };
  const state = { list: tokens.lists[0], place: 0, token: 0, shade: "disagreement" };
  const share = (value) => value === null || value === undefined ? "–" : value >= 0.0995 ? `${(100 * value).toFixed(1)}%` : value < 0.0001 ? "<0.01%" : `${Number((100 * value).toPrecision(2))}%`;
  const visible = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣") || "∅";

  const lists = make("div", { className: "choice" });
  tokens.lists.forEach((list) => {
    const button = make("button", { type: "button", textContent: list.words });
    button.addEventListener("click", () => { Object.assign(state, { list, place: 0, token: 0 }); show(); });
    list.button = button;
    lists.append(button);
  });
  const back = make("button", { type: "button", textContent: "‹ previous" });
  const next = make("button", { type: "button", textContent: "next ›" });
  const counter = make("span", { className: "counter" });
  const step = (by) => { state.place = (state.place + by + state.list.examples.length) % state.list.examples.length; state.token = 0; show(); };
  back.addEventListener("click", () => step(-1));
  next.addEventListener("click", () => step(1));
  const shade = make("select", { ariaLabel: "Shade tokens by" });
  Object.entries(shades).forEach(([name, [words]]) => shade.append(make("option", { value: name, textContent: words })));
  shade.addEventListener("change", () => { state.shade = shade.value; show(); });
  const question = make("pre", { className: "question" });
  const text = make("div", { className: "tokens", tabIndex: 0, role: "listbox", ariaLabel: "Tokens of the example" });
  const note = make("p", { className: "note" });
  const panel = make("div", { className: "panel", ariaLive: "polite" });
  view.append(lists, make("div", { className: "choice" }, back, counter, next, make("label", {}, "shade: ", shade)), question, make("div", { className: "reader" }, text, panel), note);

  const example = () => tokens.examples[state.list.examples[state.place]];
  const describe = () => {
    const token = example().tokens[state.token];
    text.querySelectorAll(".chosen").forEach((one) => { one.classList.remove("chosen"); one.ariaSelected = "false"; });
    const chosen = text.children[state.token];
    if (!token || !chosen) { panel.replaceChildren(); return; }
    chosen.classList.add("chosen");
    chosen.ariaSelected = "true";
    const rows = [["true token", tokens.texts[token[0]], token[V.weak_probability], token[V.strong_probability], token[V.mixed_probability], null]];
    for (let at = first; at < token.length; at += width) {
      rows.push(["", tokens.texts[token[at]], token[at + N.weak], token[at + N.strong], token[at + N.mixed], token[at + N.gradient]]);
    }
    const body = make("tbody", {});
    rows.forEach(([kind, words, weak, strong, mixed, gradient]) => {
      const name = make("td", {}, make("code", { textContent: visible(words) }));
      body.append(make("tr", { className: kind ? "true" : "" }, name, ...[weak, strong, mixed].map((value) => make("td", { textContent: share(value) })), make("td", { textContent: gradient === null ? "" : Number(gradient.toPrecision(3)) })));
    });
    const head = make("tr", {}, ...["token", "weak", "strong", "mixed", "gradient"].map((name) => make("th", { textContent: name })));
    const after = token[V.after_probability];
    const facts = [`Token ${state.token + 1}: `, make("code", { textContent: visible(tokens.texts[token[0]]) }), `. Hard negatives: ${token[V.hard_negatives] ?? "–"}. Disagreement: ${share(token[V.disagreement])}.`];
    if (after !== null) facts.push(` After the round: ${share(after)}.`);
    panel.replaceChildren(make("p", {}, ...facts), make("table", {}, make("thead", {}, head), body), make("p", { className: "note", textContent: rows.length > 1 ? "First row: the true token. Below: the hard negatives with the largest gradient in the strong model." : "No hard negatives: no wrong token is closer to the true one under weak than under strong." }));
  };
  const show = () => {
    const one = example();
    tokens.lists.forEach((list) => { list.button.ariaPressed = String(list === state.list); });
    counter.textContent = `${state.place + 1} of ${state.list.examples.length}: ${one.id}`;
    question.textContent = one.question;
    const [, measure, words] = shades[state.shade];
    text.replaceChildren(...one.tokens.map((token, place) => {
      const value = measure(token);
      const span = make("span", { className: "token", textContent: tokens.texts[token[0]].replace(/\n/g, "⏎\n"), role: "option", ariaSelected: "false" });
      span.style.setProperty("--shade", `${Math.round(100 * Math.min(1, Math.max(0, value || 0)))}%`);
      span.dataset.place = place;
      return span;
    }));
    note.textContent = `Shade: ${words}. ${one.left_out ? `The last ${one.left_out.toLocaleString("en")} tokens of this example are not shown. ` : ""}Hover, tap or use the arrow keys.`;
    describe();
  };
  const pick = (event) => {
    const place = event.target.dataset && event.target.dataset.place;
    if (place !== undefined && Number(place) !== state.token) { state.token = Number(place); describe(); }
  };
  text.addEventListener("pointerover", pick);
  text.addEventListener("click", pick);
  text.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    state.token = Math.min(example().tokens.length - 1, Math.max(0, state.token + by));
    describe();
  });
  show();
})();
