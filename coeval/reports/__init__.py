"""Reports as pages that open offline, and as a workbook.

write("student_report", result, "analysis/student_report", slices=complete.raw)
write_all(results, complete, "analysis")
write_workbook(complete, "analysis/complete_report.xlsx")
"""

from __future__ import annotations

from coeval.reports.pages import PAGES, PORTAL, WORKBOOK, write, write_all
from coeval.reports.workbook import write_workbook

__all__ = ["PAGES", "PORTAL", "WORKBOOK", "write", "write_all", "write_workbook"]
