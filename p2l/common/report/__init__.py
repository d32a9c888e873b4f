"""Pages that need nothing but themselves: HTML from Jinja2 templates, one style, tables that sort.

page = render("my_package/report.html", title="Results", table=Table([Column("model"), Column("loss")], rows))
write_page(page, "report/index.html")

A template extends `base.html` and takes its macros from `parts.html`. Whatever comes from data is escaped.
"""

from __future__ import annotations

from p2l.common.report.tables import (
    Cell,
    Column,
    Scale,
    Table,
    Value,
    anchor,
    number_text,
    render,
    write_page,
)

__all__ = [
    "Cell",
    "Column",
    "Scale",
    "Table",
    "Value",
    "anchor",
    "number_text",
    "render",
    "write_page",
]
