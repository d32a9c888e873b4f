"""Where a leaderboard comes from, on its page and in its JSON, and whether the votes give it again digit by digit.

A page holds the SHA-256 of its votes, the flags that it was made with, and the version. `verify` makes it again from
the votes and compares every text that a reader sees. Of a stranger's page flags that say how boards are fitted are
believed, and none that names a file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from p2l.common.errors import InputError
from p2l.common.files import parse_json
from p2l.common.version import __version__

META = "p2l-provenance"
"""Name of the element of a page, and key of an object of JSON, that holds it."""
# Flags that decide what is computed, by their names in the namespace; those with several values are lists.
_FLAGS = (
    *("likelihood", "people", "control", "control_steps", "by", "shrink", "cluster", "weighted", "weigh_voters"),
    *(
        "with_revealed",
        "robust",
        "drop_bad",
        "over",
        "periods",
        "time_column",
        "intervals",
        "level",
        "min_votes",
        "seed",
    ),
)
_MOST_BYTES = 64 << 20  # of a page
_LISTED_DIFFERENCES = 5
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Provenance:
    """What made a leaderboard."""

    votes: str
    """Name of the file or folder."""
    sha256: str | None
    """Of its content; None where it is no file on this machine."""
    flags: tuple[str, ...]
    """Those that decide what is computed, as they are typed."""
    version: str
    made: str
    """Day, in UTC."""

    @classmethod
    def of(cls, args: argparse.Namespace, usual: argparse.Namespace, made: date) -> Provenance:
        """Return that of a run, whose flags are compared with the `usual` ones."""
        words = []
        for name in _FLAGS:
            value = getattr(args, name)
            if value in (getattr(usual, name), None, []):
                continue
            flag = f"--{name.replace('_', '-')}"
            values = value if isinstance(value, list) else [value]
            words += [flag] if value is True else [word for each in values for word in (flag, f"{each}")]
        path = Path(args.votes).expanduser()
        return cls(path.name, digest_of(path), tuple(words), __version__, made.isoformat())

    @property
    def text(self) -> str:
        """Return it as JSON, for a page."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "votes": self.votes,
            "sha256": self.sha256,
            "flags": list(self.flags),
            "version": self.version,
            "made": self.made,
        }

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return what a reader needs to make the page again."""
        words = ["p2l", "leaderboard", "--votes", self.votes, *self.flags, "--html", "page.html"]
        return [
            ("Votes file", self.votes + ("" if self.sha256 is None else f", SHA-256 {self.sha256}")),
            ("Made by", f"p2l {self.version}: {shlex.join(words)}"),
            ("To check it", f"p2l leaderboard --verify page.html --votes {shlex.quote(self.votes)}"),
        ]


def _rounded(value: Any) -> Any:
    """Return data with numbers of nine digits: a fit that begins elsewhere, as in a lake, ends in other last bits."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


def digest_of(path: Path) -> str | None:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files; None for anything else.

    What leaderboards keep in a lake is left out: they write it themselves.
    """
    if path.is_dir():
        from p2l.votes.lake import COUNTS  # brings Arrow: forty megabytes, which the board of a prompt does without

        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        names = [file.relative_to(path) for file in files]
        digests = (
            f"{name} {digest_of(file)}\n" for name, file in zip(names, files, strict=True) if COUNTS not in name.parts
        )
        return hashlib.sha256("".join(digests).encode()).hexdigest()
    if not path.is_file():
        return None
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def provenance_of(path: Path) -> Provenance:
    """Return what a page or a JSON file says of itself; InputError where it says nothing, or something else."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path}: has more than {_MOST_BYTES >> 20} MiB, which no page of a leaderboard has")
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    try:
        stated = _stated(content, is_json=path.suffix.lower() == ".json")
        words = {name: stated[name] for name in ("votes", "version", "made")}
        if not all(isinstance(word, str) for word in (*words.values(), *stated["flags"])):
            raise TypeError("its values are not texts")
        date.fromisoformat(stated["made"])
        return Provenance(sha256=stated["sha256"], flags=tuple(stated["flags"]), **words)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: does not say where it comes from ({error}); pages and JSON of p2l leaderboard --votes do"
        ) from error


