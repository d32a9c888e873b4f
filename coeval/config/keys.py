"""Credentials: of a model itself, of the key file, of the environment, in this order.

The key file is `--keys PATH`, else `COEVAL_KEYS_FILE`, else `keys.yaml` here, else `~/.coeval/keys.yaml`: the first one
that is there, or that is named. It is a map of interfaces, or has one below `providers`; a value is a key, or a map:

    openai: sk-...
    azure_openai: {api_key: ..., endpoint: https://NAME.openai.azure.com}

A configuration is stored and shown without secrets. A secret is known by its key (`api_key`, `session_token`, ...), by
its look (`sk-...`), or because it is one of the keys in use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import yaml
from pydantic import PlainValidator, create_model

from coeval.config.reading import ConfigErrors, Entry, NoKeyError, Secret, is_file, read, read_yaml
from coeval.interfaces import INTERFACES, VIRTUAL
from coeval.schema import Config, Model
from p2l.common.errors import ConfigError
from route.providers.accounts import account_for, expand
from route.providers.base import Account
from route.providers.registry import ProviderSpec

# Stands for a secret; where a configuration with it is read again, the key comes from the key file or environment.
REDACTED = "<redacted>"
_SECRET_KEY = re.compile(
    r"(?:^|[_-])(?:api|access|secret|private|account|auth|subscription|service)[_-]?(?:access[_-]?)?key(?:[_-]?id)?$"
    r"|^(?:key|token)$|(?:session|auth|access|api|bearer|hf|refresh|id)[_-]token$|apikey|passw|secret|credential"
    r"|authorization",
    re.IGNORECASE,
)
_SECRET_LOOK = re.compile(
    r"\b(?:sk-[\w-]{12,}|AIza[\w-]{20,}|hf_\w{16,}|gsk_\w{16,}|gh[pousr]_\w{16,}|xai-\w{16,}|AKIA[A-Z0-9]{12,})"
)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=[?&]key=)[^&\s]+|(?<=[?&]api[_-]key=)[^&\s]+")
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


@dataclass(frozen=True)
class Keys:
    """Every credential there is; never printed."""

    # Interface -> its entry of the key file.
    providers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    path: Path | None = None  # the key file that was read
    looked: tuple[Path, ...] = ()  # where a key file was looked for

    def has(self, interface: str) -> bool:
        """Whether this interface can be used without further keys."""
        if interface in (*VIRTUAL, "mock"):
            return True
        spec = INTERFACES.get(interface)
        if spec is not None and spec.protocol and not spec.needs_key:  # a local server, or a cloud
            # Regions and the like, which have defaults, tell nothing of credentials.
            others = [names for option, names in spec.option_variables.items() if option not in spec.options]
            variables = (*spec.url_variables, *spec.key_variables, *" ".join(others).split())
            return interface in self.providers or _first(self.env, variables) is not None
        try:
            account = self.account_of(interface)
        except NoKeyError:
            return False
        return interface != "huggingface" or bool(account.api_key)

    def account(self, model: Model) -> Account:
        """Return a model's address and key (a local model's is the hub's token); NoKeyError if one is unusable."""
        parameters = {**model.parameters, **({"api_key": model.access_key} if model.access_key else {})}
        needs_other = model.key_left_out and not model.access_key and model.interface not in (*VIRTUAL, "mock")
        reason = f"the access_key of model {model.name} is not stored with the run"
        try:
            account = self.account_of(model.interface, parameters)
        except NoKeyError as error:
            raise NoKeyError(f"{reason}; {error}" if needs_other else str(error)) from None
        if needs_other and not account.api_key:
            raise NoKeyError(f"{reason}; write {self._other_place(model.interface)}")
        return account

    def account_of(self, interface: str, parameters: Mapping[str, Any] | None = None) -> Account:
        """Return the account of an interface; a model's parameters have precedence; NoKeyError if there is none."""
        spec = INTERFACES[interface]
        if not spec.protocol and interface != "huggingface":
            return Account(base_url="")
        make = self._hub_account if interface == "huggingface" else self._account
        try:
            return make(spec, parameters or {}, self.providers.get(interface, {}))
        except ConfigError as error:
            raise NoKeyError(str(error)) from None

    def secrets(self) -> set[str]:
        """Return every key that is in use or in reach, so that no file shows it."""
        names = {name for spec in INTERFACES.values() for name in spec.key_variables}
        names |= {
            name for spec in INTERFACES.values() for name in spec.option_variables.values() if _SECRET_KEY.search(name)
        }
        stored = {text for entry in self.providers.values() for key, text in entry.items() if _SECRET_KEY.search(key)}
        return stored | {self.env[name] for name in names if self.env.get(name)}

    def _hub_account(self, spec: ProviderSpec, parameters: Mapping[str, Any], entry: Mapping[str, str]) -> Account:
        key = parameters.get("api_key") or entry.get("api_key") or entry.get("token")
        key = expand(str(key), self.env, "huggingface") if key else _first(self.env, spec.key_variables)
        return Account(base_url=str(spec.base_url), api_key=key)

    def _account(self, spec: ProviderSpec, parameters: Mapping[str, Any], entry: Mapping[str, str]) -> Account:
        model_address = parameters.get("base_url") or parameters.get("azure_endpoint")
        stored_addresses = [address for key in ("base_url", "endpoint") if (address := entry.get(key))]
        address = model_address or next(iter(stored_addresses), None)
        key = parameters.get("api_key")
        # A stored key is sent to the hosts that it is for, not to whatever address a model names.
        hosts = [urlsplit(home).hostname for home in (spec.base_url, *stored_addresses) if home]
        if not key and not (model_address and spec.base_url and urlsplit(str(model_address)).hostname not in hosts):
            key = entry.get("api_key") or entry.get("token")
        names = (*spec.option_variables, *spec.batch_options)
        options = {name: parameters.get(name) or entry.get(name) for name in names}
        options = {name: value for name, value in {**options, "max_tokens": spec.max_tokens}.items() if value}
        variables = " or ".join(spec.key_variables)
        place = f"`{spec.interface}: KEY` in a key file ({self._looked(str(spec.interface))})"
        missing = NoKeyError(f"no key for {spec.interface}: set {variables}, or write {place}")
        if not key and spec.needs_key and not model_address and not _first(self.env, spec.key_variables):
            raise missing
        account = account_for(
            spec.name, str(key) if key else None, str(address) if address else None, self.env, options
        )
        if spec.needs_key and not account.api_key and spec.base_url is None:
            raise missing
        return replace(account, headers=_headers(account.headers, parameters))

    def _other_place(self, interface: str) -> str:
        """Return where a key goes that is not for the interface's usual address, if the model has one of its own."""
        looked = f"looked in {self.path}" if self.path else self._looked(interface)
        if interface == "huggingface":
            return f"`huggingface: TOKEN` in a key file ({looked}), or set {INTERFACES[interface].key_variables[0]}"
        entry = f"`{interface}: {{api_key: KEY, base_url: ITS ADDRESS}}` in a key file"
        return f"{entry} ({looked}), or `access_key: ${{VARIABLE}}` in the configuration"

    def _looked(self, interface: str) -> str:
        if self.path:
            return f"looked in {self.path}, which has no {interface}"
        return f"looked for {' and '.join(map(str, self.looked)) or 'none'}"


