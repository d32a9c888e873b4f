"""Credentials: of a model itself, of the key file, of the environment, in this order.

The key file is `--keys PATH`, else `COEVAL_KEYS_FILE`, else `keys.yaml` here, else `~/.coeval/keys.yaml`: the first one
that is there, or that is named. It is a map of interfaces, or has one below `providers`; a value is a key, or a map:

    openai: sk-...
    azure_openai: {api_key: ..., endpoint: https://NAME.openai.azure.com}
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from coeval.config.reading import ConfigErrors, Fields, NoKeyError, Problems
from coeval.interfaces import INTERFACES, LATER, VIRTUAL
from coeval.schema import Model
from p2l.common.errors import ConfigError
from route.providers.accounts import account_for, expand
from route.providers.base import Account
from route.providers.registry import ProviderSpec

if TYPE_CHECKING:
    from coeval.schema import Config, Model


@dataclass(frozen=True)
class Keys:
    """Every credential that is known; never printed."""

    providers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """Interface -> what the key file says of it."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    path: Path | None = None
    """The key file that was read."""
    looked: tuple[Path, ...] = ()
    """Where a key file was looked for."""

    def has(self, interface: str) -> bool:
        """Whether something of this interface can be asked without further keys."""
        if interface in (*VIRTUAL, "mock"):
            return True
        spec = INTERFACES.get(interface)
        if spec is not None and spec.protocol and not spec.needs_key:  # a local server: used where it is named
            return interface in self.providers or _first(self.env, spec.url_variables) is not None
        try:
            self.account_of(interface)
        except NoKeyError:
            return False
        return interface != "huggingface" or bool(self.account_of(interface).api_key)

    def account(self, model: Model) -> Account:
        """Where a model is and who asks for it. Of a model of this machine, the hub's token is the key.

        Raises:
            NoKeyError: there is no key or no address, or one that cannot be used.
        """
        given = dict(model.parameters)
        if model.access_key:
            given["api_key"] = model.access_key
        left_out = model.key_left_out and not model.access_key and model.interface not in (*VIRTUAL, "mock")
        try:
            account = self.account_of(model.interface, given)
        except NoKeyError as error:
            raise NoKeyError(f"{self._left_out(model)}; {error}" if left_out else str(error)) from None
        if left_out and not account.api_key:
            raise NoKeyError(f"{self._left_out(model)}; write {self._elsewhere(model)}")
        return account

    def account_of(self, interface: str, given: Mapping[str, Any] | None = None) -> Account:
        """The account of an interface; `given` are parameters of a model, which go first.

        Raises:
            NoKeyError: there is none.
        """
        parameters = dict(given or {})
        if interface in LATER:
            raise NoKeyError(f"{interface} is not supported yet; reach the model through another provider")
        try:
            if interface == "huggingface":
                return self._hub(parameters)
            if not INTERFACES[interface].protocol:
                return Account(base_url="")
            return self._account(interface, parameters)
        except NoKeyError:
            raise
        except ConfigError as error:
            raise NoKeyError(str(error)) from None

    def secrets(self) -> set[str]:
        """Every key that is in use or in reach, so that no file shows it."""
        names = {name for spec in (*INTERFACES.values(), *LATER.values()) for name in spec.key_variables}
        stored = {value for inner in self.providers.values() for key, value in inner.items() if _is_secret(key)}
        return stored | {self.env[name] for name in names if self.env.get(name)}

    def _hub(self, parameters: Mapping[str, Any]) -> Account:
        stored = self.providers.get("huggingface", {})
        key = parameters.get("api_key") or stored.get("api_key") or stored.get("token")
        hub = INTERFACES["huggingface"]
        key = expand(str(key), self.env, "huggingface") if key else _first(self.env, hub.key_variables)
        return Account(base_url=str(hub.base_url), api_key=key)

    def _account(self, interface: str, parameters: Mapping[str, Any]) -> Account:
        spec = INTERFACES[interface]
        stored = self.providers.get(interface, {})
        named = parameters.get("base_url") or parameters.get("azure_endpoint")
        address = named or stored.get("base_url") or stored.get("endpoint")
        key, homes = parameters.get("api_key"), (spec.base_url, stored.get("base_url"), stored.get("endpoint"))
        elsewhere = named and spec.base_url and not any(_same_host(str(named), home) for home in homes if home)
        if not key and not elsewhere:
            key = stored.get("api_key") or stored.get("token")
        if not key and spec.needs_key and not named and not _first(self.env, spec.key_variables):
            raise NoKeyError(self._missing(interface, spec))
        account = account_for(
            spec.name,
            str(key) if key else None,
            str(address) if address else None,
            self.env,
            _options(spec, parameters, stored),
        )
        if spec.needs_key and not account.api_key and spec.base_url is None:
            raise NoKeyError(self._missing(interface, spec))
        return replace(account, headers=_headers(account.headers, parameters))

    def _left_out(self, model: Model) -> str:
        return f"the access_key of model {model.name} is not stored with the run"

    def _elsewhere(self, model: Model) -> str:
        """Where a key goes that is not for the interface's usual address, if the model has one of its own."""
        looked = f"looked in {self.path}" if self.path else self._looked(model.interface)
        if model.interface == "huggingface":
            return (
                f"`huggingface: TOKEN` in a key file ({looked}), or set {INTERFACES[model.interface].key_variables[0]}"
            )
        entry = f"`{model.interface}: {{api_key: KEY, base_url: ITS ADDRESS}}` in a key file"
        return f"{entry} ({looked}), or `access_key: ${{VARIABLE}}` in the configuration"

    def _looked(self, interface: str) -> str:
        """Where the interface was looked for in vain."""
        if self.path:
            return f"looked in {self.path}, which has no {interface}"
        return f"looked for {' and '.join(str(path) for path in self.looked) or 'none'}"

    def _missing(self, interface: str, spec: ProviderSpec) -> str:
        variables = " or ".join(spec.key_variables)
        where = self._looked(interface)
        return f"no key for {interface}: set {variables}, or write `{interface}: KEY` in a key file ({where})"


