"""`traincope plan search`: its arguments, and its answer as JSON, text and an HTML page."""
