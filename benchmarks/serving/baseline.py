"""The baseline: a FastAPI handler that calls one transformers text-classification pipeline per request, in bfloat16.

python -m benchmarks.serving.baseline FOLDER PORT
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

__all__ = ["main"]


class Request(BaseModel):
    """The body that P2L endpoints take."""

    prompt: list[str]


def main() -> None:
    """Serve until stopped."""
    folder, port = sys.argv[1], int(sys.argv[2])
    classify: Any = transformers.pipeline(
        "text-classification",
        model=folder,
        dtype=torch.bfloat16,
        device=0 if torch.cuda.is_available() else -1,
        top_k=None,
        function_to_apply="none",
    )
    app = FastAPI()

    @app.post("/predict")
    async def predict(body: Request) -> dict[str, Any]:
        (scores,) = classify(["\n".join(body.prompt)], truncation=True, max_length=2048)
        return {"coefs": [score["score"] for score in scores]}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
