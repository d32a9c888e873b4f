"""What a client sends and gets: one file a dialect, every request inside the router one of chat completions."""
