// The browser's part of the viewer: controls, mouse and keys change the address.
// The address alone holds the current view; the server draws that view.

(function () {
  "use strict";
  const SETTLE_MS = 120; // Wait after the last turn of the wheel; a drag ends with its button.
  let settling = null;
  let wheeled = -Infinity;
  document.addEventListener("wheel", () => (wheeled = performance.now()), { capture: true, passive: true });

  function address() {
    return new URLSearchParams(window.location.search);
  }

  function go(parameters) {
    const search = parameters.toString();
    const now = window.location.search.replace(/^\?/, "");
    if (new URLSearchParams(now).toString() !== search) {
      window.dash_clientside.set_props("location", { search: search ? "?" + search : "" });
    }
  }

  function put(parameters, name, value) {
    parameters.delete(name);
    const values = Array.isArray(value) ? value : [value];
    values.filter((one) => one !== null && one !== undefined && one !== "").forEach((one) => parameters.append(name, one));
  }

  function look(begin, end) {
    const parameters = address();
    ["from", "to", "at", "step"].forEach((name) => parameters.delete(name));
    asked = { drawn: String(shown()), range: begin === null ? null : [begin, end] };
    if (begin !== null) {
      parameters.set("from", String(Math.floor(begin)));
      parameters.set("to", String(Math.max(Math.ceil(end), Math.floor(begin) + 1)));
    }
    go(parameters);
  }

  function choose(begin, end) {
    const parameters = address();
    const first = Math.max(Math.floor(begin), 0);
    parameters.set("selected", first + "-" + Math.max(Math.ceil(end), first + 1));
    go(parameters);
  }

  function chosen() {
    const stretch = (address().get("selected") || "").split("-").map(Number);
    const picked = document.querySelector("#picked");
    return stretch.length === 2 ? stretch : picked ? [Number(picked.dataset.begin), Number(picked.dataset.end)] : null;
  }

  function picture() {
    return document.querySelector("#timeline .js-plotly-plot");
  }

  function shown() {
    const drawn = picture();
    return drawn && drawn._fullLayout ? drawn._fullLayout.xaxis.range.map(Number) : null;
  }

  let asked = null; // The range that was asked for, and the one that was drawn then.

  window.addEventListener("popstate", () => (asked = null));

  // The next key starts from what the last one asked for, also if that is not drawn yet.

  function range() {
    const drawn = shown();
    return drawn && asked && asked.range && String(drawn) === asked.drawn ? asked.range : drawn;
  }

  function settle(action) {
    clearTimeout(settling);
    settling = setTimeout(action, performance.now() - wheeled < SETTLE_MS ? SETTLE_MS : 0);
  }

  // A page that is redrawn because its run has grown keeps its zoom; the timeline's zoom is in the address.

  const zooms = new Map(); // Page, run and heading -> the axis ranges that the reader chose.
  const TRIES = 100;

  function nameOf(plot) {
    const heading = plot.closest("section") && plot.closest("section").querySelector("h2");
    const shown = heading && heading.firstChild ? heading.firstChild.textContent : "";
    return [window.location.pathname, address().get("run"), shown].join("\n");
  }

  function noted(plot, changed) {
    const ranges = Object.entries(changed).filter(([name]) => /^[xy]axis\d*\.range/.test(name));
    if (ranges.length) {
      zooms.set(nameOf(plot), { ...zooms.get(nameOf(plot)), ...Object.fromEntries(ranges) });
    } else if (Object.keys(changed).some((name) => name.endsWith(".autorange"))) {
      zooms.delete(nameOf(plot));
    }
  }

  function arrange(tried) {
    const plots = Array.from(document.querySelectorAll("main .dash-graph")).filter((one) => one.id !== "timeline");
    const drawn = plots.map((one) => one.querySelector(".js-plotly-plot")).filter((one) => one && one._fullLayout);
    drawn.forEach(fitLegend);
    drawn.filter((plot) => zooms.has(nameOf(plot)) && !plot.dataset.watched).forEach(function (plot) {
      watch(plot);
      window.Plotly.relayout(plot, zooms.get(nameOf(plot)));
    });
    if (drawn.length < plots.length && tried < TRIES) {
      setTimeout(() => arrange(tried + 1), 50);
    }
  }

  // On a telephone, a legend stands above its bars, which otherwise get no width, and makes its figure taller.

  const NARROW = 700;
  const ABOVE = { "legend.orientation": "h", "legend.x": 0, "legend.y": 1.02, "legend.xanchor": "left", "legend.yanchor": "bottom" };
  const ROOM = 40; // Pixels that every figure has for its legend.

  async function fitLegend(plot) {
    const legend = plot._fullLayout.legend;
    const frame = plot.closest(".dash-graph");
    if (window.innerWidth > NARROW || !legend || !plot._fullLayout.showlegend || frame.dataset.fitted === frame.style.height) {
      return;
    }
    frame.dataset.fitted = frame.style.height;
    await window.Plotly.relayout(plot, ABOVE);
    const height = plot.layout.height + Math.max(0, plot._fullLayout.legend._height - ROOM);
    frame.style.height = frame.dataset.fitted = `${height}px`;
    await window.Plotly.relayout(plot, { height });
  }

  function watch(plot) {
    if (!plot.dataset.watched) {
      plot.dataset.watched = "yes";
      plot.on("plotly_relayout", (changed) => noted(plot, changed));
    }
  }

  document.addEventListener(
    "mousedown",
    function (event) {
      const plot = event.target.closest && event.target.closest("main .js-plotly-plot");
      if (plot && plot.on && !plot.closest("#timeline")) {
        watch(plot);
      }
    },
    true
  );

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.viewer = {
    control: function () {
      const context = window.dash_clientside.callback_context;
      const parameters = address();
      context.triggered.forEach(function (one) {
        const id = JSON.parse(one.prop_id.slice(0, one.prop_id.lastIndexOf(".")));
        const before = parameters.getAll(id.name);
        put(parameters, id.name, one.value);
        const changed = before.join("\n") !== parameters.getAll(id.name).join("\n");
        if (changed && (id.name === "step" || id.name === "at")) {
          ["from", "to", "step", "at"].filter((name) => name !== id.name).forEach((name) => parameters.delete(name));
        }
        if (changed && id.name === "preset") {
          Array.from(parameters.keys()).filter((name) => name !== "run" && name !== "preset").forEach((name) => parameters.delete(name));
        }
        if (changed) {
          parameters.delete("place"); // The chosen layout is one of the search that the other fields ask for.
        }
        if (changed && id.name === "run") {
          ["from", "to", "step", "at", "pick", "selected", "ranks", "lanes", "q"].forEach((name) => parameters.delete(name));
        }
      });
      go(parameters);
    },

    zoom: function (changed) {
      if (!changed || changed["xaxis.range[0]"] === undefined) {
        return;
      }
      settle(() => look(Number(changed["xaxis.range[0]"]), Number(changed["xaxis.range[1]"])));
    },

    select: function (selected) {
      const along = selected && selected.range && selected.range.x;
      if (along) {
        choose(Math.min(...along), Math.max(...along));
      }
    },

    click: function (clicked) {
      const point = clicked && clicked.points && clicked.points[0];
      if (!point) {
        return;
      }
      if (point.customdata && point.customdata[0]) {
        const parameters = address();
        parameters.set("pick", point.customdata[0]);
        go(parameters);
      }
    },

    follow: function () {
      const one = window.dash_clientside.callback_context.triggered.find((each) => each.value);
      const point = one && one.value.points && one.value.points[0];
      if (!point) {
        return;
      }
      const name = JSON.parse(one.prop_id.slice(0, one.prop_id.lastIndexOf("."))).name;
      if (name !== "term") {
        // A cell of many steps and ranks names its worst; an incomplete step has no name.
        const where = name === "cell" ? point.customdata : String(point.x);
        if (!where) {
          return;
        }
        const [step, rank] = where.split(" ");
        const parameters = new URLSearchParams();
        put(parameters, "run", address().get("run"));
        put(parameters, "step", step);
        put(parameters, "ranks", rank);
        window.dash_clientside.set_props("location", { pathname: "/timeline", search: "?" + parameters.toString() });
      } else if (point.customdata && point.customdata[3]) {
        const parameters = address();
        parameters.set("term", point.customdata[3]);
        window.dash_clientside.set_props("location", { pathname: "/ledger", search: "?" + parameters.toString() });
      }
    },

    whole: function (clicks) {
      if (clicks) {
        look(null, null);
      }
    },

    redrawn: function () {
      arrange(0);
    },

    change: function (changes) {
      Object.entries(changes || {}).forEach(([id, properties]) => window.dash_clientside.set_props(id, properties));
    },

    theme: function (clicks, kept) {
      const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      const now = kept === "dark" || kept === "light" ? kept : system;
      const theme = clicks ? (now === "dark" ? "light" : "dark") : now;
      document.documentElement.dataset.theme = theme;
      return theme;
    },
  };

  // The ruler repeats the axis above the rows, and names the rank of the highest row in view.

  function rule() {
    const ruler = document.querySelector("#ruler");
    const drawn = picture();
    if (!ruler || !drawn || !drawn._fullLayout || !drawn._fullLayout.xaxis) {
      return;
    }
    const left = ruler.getBoundingClientRect().left;
    const marks = Array.from(drawn.querySelectorAll(".xtick text")).map(function (tick) {
      const box = tick.getBoundingClientRect();
      const mark = document.createElement("span");
      mark.textContent = tick.textContent;
      mark.style.left = (box.left + box.right) / 2 - left + "px";
      return mark;
    });
    const top = ruler.getBoundingClientRect().bottom;
    const rows = Array.from(drawn.querySelectorAll(".ytick text")).map((row) => [row.getBoundingClientRect(), row.textContent]);
    rows.sort((one, other) => one[0].top - other[0].top);
    const above = rows.filter(([box, text]) => box.top < top && /^rank/.test(text)).pop();
    if (above) {
      const name = document.createElement("b");
      name.textContent = above[1].split(",")[0];
      marks.push(name);
    }
    ruler.replaceChildren(...marks);
  }

  let ruled = null;
  function soon() {
    cancelAnimationFrame(ruled);
    ruled = requestAnimationFrame(rule);
  }
  document.addEventListener("scroll", soon, { capture: true, passive: true });
  window.addEventListener("resize", soon);
  new MutationObserver(function (changes) {
    if (changes.some((change) => change.target.closest && change.target.closest("#timeline .xaxislayer-above, #timeline .yaxislayer-above, #page"))) {
      soon();
    }
  }).observe(document.documentElement, { childList: true, subtree: true });

  // The wheel scrolls; with Ctrl it zooms about the pointer.

  let aimed = null; // Where the pointer is, ns.

  function zoomed(factor, at) {
    const [begin, end] = range();
    const about = at === null || at < begin || at > end ? (begin + end) / 2 : at;
    return [about - (about - begin) * factor, about + (end - about) * factor];
  }

  document.addEventListener(
    "wheel",
    function (event) {
      const plot = event.target.closest && event.target.closest("#timeline");
      if (plot && (event.ctrlKey || event.metaKey) && range()) {
        event.preventDefault();
        const [begin, end] = zoomed(Math.exp(Math.max(Math.min(event.deltaY, 200), -200) / 400), aimed);
        window.Plotly.relayout(picture(), { "xaxis.range[0]": begin, "xaxis.range[1]": end });
      }
    },
    { capture: true, passive: false }
  );
  document.addEventListener("mousemove", function (event) {
    const plot = event.target.closest && event.target.closest("#timeline .nsewdrag");
    const drawn = plot && picture();
    aimed = drawn ? drawn._fullLayout.xaxis.p2d(event.clientX - plot.getBoundingClientRect().left) : aimed;
  });

  const MOVES = {
    ArrowLeft: (begin, end) => [begin - (end - begin) / 4, end - (end - begin) / 4],
    ArrowRight: (begin, end) => [begin + (end - begin) / 4, end + (end - begin) / 4],
    "+": (begin, end) => [begin + (end - begin) / 4, end - (end - begin) / 4],
    "-": (begin, end) => [begin - (end - begin) / 2, end + (end - begin) / 2],
    a: (begin, end) => [begin - (end - begin) / 4, end - (end - begin) / 4],
    d: (begin, end) => [begin + (end - begin) / 4, end + (end - begin) / 4],
    w: () => zoomed(0.5, aimed),
    s: () => zoomed(2, aimed),
    f: function (begin, end) {
      const [first, last] = chosen() || [begin, end];
      return [first - (last - first) / 8, last + (last - first) / 8];
    },
  };

  // Plotly sends no events for the image of a raster, so the position of the pointer is computed here.

  function pointed(event) {
    const plot = event.target.closest && event.target.closest("#timeline .nsewdrag");
    const drawn = plot && picture();
    if (!drawn || !(drawn.layout.images || []).length) {
      return null;
    }
    const box = plot.getBoundingClientRect();
    return {
      x: drawn._fullLayout.xaxis.p2d(event.clientX - box.left),
      y: drawn._fullLayout.yaxis.p2d(event.clientY - box.top),
    };
  }

  const PAUSE_MS = 80; // Between two requests to the server.
  let pausing = null;
  let pressed = null;

  document.addEventListener("mousemove", function (event) {
    const at = pointed(event);
    if (!at) {
      return;
    }
    clearTimeout(pausing);
    pausing = setTimeout(() => window.dash_clientside.set_props("pointed", { data: at }), PAUSE_MS);
  });
  document.addEventListener("mousedown", (event) => (pressed = pointed(event) && event), true);
  document.addEventListener(
    "mouseup",
    function (event) {
      if (pressed && Math.abs(event.clientX - pressed.clientX) < 4 && Math.abs(event.clientY - pressed.clientY) < 4) {
        const [begin, end] = range();
        const at = pointed(pressed);
        look(at.x - (end - begin) / 16, at.x + (end - begin) / 16);
      }
      pressed = null;
    },
    true
  );

  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
      return;
    }
    if (event.key === "/") {
      const search = Array.from(document.querySelectorAll("input")).find((one) => (one.id || "").includes('"name":"q"'));
      if (search) {
        event.preventDefault();
        search.focus();
      }
    } else if (event.key === "m" && picture()) {
      const picked = document.querySelector("#picked");
      if (picked) {
        choose(Number(picked.dataset.begin), Number(picked.dataset.end));
      }
    } else if (event.key === "0" && picture()) {
      look(null, null);
    } else if (MOVES[event.key] && range()) {
      event.preventDefault();
      const [begin, end] = MOVES[event.key](...range());
      look(begin, end);
    } else if (/^[\[\]]$/.test(event.key)) {
      const tabs = Array.from(document.querySelectorAll("#order a"));
      const at = tabs.findIndex((one) => one.classList.contains("here")) + (event.key === "]" ? 1 : -1);
      if (tabs[at]) {
        tabs[at].click();
      }
    }
  });
})();