def _stated(content: str, *, is_json: bool) -> Mapping[str, Any]:
    if is_json:
        boards = parse_json(content)
        first = boards[0] if isinstance(boards, list) and boards else boards
        stated = first[META]
    else:
        reader = _PageReader()
        reader.feed(content)
        if reader.provenance is None:
            raise ValueError(f"no element <meta name={META!r}>")
        stated = parse_json(reader.provenance)
    if not isinstance(stated, dict):
        raise TypeError("it is no object")
    return stated


class _PageReader(HTMLParser):
    """The texts of a page that a reader sees, and its provenance."""

    def __init__(self) -> None:
        """Begin with an empty page."""
        super().__init__()
        self.provenance: str | None = None
        self.texts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        found = dict(attrs)
        if tag == "meta" and found.get("name") == META:
            self.provenance = found.get("content")
        self._hidden += tag in ("script", "style")
        if tag != "meta":  # pictures and the order of tables are numbers too
            self.texts += [f"{tag} {name}={value}" for name, value in attrs if value]

    def handle_endtag(self, tag: str) -> None:
        """See `HTMLParser`."""
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        """See `HTMLParser`."""
        if not self._hidden and data.strip():
            self.texts.append(" ".join(data.split()))


def texts_of(page: str) -> list[str]:
    """Return the texts of a page and of its pictures, in order."""
    reader = _PageReader()
    reader.feed(page)
    return reader.texts


def flags_of(provenance: Provenance, votes: str, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the flags that a page was made with, for `votes`; InputError for one that no page states."""
    allowed = {f"--{name.replace('_', '-')}" for name in _FLAGS}
    unknown = next((word for word in provenance.flags if word.startswith("-") and word not in allowed), None)
    if unknown is not None and not _is_number(unknown):
        raise InputError(f"the page names the flag {unknown!r}, which decides no leaderboard")
    return parser.parse_args(["--votes", votes, *provenance.flags, "--quiet"])


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def verify(path: Path, votes: str, made_again: Callable[[], str]) -> str:
    """Return a sentence that a page or JSON is what the votes give; InputError that says where it is not.

    `made_again` returns the page or the JSON that the votes give with the same flags.
    """
    stated = provenance_of(path)
    digest = digest_of(Path(votes).expanduser())
    if stated.sha256 is not None and digest != stated.sha256:
        found = "no file on this machine" if digest is None else f"SHA-256 {digest}"
        raise InputError(f"{votes}: is not the file that {path.name} was made of (SHA-256 {stated.sha256}): {found}")
    content, again = path.read_text(encoding="utf-8"), made_again()
    if path.suffix.lower() == ".json":
        before, now = (
            json.dumps(_rounded(parse_json(text)), indent=1, ensure_ascii=False).splitlines()
            for text in (content, again)
        )
    else:
        before, now = texts_of(content), texts_of(again)
    differences = [
        (number, left, right) for number, (left, right) in enumerate(zip(before, now, strict=False)) if left != right
    ]
    if not differences and len(before) == len(now):
        return f"{path.name}: all {len(before):,} texts and numbers are those that {Path(votes).name} gives ({digest})"
    version = "" if stated.version == __version__ else f"; it was made by p2l {stated.version}, this is {__version__}"
    shown = "; ".join(f"{left[:60]!r} is {right[:60]!r}" for _, left, right in differences[:_LISTED_DIFFERENCES])
    number = max(len(differences), abs(len(before) - len(now)))
    raise InputError(
        f"{path.name}: {number:,} of {len(before):,} texts differ from what the votes give: {shown}{version}"
    )
