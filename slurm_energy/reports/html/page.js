"use strict";
(function () {
  function unit(watts) {
    if (watts === null || watts === undefined) return "unknown";
    return watts >= 1000 ? (watts / 1000).toFixed(2) + " kW" : watts.toFixed(watts < 100 ? 1 : 0) + " W";
  }
  function clock(s, longest) {
    if (longest < 120) return s.toFixed(1) + " s";
    var h = Math.floor(s / 3600), m = Math.floor(s % 3600 / 60), r = Math.floor(s % 60);
    return (h ? h + ":" + String(m).padStart(2, "0") : m) + ":" + String(r).padStart(2, "0");
  }
  function row(color, name, value) {
    var line = document.createElement("div");
    line.className = "row";
    var left = document.createElement("span");
    if (color) {
      var dot = document.createElement("span");
      dot.className = "swatch";
      dot.style.background = "var(--" + color + ")";
      left.appendChild(dot);
    }
    left.appendChild(document.createTextNode(name));
    var right = document.createElement("strong");
    right.textContent = value;
    line.append(left, right);
    return line;
  }
  document.querySelectorAll(".chart").forEach(function (chart) {
    var svg = chart.querySelector("svg"), cursor = svg.querySelector(".cursor");
    var tip = chart.querySelector(".tip"), data = JSON.parse(chart.querySelector("script").textContent);
    var at = null, step = Math.min.apply(null, data.series.map(function (s) { return s.interval; }));
    function show(seconds) {
      at = Math.max(0, Math.min(data.duration - step / 2, seconds));
      var x = data.left + at / data.duration * (data.right - data.left), total = 0, known = false;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
      tip.replaceChildren();
      var head = document.createElement("div");
      head.className = "head";
      head.textContent = data.start === undefined ? clock(at, data.duration) : new Date((data.start + at) * 1000).toLocaleString();
      tip.appendChild(head);
      (data.stacked ? data.series.slice().reverse() : data.series).forEach(function (s) {
        var value = s.values[Math.floor(at / s.interval)];
        if (value === undefined && !data.stacked) { tip.appendChild(row(s.color, s.name, "ended")); return; }
        if (value !== null && value !== undefined) { total += value; known = true; }
        tip.appendChild(row(s.color, s.name, unit(value)));
      });
      if (data.stacked && known && data.series.length > 1) tip.appendChild(row("", "Total", unit(total)));
      var box = svg.getBoundingClientRect(), place = x / data.width * box.width;
      var left = place + 14 + tip.offsetWidth > box.width ? place - 14 - tip.offsetWidth : place + 14;
      tip.style.transform = "translate(" + Math.max(0, left) + "px, 12px)";
      tip.style.visibility = "visible";
    }
    function hide() { cursor.style.visibility = tip.style.visibility = "hidden"; at = null; }
    svg.addEventListener("pointermove", function (event) {
      var box = svg.getBoundingClientRect();
      var x = (event.clientX - box.left) / box.width * data.width;
      show((x - data.left) / (data.right - data.left) * data.duration);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", function (event) {
      var move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (event.key === "Escape") return hide();
      if (!move) return;
      event.preventDefault();
      show((at === null ? 0 : at) + move * Math.max(step, data.duration / 200));
    });
  });
})();
