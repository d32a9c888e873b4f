"""Reports as pages that open offline, and as a workbook; `registry.py` has one entry for each."""
