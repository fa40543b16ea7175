// Reads the data in the page; adds choosing a view, and reading single results. The page is complete without it.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  document.documentElement.classList.add("script");

  const select = document.getElementById("view");
  const views = [...document.querySelectorAll("section.view")];
  const show = (id) => {
    const known = views.some((view) => view.id === id) ? id : views[0].id;
    views.forEach((view) => { view.hidden = view.id !== known; });
    select.value = known;
  };
  if (select) {
    show(location.hash.slice(1));
    select.addEventListener("change", () => { show(select.value); history.replaceState(null, "", "#" + select.value); });
    addEventListener("hashchange", () => show(location.hash.slice(1)));
  }

  const readout = document.getElementById("readout");
  const number = (value) => Number(value.toPrecision(4)).toLocaleString("en").replaceAll(",", "\u202f");
  for (const figure of document.querySelectorAll("figure[data-series]")) {
    const series = data.series[figure.dataset.series];
    if (!series) continue;
    const plot = figure.querySelector(".plot");
    const cursor = figure.querySelector(".cursor");
    const places = figure.dataset.places.split(" ").map(Number);
    let at = series.points.length - 1;
    const tell = (index) => {
      at = Math.max(0, Math.min(series.points.length - 1, index));
      const [position, value, low, high, meaning] = series.points[at];
      const [hash, date, subject] = data.commits[position];
      const interval = low === null ? "" : ` (${number(low)} to ${number(high)}; ${meaning})`;
      cursor.style.left = places[at] + "%";
      cursor.hidden = false;
      const name = document.createElement(data.url ? "a" : "span");
      if (data.url) name.href = data.url + hash;
      name.textContent = hash.slice(0, 8);
      const strong = document.createElement("b");
      strong.textContent = `${number(value)} ${series.unit}`;
      const what = figure.querySelector(".name").textContent;
      readout.replaceChildren(`${what}: `, strong, `${interval} at `, name, ` ${date} on ${series.machine}. ${subject}`);
    };
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width * 100;
      let best = 0;
      places.forEach((place, index) => { if (Math.abs(place - share) < Math.abs(places[best] - share)) best = index; });
      tell(best);
    });
    plot.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: series.points.length - 1 };
      if (!(event.key in steps)) return;
      event.preventDefault();
      tell(steps[event.key]);
    });
    plot.addEventListener("focus", () => tell(at));
    const leave = () => {
      cursor.hidden = true;
      if (!readout.contains(document.activeElement)) readout.replaceChildren();
    };
    plot.addEventListener("blur", (event) => { if (!readout.contains(event.relatedTarget)) leave(); });
    plot.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && document.activeElement !== plot && !readout.contains(event.relatedTarget)) leave();
    });
  }
})();
