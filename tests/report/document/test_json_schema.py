"""docs/reference/report.schema.json is the schema of the code, and the reports of all sample runs are valid by it."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.report.example import analysis
from traincope.report.document.document import to_document, to_json
from traincope.report.schema.published import json_schema

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "reference" / "report.schema.json"
SAMPLES = sorted((ROOT / "sample_runs").rglob("expected.json"))


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json.loads(PUBLISHED.read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_file_is_the_schema_of_the_code() -> None:
    assert json.loads(PUBLISHED.read_text()) == json_schema(), "run `make schema`"


@pytest.mark.parametrize("report", SAMPLES, ids=lambda path: path.parent.name)
def test_the_report_of_a_sample_run_is_valid(report: Path, validator: Draft202012Validator) -> None:
    validator.validate(json.loads(report.read_text()))


def test_a_report_in_which_nothing_is_missing_is_valid(validator: Draft202012Validator) -> None:
    validator.validate(json.loads(to_json(to_document(analysis(), price_per_gpu_hour=2.5))))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("run", "steps"), "5", "'5' is not of type 'integer'"),
        (("run", "steps"), None, "None is not of type 'integer'"),
        (("ledger", "ranks", 0, "terms", "forward"), 0.5, "0.5 is not valid under any of the given schemas"),
        (("schema_version",), 2, "3 was expected"),
    ],
)
def test_a_wrong_value_is_not_valid(
    path: tuple[str | int, ...], value: object, message: str, validator: Draft202012Validator
) -> None:
    report = json.loads((ROOT / "sample_runs" / "demo" / "expected.json").read_text())
    at(report, path[:-1])[path[-1]] = value
    assert message in str(list(deepest(validator, report)))


def test_a_missing_key_is_not_valid_and_a_further_key_is(validator: Draft202012Validator) -> None:
    report = json.loads((ROOT / "sample_runs" / "demo" / "expected.json").read_text())
    assert validator.is_valid({**report, "of_a_later_release": 1})
    short = copy.deepcopy(report)
    del short["run"]["steps"]
    assert not validator.is_valid(short)


def test_descriptions_are_those_of_the_code() -> None:
    types = json_schema()["$defs"]
    assert types["Run"]["properties"]["steps"] == {"description": "Number of counted steps.", "type": "integer"}
    assert types["Slowdown"]["description"].startswith("Cost of stragglers in a job that was imported")


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def deepest(validator: Draft202012Validator, report: object) -> list[str]:
    """Messages of all errors, those inside of alternatives included."""
    errors, messages = list(validator.iter_errors(report)), []
    while errors:
        error = errors.pop()
        messages.append(error.message)
        errors += error.context or []
    return messages
