"""Plans in the viewer: one layout of typed sizes, and the search of all layouts in a child process."""
