"""The timeline page's work: draw a view, pick a span, describe it, search by name.

The page itself is in `pages`, the tiles in `traincope.tiles`.
"""
