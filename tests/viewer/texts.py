"""The texts of a page of the viewer."""


def texts(part: object) -> list[str]:
    """All texts of a component, in order."""
    if isinstance(part, str):
        return [part]
    children = part if isinstance(part, list | tuple) else getattr(part, "children", None) or ()
    return [text for child in (children if isinstance(children, list | tuple) else [children]) for text in texts(child)]
