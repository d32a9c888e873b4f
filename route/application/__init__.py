"""The application: its routes, its pages, and the processes that serve it."""