def load_keys(path: str | Path | None, env: Mapping[str, str], *, folder: Path | None = None) -> Keys:
    """Read the key file, if there is one.

    Args:
        path: of `--keys`.
        env: the environment.
        folder: where `keys.yaml` is looked for; the working folder by default.

    Raises:
        ConfigErrors: a file that is named is missing, or one that is there cannot be read or holds something unknown.
    """
    named = path or env.get("COEVAL_KEYS_FILE")
    if named:
        candidates = [Path(named).expanduser()]
        if not candidates[0].is_file():
            source = "--keys" if path else "COEVAL_KEYS_FILE"
            raise ConfigErrors([f"{source}: there is no file {candidates[0]}; mend the path, or leave it out"])
    else:
        home = Path(env.get("HOME") or Path.home())
        candidates = [(folder or Path.cwd()) / "keys.yaml", home / ".coeval" / "keys.yaml"]
    found = next((candidate for candidate in candidates if _is_there(candidate)), None)
    providers = _read(found) if found else {}
    return Keys(providers, dict(env), found, tuple(candidates))


def _is_there(path: Path) -> bool:
    """A home that belongs to somebody else has no key file for us."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def _read(path: Path) -> dict[str, dict[str, str]]:
    """The file's providers; no message repeats what the file says, which may be a key."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigErrors([f"{path}:{line}: is no YAML: {error.problem}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ConfigErrors([f"{path}: is no YAML text; write lines such as `openai: KEY`"]) from None
    except OSError as error:
        raise ConfigErrors([f"{path}: cannot be read: {error.strerror}"]) from None
    problems = Problems(str(path))
    top = Fields({} if raw is None else raw, (), problems, None)
    inner = top.fields("providers") if "providers" in top.values else top
    known = Fields(inner.values, inner.where, problems, (*(i for i in INTERFACES if i not in VIRTUAL), *LATER))
    specs = {**INTERFACES, **LATER}
    found = {name: _entry(known, name, specs[name]) for name in known.values if name in specs}
    problems.raise_any()
    return {name: entry for name, entry in found.items() if entry}


