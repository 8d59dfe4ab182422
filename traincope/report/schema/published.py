"""JSON Schema of the report, for programs that read it: docs/report.schema.json (`make schema`)."""

import ast
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from traincope.report.schema import document

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = "#/$defs/{name}"


def json_schema() -> dict[str, Any]:
    """Return the schema of `traincope report --format json`, with the descriptions of this package's sources.

    Objects may have more keys than the schema lists: a later release adds keys.
    """
    (root,), types = msgspec.json.schema_components((document.Document,), ref_template=REFERENCE)
    described = {name: texts for module in _modules() for name, texts in _descriptions(module)}
    for name, schema in types.items():
        schema.pop("description", None)
        for field, text in described[name].items():
            if field:
                schema["properties"][field] = {"description": text, **schema["properties"][field]}
            else:
                schema["description"] = text
    types["Document"]["properties"]["schema_version"] = {"const": document.SCHEMA_VERSION}
    return {"$schema": DIALECT, "title": "Report of traincope", **root, "$defs": types}


def _modules() -> list[ast.Module]:
    """Syntax of the modules that define the types of a document."""
    names = {kind.__module__ for kind in vars(document).values() if isinstance(kind, type)}
    package = __name__.rpartition(".")[0]
    return [ast.parse(inspect.getsource(sys.modules[name])) for name in sorted(names) if name.startswith(package)]


def _descriptions(module: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """Name of each class, and the texts under its fields. The class's own text has the field ""."""
    for kind in module.body:
        if isinstance(kind, ast.ClassDef):
            texts = {}
            if own := ast.get_docstring(kind):
                texts[""] = _line(own)
            for field, text in zip(kind.body, kind.body[1:], strict=False):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(content))):
                        texts[name] = _line(content)
            yield kind.name, texts


def _line(text: str) -> str:
    return " ".join(text.split())
