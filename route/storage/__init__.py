"""The router's SQLite file: accounts and spend, feedback, conversations."""
