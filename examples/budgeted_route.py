"""Which LLM to ask for a prompt, when an answer may cost so much: the router's decision, without a server.

    python examples/budgeted_route.py

A budget between the costs of two models buys a mixture of both: then the budget holds on average over requests. Costs
are rough dollars of an answer of five hundred tokens at list prices of 2024; the strengths are the public model's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2l import P2L
from route.routing.decision import Coefficients, Decision, RoutedModel
from route.routing.router import Router

DOLLARS = {
    "llama-3.1-8b-instruct": 0.0001,
    "gemma-2-9b-it": 0.0002,
    "claude-3-haiku-20240307": 0.0007,
    "gpt-4o-2024-08-06": 0.0053,
    "claude-3-5-sonnet-20241022": 0.0078,
}
PROMPTS = (
    "Prove that 17 is prime.",
    "Write a SQL query that finds customers without an order.",
    "Which gas do plants take in for photosynthesis?",
)
BUDGETS = (0.0002, 0.002, 0.006, None)
"""Dollars that an answer may cost on average; None buys the best."""


def main(prompts: Sequence[str] = PROMPTS, budgets: Sequence[float | None] = BUDGETS) -> list[Decision]:
    """Print and return the decision for each prompt and budget."""
    model = P2L.public()
    models = [RoutedModel(name, cost) for name, cost in DOLLARS.items()]
    router = Router(models, kind=f"{model.likelihood.name}-local", rng=np.random.default_rng(0))
    prediction = model.predict(prompts)
    decisions = []
    for row, prompt in enumerate(prompts):
        coefs = dict(zip(model.model_list, prediction.coefs[row].tolist(), strict=True))
        eta = None if prediction.eta is None else float(prediction.eta[row])
        print(f"\n{prompt}")
        for budget in budgets:
            decision = router.decide(Coefficients(coefs, eta), budget)
            mixture = ", ".join(f"{name} {share:.0%}" for name, share in decision.probabilities.items())
            limit = "no limit" if budget is None else f"${budget}"
            print(f"  {limit:>9}: {mixture}; score {decision.expected_score:.2f} for ${decision.expected_cost:.4f}")
            decisions.append(decision)
    return decisions


if __name__ == "__main__":
    main()