def _headers(headers: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, str]:
    """Name CoEval, or the model's `site_url` and `site_name`, where the provider has headers for the site that asks."""
    site = {"HTTP-Referer": parameters.get("site_url"), "X-Title": parameters.get("site_name") or "CoEval"}
    return {**headers, **{name: str(value) for name, value in site.items() if value and name in headers}}


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)


def load_keys(path: str | Path | None, env: Mapping[str, str], *, folder: Path | None = None) -> Keys:
    """Read the key file of `--keys`, of the environment, or in `folder` (the working folder by default), if any.

    Raise ConfigErrors where a file that is named is missing, or one that is there cannot be read or used.
    """
    named = path or env.get("COEVAL_KEYS_FILE")
    if named:
        candidates = [Path(named).expanduser()]
        if not candidates[0].is_file():
            source = "--keys" if path else "COEVAL_KEYS_FILE"
            raise ConfigErrors([f"{source}: there is no file {candidates[0]}; correct the path, or leave it out"])
    else:
        home = Path(env.get("HOME") or Path.home())
        candidates = [(folder or Path.cwd()) / "keys.yaml", home / ".coeval" / "keys.yaml"]
    # A home that belongs to somebody else, which may not be looked at, has no key file for us.
    file = next(filter(is_file, candidates), None)
    providers = _read_providers(file) if file else {}
    return Keys(providers=providers, env=dict(env), path=file, looked=tuple(candidates))


