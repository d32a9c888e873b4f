"""Pictures of the pages of running services, and of reports, for the documentation and to look at while pages change.

    p2l endpoint --model outputs/sample --host 127.0.0.1 &
    python -m tools.screenshots --endpoint http://127.0.0.1:10250 --output /tmp/shots      # every size and scheme
    python -m tools.screenshots --endpoint http://127.0.0.1:10250 --docs                   # those of the documentation
    p2l report outputs/sample --html pages/training.html
    python -m tools.screenshots --reports pages --output /tmp/shots                        # training.html, ...

It needs Chromium (`make browser`), and for the console of a router the variable ADMIN_KEY.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tools.chromium import CHROMIUM, FLAGS

if TYPE_CHECKING:
    from playwright.sync_api import Page

_WIDTHS = (360, 1400)
_PROMPT = "Write a SQL query that finds customers without an order."
_OTHER = "Prove that 17 is prime."
Act = Callable[["Page"], None]


@dataclass(frozen=True)
class Shot:
    """A picture: its name, the service and path of its page, and what is done there first."""

    name: str
    service: str
    path: str
    act: Act | None = None
    is_documented: bool = False
    """Whether the documentation shows what of it fits into a window."""


def _type_prompt(page: Page) -> None:
    page.fill("#turn-1", _PROMPT)
    page.wait_for_selector(".facts strong >> nth=0")
    page.wait_for_timeout(500)


def _compare(page: Page) -> None:
    _type_prompt(page)
    page.click("button[value=other]")
    page.fill("#other-1", _OTHER)
    page.wait_for_selector(".board.pair")
    page.wait_for_timeout(500)


def _sign_in(page: Page) -> None:
    if page.query_selector("#key"):
        page.fill("#key", os.environ["ADMIN_KEY"])
        page.keyboard.press("Enter")
    page.wait_for_selector(".chart canvas >> nth=0")
    page.fill("#try-prompt", _PROMPT)
    page.fill("#budget", "45")
    page.wait_for_selector("#mixture table")
    page.wait_for_timeout(2500)


def _fight(page: Page) -> None:
    page.fill("#prompt", _PROMPT)
    page.click("text=Ask two models")
    page.wait_for_selector("#vote:not([hidden])")
    page.wait_for_timeout(300)


def _vote(page: Page) -> None:
    _fight(page)
    page.keyboard.press("a")
    page.wait_for_selector("#verdict table")


def _find_items(page: Page) -> None:
    page.wait_for_selector("#count:has-text('that fit')")


def _open_item(page: Page) -> None:
    _find_items(page)
    page.click("#list a >> nth=0")
    page.wait_for_selector(".answers")


SHOTS = (
    Shot("page-global", "endpoint", "/"),
    Shot("page-prompt", "endpoint", "/", _type_prompt),
    Shot("page-compare", "endpoint", "/", _compare, is_documented=True),
    Shot("arena-answers", "router", "/arena", _fight),
    Shot("arena", "router", "/arena", _vote, is_documented=True),
    Shot("console", "router", "/console", _sign_in, is_documented=True),
    Shot("coeval-ranking", "coeval", "/", is_documented=True),
    Shot("coeval-items", "coeval", "/items.html#apart=500&sort=apart", _find_items, is_documented=True),
    Shot("coeval-search", "coeval", "/items.html#search=the", _find_items),
    Shot("coeval-item", "coeval", "/items.html#task=summaries&apart=500&sort=apart", _open_item, is_documented=True),
)


REPORTS = ("training", "evaluation", "routing", "slices", "drift", "leaderboard", "strengths")
"""Names of the pages in the folder of reports, as far as they are there."""
DOCUMENTED = ("training", "leaderboard", "strengths")


def report_shots(folder: Path) -> list[Shot]:
    """Return the pictures of the reports in a folder."""
    there = [name for name in REPORTS if (folder / f"{name}.html").is_file()]
    return [Shot(f"report-{name}", "reports", f"/{name}.html", is_documented=name in DOCUMENTED) for name in there]


def take(services: dict[str, str], shots: Sequence[Shot], output: Path, docs: bool) -> Iterator[Path]:
    """Yield the pictures of what the services have, by their addresses, as they are written."""
    from playwright.sync_api import sync_playwright

    schemes: tuple[Literal["light", "dark"], ...] = ("light",) if docs else ("light", "dark")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for width in (1400,) if docs else _WIDTHS:
            for scheme in schemes:
                size = {"width": width, "height": 1150 if width > 500 else 740}
                context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
                page = context.new_page()
                for shot in (shot for shot in shots if shot.is_documented or not docs):
                    page.goto(services[shot.service].rstrip("/") + shot.path)
                    if shot.act is not None:
                        shot.act(page)
                    name = shot.name if docs else f"{shot.name}-{width}-{scheme}"
                    path = output / f"{name}.png"
                    page.screenshot(path=path, full_page=not docs)
                    yield path
                context.close()
        browser.close()


def main() -> None:
    """Take the pictures."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--endpoint", metavar="URL", help="of a running p2l endpoint")
    flags.add_argument("--router", metavar="URL", help="of a running router")
    flags.add_argument("--coeval", metavar="URL", help="of a running coeval view")
    flags.add_argument("--reports", metavar="DIR", type=Path, help=f"folder with {', '.join(REPORTS)}, each as .html")
    flags.add_argument("--output", type=Path, default=Path("docs/figures"), metavar="DIR", help="where they go")
    flags.add_argument("--docs", action="store_true", help="only those that the documentation shows")
    args = flags.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    services = {name: url for name in ("endpoint", "router", "coeval") if (url := getattr(args, name))}
    shots = [shot for shot in SHOTS if shot.service in services]
    if args.reports is not None:
        services["reports"] = args.reports.resolve().as_uri()
        shots += report_shots(args.reports)
    for path in take(services, shots, args.output, args.docs):
        print(path)


if __name__ == "__main__":
    main()
