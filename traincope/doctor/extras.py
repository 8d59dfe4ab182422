"""The extras of this installation, tried by importing their packages."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from traincope.doctor.finding import Finding, note, ok
from traincope.metrics.installed import INSTALL, NO_EXPORTERS, SCRAPED, installed_exporters

EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "view": (("plotly", "dash", "pyarrow"), "HTML report, viewer, live page, Parquet"),
    "train": (("torch", "cattrs", "fsspec"), "train, demo, preflight, drift"),
    "prometheus": (("prometheus_client", "pynvml", "pyarrow"), "metrics of running jobs for Prometheus"),
    "otel": (("opentelemetry.sdk", "opentelemetry.exporter.otlp"), "OpenTelemetry"),
    "gpu": (("pynvml",), "faults and hardware values of NVIDIA GPUs"),
    "sql": (("duckdb", "pyarrow"), "SQL on runs"),
    "mcp": (("mcp", "duckdb", "pyarrow"), "AI assistants"),
    "peers": (("cryptography",), "encrypted copies between hosts"),
    "s3": (("s3fs",), "buckets"),
    "dask": (("distributed",), "Dask"),
    "grafana": (("grafana_client", "grafana_foundation_sdk"), "building and pushing dashboards"),
}
"""Extra -> the packages that Python imports of it, and what it adds. A finding of its own tries `stacks`."""
EXPORTERS: Mapping[str, tuple[str, ...]] = {
    SCRAPED: EXTRAS["prometheus"][0][:1],
    "otlp": EXTRAS["otel"][0],
    "tensorboard": ("tensorboard",),
}
"""Exporter of running jobs -> the packages that it imports once it is enabled."""


def examine_extras() -> tuple[Finding, ...]:
    missing = [extra for extra, (packages, _) in EXTRAS.items() if not_importable(packages)]
    command = f"pip install 'traincope[{','.join(missing)}]', or only those that you need"
    return (_exporters(), *(_extra(extra, command) for extra in EXTRAS))


def not_importable(packages: tuple[str, ...]) -> str:
    """Which of the packages Python cannot import, and why; empty if it can import all."""
    problems = [problem for package in packages if (problem := _problem(package)) is not None]
    absent = ", ".join(dict.fromkeys(name for name, reason in problems if not reason))
    broken = [f"{name} cannot be imported: {reason}" for name, reason in problems if reason]
    return "; ".join([*([f"without {absent}"] if absent else []), *broken])


@cache
def _problem(package: str) -> tuple[str, str] | None:
    """The module that Python does not find, or that fails, and its error; None if the import works."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        return error.name or package, ""
    except (ImportError, AttributeError, OSError, RuntimeError, TypeError, ValueError) as error:
        return package, " ".join(str(error).split())
    return None


def _extra(extra: str, command: str) -> Finding:
    packages, adds = EXTRAS[extra]
    problems = not_importable(packages)
    return note(extra, f"absent: {adds} ({problems})", do=command) if problems else ok(extra, adds)


def _exporters() -> Finding:
    """A package of others may add exporters to a checkout of traincope that is not installed."""
    names = installed_exporters()
    if SCRAPED not in names:
        others = f"; another package has {', '.join(names)}" if names else ""
        return note("live exporters", f"{NO_EXPORTERS}{others}", do=INSTALL)
    problems = {name: not_importable(EXPORTERS.get(name, ())) for name in names}
    fact = ", ".join(f"not {name} ({problem})" if problem else name for name, problem in problems.items())
    return note("live exporters", fact) if problems[SCRAPED] else ok("live exporters", fact)
