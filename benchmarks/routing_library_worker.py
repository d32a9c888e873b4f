"""Routers of `llmrouter-lib`, trained and asked as they ship, for `benchmarks.routing_library`.

    python benchmarks/routing_library_worker.py FOLDER ROUTER [ROUTER ...]

It runs in the library's environment, without this package. FOLDER holds the library's files (routing data, embeddings,
configuration); choices, seconds of training and milliseconds a decision go to FOLDER/ROUTER.json. What the library
would download or call is replaced: its encoder by the states of the folder, calls of models by nothing.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

_ROUTERS = {
    "knn": ("knnrouter", "KNNRouter", "KNNRouterTrainer"),
    "svm": ("svmrouter", "SVMRouter", "SVMRouterTrainer"),
    "mlp": ("mlprouter", "MLPRouter", "MLPTrainer"),
    "mf": ("mfrouter", "MFRouter", "MFRouterTrainer"),
    "elo": ("elorouter", "EloRouter", "EloRouterTrainer"),
    "graph": ("graphrouter", "GraphRouter", "GraphTrainer"),
    "causal": ("causallm_router", "CausalLMRouter", "CausalLMTrainer"),
}
_SINGLE = 5
"""Prompts that are asked one at a time."""


def main() -> None:
    """Train, route, and write what came of it."""
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        try:
            outcome = _routed(folder, name)
        except Exception as error:  # whatever stops a router is what the table says of it
            first = str(error).strip().partition("\n")[0]
            outcome = {"failed": f"{type(error).__name__}: {first}"[:200]}
        (folder / f"{name}.json").write_text(json.dumps(outcome), encoding="utf-8")


def _routed(folder: Path, name: str) -> dict[str, Any]:
    import numpy as np
    import torch

    torch.manual_seed(0)
    np.random.seed(0)
    module, router_class, trainer_class = _ROUTERS[name]
    package = importlib.import_module(f"llmrouter.models.{module}")
    code = importlib.import_module(f"llmrouter.models.{module}.router")
    prompts = [json.loads(line)["query"] for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    states = dict(zip(prompts, torch.load(folder / "test.pt", weights_only=True), strict=True))
    code.get_longformer_embedding = states.__getitem__
    code.call_api = lambda *_, **__: {"response": ""}
    start = time.perf_counter()
    router = getattr(package, router_class)(str(folder / f"{name}.yaml"))
    getattr(package, trainer_class)(router, device="cpu").train()
    trained = time.perf_counter()
    batch = router.route_batch([{"query": prompt} for prompt in prompts])
    asked = time.perf_counter()
    for prompt in prompts[:_SINGLE]:
        router.route_single({"query": prompt})
    return {
        "choices": [row["model_name"] for row in batch],
        "training_seconds": trained - start,
        "batch_ms": 1000 * (asked - trained) / len(prompts),
        "single_ms": 1000 * (time.perf_counter() - asked) / _SINGLE,
    }


if __name__ == "__main__":
    main()
