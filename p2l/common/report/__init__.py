"""Results shown: one `Report` of verdict, tables and figures, rendered as text, HTML, JSON, CSV and pictures.

    table = Table([Column("Model", number=False), Column("Loss", 3, key="loss")], rows)
    figure = Figure.of([Series("a", [1, 2], [0.7, 0.6])], Axes("step", "loss"), "Loss by step")
    sections = [Section("Results", [table]), Section("How it fell", [figure], page_only=True)]
    report = Report("Evaluation", "my-model", "held_out.parquet", today(), Verdict("It wins."), None, sections)

    print(report_text(report, top=10))              # .text: also section_text, table_text, table_markdown, table_rows
    save_report(report, "report.html")              # .reports: also report_page, check_page
    write_json("report.json", report_json(report))  # .text: also part_json, write_csv(table, "loss.csv")
    save_picture("loss.png", figure)                # .images: also draw(figure), matplotlib's figure for notebooks

`Column.key` names a column in CSV and JSON; text leaves out what is `page_only`. A page needs nothing but itself:
whatever comes from data is escaped. Pages of applications extend `base.html`, take macros from `parts.html` and are
made by `render`.
"""

from __future__ import annotations

from p2l.common.report.tables import Cell, Column, Scale, Table, Value, anchor, number_text, render, write_page

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
