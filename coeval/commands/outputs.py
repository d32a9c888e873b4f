"""Where a command writes its one file, and in which format: what `--out` and a flag of formats say together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coeval.errors import RunInputError

__all__ = ["file_of"]

_OTHER_FILES = ("txt", "json", "jsonl", "csv", "tsv", "parquet", "xlsx", "gz")


def file_of(out: Path, flag: str, given: str | None, formats: Sequence[str], name: str) -> tuple[Path, str]:
    """The file to write and its format.

    Args:
        out: `--out`: a file whose ending is a format, or a folder.
        flag: that chooses the format.
        given: what it says; None: the ending decides, else the first of `formats`.
        formats: that there are.
        name: of the file in a folder, without the ending.

    Raises:
        RunInputError: ending and flag contradict each other, or the ending is that of another kind of file.
    """
    ending = out.suffix.removeprefix(".").lower()
    if ending in _OTHER_FILES and ending not in formats and not out.is_dir():
        raise RunInputError(
            f"--out {out}: ends in .{ending}; give a folder, or a file that ends in .{' or .'.join(formats)}"
        )
    if ending not in formats:
        form = given or formats[0]
        return out / f"{name}.{form}", form
    if given not in (None, ending):
        raise RunInputError(
            f"--out {out} ends in .{ending} and {flag} is {given}: leave out {flag}, or change the ending"
        )
    return out, ending
