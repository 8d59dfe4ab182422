"""Building blocks of a dashboard: panels, board layout, variables and colours.

The boards themselves are in `boards`, the queries' scopes in `scope`.
"""
