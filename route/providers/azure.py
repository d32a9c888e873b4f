"""OpenAI's models at Azure: the model's name is that of a deployment, and is part of the path."""

from __future__ import annotations

from urllib.parse import quote

from route.providers.base import JSON, Account
from route.providers.openai_compatible import OpenAICompatible
from route.providers.registry import protocol

__all__ = ["azure"]


@protocol("azure", "api_version", "dialect", "keep", "omit")
def azure(account: Account) -> OpenAICompatible:
    """A client of an Azure resource.

    `base_url` is the resource (`https://NAME.openai.azure.com`), one deployment of it (`.../openai/deployments/NAME`),
    or its newer interface without versions (`.../openai/v1`). `options["api_version"]` goes with the first two.
    """
    base, version = account.base_url.rstrip("/"), quote(str(account.options.get("api_version", "")))

    def url(request: JSON) -> str:
        if base.endswith("/openai/v1"):
            return f"{base}/chat/completions"
        deployment = base
        if "/openai/deployments/" not in base:
            deployment = (
                f"{base.removesuffix('/openai')}/openai/deployments/{quote(str(request.get('model')), safe='')}"
            )
        return f"{deployment}/chat/completions?api-version={version}"

    headers = {"api-key": account.api_key} if account.api_key else {}
    return OpenAICompatible(account, headers=headers, url=url)
