// Plotly is the largest part of a page: it is fetched and read while the first answer is still under way.
// Dash waits for `window.Plotly` where that is a promise; the script puts the library itself in its place.

window.Plotly = new Promise(function (there, failed) {
  "use strict";
  const script = document.createElement("script");
  script.src = "/_dash-component-suites/plotly/package_data/plotly.min.js";
  script.onload = there;
  script.onerror = failed;
  document.head.append(script);
});
