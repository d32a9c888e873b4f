"""The HTTP service: an asynchronous batcher around one model, and the routes that ask it."""

__all__: list[str] = []
