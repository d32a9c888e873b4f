"""Templates to pages.

`base.html` is a template of this package, `my_package/report.html` one in the folder `templates` of `my_package`; so a
package keeps its pages beside its code and shares style, macros and filters. A name that a template uses and nobody
gave is an error, not a gap on the page.
"""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.command import atomic_path
from p2l.report.tables import number_text

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["anchor", "render", "write_page"]

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
"""Characters that no HTML page may hold, even escaped."""


def render(template_name: str, **data: Any) -> str:
    """A page as text.

    Args:
        template_name: `base.html` of this package, or `package/name.html` of any other's folder `templates`.
        data: what the template shows; text is escaped, results of `figure_svg` are not.

    Raises:
        jinja2.TemplateNotFound: there is no such template.
        jinja2.UndefinedError: the template needs something that was not given.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _environment().get_template(template_name).render(**data)) + "\n"


def write_page(page: str, path: str | Path) -> Path:
    """Write a page, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Path(path)


def anchor(*parts: object) -> str:
    """An id for a link within the page: letters, digits and hyphens, the same for the same parts."""
    text = unicodedata.normalize("NFKC", "-".join(map(str, parts))).casefold()
    return "s-" + re.sub(r"[\W_]+", "-", text).strip("-")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"anchor": anchor, "number": number_text}
    return made


def _source(name: str) -> str | None:
    """The text of a template, or None where there is none."""
    package, _, file = name.rpartition("/")
    found = importlib.util.find_spec(package or "p2l.report")
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / "templates" / file
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None
