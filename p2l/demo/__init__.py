"""The demo: simulate, train, serve, route and report on the embedded defaults."""
