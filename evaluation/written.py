"""Tables in pages that a command writes, between two marks. The first mark has a digest, so that an edit shows."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from subprocess import run

DIGEST = "sha256 of the lines"


class EditedError(Exception):
    """A written table was changed by hand."""


class UncommittedError(Exception):
    """The code that would be measured is not a commit."""


def write_table(page: Path, name: str, lines: Iterable[str], *, by: str) -> None:
    """Replace the lines between `<!-- NAME: ... -->` and `<!-- /NAME -->`. All are made before the page changes."""
    made = "".join(f"{line}\n" for line in lines)
    before, _, _, after = _parts(page, name)
    mark = f"<!-- {name}: written by {by}; {DIGEST}: {_digest(made)} -->\n"
    page.write_text(f"{before}{mark}{made}<!-- /{name} -->{after}")


def written_table(page: Path, name: str) -> list[str]:
    """Return the lines between the marks. Raises EditedError if they are not the written ones."""
    _, mark, made, _ = _parts(page, name)
    if _digest(made) not in mark:
        raise EditedError(f"the table {name} in {page} is not as its command wrote it: run the command of its mark")
    return made.splitlines()


def commit(root: Path, *, but: Path) -> str:
    """Return the commit of the tree at `root`. Raises UncommittedError for changes to files other than `but`."""
    changed = _git(root, "status", "--porcelain", "--untracked-files=normal", "--", ".", f":(exclude){but}")
    if changed:
        raise UncommittedError(f"commit these changes first, so that the table can name what it measured:\n{changed}")
    return _git(root, "rev-parse", "--short=10", "HEAD")


def _git(root: Path, *arguments: str) -> str:
    done = run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UncommittedError(f"{root} is not a checkout of git, so its commit is unknown: {done.stderr.strip()}")
    return done.stdout.strip()


def _parts(page: Path, name: str) -> tuple[str, str, str, str]:
    """Text before the first mark, this mark, the lines, and the text after the last mark."""
    before, rest = page.read_text().split(f"<!-- {name}: ")
    mark, rest = rest.split("\n", 1)
    made, after = rest.split(f"<!-- /{name} -->")
    return before, mark, made, after


def _digest(made: str) -> str:
    return sha256(made.encode()).hexdigest()[:16]
