"""Formulas of a layout over ranks: memory, activations, communication, and step time between two bounds.

`layout` holds the sizes of the mesh and checks them against a model. No run is read here.
"""
