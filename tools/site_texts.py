"""Pages of the site as Markdown, and `llms.txt`, for programs that read text: `python -m tools.site_texts PAGES SITE`.

Beside each page `evaluate/drift.html` stands `evaluate/drift.md`, and `llms.txt` at the root lists all of them by the
parts of the navigation, each with its first sentence (https://llmstxt.org).
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from p2l.common.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
_NAVIGATION = re.compile(r'\{ "(?P<part>[^"]+)" = \[(?P<pages>.*?)\] \}', re.DOTALL)
_LONGEST_SUMMARY = 200  # characters
_HEAD = """# P2L

> Prompt-to-leaderboard models: read a prompt, return how good each LLM is at it; trained on votes or graded answers.

A public model of real LLMs is in the package: `p2l leaderboard "PROMPT"`. `p2l skill` prints which command serves which
wish, `p2l mcp` serves the same as tools.
"""


def write_texts(pages: Path, site: Path) -> int:
    """Copy every page as Markdown beside its HTML and write llms.txt; return the number of pages."""
    lines, count = [_HEAD], 0
    for part, names in navigation():
        lines += ["", f"## {part}", ""]
        for name in names:
            page = pages / name
            if not page.is_file():
                raise InputError(f"{page}: no such page, but zensical.toml lists it; run python -m tools.site first")
            text = page.read_text(encoding="utf-8")
            target = site / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, target)
            lines.append(f"- [{_title(text)}]({name}): {_summary(text)}")
            count += 1
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return count


def navigation() -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the parts of the site's navigation with their pages."""
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    for match in _NAVIGATION.finditer(text):
        yield match["part"], re.findall(r'"([^"]+\.md)"', match["pages"])


def _title(text: str) -> str:
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1] if heading else "Untitled"


def _summary(text: str) -> str:
    """Return the first sentence of a page's first paragraph, without links and marks."""
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", text))
    plain = next((part for part in paragraphs if part and not re.match(r"[#!<`|\[-]", part)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(plain.split())).replace("`", "").replace("*", "")
    sentence = re.split(r"(?<=[.:?])\s", plain, maxsplit=1)[0]
    return sentence[:_LONGEST_SUMMARY]


def main() -> None:
    """Write the texts of a built site."""
    flags = argparse.ArgumentParser(prog="python -m tools.site_texts", description=__doc__.split("\n")[0])
    flags.add_argument("pages", nargs="?", type=Path, default=ROOT / "build" / "pages", help="what tools.site gathered")
    flags.add_argument("site", nargs="?", type=Path, default=ROOT / "build" / "site", help="what zensical built")
    args = flags.parse_args()
    print(f"{write_texts(args.pages, args.site)} pages as Markdown, and llms.txt, in {args.site}")


if __name__ == "__main__":
    main()
