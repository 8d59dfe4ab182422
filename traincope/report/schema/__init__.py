"""Types of the JSON that `report` of one run or several, `report --what-if` and `diff` print with `--format json`.

`document` has the keys of the whole report, `results` those of results. The other types are of parts that are not one
result. No values are computed here.
"""

from traincope.report.schema.diff import ComparedRun, Diff, TermChange
from traincope.report.schema.document import SCHEMA_VERSION, Document, HangAnswer, NativeStack, Workflow
from traincope.report.schema.job import (
    Fault,
    Finding,
    OpenRecord,
    Probe,
    Recorder,
    Run,
)
from traincope.report.schema.path import Prediction, SettingsPrediction
from traincope.report.schema.results import convert, plain
from traincope.report.schema.steps import (
    AmbiguousWait,
    Cause,
    Cost,
    Ledger,
    Loss,
    RankLedger,
    TermCauses,
    Terms,
)
from traincope.report.schema.traces import KernelClass, Kernels

__all__ = [
    "SCHEMA_VERSION",
    "AmbiguousWait",
    "Cause",
    "ComparedRun",
    "Cost",
    "Diff",
    "Document",
    "Fault",
    "Finding",
    "HangAnswer",
    "KernelClass",
    "Kernels",
    "Ledger",
    "Loss",
    "NativeStack",
    "OpenRecord",
    "Prediction",
    "Probe",
    "RankLedger",
    "Recorder",
    "Run",
    "SettingsPrediction",
    "TermCauses",
    "TermChange",
    "Terms",
    "Workflow",
    "convert",
    "plain",
]
