"""Make a run directory of a logbook: a list of the runs and interruptions of a job."""

import shutil
from pathlib import Path

from traincope.errors import UsageError
from traincope.ingest.cards import NOTHING_GIVEN, run_card, write_card
from traincope.private_files import make_directory
from traincope.store.layout import LOGBOOK_FILE, RUN_FILE
from traincope.store.logbook import Logbook, read_logbook
from traincope.whole_files import written_aside


def import_logbook(path: Path, target: Path) -> Logbook:
    """Make the run directory `target`, which must not exist, of a logbook in CSV.

    Raises DataError for another file or contradicting rows, UsageError if the directory cannot be made. On an error
    nothing remains of it.
    """
    if target.exists():
        raise UsageError(f"{target} exists already; choose another directory with -o")
    book = read_logbook(path)
    card = run_card(
        target.name,
        world_size=book.num_ranks,
        mesh={},
        began_ns=book.start_ns or 0,
        given=NOTHING_GIVEN,
    )
    try:
        with written_aside(target) as new_path:
            make_directory(new_path)
            shutil.copyfile(path, new_path / LOGBOOK_FILE)
            write_card(new_path / RUN_FILE, card)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    return book
