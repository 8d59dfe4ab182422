"""The section ENERGY of a run whose power is known."""

import io

from rich.console import Console

from tests.analysis.efficiency.test_energy import on_gpu, readings, result, steps
from traincope.report.document.document import to_document
from traincope.report.html import to_html
from traincope.report.text.text import render


def test_the_energy_is_shown_with_its_price_and_as_an_estimate_by_term() -> None:
    """100 W: 300 J per step, 200 of them by the time of forward. 3,000 J at 3,600 per kWh cost 3."""
    file = io.StringIO()
    analysis = result(on_gpu(0, *steps(11), *readings(100)))
    render(analysis, Console(file=file, width=100), price_per_kwh=3_600.0, currency="EUR")
    section = file.getvalue().partition("\nENERGY")[2].partition("\n\n")[0]
    assert section == (
        "  300.0 J per step on 1 GPU, 100 W; 0.000833 kWh in all steps, 3.00 EUR at 3,600.00 EUR per\n"
        "kWh\n"
        "    by time, an estimate: forward 200.0 J, unattributed 100.0 J\n"
        "    NVML's counter, read every 1.00 s and interpolated; of the whole GPU, not of its host"
    )
    page = to_html(analysis, price_per_kwh=3_600.0, currency="EUR")
    assert 'data-at="/energy/gpus/0/joules_per_step"' in page
    assert "0.000833 kWh in all steps, 3.00 EUR at 3,600.00 EUR per kWh" in page


def test_an_unknown_energy_has_its_reason_in_the_document_only() -> None:
    file = io.StringIO()
    analysis = result(on_gpu(0, *steps(11)))
    render(analysis, Console(file=file, width=100))
    assert "ENERGY" not in file.getvalue()
    assert to_document(analysis)["energy"]["reason"] == "no energy of a GPU was recorded (rank 0; hardware probe on)"
