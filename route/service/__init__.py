"""The HTTP service of the router: requests in, the choice of a model, attempts at providers, answers out."""

__all__: list[str] = []
