"""This machine and this Python: can a training be recorded here?"""

from collections.abc import Mapping
from pathlib import Path

from traincope.doctor.disk import examine_disk
from traincope.doctor.finding import Examination, Section
from traincope.doctor.gpu import examine_gpu
from traincope.doctor.probes import examine_probes
from traincope.doctor.settings import examine_settings
from traincope.doctor.software import examine_software
from traincope.record.identity import DEFAULT_ROOT
from traincope.record.options import OUT_VARIABLE


def examine_machine(environment: Mapping[str, str]) -> Examination:
    """Imports torch where there is one, and records for a moment, to a temporary directory."""
    out = Path(environment.get(OUT_VARIABLE) or DEFAULT_ROOT).absolute()
    return Examination(
        subject="this machine and this Python",
        sections=(
            Section(title="SOFTWARE", findings=examine_software()),
            Section(title="GPU", findings=examine_gpu()),
            Section(title="PROBES", findings=examine_probes()),
            Section(title="DISK", findings=examine_disk(out)),
            Section(title="SETTINGS", findings=examine_settings(environment)),
        ),
    )
