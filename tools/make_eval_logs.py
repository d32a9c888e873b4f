"""Make the small logs in tests/p2l/votes/logs again, by the tools: Inspect, lm-eval, DeepEval and promptfoo.

Four scripted models answer twelve sums, and for Inspect and lm-eval twelve products, which the worst at sums do best.
Run it with a Python that has `inspect_ai`, `lm_eval[api]` and `deepeval` installed, in an environment of their own;
promptfoo is run by the command named with --promptfoo.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOGS = Path(__file__).parents[1] / "tests" / "p2l" / "votes" / "logs"
SUMS = [(a, b) for a in (2, 3, 7) for b in (4, 5, 8, 9)]
_PROMPTFOO_SUMS = 6  # its results repeat much for each
SKILL = {"alpha": 11, "beta": 8, "gamma": 5, "delta": 3}  # sums that a model gets right, the first ones


def answer(model: str, number: int, *, times: bool = False) -> str:
    """Return what a model says to a sum, or with `times` to a product."""
    first = SUMS[number][0]
    skill = len(SUMS) - SKILL[model] if times else SKILL[model]
    return solution(number, times=times) if number < skill else str(first)


def solution(number: int, *, times: bool = False) -> str:
    """Return the right answer."""
    first, second = SUMS[number]
    return str(first * second if times else first + second)


def question(number: int, *, times: bool = False) -> str:
    """Return a sum, or a product, as it is asked."""
    first, second = SUMS[number]
    return f"What is {first} {'*' if times else '+'} {second}? Answer with the number."


class _Server(BaseHTTPRequestHandler):
    """Completions as OpenAI's API gives them."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        cases = [(number, times) for number in range(len(SUMS)) for times in (False, True)]
        said = {question(number, times=times): answer(body["model"], number, times=times) for number, times in cases}
        choices = [{"index": index, "text": f" {said[prompt.strip()]}"} for index, prompt in enumerate(prompts)]
        content = json.dumps(
            {"id": "1", "object": "text_completion", "model": body["model"], "choices": choices}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def make_inspect(folder: Path) -> None:
    """Evaluate the models by Inspect, a log for each model and task."""
    from inspect_ai import Task, eval  # noqa: A004
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate

    for model, times in ((model, times) for times in (False, True) for model in SKILL):
        cases = range(len(SUMS))
        samples = [Sample(input=question(n, times=times), target=solution(n, times=times), id=n + 1) for n in cases]
        task_name = "products" if times else "sums"
        task = Task(dataset=MemoryDataset(samples), solver=generate(), scorer=match(), name=task_name)
        name = f"mockllm/{model}"
        outputs = [ModelOutput.from_content(name, answer(model, n, times=times)) for n in cases]
        for output in outputs:  # else it loads a tokenizer to count tokens
            output.usage = ModelUsage(input_tokens=10, output_tokens=1, total_tokens=11)
        scripted = get_model(name, custom_outputs=outputs)
        eval(task, model=scripted, log_dir=str(folder), display="none", max_samples=1, max_connections=1)


def _write_task(work: Path, name: str) -> None:
    times = name == "products"
    cases = range(len(SUMS))
    rows = [{"question": question(n, times=times), "answer": solution(n, times=times)} for n in cases]
    (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(work / f"{name}.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "filter_list": [{"name": "strip", "filter": [{"function": "remove_whitespace"}]}],
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    (work / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")


def make_lm_eval(folder: Path) -> None:
    """Evaluate the models by lm-eval, through a server on this machine."""
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        for name in ("sums", "products"):
            _write_task(work, name)
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/completions"
        for model in SKILL:
            arguments = f"model={model},base_url={url},tokenizer_backend=none,tokenized_requests=False,num_concurrent=1"
            command = [
                sys.executable,
                "-m",
                "lm_eval",
                "run",
                "--model",
                "local-completions",
                "--model_args",
                arguments,
            ]
            command += [
                "--tasks",
                "sums,products",
                "--include_path",
                place,
                "--output_path",
                str(folder),
                "--log_samples",
            ]
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": place, "OPENAI_API_KEY": "none"}
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        server.shutdown()
        for file in folder.rglob("*"):
            if file.is_file():  # data sets are named by where they lie
                file.write_text(file.read_text(encoding="utf-8").replace(place, "/data"), encoding="utf-8")


def make_deepeval(folder: Path) -> None:
    """Evaluate the models by DeepEval with a metric that needs no judge: a file for each, as it keeps them."""
    os.environ |= {"DEEPEVAL_TELEMETRY_OPT_OUT": "YES", "DEEPEVAL_RESULTS_FOLDER": str(folder)}
    from deepeval import evaluate  # type: ignore[import-not-found]
    from deepeval.metrics import ExactMatchMetric  # type: ignore[import-not-found]
    from deepeval.test_case import LLMTestCase  # type: ignore[import-not-found]

    home = Path.cwd()
    for model in SKILL:
        cases = [
            LLMTestCase(input=question(n), actual_output=answer(model, n), expected_output=solution(n))
            for n in range(len(SUMS))
        ]
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)  # it keeps the newest run in the current folder too
            evaluate(cases, [ExactMatchMetric()], hyperparameters={"model": model})
            os.chdir(home)
        newest = max(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
        newest.rename(folder / f"{model}.json")  # their own names are times, of which two may be one
    (folder / ".test_run.lock").unlink(missing_ok=True)


def make_promptfoo(file: Path, command: str) -> None:
    """Evaluate the models by promptfoo, whose echo provider repeats what a transform then answers; as JSON and CSV."""
    tests = [
        {"vars": {"question": question(n)}, "assert": [{"type": "equals", "value": solution(n)}]}
        for n in range(_PROMPTFOO_SUMS)
    ]
    said = {model: {question(n): answer(model, n) for n in range(len(SUMS))} for model in SKILL}
    providers = [{"id": "echo", "label": model, "transform": f"({json.dumps(said[model])})[output]"} for model in SKILL]
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "promptfooconfig.json"
        config.write_text(json.dumps({"prompts": ["{{question}}"], "providers": providers, "tests": tests}))
        environment = os.environ | {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1"}
        environment["PROMPTFOO_CONFIG_DIR"] = place
        outputs = [Path(place) / "results.json", Path(place) / "results.csv"]
        flags = [flag for output in outputs for flag in ("-o", str(output))]
        # It ends with an error where an assertion failed, as some do here.
        subprocess.run(
            [*command.split(), "eval", "--no-cache", "-c", str(config), *flags],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        for output in outputs:
            text = output.read_text(encoding="utf-8").replace(place, "/data")
            file.with_suffix(output.suffix).write_text(text, encoding="utf-8")


def main() -> None:
    """Make what the flags name."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--promptfoo", default="promptfoo", help="command that runs promptfoo")
    flags.add_argument("--only", choices=["inspect", "lm-eval", "deepeval", "promptfoo"], help="make these alone")
    args = flags.parse_args()
    if args.only in (None, "inspect"):
        shutil.rmtree(LOGS / "inspect", ignore_errors=True)
        make_inspect(LOGS / "inspect")
    if args.only in (None, "lm-eval"):
        shutil.rmtree(LOGS / "lm_eval", ignore_errors=True)
        make_lm_eval(LOGS / "lm_eval")
    if args.only in (None, "deepeval"):
        shutil.rmtree(LOGS / "deepeval", ignore_errors=True)
        make_deepeval(LOGS / "deepeval")
    if args.only in (None, "promptfoo"):
        make_promptfoo(LOGS / "promptfoo.json", args.promptfoo)


if __name__ == "__main__":
    main()
