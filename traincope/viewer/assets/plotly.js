// When plotly is read, half of what opening a page costs: at once, while the first answer is under way. Only the page
// that has no figure, where one lands, comes first. Dash waits for `window.Plotly` where that can be waited for; the
// script puts the library itself in its place.

(function () {
  "use strict";
  const LANDED_MS = 2000; // After that it is read too, for the next page.
  let reading = null;

  function read() {
    reading =
      reading ||
      new Promise(function (there, failed) {
        const script = document.createElement("script");
        script.src = "/_dash-component-suites/plotly/package_data/plotly.min.js";
        script.onload = there;
        script.onerror = () => failed(new Error("plotly's script cannot be had; is the server still there?"));
        document.head.append(script);
      });
    return reading;
  }

  window.Plotly = { then: (there, failed) => read().then(there, failed) };
  if (/^\/(verdict)?$/.test(window.location.pathname)) {
    setTimeout(() => window.requestIdleCallback(read), LANDED_MS);
  } else {
    read();
  }
})();
