"""What a finished or partial run says: its numbers, as frozen results, and as JSON and CSV."""
