"""Clients of model providers, one asynchronous client for each protocol; none of them knows the router."""

from route.providers.base import JSON, Account, Fault, Provider, ProviderError, Timeouts

__all__ = ["JSON", "Account", "Fault", "Provider", "ProviderError", "Timeouts"]
