"""Sampling error of a share in a finding's evidence."""

from traincope.analysis.ledger.ledger import Ledger


def sampling_error(ledger: Ledger, name: str) -> str:
    """Return ` (11.0 to 13.4 %, from 96 of 500 steps)` for a term or a sum of terms that only windows show.

    It is empty if all steps record the term.
    """
    run = ledger.run
    estimate = None if run is None else run.estimates.get(name, run.sums.get(name))
    if run is None or estimate is None or estimate.steps == run.steps:
        return ""
    source = f"from {estimate.steps:,} of {run.steps:,} steps"
    if estimate.low is None or estimate.high is None:
        return f" ({source}; sampling error unknown: {estimate.reason})"
    return f" ({100 * estimate.low:.1f} to {100 * estimate.high:.1f} %, {source})"
