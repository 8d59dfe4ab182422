"""Tiles of a run: a viewer draws any window from them without reading the whole run.

`lanes` arranges records as spans, `build` writes tiles, `storage` defines their layout and maps them from disk, `zoom`
draws a window of them on the exact grid of `raster`. Colours, labels and pixels are in `figures`.
"""