def _read_providers(path: Path) -> dict[str, dict[str, str]]:
    """Return the file's providers; no message repeats what the file says, which may be a key."""
    raw, problems = read_yaml(path)
    is_nested = isinstance(raw, Mapping) and "providers" in raw
    providers = raw["providers"] if is_nested else raw
    where = ("providers",) if is_nested else ()
    entries = read(_key_file(), {} if providers is None else providers, where, problems)
    problems.raise_any()
    return {name: entry for name, entry in entries if entry}


def _key_file() -> type[Entry]:
    fields: dict[str, Any] = {}
    for name, spec in INTERFACES.items():
        if name not in VIRTUAL:
            keys: dict[str, Any] = dict.fromkeys(spec.key_fields, (Secret | None, None))
            entry = create_model(name, __base__=Entry, **keys)
            fields[name] = (Annotated[dict[str, str] | entry, PlainValidator(partial(_entry, spec, entry))], {})
    return create_model("KeyFile", __base__=Entry, **fields)


def _entry(spec: ProviderSpec, kind: type[Entry], value: Any) -> dict[str, str]:
    """Return the entry of an interface: a key or a server's address alone, or a map."""
    if isinstance(value, str):
        only = "api_key" if spec.needs_key or not spec.protocol or "://" not in value else "base_url"
        return {only: value.strip()} if value.strip() else {}
    if not isinstance(value, Mapping):
        raise ValueError("must be a key in quotes, or a map such as {api_key: KEY}")
    return {key: text.strip() for key, text in kind.model_validate(value) if text is not None}


def redacted(value: Any, secrets: Collection[str] = (), key: str = "", *, by_key: bool = True) -> Any:
    """Return a copy of what YAML or JSON holds below a key, each secret replaced; references, `${NAME}`, may stay.

    `secrets` must not show anywhere. With `by_key` names of keys tell secrets; not in tasks, whose attributes and
    factors may have any name.
    """
    if isinstance(value, Mapping):
        return {name: redacted(inner, secrets, str(name), by_key=by_key) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, secrets, key, by_key=by_key) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    if by_key and _SECRET_KEY.search(key):
        return value if isinstance(value, str) and _REFERENCE.fullmatch(value) else REDACTED
    if not isinstance(value, str):
        return value
    for secret in sorted(secrets, key=len, reverse=True):  # one may be the beginning of another
        if len(secret) >= 6:  # shorter ones are parts of ordinary words
            value = value.replace(secret, REDACTED)
    return _IN_URL.sub(REDACTED, _SECRET_LOOK.sub(REDACTED, value))


def snapshot(config: Config, secrets: Collection[str] = ()) -> dict[str, Any]:
    """Return the run's `config.yaml`: the file without secrets, with what `interface: auto` became (`resolved`)."""
    stored = {part: redacted(value, secrets, by_key=part != "tasks") for part, value in config.raw.items()}
    models = {model.name: model for model in config.models}
    for entry in stored.get("models", []):
        if entry.get("interface") == "auto":
            model = models[entry["name"]]
            names: dict[str, Any] = {"models": {role: model.model_id(role) for role in model.roles}}
            if len(model.asked_for) == 1:
                names = {"model": next(iter(model.asked_for))}
            entry["resolved"] = {"interface": model.interface, **names}
    return stored


def snapshot_text(config: Config, secrets: Collection[str] = ()) -> str:
    """Return the same as YAML."""
    return yaml.safe_dump(snapshot(config, secrets), sort_keys=True, allow_unicode=True, width=120)
