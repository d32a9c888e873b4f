"""Requests signed for AWS (Signature Version 4, by botocore) or carrying a token of Google (by google-auth).

Both look for credentials as their own tools do (environment, profile, the machine's role), unless the account has some.
Looking and renewing may take a network, so it happens off the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from p2l.common.errors import ConfigError
from route.providers.base import Account, Fault, ProviderError

_Signer: TypeAlias = Callable[[str, str, bytes], Awaitable[Mapping[str, str]]]
"""Returns the headers for (method, address, body). Raises ProviderError without credentials."""
SECRET_OPTIONS = ("access_key_id", "secret_access_key", "session_token")
"""Options of an account that no message shows."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def signer_for(protocol: str, account: Account) -> _Signer | None:
    """Return what signs an account's requests; None where a key does. Raise ConfigError where a package is missing."""
    if account.api_key or protocol not in ("bedrock", "s3", "vertex"):
        return None
    try:
        return _google(account) if protocol == "vertex" else _aws(account, protocol)
    except ImportError as error:
        extra = "vertex" if protocol == "vertex" else "bedrock"
        raise ConfigError(f"{extra} needs {error.name}: pip install 'p2l[{extra}]'") from None


def _refused(who: str, what: str) -> ProviderError:
    return ProviderError(Fault.CREDENTIALS, f"{who}: {what}")


def _aws(account: Account, service: str) -> _Signer:
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    options, signature = account.options, S3SigV4Auth if service == "s3" else SigV4Auth
    found: list[Any] = []
    if options.get("access_key_id") and options.get("secret_access_key"):
        keys = (str(options[name]) if options.get(name) else None for name in SECRET_OPTIONS)
        found.append(Credentials(*keys))

    def sign(method: str, url: str, body: bytes) -> Mapping[str, str]:
        if not found:
            found.append(Session().get_credentials())
        if found[0] is None:
            found.clear()
            what = "no credentials of AWS: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
            raise _refused("bedrock", what)
        request = AWSRequest(method, url, data=body, headers={"Content-Type": "application/json"})
        try:
            signature(found[0].get_frozen_credentials(), service, str(options.get("region"))).add_auth(request)
        except BotoCoreError as error:
            raise _refused("bedrock", f"the credentials of AWS cannot be used ({type(error).__name__})") from None
        return dict(request.headers.items())

    async def headers(method: str, url: str, body: bytes) -> Mapping[str, str]:
        return await asyncio.to_thread(sign, method, url, body)

    return headers


def _google(account: Account) -> _Signer:
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request
    from google.oauth2.service_account import Credentials

    file = account.options.get("service_account_key")
    is_theirs = (urlsplit(account.base_url).hostname or "").endswith(".googleapis.com")
    found: list[Any] = []
    lock = asyncio.Lock()

    def renew() -> None:
        if not found:
            if file:
                found.append(Credentials.from_service_account_file(str(file), scopes=[_SCOPE]))
            elif is_theirs:
                found.append(google.auth.default(scopes=[_SCOPE])[0])
            else:  # a token of this machine is for Google alone
                raise _refused("vertex", "an address of one's own needs service_account_key, or api_key")
        if not found[0].valid:
            found[0].refresh(Request())

    async def headers(_method: str, _url: str, _body: bytes) -> Mapping[str, str]:
        async with lock:
            try:
                await asyncio.to_thread(renew)
            except (GoogleAuthError, OSError, ValueError) as error:
                what = f"no credentials of Google ({type(error).__name__}): set GOOGLE_APPLICATION_CREDENTIALS"
                raise _refused("vertex", f"{what}, or run `gcloud auth application-default login`") from None
        return {"Authorization": f"Bearer {found[0].token}"}

    return headers
