"""Which test files start processes."""

from pathlib import Path

import pytest

from tests.processes import starts_processes

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("test_units.py", False),
        ("analysis/test_critical_path.py", False),
        ("test_whole_files.py", True),  # imports `subprocess`
        ("browser/test_viewer.py", True),  # its browser's module does
        ("distributed/equality/test_equality.py", True),  # a pool of ranks
        ("faults/test_disk.py", True),  # victims
        ("cli/launch/test_restarts.py", True),  # torchrun within the product
    ],
)
def test_a_file_starts_processes_if_it_imports_what_starts_them(file: str, expected: bool) -> None:
    assert starts_processes(HERE / file) is expected
