"""Batch jobs of OpenAI's models at Azure: OpenAI's protocol at a resource's own address; a model is a deployment."""

from __future__ import annotations

from urllib.parse import quote

from coeval.batch.openai import OpenAIBatches
from route.providers.base import Account

__all__ = ["AzureBatches"]


class AzureBatches(OpenAIBatches):
    """One resource at Azure."""

    def __init__(self, account: Account) -> None:
        """A client that connects when it is used; the deployment has to be one for batches (`Global-Batch`)."""
        super().__init__(account, headers={"api-key": account.api_key} if account.api_key else {})
        self.endpoint = "/chat/completions"
        self._version = quote(str(account.options.get("api_version", "")))
        self._is_versioned = not self._base.endswith("/openai/v1")
        if self._is_versioned:
            self._base = f"{self._base.partition('/openai')[0]}/openai"

    def url(self, path: str, **query: str | int) -> str:
        """The address of something, with the version that the account has."""
        if self._is_versioned:
            query = {"api-version": self._version, **query}
        return super().url(path, **query)
