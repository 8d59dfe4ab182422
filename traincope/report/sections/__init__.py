"""Parts of a report as data: a topic's function makes a `Section` of results, each fact worded once.

Text, HTML and the viewer render the same sections, each in its own package. Nothing here knows a medium. A number is
a place in the document of `report --format json`, so that all media show the same one.
"""
