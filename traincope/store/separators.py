"""Separators of tables in text, as spreadsheets of different countries write them."""

from typing import TextIO

SEPARATORS = (",", ";", "\t")


def separator(file: TextIO) -> str:
    """Return the separator that the first line of a file has most often, of equal ones the comma. The file is read
    from its begin.
    """
    head = file.readline()
    file.seek(0)
    return max(SEPARATORS, key=head.count)


def column_name(head: str) -> str:
    """Return the name of a column as the readers call it."""
    return head.strip().lower()
