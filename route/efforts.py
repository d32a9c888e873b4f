"""A model of the configuration with several efforts: one model for each, whose requests differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from p2l.common.cli import nearest
from route.catalogue import entry_of
from route.providers.efforts import LEVELS, sent_as

_OF_REQUESTS = ("name", "type", "temp", "top_p", "top_k", "max_tokens", "system_prompt")
"""Keys of a model that its requests show."""


def arms_of(name: str, model: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return a model of the configuration as one for each of its efforts.

    `known` are the keys that an effort may have. Raise ValueError for one that is wrong, or would not differ.
    """
    efforts = model["efforts"]
    if not isinstance(efforts, dict) or not efforts:
        raise ValueError(f"model_configs.{name}.efforts: must be settings by name, such as NAME: {{effort: low}}")
    base = {key: setting for key, setting in model.items() if key != "efforts"}
    arms, sent = {}, dict[str, str]()
    for arm, settings in efforts.items():
        where = f"model_configs.{name}.efforts.{arm}"
        for key in settings if isinstance(settings, dict) else ():
            if key not in known:
                raise ValueError(f"{where}.{key}: is not known{nearest(str(key), known)}")
        if not isinstance(settings, dict) or not isinstance(settings.get("effort"), str):
            raise ValueError(f"{where}: needs an effort, such as low")
        _check_effort({**base, **settings}, where)
        own = {key: setting for key, setting in settings.items() if key != "effort"}
        twin = sent.setdefault(_sent_by({**base, **settings}), arm)
        if twin != arm:
            raise ValueError(f"{where}: is sent as the very request of {twin}; give it another effort")
        fields = {**(base.get("extra_fields") or {}), "reasoning_effort": settings["effort"]}
        arms[arm] = {**base, "extra_fields": {**fields, **(own.pop("extra_fields", None) or {})}, **own}
    return arms


def _check_effort(model: Mapping[str, Any], where: str) -> None:
    """Raise ValueError for an effort that the model does not have."""
    type_, name, effort = str(model.get("type")), str(model.get("name")), model["effort"]
    entry = entry_of(type_, name, model.get("base_url"), True)
    capabilities = model.get("capabilities")
    is_known = isinstance(capabilities, dict) and "reasoning" in capabilities
    if effort not in LEVELS:
        raise ValueError(f"{where}.effort: {effort!r:.40} is none of {', '.join(LEVELS)}{nearest(effort, LEVELS)}")
    lacks = entry is not None and "reasoning" in entry.lacks and not is_known
    if lacks or sent_as(type_, name, effort) is None:
        raise ValueError(f"{where}.effort: {name} has no effort {effort!r:.40} that could be sent; leave it out")


def _sent_by(model: Mapping[str, Any]) -> str:
    """Return what tells the requests of one arm from those of another."""
    effort = sent_as(str(model.get("type")), str(model.get("name")), model["effort"])
    sampling = {key: model.get(key) for key in _OF_REQUESTS}
    fields = model.get("extra_fields")
    # Another address may have another model under the same name.
    places = [model.get("base_url"), model.get("deployments")]
    return json.dumps([effort, sampling, fields, places], sort_keys=True, default=repr)