def _entry(known: Fields, name: str, spec: ProviderSpec) -> dict[str, str]:
    value = known.values[name]
    if value is None:
        return {}
    if isinstance(value, str):
        only = "api_key" if spec.needs_key or not spec.protocol or "://" not in value else "base_url"
        return {only: value.strip()} if value.strip() else {}
    if not isinstance(value, Mapping):
        known.wrong(name, "must be a key in quotes, or a map such as {api_key: KEY}")
        return {}
    inner = known.fields(name, spec.key_fields)
    return {key: text.strip() for key in inner.values if (text := inner.secret(key)) is not None}


def _options(spec: ProviderSpec, parameters: Mapping[str, Any], stored: Mapping[str, str]) -> dict[str, Any]:
    options = {name: parameters.get(name) or stored.get(name) for name in spec.option_variables}
    return {name: value for name, value in {**options, "max_tokens": spec.max_tokens}.items() if value}


def _headers(headers: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, str]:
    """The provider's headers; those that name the site that asks name CoEval, or the model's `site_url` and `_name`."""
    site = {"HTTP-Referer": parameters.get("site_url"), "X-Title": parameters.get("site_name") or "CoEval"}
    return {**headers, **{name: str(value) for name, value in site.items() if value and name in headers}}


def _is_secret(key: str) -> bool:
    return key in ("api_key", "token", "access_key_id", "secret_access_key", "session_token", "service_account_key")


def _same_host(url: str, other: str) -> bool:
    return urlsplit(url).hostname == urlsplit(other).hostname


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((env[name] for name in names if env.get(name)), None)


# The configuration as a run keeps it: what was asked for and how it was resolved, without anything secret.
#
# A secret is known by its key (`api_key`, `session_token`, ...), by its look (`sk-...`), or because it is one of the
# keys
# in use.

REDACTED = "<redacted>"
"""Stands for a secret; where a configuration with it is read again, the key comes from the key file or environment."""
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


def redacted(value: Any, secrets: Collection[str] = (), key: str = "", *, by_key: bool = True) -> Any:
    """A copy of what YAML or JSON holds, each secret in it replaced; names of variables, `${NAME}`, may stay.

    Args:
        value: the whole, or a part.
        secrets: texts that must not show anywhere.
        key: whose value it is.
        by_key: whether names of keys tell secrets; not in tasks, whose attributes and factors may have any name.
    """
    if isinstance(value, Mapping):
        return {name: redacted(inner, secrets, str(name), by_key=by_key) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, secrets, key, by_key=by_key) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    if by_key and _SECRET_KEY.search(key):
        return value if isinstance(value, str) and _REFERENCE.fullmatch(value) else REDACTED
    return _masked(value, secrets) if isinstance(value, str) else value


def _masked(text: str, secrets: Collection[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 6:
            text = text.replace(secret, REDACTED)
    return _IN_URL.sub(REDACTED, _SECRET_LOOK.sub(REDACTED, text))


def snapshot(config: Config, secrets: Collection[str] = ()) -> dict[str, Any]:
    """What the run's `config.yaml` says: the file, and for each `interface: auto` what it became (`resolved`).

    Args:
        config: as it was loaded.
        secrets: the keys in use, `Keys.secrets()`.
    """
    kept = {part: redacted(value, secrets, by_key=part != "tasks") for part, value in config.raw.items()}
    models = {model.name: model for model in config.models}
    for entry in kept.get("models", []):
        if entry.get("interface") == "auto":
            model = models[entry["name"]]
            entry["resolved"] = {"interface": model.interface, **_names_of(model)}
    return kept


def _names_of(model: Model) -> dict[str, Any]:
    """What its provider calls it; by role where that differs."""
    if len(model.asked_for) == 1:
        return {"model": next(iter(model.asked_for))}
    return {"models": {role: model.model_id(role) for role in model.roles}}


def snapshot_text(config: Config, secrets: Collection[str] = ()) -> str:
    """The same as YAML."""
    import yaml

    return yaml.safe_dump(snapshot(config, secrets), sort_keys=True, allow_unicode=True, width=120)
